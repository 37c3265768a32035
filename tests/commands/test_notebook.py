"""The door for notebooks gives the numbers of the command line, and prints short."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from smallest_run import SMALLEST

from scalelab import decide, load_runs, run_experiment
from scalelab.cli import main
from scalelab.errors import LabError
from scalelab.experiment import load
from scalelab.notebook import Fits, Runs

RUNS = [Path(__file__).parents[2] / "docs" / "quickstart" / name for name in ("seed0", "seed1")]


@pytest.fixture(scope="module")
def fits() -> Fits:
    return load_runs(*RUNS).fit()


@pytest.mark.slow
def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, scalelab; print(sorted({'numpy', 'scipy', 'matplotlib', 'torch', 'pandas'} & set(sys.modules)));"
        f"scalelab.load_runs({str(RUNS[0])!r}).fit();"
        "print(sorted({'torch', 'ray', 'vllm', 'matplotlib', 'pandas'} & set(sys.modules)))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=True)
    assert child.stdout.split() == ["[]", "[]"]


@pytest.mark.slow
def test_an_experiment_that_is_refused_says_the_command_s_line(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"there is no experiment 'quikstart'.* did you mean 'quickstart'"):
        run_experiment("quikstart")
    experiment = load("quickstart")["quickstart"].override({"OptimizerConfig.lr": 1e-4})
    with pytest.raises(LabError, match=r"Recipe.zero_variance must be .*, not 'dorp'"):
        run_experiment(experiment, {"Recipe.zero_variance": "dorp"}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_an_experiment_runs_from_python_and_prints_as_it_goes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny = SMALLEST | {"SFT.steps": 2, "Budget.steps": 2, "Evaluation.every": 2, "Evaluation.prompts": 4}
    runs = run_experiment(load("quickstart")["quickstart"], tiny, out=tmp_path / "run", virtual=True)
    assert (runs.names, sorted(runs.tasks)) == (["run"], ["code", "math"])
    assert len(runs.to_frame()) == 4  # two tasks, at steps 0 and 2
    said = capfd.readouterr().out
    assert "notebook: writing to" in said
    assert "step    2" in said


@pytest.mark.slow
def test_fits_are_those_of_the_command_line(fits: Fits, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *map(str, RUNS), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["fits"]
    frame = fits.to_frame()
    assert list(zip(frame.run, frame.task)) == [(one["run"], one["task"]) for one in printed]
    for name in ("R0", "A", "B", "C_mid"):
        assert list(frame[name]) == pytest.approx([one[name] for one in printed])
        for end, column in enumerate((f"{name}_low", f"{name}_high")):
            assert list(frame[column]) == pytest.approx([one["intervals"][name][end] for one in printed])


def test_forecasts_outlook_and_ranking_are_tables(fits: Fits) -> None:
    frame = fits.forecast(0.1, 1.0)
    assert len(frame) == 8
    assert (frame.low < frame.pass_rate).all()
    assert (frame.pass_rate < frame.high).all()
    table = fits.compare()
    assert set(table.run) == {"seed0", "seed1"}
    against = table[table.verdict != ""]
    assert set(against.verdict) <= {"better", "worse", "equal", "unstable", "cannot tell"}
    assert ((against.difference_low < against.difference) & (against.difference < against.difference_high)).all()
    assert set(fits.outlook().reading.str.split(":").str[0]) <= {"extend", "stop", "unclear"}


def test_points_are_a_table_with_one_row_an_evaluation() -> None:
    runs = load_runs(RUNS[0])
    lines = [json.loads(line) for line in (RUNS[0] / "evals.jsonl").read_text().splitlines()]
    frame = runs.to_frame().sort_values(["task", "compute"])
    expected = sorted((line["task"], line["tokens"], line["pass_rate"], line["stderr"]) for line in lines)
    assert list(zip(frame.task, frame.compute, frame.pass_rate, frame.stderr)) == expected


def test_a_frame_goes_in_as_it_came_out() -> None:
    runs = load_runs(*RUNS)
    again = load_runs(runs.to_frame())
    assert repr(again) == repr(runs)
    for one, two in zip(runs.curves, again.curves, strict=True):
        assert (one.run, one.task, one.unit) == (two.run, two.task, two.unit)
        assert one.compute_N.tolist() == two.compute_N.tolist()
        assert one.pass_rate_N.tolist() == two.pass_rate_N.tolist()
    other = runs.to_frame().rename(columns={"pass_rate": "accuracy"})
    assert len(load_runs(other, columns={"pass_rate": "accuracy"}, unit="hours")) == 4


def test_runs_iterate_index_and_come_by_a_pattern() -> None:
    runs = load_runs(str(RUNS[0].parent / "seed*"))
    assert (runs.names, len(runs), len(list(runs))) == (["seed0", "seed1"], 4, 4)
    assert runs["seed1"].names == ["seed1"]
    assert (runs["seed1", "math"].tasks, runs[-1].tasks, len(runs[1:3])) == (["math"], [runs.curves[-1].task], 2)


def test_advice_is_that_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decide", str(RUNS[0]), "--budget", "100000"]) == 0
    printed = capsys.readouterr().out
    advice = decide(RUNS[0], budget=100000)
    assert printed.startswith(repr(advice))
    assert list(advice.to_frame().run) == ["seed0"] * len(advice.decision.choices)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda runs: runs.fit(levle=0.9), "fit has no option 'levle'; did you mean 'level'"),
        (lambda runs: runs[:1].fit().compare(marign=1), "compare has no option 'marign'; did you mean 'margin'"),
        (lambda runs: runs[:1].fit().forecast("16000"), "'16000' is not compute: give a number"),
        (lambda runs: runs.decide("9"), "'9' is not a budget"),
        (lambda runs: runs[{}], "is no run"),
        (lambda runs: load_runs(runs), "a Runs is neither"),
        (lambda runs: load_runs("nothing/*"), "nothing matches"),
    ],
)
def test_mistakes_in_a_call_are_said_in_one_line(call: Callable[[Runs], object], says: str) -> None:
    with pytest.raises(LabError) as caught:
        call(load_runs(RUNS[0]))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_everything_prints_in_a_few_lines(fits: Fits) -> None:
    assert repr(fits.runs) == "<Runs: 2 runs, 2 tasks, 64 evaluations, up to 505,678 tokens>"
    assert repr(fits).startswith("<Fits: 4 of 4 curves>\n  seed0 · code: R0 0.246 [")
    analysis = fits.analyses[0]
    for item in (analysis, analysis.fit, analysis.draws(), analysis.fit.curve):
        assert len(repr(item)) < 200
    assert fits._repr_html_().count("<tr>") == 5


def test_html_shows_names_and_never_obeys_them(tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    file.write_text("run,compute,pass_rate\n<script>,1,0.2\n<script>,2,0.4\n")
    runs = load_runs(file)
    assert "<script>" not in runs._repr_html_()
    assert "&lt;script&gt;" in runs._repr_html_()
    assert "refused" in repr(runs.fit())
    assert "<script>" not in runs.fit()._repr_html_()


@pytest.mark.slow
def test_pictures_show_in_a_notebook_and_can_be_saved(fits: Fits, tmp_path: Path) -> None:
    assert "<svg" in fits.plot()._repr_svg_()
    file = fits.runs.select(task="math").plot().save(tmp_path / "points.png")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_what_is_not_there_is_said_in_one_line(fits: Fits, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LabError, match=r"no curve of run 'seed2' and task None; there are runs seed0, seed1"):
        fits.runs.select(run="seed2")
    with pytest.raises(LabError, match="name at least one"):
        load_runs()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(LabError, match=r"pip install 'scalelab\[frame\]'"):
        fits.to_frame()
