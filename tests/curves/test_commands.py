"""`scalelab fit | forecast | compare`: what they print, the keys of `--json`, plots, and exit codes."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from scalelab.cli import main
from scalelab.commands.ending import closing_lines
from scalelab.commands.run import _present
from scalelab.curves import analyse_all, read_sources
from scalelab.numbers import with_interval
from tests.helpers.curve_points import run_points, table
from tests.helpers.view_runs import made_run

ROOT = Path(__file__).parents[2]


def run_json(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict:
    assert main([*argv, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_fit_json_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "fit", table(tmp_path / "a.csv"))
    assert [(fit["run"], fit["task"]) for fit in found["fits"]] == [("a", "code"), ("a", "math")]
    fit = found["fits"][0]
    keys = {"source", "run", "task", "model", "method", "R0", "A", "B", "C_mid", "intervals", "level", "window"}
    assert keys | {"n_points", "rss", "warnings", "backtest"} <= set(fit)
    assert (fit["model"], fit["method"], fit["level"]) == ("sigmoid", "joint", 0.8)
    assert set(fit["intervals"]) == set(fit["covariance"]) == {"R0", "A", "B", "C_mid"}
    assert fit["covariance"]["A"]["B"] == fit["covariance"]["B"]["A"]
    assert fit["backtest"]["n_scored"] == 10
    assert [rate["times"] for rate in fit["rates"]] == [1, 2, 4]
    for rate in fit["rates"]:
        assert rate["interval"][0] <= rate["value"] <= rate["interval"][1]
    assert sum(fit["shapes"].values()) == pytest.approx(1)
    [pair] = found["parallel"]
    assert (pair["tasks"], pair["verdict"]) == (["code", "math"], "parallel")
    assert pair["B_interval"][0] < 1 < pair["B_interval"][1]


def test_fit_by_power_law_and_by_the_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalelab.curves.fitting.paper.ASYMPTOTES", np.array([0.6, 0.7]))
    monkeypatch.setattr("scalelab.curves.fitting.paper.MIDPOINTS", np.array([200.0, 300.0]))
    source = table(tmp_path / "a.csv", tasks=("math",))
    (power,) = run_json(capsys, "fit", source, "--method", "power", "--since", "300")["fits"]
    assert power["model"] == "power"
    assert {"A", "B", "D"} <= set(power)
    (paper,) = run_json(capsys, "fit", source, "--method", "paper")["fits"]
    assert (paper["method"], paper["A"], paper["intervals"]) == ("paper", 0.7, {})


def test_fit_prints_a_table_and_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", table(tmp_path / "a.csv", C_mid=1.5)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()[:8])) <= 80
    assert "half-budget back-test" not in out
    assert re.search(r"a: code and math: .*; ratio of B", out)
    assert "of a sigmoid's gain was seen" in out
    assert "! a · code: the window ends before the curve has bent" in out
    assert main(["fit", table(tmp_path / "a.csv", C_mid=1.5), "--wide"]) == 0
    assert "half-budget back-test" in capsys.readouterr().out


def test_a_joint_run_is_held_against_the_single_task_run_of_each_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def seeds(name: str, at: int, **asymptotes: float) -> str:
        lines = ["seed,task,compute,pass_rate"]
        for seed in range(4):
            for task, A in asymptotes.items():
                compute, points = run_points(30, noise=0.004, seed=10 * at + seed, A=A, B=2, C_mid=0.15)
                lines += [f"{seed},{task},{c},{p}" for c, p in zip(compute, points)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
        return str(tmp_path / f"{name}.csv")

    sources = seeds("joint", 0, math=0.7, code=0.55), seeds("math_only", 1, math=0.6), seeds("code_only", 2, code=0.55)
    rows = run_json(capsys, "compare", *sources)["rows"]
    assert {(task, row["run"]): row["verdict"] for task in rows for row in rows[task] if row["run"] != "joint"} == {
        ("code", "code_only"): "equal",
        ("math", "math_only"): "worse",
    }
    assert main(["compare", *sources]) == 0
    assert "the words of all 2 lines of 2 tasks hold together" in capsys.readouterr().out


def test_a_refused_curve_is_named_and_the_exit_code_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, flat = table(tmp_path / "good.csv", tasks=("math",)), tmp_path / "flat.csv"
    flat.write_text("gpu_hours,pass_rate,task\n" + "".join(f"{c},0.4,math\n" for c in range(9)))
    found = run_json(capsys, "fit", good, str(flat), code=1)
    assert [fit["run"] for fit in found["fits"]] == ["good"]
    assert "constant" in found["refused"][0]["reason"]


def test_forecast_json_and_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = table(tmp_path / "a.csv", tasks=("math",))
    found = run_json(capsys, "forecast", source, "--at", "2000", "4000", "--target", "0.6", "0.95")
    assert [one["at"] for one in found["forecasts"]] == [2000, 4000]
    for one in found["forecasts"]:
        assert {"source", "run", "task", "value", "interval", "level"} <= set(one)
        assert one["interval"][0] <= one["value"] <= one["interval"][1]
    reached, never = found["targets"]
    assert reached["compute"] > 0
    assert never["compute"] is None
    assert found["extend"][0]["gain_per_hour"] > 0
    assert main(["forecast", source, "--at", "2000", "--target", "0.95", "--wide"]) == 0
    out = capsys.readouterr().out
    assert "not reachable: the curve stays below it with" in out
    assert "as the first half forecast it and as it was measured" in out
    assert re.search(r"a  math  0\.\d+ \[0\.\d+, 0\.\d+\], measured 0\.\d+", out)


def test_one_heading_stands_over_one_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = tmp_path / "steps.csv"
    steps.write_text("step,pass_rate\n" + "".join(f"{at},{0.2 + at / 30}\n" for at in range(9)))
    own = table(tmp_path / "a.csv")
    for command in (["fit", "--plot", str(tmp_path / "fit.png")], ["forecast", "--at", "300"]):
        assert main([command[0], own, str(steps), *command[1:]]) == 1
        assert "mixed units of compute (GPU-hours in" in capsys.readouterr().err


def test_fit_prints_a_table_for_each_unit_of_compute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = tmp_path / "a_steps.csv"
    lines = Path(table(tmp_path / "a.csv", tasks=("math",))).read_text().splitlines()[1:]
    rows = [f"{float(line.split(',')[0]) / 10},{line.split(',')[1]},a,code,2000" for line in lines]
    steps.write_text("\n".join(["step,pass_rate,run,task,n", *rows]))
    assert main(["fit", str(tmp_path / "a.csv"), str(steps)]) == 0
    out = capsys.readouterr().out
    first, second = out.split("Compute in steps")[0].split("Compute in GPU-hours")
    assert "a    math" in first
    assert "code" not in first
    assert "a    code" in second
    assert "ratio of B" not in out  # of one run, but no pair of tasks


def test_any_run_can_be_the_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [table(tmp_path / f"{name}.csv", tasks=("math",), A=A) for name, A in (("base", 0.7), ("other", 0.55))]
    rows = run_json(capsys, "compare", *sources, "--baseline", "other")["rows"]["math"]
    assert {row["run"]: row["verdict"] for row in rows} == {"base": "better", "other": ""}
    flat = tmp_path / "flat.csv"
    flat.write_text("gpu_hours,pass_rate,n\n" + "".join(f"{100 * at},{0.3 + at % 2 / 100},2000\n" for at in range(11)))
    for source in sources:  # all of one task, without a name
        text = Path(source).read_text().replace("pass_rate,task,n", "pass_rate,n").replace(",math,", ",")
        Path(source).write_text(text)
    assert main(["compare", *sources, str(flat), "--baseline", "flat"]) == 1
    assert "flat has no fit here, so base is the baseline" in capsys.readouterr().out
    assert main(["compare", *sources, "--baseline", "othre"]) == 1
    assert "--baseline: no run 'othre' in the sources, which have base, other" in capsys.readouterr().err


def test_what_keeps_a_rate_from_being_measured_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = Path(table(tmp_path / "base.csv", tasks=("math",))).read_text().splitlines()
    rows = [f"{line},{seed}" for seed, stop in ((0, 21), (1, 12)) for line in whole[1 : stop + 1]]
    (tmp_path / "new.csv").write_text("\n".join([f"{whole[0]},seed", *rows]) + "\n")
    assert main(["compare", str(tmp_path / "base.csv"), str(tmp_path / "new.csv")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "new: a seed ends before 750 GPU-hours, so no rate is measured at 1,000 GPU-hours; --at takes another" in out
    assert "base: a seed ends" not in out
    gap = [line for line in whole if line.startswith("gpu") or not 500 < float(line.split(",")[0]) < 800]
    (tmp_path / "gap.csv").write_text("\n".join(gap) + "\n")
    assert main(["compare", str(tmp_path / "base.csv"), str(tmp_path / "gap.csv"), "--at", "700"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "gap: no evaluation from 525 GPU-hours on, so no rate is measured at 700 GPU-hours" in out


def test_compare_json_and_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [table(tmp_path / f"{name}.csv", tasks=("math",), A=A) for name, A in (("base", 0.7), ("worse", 0.55))]
    found = run_json(capsys, "compare", *sources)
    first, second = found["tasks"]["math"]
    assert (first["run"], first["rank"], second["run"], second["rank"]) == ("base", 1, "worse", 2)
    assert {"A", "B_at_common_A", "intervals", "beats", "covariance", "window", "warnings", "backtest"} <= set(first)
    assert first["beats"]["worse"] > 0.9
    assert first["differences"]["worse"]["verdict"] == "better"
    assert first["differences"]["worse"]["verdict_alone"] == "better"
    assert [row["verdict"] for row in found["rows"]["math"]] == ["", "worse"]
    assert main(["compare", *sources]) == 0
    out = capsys.readouterr().out
    assert "less base" in out
    assert "worse (" in out
    assert main(["compare", sources[0]]) == 1
    assert "one run only" in capsys.readouterr().err


def test_options_reach_the_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = table(tmp_path / "a.csv")
    argv = ["--task", "math", "--since", "100", "--until", "900", "--r0", "0.2", "--level", "0.5"]
    (fit,) = run_json(capsys, "fit", source, *argv, "--no-prior")["fits"]
    assert (fit["task"], fit["R0"], fit["level"]) == ("math", 0.2, 0.5)
    assert fit["window"] == [100, 900]
    assert fit["without_prior"] == {}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--task", "poetry"], "no task 'poetry' in the sources; there are: code, math"),
        (["--level", "2"], "no probability"),
        (["--column", "pass_rate"], "write it as OURS=THEIRS"),
        (["--plot", "x.bmp"], "cannot draw .bmp"),
        (["--compute-scale", "-1"], "give a positive factor"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert main(["fit", table(tmp_path / "a.csv", n=8), *argv]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_plots_are_written_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = table(tmp_path / "a.csv", tasks=("math",))
    other = table(tmp_path / "b.csv", tasks=("math",), seed=7)
    for ending, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        path = tmp_path / f"fit{ending}"
        assert main(["fit", source, "--plot", str(path)]) == 0
        assert path.read_bytes().startswith(start)
    assert main(["compare", source, other, "--plot", str(tmp_path / "efficiency.svg")]) == 0
    assert "F(R) = C^B" in (tmp_path / "efficiency.svg").read_text()
    assert main(["forecast", source, "--at", "9000", "--plot", str(tmp_path / "forecast.pdf")]) == 0
    capsys.readouterr()


def test_seeds_of_one_recipe_are_no_rivals(capsys: pytest.CaptureFixture[str]) -> None:
    quickstart = Path(__file__).parents[2] / "docs" / "quickstart"
    assert main(["compare", str(quickstart / "seed0"), str(quickstart / "seed1")]) == 1
    assert "seed0, seed1 are seeds of one recipe, not rivals" in capsys.readouterr().err


def test_an_evaluation_that_falls_out_of_the_curve_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(table(tmp_path / "a.csv", tasks=("math",)))
    lines = path.read_text().splitlines()
    cells = lines[15].split(",")
    path.write_text("\n".join([*lines[:15], ",".join([cells[0], "0.40", *cells[2:]]), *lines[16:]]) + "\n")
    (fit,) = run_json(capsys, "fit", str(path))["fits"]
    (outlier,) = fit["outliers"]
    assert (outlier["compute"], outlier["pass_rate"]) == (float(cells[0]), 0.40)
    assert any("falls out of the curve: 0.400 where" in warning for warning in fit["warnings"])


def test_a_compute_given_twice_is_refused_instead_of_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["compare", "a.csv", "b.csv"], ["law", "a.csv", "--axis", "batch"]):
        with pytest.raises(SystemExit):
            main([*command, "--at", "500", "--at", "800"])
        assert "--at: it is given twice" in capsys.readouterr().err


def test_a_pass_rate_that_a_curve_never_has_takes_no_compute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [table(tmp_path / f"{name}.csv", seed=seed, tasks=("math",)) for seed, name in enumerate("xy")]
    assert main(["compare", *sources, "--reach", "0.9"]) == 0
    out = capsys.readouterr().out
    assert "×" not in out


def test_a_pass_rate_that_is_asked_for_is_answered_without_more_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [table(tmp_path / f"{name}.csv", seed=seed, tasks=("math",)) for seed, name in enumerate("xy")]
    assert main(["compare", *sources]) == 0
    assert "compute to" not in capsys.readouterr().out
    assert main(["compare", *sources, "--reach", "0.4"]) == 0
    out = capsys.readouterr().out
    assert "compute to 0.40" in out
    assert len(re.findall(r"^y .*×\d", out, re.MULTILINE)) == 1


def test_a_spread_is_learnt_only_from_runs_that_tell_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [table(tmp_path / f"{name}.csv", seed=seed, tasks=("math",), n=8) for seed, name in enumerate("xy")]
    assert main(["compare", *sources, "--spread-from", sources[0]]) == 1
    assert "have one seed each" in capsys.readouterr().err
    (tmp_path / "flat.csv").write_text("gpu_hours,pass_rate\n" + "".join(f"{c},0.4\n" for c in range(9)))
    assert main(["compare", *sources, "--spread-from", str(tmp_path / "flat.csv")]) == 1
    assert "none of its runs carries a fit" in capsys.readouterr().err
    assert main(["compare", *sources, "--seed-spread", "0"]) == 0
    assert "as long as seeds spread" not in capsys.readouterr().out


@pytest.mark.slow
def test_pilot_runs_without_a_task_tell_the_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["gpu_hours,pass_rate,seed,n"]
    for seed in range(2):
        compute, points = run_points(10, noise=0.005, seed=seed, A=0.68 + 0.03 * seed)
        lines += [f"{c},{p},{seed},2000" for c, p in zip(compute, points)]
    (tmp_path / "pilots.csv").write_text("\n".join(lines))
    (tmp_path / "again.csv").write_text("\n".join(lines))
    pilots = [str(tmp_path / "pilots.csv"), str(tmp_path / "again.csv")]
    found = run_json(capsys, "compare", *pilots)
    assert found["spread"][""]["measured"]
    found = run_json(capsys, "design", pilots[0], "--seeds", "2", "--evaluations", "10")
    assert found["tasks"][0]["designs"][0]["spread"] > 0


def test_numbers_for_readers_are_never_below_zero_by_rounding() -> None:
    assert with_interval(-1e-5, (-0.011, 0.010)) == "0.000 [-0.011, 0.010]"
    assert with_interval(0.0, (0.0, 0.0)) == "0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "key"),
    [
        (["fit"], "fits"),
        (["forecast", "--at", "2"], "forecasts"),
        (["compare"], "tasks"),
        (["report", "--markdown"], None),
    ],
)
def test_hours_that_no_real_device_spent_are_called_those_of_a_simulated_cluster(
    argv: list[str], key: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for clock in ("virtual", "wall"):
        for name in ("a", "b"):
            folder = made_run(tmp_path / clock / name, tasks=("math",), loss=name, rollouts=False)
            manifest = json.loads((folder / "manifest.json").read_text())
            (folder / "manifest.json").write_text(json.dumps(manifest | {"clock": clock}))
        asked = [argv[0], *(str(tmp_path / clock / name) for name in ("a", "b")), *argv[1:]]
        assert main(asked) == 0
        assert ("of a simulated cluster" in capsys.readouterr().out) == (clock == "virtual")
        if key is not None:
            found = run_json(capsys, *asked)[key]
            entries = found["math"] if key == "tasks" else found
            assert {entry["clock"] for entry in entries} == {clock}


def test_a_log_that_names_no_unit_has_none_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = Path(table(tmp_path / "named.csv", tasks=("math",)))
    plain = tmp_path / "plain.csv"
    plain.write_text(named.read_text().replace("gpu_hours", "compute"))
    for source, said in ((named, "Compute in GPU-hours; "), (plain, "Compute as in the log; ")):
        assert main(["fit", str(source)]) == 0
        out = capsys.readouterr().out
        assert said in out
        assert "Compute in compute" not in out


def test_the_closing_line_of_a_curve_without_a_limit_tells_the_farthest_forecast() -> None:
    curves = read_sources([ROOT / "docs/study/two/runs/many_k4"])
    analyses, refused = analyse_all(curves)
    math = next(item for item in analyses if item.fit.curve.task == "math")
    far = math.rates()[-1]
    assert not math.stands
    assert far.times == 4
    low, high = far.interval
    said = f"4 times the compute would bring {far.value:.3f} ({low:.3f} to {high:.3f})"
    assert any(said in line for line in closing_lines(curves, analyses, refused))


def points_log(path: Path, seed: int, late: float, C_mid: float) -> str:
    """Twenty evaluations up to 30,000 GPU-hours, of a run that rises once more behind 60 % of them."""
    compute, points = run_points(20, 0.02, seed, A=0.75, C_mid=C_mid)
    points = np.clip(points + late * (compute > 0.6), 0, 1)
    rows = [f"{30_000 * c},{p},0.02" for c, p in zip(compute, points)]
    path.write_text("\n".join(["gpu_hours,pass_rate,stderr", *rows]) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("C_mid", "word", "levelled"),
    [(0.12, "it is unclear whether that is worth it", False), (0.03, "not worth it", True)],
)
def test_a_run_is_said_to_have_levelled_off_only_where_forecast_says_that_more_is_not_worth_it(
    C_mid: float, word: str, levelled: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = points_log(tmp_path / "a.csv", 5, 0.0, C_mid)
    assert main(["forecast", source]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert word in said
    curves = read_sources([source])
    [line] = closing_lines(curves, *analyse_all(curves))
    assert ("has levelled off at" in line) == levelled
    assert line.partition("twice the compute would ")[2].removesuffix(".") in said


def test_a_remark_on_the_likeliest_curve_does_not_contradict_the_interval_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The likeliest sigmoid of a run that rises once more has A = 1, and its draws do not."""
    assert main(["fit", points_log(tmp_path / "a.csv", 0, 0.15, 0.3)]) == 0
    out = capsys.readouterr().out
    assert "! a: the likeliest curve has A at its upper bound" in out
    assert "A sits" not in out


