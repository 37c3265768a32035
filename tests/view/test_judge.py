"""Fits of the page: the same as the curves' own, computed once, kept by content."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalelab.cli import main
from scalelab.curves import Options, analyse, compare, compute_for, extend_or_stop, forecast
from scalelab.curves.compare import against
from scalelab.curves.comparison import entry_summary
from scalelab.kept import Kept
from scalelab.reading import Reading
from scalelab.view import judge as module
from scalelab.view.judge import Judge
from scalelab.view.lab import Lab
from tests.helpers.curve_points import run_points
from tests.helpers.view_runs import made_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judge")
    for seed, (name, A) in enumerate({"best": 0.85, "middle": 0.75, "worst": 0.6}.items()):
        made_run(folder / name, A=A, seed=seed, loss=name, rollouts=False)
    return folder


@pytest.fixture(scope="module")
def lab(runs: Path) -> Lab:
    lab = Lab([runs], kept=Kept(None))
    lab.update()
    return lab


@pytest.fixture(scope="module")
def overview(lab: Lab) -> dict:
    return json.loads(json.dumps(lab.overview(), allow_nan=False))


@pytest.mark.parametrize(("seeds", "spread"), [(1, "an assumed spread between runs"), (3, "the spread of the others'")])
def test_the_page_says_of_the_spread_what_compare_says(
    seeds: int, spread: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, page, rows = tmp_path / "two.csv", tmp_path / "page.html", ["run,seed,compute,pass_rate"]
    for run, count, A in (("single", 1, 0.6), ("several", seeds, 0.7)):
        for seed in range(count):
            points = run_points(12, 0.004, seed, A=A + 0.01 * seed)
            rows += [f"{run},{seed},{c},{p}" for c, p in zip(*points)]
    log.write_text("\n".join(rows) + "\n")
    assert main(["compare", str(log)]) == 0
    learnt = "learnt from all seeds" in capsys.readouterr().out
    assert learnt == (seeds > 1)
    assert main(["report", str(log), "-o", str(page)]) == 0
    assert f"Recipes with a single seed are judged by {spread}" in page.read_text()


@pytest.mark.slow
def test_a_fit_is_that_of_the_curves(lab: Lab, overview: dict) -> None:
    for item, record in zip(lab.curves, overview["fits"]):
        own = analyse(item, Options())
        assert record["parameters"] == pytest.approx(own.params)
        assert record["intervals"]["A"] == pytest.approx(own.intervals["A"])


def between(columns: dict[str, np.ndarray], compute: float, name: str) -> float:
    """A column of a table at some compute, as the page reads it."""
    return float(np.interp(np.log(compute), np.log(columns["compute"][1:]), columns[name][1:]))


@pytest.mark.slow
def test_the_page_s_table_is_what_forecast_says(lab: Lab, overview: dict) -> None:
    """At the compute reached, its double and fourfold to every digit that is shown; between them within 0.002."""
    for item in lab.curves:
        own, table = analyse(item, Options()), lab.curve_data(item.run)["tables"][item.task]
        spent = own.fit.window[1]
        columns = {name: np.array(values) for name, values in table.items() if name not in ("targets", "advice")}
        for at in (0.37, 1.0, 1.93, 2.0, 4.0, 11.0):
            [said] = forecast(own, [at * spent])
            exact = at in (1.0, 2.0, 4.0)

            column = partial(between, columns, at * spent)
            near: dict[str, Any] = {"rel": 1e-5, "abs": 0} if exact else {"abs": 2e-3}
            assert exact == bool(np.isclose(columns["compute"], at * spent, rtol=1e-5).any())
            assert column("middle") == pytest.approx(said.value, **near)
            assert (column("low"), column("high")) == pytest.approx(said.curve_interval, **near)
            assert (column("measured_low"), column("measured_high")) == pytest.approx(said.interval, **near)
        extension = extend_or_stop(own)
        double = int(np.argmin(abs(columns["compute"] - 2 * spent)))
        assert columns["gain"][double] == pytest.approx(extension.gain_if_doubled, rel=1e-4)
        assert (columns["gain_low"][double], columns["gain_high"][double]) == pytest.approx(
            extension.interval, rel=1e-4
        )
        assert columns["worthwhile"][double] == pytest.approx(extension.probability_worthwhile)
        for rate in (0.05, 0.3, 0.5, 0.7, 0.99):
            target, place = compute_for(own, rate), round(100 * rate) - 1
            assert table["targets"]["compute"][place] == pytest.approx(target.compute)
            assert (table["targets"]["low"][place], table["targets"]["high"][place]) == pytest.approx(target.interval)
            assert table["targets"]["reading"][place] == target.reading


def test_the_ranking_is_that_of_compare(lab: Lab, overview: dict) -> None:
    [math] = [one for one in overview["comparisons"] if one["task"] == "math"]
    analyses = [analyse(item, Options()) for item in lab.curves]
    comparisons = compare(analyses)
    own = next(one for one in comparisons if one.task == "math")
    assert [entry["run"] for entry in math["entries"]] == [entry.run for entry in own.entries]
    parts = lab.comparison("math")
    assert parts["entries"][own.entries[0].run]["beats"] == pytest.approx(entry_summary(own.entries[0], ())["beats"])
    other = own.entries[-1].run
    held = next(one for one in against(comparisons, other) if one.task == "math")
    assert parts["against"][other]["sentence"] == held.sentence()
    assert [row["short_cells"] for row in parts["against"][other]["rows"]] == [row.short_cells() for row in held.rows()]
    judged = next(one for one in compare(analyses, baseline=other) if one.task == "math")
    assert held.verdicts == judged.verdicts
    text = overview["answers"][0]["text"]
    assert text.startswith("best leads 3 recipes at 1 GPU-hours with ")
    assert " with a probability of " in text
    assert not re.search(r"\b(surely|probably|better)\b", text), "the words of a comparison are the table's"


@pytest.mark.slow
def test_the_page_says_of_two_tasks_what_the_command_says(
    runs: Path, overview: dict, lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = sorted(map(str, runs.iterdir()))
    assert main(["compare", *folders, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == len(overview["comparisons"]) == 2
    for one in overview["comparisons"]:
        page = lab.comparison(one["task"])["against"][Path(folders[0]).name]["rows"]
        for row, shown in zip(found["rows"][one["task"]], page, strict=True):
            for name in ("run", "verdict", "verdict_text", "measured", "difference", "probability"):
                assert shown[name] == row[name], (one["task"], row["run"], name)


@pytest.mark.slow
def test_fits_are_computed_once_and_kept_by_content(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Lab([runs], kept=Kept(tmp_path))
    first.update()
    before = first.overview()
    monkeypatch.setattr(module, "analyse", None)  # whoever calls it now fails
    monkeypatch.setattr(module, "compare", None)
    again = Lab([runs], kept=Kept(tmp_path))
    again.update()
    after = again.overview()
    for name in ("fits", "comparisons", "parallel", "answers"):
        assert json.dumps(after[name]) == json.dumps(before[name])
    item = again.curves[0]
    assert Judge(Options(level=0.9), Kept(tmp_path)).known(item) is None
    assert Judge(Options(), Kept(tmp_path)).known(item.select(np.arange(len(item) - 1))) is None


def test_a_spoilt_entry_is_computed_again(runs: Path, tmp_path: Path) -> None:
    lab = Lab([runs / "best"], kept=Kept(tmp_path))
    lab.update()
    lab.overview()
    for entry in tmp_path.glob("*.json"):
        entry.write_bytes(b'{"torn')
    again = Lab([runs / "best"], kept=Kept(tmp_path))
    again.update()
    assert again.overview()["fits"][0]["parameters"]


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lab = Lab([runs / "best"], kept=Kept(tmp_path / "file" / "fits"))
    lab.update()
    assert lab.overview()["answers"]


@pytest.mark.slow
def test_seeds_are_pooled_and_not_ranked_against_each_other(tmp_path: Path) -> None:
    for seed in (0, 1):
        made_run(tmp_path / f"seed{seed}", seed=seed, rollouts=False)
    lab = Lab([tmp_path / "seed0", tmp_path / "seed1"], kept=Kept(None))
    lab.update()
    overview = lab.overview()
    assert overview["comparisons"] == []
    assert {fit["seeds"] for fit in overview["fits"]} == {2}
    assert len(lab.points()) == 4


@pytest.mark.slow
def test_a_task_of_one_run_alone_is_not_ranked(tmp_path: Path) -> None:
    for name, tasks in (("both", ("math", "code")), ("one", ("math",))):
        made_run(tmp_path / name, tasks=tasks, loss=name, rollouts=False)
    lab = Lab([tmp_path], kept=Kept(None))
    lab.update()
    assert [one["task"] for one in lab.overview()["comparisons"]] == ["math"]


def test_other_units_are_left_out_with_a_reason(runs: Path, tmp_path: Path) -> None:
    other = made_run(tmp_path / "other", loss="other", rollouts=False)
    lines = (other / "evals.jsonl").read_text().replace("GPU-hours", "core-hours")
    (other / "evals.jsonl").write_text(lines)
    lab = Lab([runs / "best", other], kept=Kept(None))
    lab.update()
    assert {item.run for item in lab.curves} == {"best"}
    assert "counts compute in tokens" in lab.overview()["problems"][0]


def test_hours_of_another_clock_are_left_out_with_a_reason(runs: Path, tmp_path: Path) -> None:
    other = made_run(tmp_path / "other", loss="other", rollouts=False)
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps(manifest | {"clock": "virtual"}))
    lab = Lab([runs / "best", other], kept=Kept(None))
    lab.update()
    assert {item.run for item in lab.curves} == {"best"}
    assert "counts compute in GPU-hours of a simulated cluster" in lab.overview()["problems"][0]


@pytest.mark.slow
def test_an_axis_is_found_among_runs_that_differ_along_it(tmp_path: Path) -> None:
    for tokens in (64, 128, 256):
        made_run(tmp_path / f"tokens_{tokens}", tokens=tokens, A=0.6 + tokens / 1000, rollouts=False)
    made_run(tmp_path / "other", tokens=512, loss="other", rollouts=False)
    lab = Lab([tmp_path], kept=Kept(None))
    lab.update()
    [axis] = lab.overview()["axes"]
    assert axis["name"] == "tokens per completion"
    assert [point["at"] for point in axis["points"]] == [64, 64, 128, 128, 256, 256]


def test_a_column_can_be_the_compute(runs: Path) -> None:
    lab = Lab([runs / "best"], Reading({"compute": "completions"}, 0.001, "thousand completions"), kept=Kept(None))
    lab.update()
    assert lab.curves[0].unit == "thousand completions"
    assert lab.curves[0].compute_N[-1] == pytest.approx(4.8)
    assert lab.runs["r0"].points[0]["x"]["compute"][-1] == pytest.approx(4.8)


def test_a_run_that_grows_is_fitted_again(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", rollouts=False)
    whole = (folder / "evals.jsonl").read_text().splitlines(keepends=True)
    (folder / "evals.jsonl").write_text("".join(whole[:2]))
    lab = Lab([folder], kept=Kept(None))
    lab.update()
    assert "No fit yet" in lab.overview()["answers"][0]["text"]
    (folder / "evals.jsonl").write_text("".join(whole))
    assert lab.update()
    assert [step.what for step in lab.steps()] == ["fit", "fit", "parallel"]
    assert "heads for A" in lab.overview()["answers"][0]["text"]


def test_no_work_is_left_once_it_is_done_where_a_task_is_too_young_to_be_held_beside_another(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", rollouts=False)
    lines = (folder / "evals.jsonl").read_text().splitlines(keepends=True)
    young = [line for line in lines if '"code"' in line][:2]
    (folder / "evals.jsonl").write_text("".join([*young, *(line for line in lines if '"math"' in line)]))
    lab = Lab([folder], kept=Kept(None))
    lab.update()
    for step in lab.steps():
        lab.take(step)
    assert (lab.steps(), lab.failed) == ([], {})
    assert ["refused" in fit for fit in lab.overview(fit=False)["fits"]] == [True, False]
