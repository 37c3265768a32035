"""Sources: every format gives the same curves, and bad values are named with file, row and column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.cli import main
from scalelab.curves import curve, fit, pool, read_sources
from scalelab.curves.fitting.joint import select_window
from scalelab.errors import LabError
from scalelab.reading.branches import copies
from scalelab.reading.curve import binomial_stderr
from scalelab.reading.sources import distinct_names
from scalelab.view.discover import find_runs
from tests.helpers.view_runs import made_run

ROWS = [(0.0, 0.2), (10.0, 0.3), (20.0, 0.4), (30.0, 0.5)]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def write_run(folder: Path, records: Iterable[Mapping[str, Any]], manifest: Mapping[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evals.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if manifest is not None:
        (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def evaluation(step: int, compute: float, rate: float, task: str = "math") -> dict[str, Any]:
    return {
        "step": step, "version": step, "compute": compute, "compute_unit": "core-hours", "task": task,
        "compute_by_role": {"generator": compute / 2, "trainer": compute / 2, "evaluation": 0.0},
        "n_prompts": 50, "k": 4, "pass_rate": rate, "stderr": 0.03, "truncated": 0.0, "interrupted": 0.0,
        "outcomes": {"passed": int(200 * rate), "failed": 200 - int(200 * rate)}, "mean_length": 40.0,
    }  # fmt: skip


def test_csv_jsonl_and_parquet_give_the_same_curve(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    records = [{"gpu_hours": c, "pass_rate": r, "task": "code", "n": 100} for c, r in ROWS]
    lines = "\n".join(f"{c},{r},code,100" for c, r in ROWS)
    sources = [
        write(tmp_path / "a.csv", f"gpu_hours,pass_rate,task,n\n{lines}\n"),
        write(tmp_path / "b.jsonl", "\n".join(map(json.dumps, records))),
        tmp_path / "c.parquet",
    ]
    parquet.write_table(pyarrow.Table.from_pylist(records), sources[2])
    curves = read_sources(sources)
    assert [item.run for item in curves] == ["a", "b", "c"]
    for item in curves:
        assert (item.task, item.unit) == ("code", "GPU-hours")
        np.testing.assert_array_equal(item.compute_N, [c for c, _ in ROWS])
        np.testing.assert_array_equal(item.pass_rate_N, [r for _, r in ROWS])
        assert item.stderr_N is not None
        np.testing.assert_allclose(item.stderr_N, [binomial_stderr(r, 100) for _, r in ROWS])


def test_a_run_folder_gives_one_curve_per_task(tmp_path: Path) -> None:
    records = [evaluation(s, s / 10, 0.2 + s / 100, task) for s in (0, 10, 20) for task in ("math", "code")]
    curves = read_sources([write_run(tmp_path / "first", records)])
    assert [(item.run, item.task, len(item), item.unit) for item in curves] == [
        ("first", "code", 3, "core-hours"),
        ("first", "math", 3, "core-hours"),
    ]
    assert curves[0].compute_N[0] == 0


def test_a_torn_last_line_is_left_out_with_a_note(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [evaluation(0, 0, 0.2), evaluation(10, 1, 0.3)])
    with open(folder / "evals.jsonl", "a") as file:
        file.write('{"step": 20, "compu')
    (item,) = read_sources([folder])
    assert len(item) == 2
    assert any("torn" in note for note in item.notes)


def test_what_a_resumed_run_repeats_replaces_what_was_lost(tmp_path: Path) -> None:
    records = [evaluation(0, 0, 0.2), evaluation(10, 1.0, 0.3), evaluation(20, 2.0, 0.9), evaluation(10, 1.5, 0.35)]
    (item,) = read_sources([write_run(tmp_path / "run", records)])
    np.testing.assert_array_equal(item.compute_N, [0, 1.5])
    np.testing.assert_array_equal(item.pass_rate_N, [0.2, 0.35])


def test_the_first_epoch_is_known_from_a_column(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "compute,pass_rate,epoch\n0,0.1,0\n1,0.2,0.5\n2,0.3,1.0\n3,0.4,1.5\n")
    assert read_sources([table])[0].epoch_end == 2.0


def test_seeds_by_column_and_by_pooling(tmp_path: Path) -> None:
    text = "compute,pass_rate,seed\n" + "".join(f"{c},{r + 0.01 * s},{s}\n" for s in (0, 1) for c, r in ROWS)
    (item,) = read_sources([write(tmp_path / "s.csv", text)])
    assert item.seeds == ("0", "1")
    assert item.seed_N.tolist() == [0, 1] * 4
    lines = ["compute,pass_rate\n" + "".join(f"{c},{r + more}\n" for c, r in ROWS) for more in (0.0, 0.01)]
    both = read_sources([write(tmp_path / f"{name}.csv", text) for name, text in zip("xy", lines)])
    (pooled,) = pool(both, "recipe")
    assert (pooled.run, pooled.seeds, len(pooled)) == ("recipe", ("x", "y"), 8)


def test_columns_are_mapped_scaled_and_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "steps,acc,comment\n1,0.1,a\n2,0.2,b\n")
    (item,) = read_sources([path], {"compute": "steps", "pass_rate": "acc"}, compute_scale=13.5, unit="GPU-hours")
    assert item.unit == "GPU-hours"
    np.testing.assert_allclose(item.compute_N, [13.5, 27.0])


def test_sources_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "evals.csv", "compute,pass_rate\n1,0.1\n2,0.2\n")
    curves = read_sources([tmp_path / "a/evals.csv", tmp_path / "b/evals.csv"])
    assert [item.run for item in curves] == ["a/evals", "b/evals"]


def test_a_table_is_read_although_columns_that_nobody_reads_share_a_name_or_are_empty(tmp_path: Path) -> None:
    text = "compute,pass_rate,n,stderr,loss,loss\n" + "".join(f"{at},{20 + at}%,100,,1,2\n" for at in range(5))
    [item] = read_sources([write(tmp_path / "run.csv", text)])
    assert item.pass_rate_N.tolist() == pytest.approx([0.2, 0.21, 0.22, 0.23, 0.24])


def test_of_evaluations_at_one_compute_the_latest_step_counts(tmp_path: Path) -> None:
    lines = [(0, 0.0, 0.1), (5, 1.0, 0.2), (10, 2.0, 0.3), (11, 2.0, 0.4)]
    text = "".join(json.dumps({"step": s, "compute": c, "pass_rate": p}) + "\n" for s, c, p in lines)
    [item] = read_sources([write(tmp_path / "run.jsonl", text)])
    assert item.compute_N.tolist() == [0.0, 1.0, 2.0]
    assert item.pass_rate_N.tolist() == [0.1, 0.2, 0.4]
    assert "left out: 1 at the same compute as a later step" in item.notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("compute,pass_rate\n1,0.1\nnan,0.2\n", r"bad.csv, row 3, column compute: nan is not a number"),
        ("compute,pass_rate\n1,0.1\n-2,0.2\n", r"row 3, column compute: -2 is negative"),
        ("compute,pass_rate\n1,0.1\n1e300,0.2\n", r"row 3, column compute: 1e\+300 is no compute; give it in a unit"),
        ("compute,pass_rate\n1e-320,0.1\n1,0.2\n", r"row 2, column compute: 9.99989e-321 is no compute"),
        ("compute,pass_rate\n1,45.3\n", r"row 2, column pass_rate: 45.3 lies outside \[0, 1\]; divide percentages"),
        ("compute,pass_rate\n1,2.1\n", r"row 2, column pass_rate: 2.1 lies outside \[0, 1\]; divide percentages"),
        ("compute,pass_rate\n1,2.0\n", r"pass_rate: 2 lies outside \[0, 1\]; of a score say what counts as 1"),
        ("gpu_hours,pass_rate\n1,0.1\n-1,0.2\n", r"row 3, column gpu_hours: -1 is negative"),
        ("compute,pass_rate\n1,abc\n", r"row 2, column pass_rate: 'abc' is not a number"),
        ("compute,pass_rate\n1,\n", r"no evaluations in it yet"),
        ("compute,pass_rate\n,0.1\n", r"row 2, column compute: empty"),
        ("compute,pass_rate\n1,0.1\n2,0.2\n1,0.3\n", r"row 4, column compute: 1 is in row 2 too"),
        ("compute,pass_rate\n1,0.1\n2,0.2\n2,0.3\n", r"row 4, column compute: 2 is in row 3 too"),
        ("compute,rate\n1,0.1\n", r"no column for pass_rate; it has compute, rate; map one"),
        ("kl,pass_rate\n1,0.1\n", r"no column for compute; it has kl, pass_rate; map one"),
        ("gpu_hours,core_hours,pass_rate\n1,2,0.1\n", r"mixed units, both gpu_hours and core_hours"),
        ("compute,pass_rate,compute_unit\n1,0.1,h\n2,0.2,s\n", r"row 3, column compute_unit: mixed units, s after h"),
        ("compute,pass_rate,n\n1,0.1,0\n", r"row 2, column n: 0 is not positive"),
        ("compute,pass_rate,stderr\n1,0.1,-1\n", r"row 2, column stderr: -1 is not positive"),
        ("compute,pass_rate,stderr\n1,0.1,1.1\n", r"row 2, column stderr: 1.1 is no standard error of a rate"),
        ("compute,pass_rate,stderr\n1,28.0%,1.1\n", r"pass_rate has percent signs and stderr has none: write both"),
        ("compute,pass_rate,pass_rate\n1,0.1,0.2\n", r"two columns are called 'pass_rate': give each a name"),
        ("compute,pass_rate\n1,0.1,7\n", r"row 2: 3 fields under 2 columns"),
        ("compute,pass_rate\n", r"no evaluations in it yet"),
    ],
)
def test_bad_tables_are_refused_naming_row_and_column(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(LabError, match=message):
        read_sources([write(tmp_path / "bad.csv", text)])


def test_bad_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("compute,pass_rate,task\n1,0.1,café\n".encode("latin-1"))
    with pytest.raises(LabError, match="row 2: byte 0xe9 is not UTF-8"):
        read_sources([tmp_path / "latin.csv"])
    with pytest.raises(LabError, match="no such file"):
        read_sources([tmp_path / "missing.csv"])
    with pytest.raises(LabError, match="unknown kind of file"):
        read_sources([write(tmp_path / "x.xls", "")])
    with pytest.raises(LabError, match=r"neither evals.jsonl nor .* TensorBoard"):
        read_sources([tmp_path])
    with pytest.raises(LabError, match="line 1: not a JSON object"):
        read_sources([write(tmp_path / "x.jsonl", "{\n{}\n")])
    with pytest.raises(LabError, match="no such column; the columns are"):
        read_sources([write(tmp_path / "x.csv", "compute,pass_rate\n1,0.1\n")], {"reward": "x"})
    pytest.importorskip("pyarrow")
    with pytest.raises(LabError, match="not a Parquet file"):
        read_sources([write(tmp_path / "x.parquet", "compute")])


def test_an_unsorted_table_is_sorted_with_a_note(tmp_path: Path) -> None:
    (item,) = read_sources([write(tmp_path / "t.csv", "compute,pass_rate\n2,0.2\n1,0.1\n3,0.3\n")])
    assert item.compute_N.tolist() == [1, 2, 3]
    assert any("unsorted: row 3, column compute" in note for note in item.notes)


def test_a_log_that_goes_a_part_of_its_way_again_was_resumed_and_a_single_late_evaluation_was_not(
    tmp_path: Path,
) -> None:
    def read(steps: list[int]) -> tuple[list[float], str]:
        lines = "".join(f"{step},{0.1 + 0.001 * place}\n" for place, step in enumerate(steps))
        (item,) = read_sources([write(tmp_path / "t.csv", "step,pass_rate\n" + lines)])
        return item.compute_N.tolist(), " ".join(item.notes)

    kept, notes = read([10, 20, 30, 40, 50, 60, 35, 45, 55, 65])
    assert kept == [10, 20, 30, 35, 45, 55, 65]
    assert "resumed at step 35: 3 evaluations of the part that was lost left out" in notes
    kept, notes = read([10, 20, 30, 50, 40, 60, 70, 80])
    assert kept == [10, 20, 30, 40, 50, 60, 70, 80]
    assert "unsorted" in notes
    with pytest.raises(LabError, match=r"row 9, column step: the log starts again at 15; tell two runs apart by"):
        read([10, 20, 30, 40, 50, 60, 70, 15, 25, 35, 45, 55, 65])


def test_different_units_do_not_mix(tmp_path: Path) -> None:
    curves = read_sources([
        write(tmp_path / "a.csv", "gpu_hours,pass_rate\n1,0.1\n"),
        write(tmp_path / "b.csv", "core_hours,pass_rate\n1,0.1\n"),
    ])  # fmt: skip
    with pytest.raises(LabError, match=r"mixed units of compute \(GPU-hours in .*core-hours in"):
        pool(curves, "x")


def test_hours_of_a_simulated_clock_do_not_mix_with_those_of_real_devices(tmp_path: Path) -> None:
    for clock in ("virtual", "wall"):
        (tmp_path / clock).mkdir()
        write(tmp_path / clock / "evals.jsonl", '{"compute": 1, "pass_rate": 0.1, "compute_unit": "GPU-hours"}\n')
        write(tmp_path / clock / "manifest.json", json.dumps({"clock": clock}))
    curves = read_sources([tmp_path / "virtual", tmp_path / "wall"])
    with pytest.raises(LabError, match=r"hours of different clocks \(virtual in .*; wall in .*\) cannot be compared"):
        pool(curves, "x")


def test_wandb_chart_and_history_exports(tmp_path: Path) -> None:
    chart = (
        '"Step","one - eval/pass_rate","one - eval/pass_rate__MIN","one - eval/pass_rate__MAX",'
        '"two - eval/pass_rate","two - eval/pass_rate__MIN","two - eval/pass_rate__MAX"\n'
        '"0","0.1","0.1","0.1","","",""\n"10","0.2","0.2","0.2","0.3","0.3","0.3"\n'
    )
    curves = read_sources([write(tmp_path / "chart.csv", chart)], {"compute": "step"}, compute_scale=2.0)
    assert [(item.run, item.compute_N.tolist(), item.pass_rate_N.tolist()) for item in curves] == [
        ("one", [0, 20], [0.1, 0.2]),
        ("two", [20], [0.3]),
    ]
    history = "_step,gpu_hours,loss,eval/math/acc,eval/code/acc\n0,0,1.0,0.1,0.2\n1,1,0.9,,\n2,2,0.8,0.3,0.4\n"
    curves = read_sources([write(tmp_path / "h.csv", history)], {"pass_rate": "eval/*/acc"})
    assert [(item.task, item.compute_N.tolist(), item.unit) for item in curves] == [
        ("code", [0, 2], "GPU-hours"),
        ("math", [0, 2], "GPU-hours"),
    ]
    assert [item.unit for item in read_sources([write(tmp_path / "c.csv", chart)])] == ["steps", "steps"]
    counted = history.replace("loss", "n").replace("1.0", "50").replace("0.8", "50")
    for item in read_sources([write(tmp_path / "h.csv", counted)], {"pass_rate": "eval/*/acc", "n": "n"}):
        assert item.stderr_N is not None
        np.testing.assert_allclose(item.stderr_N, [binomial_stderr(r, 50) for r in item.pass_rate_N])
    with pytest.raises(LabError, match="row 4, column eval/math/acc: 30 lies outside"):
        read_sources([write(tmp_path / "h.csv", history.replace("0.3", "30"))], {"pass_rate": "eval/*/acc"})


def test_compute_that_wandb_logged_apart_is_the_last_before_the_evaluation(tmp_path: Path) -> None:
    history = "_step,gpu_hours,eval/pass_rate\n0,0,\n0,,0.1\n1,1.5,\n2,,0.3\n3,2.5,\n"
    (item,) = read_sources([write(tmp_path / "h.csv", history)])
    assert (item.compute_N.tolist(), item.pass_rate_N.tolist()) == ([0, 1.5], [0.1, 0.3])


def test_a_table_with_a_step_column_of_wandb_is_still_a_table(tmp_path: Path) -> None:
    (item,) = read_sources([write(tmp_path / "t.csv", "_step,compute,pass_rate,task,n\n0,1,0.1,math,100\n")])
    assert item.stderr_N is not None
    assert (item.task, item.stderr_N.tolist()) == ("math", [binomial_stderr(0.1, 100)])


def test_tensorboard_events(tmp_path: Path) -> None:
    summary = pytest.importorskip("tensorboard.summary")
    writer = summary.Writer(str(tmp_path / "tb"))
    for step in range(5):
        writer.add_scalar("perf/gpu_hours", 3.0 * step, step)
        if step % 2 == 0:
            writer.add_scalar("eval/math/pass_rate", 0.1 + 0.1 * step, step)
            writer.add_scalar("eval/math/samples", 100, step)
    writer.close()
    (item,) = read_sources([tmp_path / "tb"])
    assert (item.run, item.task, item.unit) == ("tb", "math", "GPU-hours")
    np.testing.assert_allclose(item.compute_N, [0, 6, 12])
    np.testing.assert_allclose(item.pass_rate_N, [0.1, 0.3, 0.5], atol=1e-6)
    (by_step,) = read_sources([tmp_path / "tb"], {"compute": "step"}, compute_scale=0.5)
    np.testing.assert_allclose(by_step.compute_N, [0, 1, 2])
    with pytest.raises(LabError, match="no column 'accuracy' for pass_rate; it has step, perf/gpu_hours"):
        read_sources([tmp_path / "tb"], {"pass_rate": "accuracy"})
    (weighed,) = read_sources([tmp_path / "tb"], {"pass_rate": "eval/*/pass_rate", "n": "eval/*/samples"})
    assert weighed.stderr_N is not None
    np.testing.assert_allclose(weighed.stderr_N, [binomial_stderr(r, 100) for r in (0.1, 0.3, 0.5)], atol=1e-6)
    with pytest.raises(LabError, match="no column 'size' for n; it has step, perf"):
        read_sources([tmp_path / "tb"], {"pass_rate": "eval/*/pass_rate", "n": "size"})
    with pytest.raises(LabError, match="no column 'seed' for seed; it has step, perf"):
        read_sources([tmp_path / "tb"], {"seed": "seed"})


RATES = (0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.62)


def rising(scale: float = 1.0) -> list[dict[str, Any]]:
    return [evaluation(10 * i, scale * i, rate) for i, rate in enumerate(RATES)]


def test_a_folder_of_runs_is_its_runs_with_the_seeds_of_each_pooled(tmp_path: Path) -> None:
    for member, seed in (("loss", 0), ("loss", 1), ("norm", 0)):
        write_run(tmp_path / "family" / member / f"seed_{seed}", rising(1 + seed / 10), {"seed": seed})
    write_run(tmp_path / "family" / "begun" / "seed_0", [])
    write_run(tmp_path / "baseline", rising())
    loss, norm, baseline = read_sources([tmp_path / "family", tmp_path / "baseline"])
    assert [(item.run, len(item.seeds), len(item)) for item in (loss, norm, baseline)] == [
        ("loss", 2, 14),
        ("norm", 1, 7),
        ("baseline", 1, 7),
    ]
    assert [item.run for item in read_sources([tmp_path / "family" / "loss" / "seed_1"])] == ["seed_1"]


def test_members_of_one_name_in_two_families_are_told_apart(tmp_path: Path) -> None:
    for family in ("small", "large"):
        write_run(tmp_path / family / "loss", rising())
    assert [item.run for item in read_sources([tmp_path / "small", tmp_path / "large"])] == ["small/loss", "large/loss"]


def test_the_fit_window_of_a_run_counts_where_none_is_given(tmp_path: Path) -> None:
    (item,) = read_sources([write_run(tmp_path / "run", rising(), {"fit_window": [2.0, 5.0]})])
    points, rule = select_window(item, None, None)
    assert points.compute_N.tolist() == [0, 2, 3, 4, 5]
    assert "experiment" in rule
    assert select_window(item, 3.0, None)[0].compute_N.tolist() == [0, 3, 4, 5]
    assert select_window(item, 0.0, np.inf)[0].compute_N.tolist() == [0, 1, 2, 3, 4, 5, 6]
    (in_days,) = read_sources([tmp_path / "run"], compute_scale=24.0)
    assert in_days.fit_window == (48.0, 120.0)


def test_semicolons_tabs_and_json_are_read(tmp_path: Path) -> None:
    records = [{"compute": c, "pass_rate": r} for c, r in ROWS]
    sources = [
        write(tmp_path / "a.csv", "compute;pass_rate\n" + "".join(f"{c};{r}\n" for c, r in ROWS)),
        write(tmp_path / "b.tsv", "compute\tpass_rate\n" + "".join(f"{c}\t{r}\n" for c, r in ROWS)),
        write(tmp_path / "c.json", json.dumps(records)),
        write(tmp_path / "d.json", json.dumps({"compute": [c for c, _ in ROWS], "pass_rate": [r for _, r in ROWS]})),
    ]
    for item in read_sources(sources):
        assert item.pass_rate_N.tolist() == [r for _, r in ROWS]
    with pytest.raises(LabError, match="differ in length"):
        read_sources([write(tmp_path / "e.json", '{"compute": [1], "pass_rate": [0.1, 0.2]}')])


def test_percentages_and_rewards_are_brought_to_rates(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", "compute,pass_rate,stderr\n1,10,2\n2,30,2\n")
    (item,) = read_sources([path], rate_range=(0, 100))
    assert item.pass_rate_N.tolist() == [0.1, 0.3]
    assert item.stderr_N is not None
    assert item.stderr_N.tolist() == [0.02, 0.02]
    (item,) = read_sources([write(tmp_path / "r.csv", "compute,pass_rate\n1,-1\n2,0.5\n")], rate_range=(-1, 1))
    assert item.pass_rate_N.tolist() == [0.0, 0.75]
    with pytest.raises(LabError, match="give the lower first"):
        read_sources([path], rate_range=(1, 0))


def test_gaps_in_a_wide_table_belong_to_its_other_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "w.csv", "Step,one,two\n0,0.1,NaN\n1,,0.2\n2,0.3,0.4\n")
    (item,) = read_sources([path], {"compute": "Step", "pass_rate": "one"})
    assert item.pass_rate_N.tolist() == [0.1, 0.3]


def test_columns_that_wandb_adds_to_a_chart_are_no_tasks(tmp_path: Path) -> None:
    text = '"Step","one - acc","one - acc__MIN","one - acc__MAX","one - _step","one - _step__MIN","one - _step__MAX"\n'
    path = write(
        tmp_path / "chart.csv", text + '"0","0.1","0.1","0.1","0","0","0"\n"1","0.2","0.2","0.2","1","1","1"\n'
    )
    (item,) = read_sources([path], {"compute": "Step"})
    assert (item.run, item.task, item.pass_rate_N.tolist()) == ("one", "", [0.1, 0.2])


def test_any_axis_of_a_run_can_be_compute(tmp_path: Path) -> None:
    records = [{**evaluation(s, s / 10, 0.2 + s / 100), "completions": 64 * s} for s in (0, 10, 20)]
    (item,) = read_sources([write_run(tmp_path / "run", records, {"clock": "virtual"})], {"compute": "completions"})
    assert item.compute_N.tolist() == [0, 640, 1280]
    assert (item.clock, item.unit) == ("virtual", "completions")


def test_a_data_frame_goes_in_and_comes_out() -> None:
    import pandas

    compute = np.arange(20) / 2
    table = pandas.DataFrame(
        {"compute": compute, "pass_rate": 0.3 + 0.4 * compute / (1 + compute), "stderr": 0.01, "seed": "a", "other": 1}
    )
    found = fit(table)
    frame = found.to_frame()
    assert list(frame.columns) == ["value", "low", "high"]
    assert set(frame.index) == {"R0", "A", "B", "C_mid"}
    assert (frame["low"] <= frame["value"]).all()
    assert frame.loc["A", "value"] == found.params["A"]
    assert pandas.DataFrame(found.predict([20, 40]))["compute"].tolist() == [20.0, 40.0]
    with pytest.raises(LabError, match="no pass_rate to fit"):
        fit(table.drop(columns="pass_rate"))
    hours = fit(table.rename(columns={"compute": "gpu_hours"}).drop(columns="stderr").assign(n=100)).fit.curve
    assert hours.unit == "GPU-hours"
    assert hours.stderr_N is not None
    with pytest.raises(LabError, match="the table holds several curves"):
        fit(pandas.concat([table.assign(task=name) for name in ("math", "code")]))
    with pytest.raises(LabError, match="table, row 1, column pass_rate: 'high' is not a number"):
        fit(table.assign(pass_rate="high"))


@pytest.mark.parametrize("hostile", [None, "high", 10**400, [0.1]])
def test_lists_of_anything_else_than_numbers_are_refused_in_one_line(hostile: Any) -> None:
    with pytest.raises(LabError, match=r"run, row 3, column pass_rate: .{1,70} is not a number") as found:
        fit([0, 1, 2, 3, 4], [0.1, 0.2, hostile, 0.4, 0.5])
    assert "\n" not in str(found.value)
    with pytest.raises(LabError, match="give one number for each evaluation"):
        fit([0, 1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4, 0.5], 0.01)  # type: ignore[arg-type]  # one for all


@pytest.mark.parametrize("hostile", [["math"], {"a": 1}, None, 3, "1e400"])
def test_cells_of_any_kind_are_read_or_refused_in_one_line(tmp_path: Path, hostile: object) -> None:
    for column in ("task", "run", "seed", "step", "compute", "pass_rate", "n", "k", "stderr", "epoch", "batch"):
        rows = [{"compute": at, "pass_rate": 0.3 + at / 50, "step": at, "task": "math"} for at in range(8)]
        for row in rows:
            row[column] = hostile
        folder = tmp_path / column
        folder.mkdir()
        (folder / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        refused = ""
        try:
            read_sources([folder])
        except LabError as error:
            refused = str(error)
        assert "\n" not in refused


def test_a_lone_star_takes_every_column_but_that_of_compute(tmp_path: Path) -> None:
    source = write(tmp_path / "wide.csv", "Step,a,b\n" + "".join(f"{10 * i},{i / 9},{i / 10}\n" for i in range(9)))
    found = read_sources([source], {"compute": "Step", "pass_rate": "*"})
    assert sorted(item.task for item in found) == ["a", "b"]


def test_a_star_takes_the_columns_of_a_wide_table_for_tasks_and_leaves_gaps_out(tmp_path: Path) -> None:
    lines = ["Step,eval/math,eval/code", "0,0.2,0.1", "10,NaN,0.2", "20,0.4,", "30,0.5,0.4", "40,0.55,0.45"]
    source = write(tmp_path / "wide.csv", "\n".join(lines))
    code, math = sorted(read_sources([source], {"compute": "Step", "pass_rate": "eval/*"}), key=lambda one: one.task)
    assert (math.task, code.task) == ("math", "code")
    np.testing.assert_array_equal(math.compute_N, [0, 20, 30, 40])
    np.testing.assert_array_equal(code.pass_rate_N, [0.1, 0.2, 0.4, 0.45])
    with pytest.raises(LabError, match=r"no column 'test/\*' for pass_rate"):
        read_sources([source], {"compute": "Step", "pass_rate": "test/*"})


def test_seeds_of_one_run_in_logs_of_their_own_are_seeds_and_not_recipes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for run, gain in (("a", 0.3), ("b", 0.4)):
        for seed in range(3):
            files.append(str(tmp_path / f"{run}{seed}.csv"))
            rates = [f"{run},{seed},{c},{0.2 + gain * c / (c + 4) + 0.002 * seed:.4f},4000" for c in range(1, 20)]
            Path(files[-1]).write_text("\n".join(["run,seed,compute,pass_rate,n", *rates]) + "\n")
    assert [(item.run, item.seeds) for item in read_sources(files)] == [("a", ("0", "1", "2")), ("b", ("0", "1", "2"))]
    assert main(["compare", *files]) == 0
    said = capsys.readouterr().out
    assert "against a: better: b" in said
    assert "name seeds of b, and were joined" in " ".join(said.split())
    Path(files[1]).write_text(Path(files[0]).read_text())  # the seed of one log is that of another
    assert [item.run for item in read_sources(files)][:3] == ["a0/a", "a1/a", "a2/a"]


def test_runs_of_one_name_in_two_logs_are_told_apart_by_their_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, tasks in (("mine", "math code"), ("theirs", "math"), ("more", "sums")):
        rows = [f"same,{task},{10 * at},{at / 20}" for task in tasks.split() for at in range(9)]
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "log.csv").write_text("\n".join(["run,task,step,pass_rate", *rows]) + "\n")
    logs = [str(tmp_path / folder / "log.csv") for folder in ("mine", "theirs", "more")]
    assert {(item.run, item.task) for item in read_sources(logs[:2])} == {
        ("mine/log/same", "math"),
        ("mine/log/same", "code"),
        ("theirs/log/same", "math"),
    }
    assert {item.run for item in read_sources(logs[::2])} == {"same"}, "tasks of one run in two files"
    other = (tmp_path / "mine" / "log.csv").rename(tmp_path / "mine" / "other.csv")
    assert {item.run for item in read_sources([other, logs[1]])} == {"other/same", "log/same"}
    other.rename(logs[0])
    assert main(["compare", *logs[:2], "--task", "math"]) == 0
    assert "against mine/log/same: cannot tell: theirs/log/same" in capsys.readouterr().out


def test_a_copy_of_a_run_is_no_seed_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A backup, whole or of an earlier day, counts once; the same rates by chance do not make a copy."""
    runs = tmp_path / "runs"
    for name in ("one", "backup", "early"):
        made_run(runs / name, rollouts=False)
    lines = (runs / "early" / "evals.jsonl").read_text().splitlines(keepends=True)
    (runs / "early" / "evals.jsonl").write_text("".join(lines[: len(lines) // 2]))
    made_run(runs / "other", rollouts=False, seed=1)
    pooled = pool(read_sources([runs]), "all")
    without = pool(read_sources([runs / "one", runs / "other"]), "all")
    for item, expected in zip(pooled, without, strict=True):
        assert len(item.seeds) == 2
        np.testing.assert_array_equal(item.pass_rate_N, expected.pass_rate_N)
        assert sum("is a copy of" in note for note in item.notes) == 2
    main(["fit", str(runs), "--pool", "all"])
    assert capsys.readouterr().out.count("early is a copy of") == len(pooled)
    for name, loss in (("one", "CISPO"), ("like", "GSPO")):  # a setting that changed no number
        made_run(tmp_path / "two" / name, rollouts=False, loss=loss)
    assert all(len(item.seeds) == 2 for item in pool(read_sources([tmp_path / "two"]), "two"))
    lone = read_sources([runs / "one"])
    branched = [replace(item, run=name, fork=4.0) for name in ("branch", "its_backup") for item in lone]
    assert all(len(item.seeds) == 1 for item in pool(branched, "branch"))
    siblings = [replace(item, fork=fork) for fork in (4.0, 8.0) for item in lone]
    assert not copies(siblings)
    coarse = [curve(np.arange(5), np.array([0.0, 0.25, 0.25, 0.5, 0.75]), run=name) for name in "ab"]
    assert len(pool(coarse, "coarse")[0].seeds) == 2


def test_links_and_manifests_of_others_hide_no_run(tmp_path: Path) -> None:
    made_run(tmp_path / "elsewhere" / "a", rollouts=False)
    made_run(tmp_path / "runs" / "b", rollouts=False, seed=1)
    (tmp_path / "runs" / "a").symlink_to(tmp_path / "elsewhere" / "a")
    (tmp_path / "runs" / "manifest.json").write_text('{"name": "export"}')
    assert {item.run for item in read_sources([tmp_path / "runs"])} == {"a", "b"}
    assert [one.name for one in find_runs([tmp_path / "runs"])] == ["b"]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")), max_size=7))
def test_runs_of_one_name_have_their_folders_before_it_and_numbers_where_those_are_one_too(
    places: list[tuple[str, str]],
) -> None:
    found = distinct_names([Path("/nowhere", *place) for place in places])
    for at, (folder, name) in enumerate(places):
        named, same = [one for one in places if one[1] == name], [one for one in places if one == places[at]]
        own = name if len(named) == 1 else f"{folder}/{name}"
        assert found[at] == (own if len(same) == 1 else f"{own} ({places[: at + 1].count(places[at])})")
    assert len(set(found)) == len(places)