def test_compute_that_a_target_still_takes_is_written_as_all_other_compute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = points_log(tmp_path / "a.csv", 5, 0.0, 0.9)
    [goal] = run_json(capsys, "forecast", source, "--target", "0.6")["targets"]
    assert goal["compute"] > 40_000
    assert goal["reading"] == f"{goal['compute'] - 30_000:,.0f} GPU-hours more"


@pytest.mark.parametrize("target", [0.45, 0.6, 0.7])
def test_a_second_rise_has_the_target_s_pass_rate_at_the_target_s_compute(
    target: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = points_log(tmp_path / "a.csv", 3, 0.15, 0.3)
    [goal] = run_json(capsys, "forecast", source, "--target", str(target))["targets"]
    [there] = run_json(capsys, "forecast", source, "--at", str(goal["compute"]))["forecasts"]
    assert there["value"] == pytest.approx(target, abs=3e-4)


def test_fit_prints_the_parameters_that_a_narrow_terminal_has_room_for_and_r0_where_it_is_wide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = table(tmp_path / "a.csv", tasks=("math",))
    for options, names in (([], "A +B +C_mid"), (["--wide"], "R0 +A +B +C_mid +points")):
        assert main(["fit", source, *options]) == 0
        assert re.search(rf"^run +task +{names}", capsys.readouterr().out, re.MULTILINE)


def test_what_is_printed_is_broken_between_words_on_a_narrow_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = table(tmp_path / "a.csv", tasks=("math",))
    flat = tmp_path / "flat.csv"
    flat.write_text("gpu_hours,pass_rate\n" + "".join(f"{at},{0.3 + 0.002 * (-1) ** at}\n" for at in range(9)))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    main(["decide", source, str(flat), "--budget", "100"])
    said = capsys.readouterr().out
    assert "! refused: flat" in said
    assert max(map(len, said.splitlines())) <= 60


def test_the_end_of_a_run_says_once_why_a_curve_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_run(tmp_path / "run", rollouts=False)
    lines = (run / "evals.jsonl").read_text().splitlines(keepends=True)
    (run / "evals.jsonl").write_text("".join(lines[:4]))
    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / "cache"))
    _present(argparse.Namespace(json=False), mock.Mock(), run)
    said = capsys.readouterr().out
    assert "no curve: " in said
    assert said.count("the sigmoid curve needs at least") == len({json.loads(line)["task"] for line in lines[:4]})
