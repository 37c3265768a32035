"""Logs as people have them: all of them give the points that they hold, or the right reason why they do not."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalelab import load_runs
from scalelab.cli import main
from scalelab.curves import Options, analyse
from scalelab.errors import LabError
from scalelab.numbers import counted
from scalelab.reading import Reading, load_reading, read_sources, read_with
from scalelab.reading.cells import Comma, comma_meaning, numbers
from scalelab.reading.columns import _tasks
from scalelab.reading.curve import binomial_stderr
from scalelab.reading.settings import Repeats
from scalelab.reading.sources import read_table
from scalelab.reading.stitch import stitch
from scalelab.report.page import read_lab
from scalelab.session.tracked_fits import TrackedFits
from tests.helpers.odd_logs import BYTES, COMPUTE, RATE, REFUSED, TEXTS, write


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    """The object that a command prints with --json."""
    main([*argv, "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", [*TEXTS, *BYTES])
def test_what_read_shows_is_what_the_log_holds(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, name)
    assert main(["read", str(path)]) == 0
    out = capsys.readouterr().out
    assert "taken: compute = " in out
    assert re.search(r" 11 +1 +0 – 8,000 ", out)  # evaluations, seeds, compute
    [source] = said(capsys, "read", str(path))["sources"]
    [curve] = source["curves"]
    np.testing.assert_allclose(curve["compute"], COMPUTE)
    np.testing.assert_allclose(curve["pass_rate"], RATE, atol=3e-4)


@pytest.mark.parametrize(("again", "told"), [("b", "! b: left out"), ("ab", "! left out")])
def test_a_remark_names_the_run_that_it_is_about_unless_it_is_about_all(
    tmp_path: Path, again: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{run},{step},{spent},0.{step}" for run in "ab" for step, spent in ((1, 1), (5, 2), (7, 3))]
    repeated = [f"{run},8,3,0.8" for run in again]
    (tmp_path / "two.csv").write_text("\n".join(["run,step,compute,pass_rate", *rows, *repeated]))
    assert main(["read", str(tmp_path / "two.csv")]) == 0
    assert f"{told}: 1 at the same compute as a later step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("metrics", "tasks"),
    [(["aime/acc", "math/acc"], ["aime/acc", "math/acc"]), (["aime/acc"], [""])],
)
def test_pass_rates_in_rows_of_their_own_are_tasks_where_there_are_several(
    tmp_path: Path, metrics: list[str], tasks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{step},{name},0.{step}" for step in (1, 2, 3) for name in [*metrics, "loss"]]
    (tmp_path / "long.csv").write_text("\n".join(["step,metric,value", *rows]))
    curves = said(capsys, "read", str(tmp_path / "long.csv"))["sources"][0]["curves"]
    assert [one["task"] for one in curves] == tasks
    assert [one["pass_rate"] for one in curves] == [[0.1, 0.2, 0.3]] * len(tasks)


def test_fit_takes_what_read_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("resumed.csv", "verl.log", "history.csv", "decimal_commas.csv", "trainer_state.json"):
        path = str(write(tmp_path, name))
        [shown] = said(capsys, "read", path)["sources"][0]["curves"]
        [fitted] = said(capsys, "fit", path, "--since", "0")["fits"]
        assert (fitted["run"], fitted["task"]) == (shown["run"], shown["task"])
        assert fitted["n_points"] == len(shown["compute"])
        assert set(shown["notes"]) <= set(fitted["warnings"])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_with_its_reason_by_every_command(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path, name))
    for command in (["read"], ["fit"], ["forecast", "--at", "9000"]):
        assert main([command[0], path, *command[1:]]) == 1
        reason = capsys.readouterr().err
        assert REFUSED[name][1] in reason
        assert len(reason.splitlines()) == 1


@pytest.mark.parametrize("command", [["fit"], ["forecast", "--at", "9000"], ["report", "--markdown"]])
def test_a_refused_curve_comes_with_what_was_left_out_of_its_log(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One stray line at the end goes back to 3,000, so five evaluations count as lost, and no curve is left."""
    log = tmp_path / "stray.csv"
    log.write_text(TEXTS["plain.csv"] + "3000,0.3\n")
    main([command[0], str(log), *command[1:]])
    said = " ".join("".join(capsys.readouterr()).split())
    assert "7 evaluations do not tell a rise" in said
    assert "resumed at 3,000 GPU-hours: 5 evaluations of the part that was lost left out" in said


def test_what_a_user_says_settles_what_the_log_does_not(tmp_path: Path) -> None:
    def points(name: str, **settings: Any) -> tuple[list[float], list[float], str]:
        [item] = read_with([write(tmp_path, name)], Reading(**settings))
        return item.compute_N.tolist(), np.round(item.pass_rate_N, 6).tolist(), item.unit

    assert points("percent.csv", rate_range=(0.0, 100.0))[1] == list(RATE)
    assert points("late_start.csv", start=100_000.0)[0] == list(COMPUTE)
    assert points("late_start.csv", start=0.0)[0][0] == 100_000
    assert points("two_runs.csv", repeats="later")[1][0] == 0.2
    assert points("two_runs.csv", repeats="mean")[1][0] == pytest.approx((0.2215 + 0.2) / 2)
    compute, _, unit = points("two_devices.csv", hours_of="h100")
    assert unit == "H100-hours"
    assert compute[-1] == 8000
    assert compute[1] == pytest.approx(250 * 312 / 989)  # the data sheets' dense bf16 FLOP/s
    assert points("two_devices.csv", hours_of="h100", device_rates={"a100": 0.5})[0][1] == 125
    assert points("plain.csv", hours_of="h100", device_rates={"plain": 0.25})[0][1] == 62.5
    with pytest.raises(LabError, match="how many H100-hours one of GPU-hours is, is not known"):
        points("plain.csv", hours_of="h100")


def test_a_saved_mapping_reads_the_next_log_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{c},{100 * r},{n}\n" for c, r, n in zip(COMPUTE, RATE, range(90, 101)))
    first, second, mapping = tmp_path / "first.csv", tmp_path / "second.csv", tmp_path / "mine.json"
    first.write_text("iteration,good,tried\n" + rows)
    second.write_text("iteration,good,tried,accuracy\n" + rows.replace("\n", ",0.1\n"))
    options = ["--column", "pass_rate=good", "--column", "n=tried", "--rate-range", "0", "100", "--unit", "updates"]
    assert main(["read", str(first), *options, "--save", str(mapping)]) == 0
    assert f"--mapping {mapping}" in capsys.readouterr().out
    [source] = said(capsys, "read", str(second), "--mapping", str(mapping))["sources"]
    [curve] = source["curves"]
    np.testing.assert_allclose(curve["pass_rate"], RATE)
    assert curve["unit"] == "updates"
    assert curve["stderr"] is not None
    [fitted] = said(capsys, "fit", str(second), "--mapping", str(mapping))["fits"]
    assert fitted["n_points"] == len(COMPUTE)
    [item] = load_runs(second, mapping=mapping).curves
    np.testing.assert_allclose(item.pass_rate_N, RATE)
    assert load_reading(mapping).columns == {
        "compute": "iteration",
        "pass_rate": "good",
        "n": "tried",
        "step": "iteration",
    }
    assert said(capsys, "read", str(second), "--mapping", str(mapping), "--column", "pass_rate=accuracy",
                "--rate-range", "0", "1")["sources"][0]["curves"][0]["pass_rate"] == [0.1] * 11  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("{}", "not a mapping"),
        ('{"scalelab_mapping": 1, "colums": {}}', "a mapping has no 'colums': did you mean 'columns'"),
        ('{"scalelab_mapping": 1, "columns": {"compute": 3}}', "columns cannot be"),
        ('{"scalelab_mapping": 1, "columns": {"speed": "x"}}', "no such column"),
        ('{"scalelab_mapping": 1, "rate_range": [0]}', "rate_range has two numbers"),
        ('{"scalelab_mapping": 1, "compute_scale": -1}', "makes no sense"),
        ('{"scalelab_mapping": 1, "repeats": "never"}', "repeats is one of"),
    ],
)
def test_a_mapping_that_is_none_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(LabError, match=reason):
        load_reading(tmp_path / "m.json")


def test_benchmarks_of_several_runs_in_one_wide_table_have_a_weighted_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{run},{c},{r},{r / 2},{4 - r}" for run in "ab" for c, r in zip(COMPUTE, RATE)]
    (tmp_path / "wide.csv").write_text("run,gpu_hours,aime24,math500,response_length\n" + "\n".join(rows) + "\n")
    curves = said(capsys, "read", str(tmp_path / "wide.csv"), "--mean", "aime24=3,math500")["sources"][0]["curves"]
    assert [(one["run"], one["task"]) for one in curves] == [
        *(("a", "aime24"), ("a", "math500"), ("b", "aime24"), ("b", "math500")), ("a", "mean"), ("b", "mean"),
    ]  # fmt: skip
    np.testing.assert_allclose(curves[-1]["pass_rate"], [(3 * r + r / 2) / 4 for r in RATE])
    single = said(capsys, "read", str(tmp_path / "wide.csv"), "--mean", "aime24")["sources"][0]["curves"]
    assert single[-1]["pass_rate"] == single[-4]["pass_rate"], "the mean of one task is that task"
    for number in ("1.2.3", "1..2", "."):
        assert main(["read", str(tmp_path / "wide.csv"), "--mean", f"aime24={number},math500"]) == 1
        assert "write NAME=NUMBER with commas between them" in capsys.readouterr().err
    assert main(["read", str(tmp_path / "wide.csv"), "--mean", "gpqa"]) == 1
    assert "no task 'gpqa' for the mean; there are: aime24, math500" in capsys.readouterr().err


def test_the_mean_of_tasks_has_their_errors_as_independent(tmp_path: Path) -> None:
    lines = [f"{task},{c},{r},{n}" for task, n in (("x", 100), ("y", 400)) for c, r in zip(COMPUTE, RATE)][:-1]
    (tmp_path / "t.csv").write_text("task,gpu_hours,pass_rate,n\n" + "\n".join(lines) + "\n")
    x, y, mean = read_with([tmp_path / "t.csv"], Reading(mean={"x": 1.0, "y": 3.0}))
    assert len(mean) == len(COMPUTE) - 1  # the last place lacks y
    assert x.stderr_N is not None
    assert y.stderr_N is not None
    assert mean.stderr_N is not None
    np.testing.assert_allclose(mean.stderr_N, np.hypot(0.25 * x.stderr_N[:-1], 0.75 * y.stderr_N))
    assert any("1 evaluation of single tasks" in note for note in mean.notes)


def test_one_repeated_evaluation_gives_the_same_points_to_fit_page_report_notebook_and_trackers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    records = [
        {"step": 10 * at, "compute": float(c), "task": "math", "pass_rate": r, "stderr": 0.0, "n_prompts": 50, "k": 4}
        for at, (c, r) in enumerate(zip(COMPUTE, RATE))
    ]
    records += [{**records[7], "pass_rate": 0.54}, {**records[8], "pass_rate": None}]  # resumed; nothing graded
    (folder / "evals.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    expected = [*RATE[:7], 0.54]
    [shown] = said(capsys, "read", str(folder))["sources"][0]["curves"]
    assert shown["pass_rate"] == expected
    [fitted] = said(capsys, "fit", str(folder))["fits"]
    assert fitted["n_points"] == len(expected)
    lab = read_lab([folder], Options(), Reading())  # the page, live and as a file
    [points] = lab.points()
    assert (points["y"], points["x"]["step"]) == (expected, [10.0 * at for at in range(8)])
    np.testing.assert_allclose(points["stderr"], shown["stderr"])
    [item] = load_runs(folder).curves
    assert item.pass_rate_N.tolist() == expected
    assert TrackedFits(folder).after(records[-1])["fit/math/A"] == pytest.approx(analyse(item).params["A"])


@pytest.mark.parametrize("early", [1, 4])
def test_points_weigh_by_their_samples_where_prompts_have_more_in_some_evaluations(tmp_path: Path, early: int) -> None:
    counts = [early] * 5 + [4] * (len(COMPUTE) - 5)
    records = [
        {"compute": float(c), "step": at, "task": "math", "pass_rate": r, "stderr": 0.03, "n_prompts": 50, "k": k}
        | {"compute_unit": "gpu_hours"}
        for at, (c, r, k) in enumerate(zip(COMPUTE, RATE, counts))
    ]
    (tmp_path / "evals.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    [item] = load_runs(tmp_path).curves
    binomial = [binomial_stderr(r, 50 * k) for r, k in zip(RATE, counts)]
    assert item.stderr_N is not None
    np.testing.assert_allclose(item.stderr_N, np.array(binomial) if early == 1 else np.array(0.03))
    A = analyse(item).params["A"]
    assert TrackedFits(tmp_path).after(records[-1])["fit/math/A"] == pytest.approx(A)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=20))
def test_a_run_folder_keeps_what_a_slow_reader_keeps(places: list[tuple[int, int]]) -> None:
    """By a stack: whatever a line goes back behind, or repeats, was lost."""
    kept: list[int] = []
    for row, (step, _) in enumerate(places):
        while kept and places[kept[-1]][0] >= step:
            kept.pop()
        kept.append(row)
    step_N = np.array([float(step) for step, _ in places])
    rate_N = np.array([value / 4 + row * 1e-6 for row, (_, value) in enumerate(places)])  # no line is there twice
    found = stitch(step_N, rate_N, step_N, "refuse", resumed=True, unit="steps")
    assert found.keep_M.tolist() == kept
    assert found.double is None


REPEATS: tuple[Repeats, ...] = ("refuse", "later", "mean")


JSON_ROWS = [{"gpu_hours": at, "pass_rate": at / 9} for at in range(3)]


@pytest.mark.parametrize(
    ("found", "columns"),
    [
        (JSON_ROWS, ["gpu_hours", "pass_rate"]),
        ({"evals": JSON_ROWS}, ["gpu_hours", "pass_rate"]),
        ({"evals": JSON_ROWS, "config": {"lr": 1}, "tags": ["a", "b"], "empty": []}, ["gpu_hours", "pass_rate"]),
        ({"log_history": JSON_ROWS, "others": JSON_ROWS}, ["gpu_hours", "pass_rate"]),
        ({"gpu_hours": [0, 1, 2], "pass_rate": [0, 1 / 9, 2 / 9]}, ["gpu_hours", "pass_rate"]),
        ({"pass_rate": [0, 1 / 9, 2 / 9]}, ["pass_rate"]),
        ({"evals": JSON_ROWS, "batch": [8, 8, 8]}, ["evals/gpu_hours", "evals/pass_rate", "batch"]),
        ({"evals": JSON_ROWS, "batch": [8, 8]}, "differ in length"),
        ({"evals": JSON_ROWS, "others": JSON_ROWS, "name": "two of them"}, "neither a list of objects"),
        ({"evals": [], "name": "no evaluation"}, "neither a list of objects"),
    ],
)
def test_evaluations_in_json_stand_alone_in_an_object_or_column_by_column(
    tmp_path: Path, found: Any, columns: list[str] | str
) -> None:
    (tmp_path / "log.json").write_text(json.dumps(found))
    if isinstance(columns, str):
        with pytest.raises(LabError, match=columns):
            read_table(tmp_path / "log.json")
        return
    table = read_table(tmp_path / "log.json")
    assert (table.columns, len(table.rows)) == (columns, 3)
    if columns[-1] == "pass_rate":
        assert list(table.cells["pass_rate"]) == [0, 1 / 9, 2 / 9]


@given(st.integers(2, 12), st.integers(1, 12), st.integers(1, 3), st.sampled_from(REPEATS), st.booleans())
def test_a_log_that_goes_back_once_is_resumed_or_starts_again(
    before: int, back: int, beyond: int, repeats: Repeats, known: bool
) -> None:
    """Behind more than three quarters of what it had, or to its beginning, it may be another run; not where known."""
    back = min(back, before)
    hours_N = np.array([*range(1, before + 1), *range(back, before + 1 + beyond)], float)
    found = stitch(hours_N, np.arange(len(hours_N)) / 100, None, repeats, resumed=known, unit="hours")
    late, everything = [*range(back - 1), *range(before, len(hours_N))], list(range(len(hours_N)))
    lost = before + 1 - back
    said = f"resumed at {back} hours: {counted(lost, 'evaluation')} of the part that was lost left out"
    if not known and repeats == "refuse" and lost > 0.75 * before:
        double = (0, before) if back == 1 else None
        assert (found.keep_M.tolist(), found.again, found.double) == (everything, before, double)
    elif not known and back == 1:
        if repeats == "later":
            assert (found.keep_M.tolist(), found.back) == (late, None)
            assert found.notes == (f"earlier evaluations at repeated places left out: {lost}",)
        else:
            assert (sorted(found.keep_M), found.back, found.double) == (everything, before, None)
    else:
        assert (found.keep_M.tolist(), found.again, found.notes) == (late, None, (said,))


@given(st.lists(st.floats(0, 1e6, allow_nan=False), unique=True, min_size=1, max_size=20), st.randoms())
def test_a_table_out_of_order_keeps_all_of_its_evaluations(compute: list[float], random: Random) -> None:
    """Every second one may come late: a resumed run would go on from there."""
    late = sorted(compute)
    for at in range(0, len(late) - 1, 2):
        if random.random() < 0.5:
            late[at : at + 2] = late[at + 1], late[at]
    found = stitch(np.array(late), np.linspace(0, 1, len(late)), None, "refuse", False, "hours")
    assert [late[at] for at in found.keep_M] == sorted(compute)
    assert (found.back is None) == (late == sorted(compute))


@given(st.lists(st.floats(0, 1e6, allow_nan=False), unique=True, min_size=1, max_size=20), st.randoms())
def test_a_table_in_any_order_keeps_all_or_says_what_was_lost(compute: list[float], random: Random) -> None:
    shuffled = list(compute)
    random.shuffle(shuffled)
    found = stitch(np.array(shuffled), np.linspace(0, 1, len(shuffled)), None, "refuse", False, "hours")
    lost = len(compute) - len(found.keep_M)
    assert [shuffled[at] for at in found.keep_M] == sorted(shuffled[at] for at in found.keep_M)
    assert lost == 0 or any(f": {lost} evaluation" in note for note in found.notes)


@given(st.lists(st.floats(-1e12, 1e12, allow_nan=False), max_size=8))
def test_numbers_are_read_as_python_reads_them(values: list[float]) -> None:
    plain = numbers([repr(value) for value in values])
    assert plain.value_N.tolist() == values
    rounded = [float(f"{value:.2f}") for value in values]
    grouped = numbers([f"{value:,.2f}" for value in values] + [""], comma="thousands")
    np.testing.assert_allclose(grouped.value_N[:-1], rounded, rtol=1e-12)
    assert grouped.blank_N.tolist() == [False] * len(values) + [True]
    european = numbers([f"{value:,.2f}".translate(str.maketrans(",.", ".,")) for value in values], comma="decimal")
    np.testing.assert_allclose(european.value_N, rounded, rtol=1e-12)
    for signs in ("'.", "’.", " ,", "\u202f,"):  # Switzerland and France
        told: Comma = "decimal" if signs.endswith(",") else "thousands"
        apart = numbers([f"{value:,.2f}".translate(str.maketrans(",.", signs)) for value in values], told)
        np.testing.assert_allclose(apart.value_N, rounded, rtol=1e-12)


@pytest.mark.parametrize("cell", ["1'00", "1'0000", "12 34", "'100", "1''000", "1 000 00"])
def test_signs_between_other_digits_than_thousands_make_no_number(cell: str) -> None:
    assert numbers([cell]).wrong


def test_the_line_of_a_spreadsheet_that_names_its_separator_is_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "excel.csv"
    rows = "".join(f"{c};{r:.3f}\n".replace(".", ",") for c, r in zip(COMPUTE, RATE))
    log.write_text("sep=;\ngpu_hours;pass_rate\n" + rows)
    [curve] = said(capsys, "read", str(log))["sources"][0]["curves"]
    np.testing.assert_allclose(curve["pass_rate"], RATE, atol=5e-4)
    for above in ("sep=;\n# of a node\n", "# of a node\nsep=;\n"):
        log.write_text(f"{above}gpu_hours;pass_rate\n" + rows)
        assert said(capsys, "read", str(log))["sources"][0]["curves"][0]["pass_rate"] == curve["pass_rate"]
    log.write_text("sep=;\ngpu_hours;pass_rate\n1;0.1\n2;x\n")
    assert main(["read", str(log)]) == 1
    assert f"{log}, row 4, column pass_rate" in capsys.readouterr().err


def test_a_comma_after_thousands_that_a_space_parts_is_a_decimal_one_in_the_whole_file() -> None:
    assert comma_meaning(["100,000", "1 100,000"]) == "decimal"
    assert comma_meaning(["1,234,567", "1 100,000"]) == "either"


def test_commas_are_told_apart_by_the_whole_file() -> None:
    assert comma_meaning(["1,000", "1,234,567"]) == "thousands"
    assert comma_meaning(["0,25", "1,5"]) == "decimal"
    assert comma_meaning(["1,000", "0,250"]) == "decimal"
    assert comma_meaning(["1,000", "2,500"]) == "either"
    assert comma_meaning(["see, below"]) == ""
    assert comma_meaning(["20,0 %", "25,1%"]) == "decimal"
    read = numbers(["20,0 %", "25,5%"], comma_meaning(["20,0 %", "25,5%"]))
    assert read.value_N.tolist() == [0.2, 0.255]
    assert not read.wrong


COMPUTES = ("gpu_hours", "compute", "step", "_step", "time", "epoch", "wall_seconds", "tokens")
RATES = ("pass_rate", "eval_accuracy", "correct", "math", "value", "val-core/x/acc/mean@8")
OTHERS = ("run", "task", "seed", "n", "n_prompts", "k", "stderr", "compute_unit", "total", "metric", "loss", "")
CELLS = (
    "0",
    "1",
    "2",
    "10",
    "0.5",
    "0.25",
    "-1",
    "nan",
    "",
    "1e999",
    "50%",
    "1,000",
    "0,5",
    "2k",
    "x",
    "2026-06-01",
    "acc",
)


@settings(max_examples=150)
@given(st.data())
def test_any_table_is_read_as_an_ordered_curve_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    columns = [data.draw(st.sampled_from(COMPUTES)), data.draw(st.sampled_from(RATES))]
    columns += data.draw(st.lists(st.sampled_from((*COMPUTES, *RATES, *OTHERS)), max_size=3))
    likely = st.sampled_from(CELLS[:6]) if data.draw(st.booleans()) else st.sampled_from(CELLS)
    rows = data.draw(st.lists(st.lists(likely, min_size=len(columns), max_size=len(columns)), max_size=8))
    delimiter = data.draw(st.sampled_from(",;\t"))
    path = tmp_path_factory.mktemp("table") / ("t.tsv" if delimiter == "\t" else "t.csv")
    quoted = [delimiter.join(f'"{cell}"' for cell in row) for row in (columns, *rows)]
    path.write_text("\n".join(quoted) + "\n")
    repeats: Any = data.draw(st.sampled_from(("refuse", "later", "mean")))
    try:
        curves = read_with([path], Reading(repeats=repeats, start=0.0))
    except LabError as error:
        reason = str(error)
        assert reason
        assert "\n" not in reason
        return
    for item in curves:
        assert ((item.pass_rate_N >= 0) & (item.pass_rate_N <= 1)).all()
        assert (item.compute_N >= 0).all()
        assert {len(values_N) for values_N in (item.seed_N, item.pass_rate_N, *item.other_N.values())} == {len(item)}
        for seed in range(len(item.seeds)):
            assert (np.diff(item.compute_N[item.seed_N == seed]) > 0).all()


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["0", "1", "x", "", "1e999", "nan", "-1", "50%"]), min_size=2, max_size=2))
def test_any_two_cells_are_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str]
) -> None:
    path = tmp_path_factory.mktemp("cells") / "t.csv"
    path.write_text(f"gpu_hours,pass_rate\n0,0.1\n{','.join(cells)}\n")
    with suppress(LabError):
        read_sources([path])


def test_a_log_of_the_last_part_of_a_run_is_refused_from_four_evaluations_on(tmp_path: Path) -> None:
    lines = ["gpu_hours,pass_rate", "900,0.5", "950,0.51", "980,0.52", "1000,0.53"]
    (tmp_path / "three.csv").write_text("\n".join(lines[:-1]))
    (tmp_path / "four.csv").write_text("\n".join(lines))
    assert len(read_sources([tmp_path / "three.csv"])[0]) == 3
    with pytest.raises(LabError, match=r"runs from 900 to 1,000 GPU-hours only\. .* as --compute-start 900"):
        read_sources([tmp_path / "four.csv"])


def test_a_resumed_log_that_leaps_ahead_within_what_it_had_is_known_as_resumed() -> None:
    steps = np.array([1.0, 2, 3, 4, 10, 5, 8, 11, 12])
    found = stitch(steps, steps / 20, steps, "refuse", resumed=False, unit="")
    assert found.notes == ("resumed at step 5: 1 evaluation of the part that was lost left out",)
    assert steps[found.keep_M].tolist() == [1, 2, 3, 4, 5, 8, 11, 12]


def test_steps_that_a_trainer_logs_under_its_own_name_are_compute(tmp_path: Path) -> None:
    rows = "".join(f"{step},{step / 2},{0.1 + step / 100}\n" for step in range(5))
    for name in ("trainer/global_step", "Progress/global_step"):
        (tmp_path / "log.csv").write_text(f"{name},timing/global_step,pass_rate\n{rows}")
        [item] = read_sources([tmp_path / "log.csv"])
        assert (item.unit, item.compute_N.tolist()) == ("steps", [0, 1, 2, 3, 4])
    (tmp_path / "log.csv").write_text(f"timing/global_step,other,pass_rate\n{rows}")
    with pytest.raises(LabError, match="no column for compute"):
        read_sources([tmp_path / "log.csv"])


@pytest.mark.parametrize(
    ("names", "tasks"),
    [
        (["eval/math/pass_rate", "eval/code/pass_rate"], ["math", "code"]),
        (["math_pass_rate", "code_passrate"], ["math", "code"]),
        (["math accuracy", "code_acc"], ["math", "code"]),
        (["math_acc", "math_accuracy"], ["math_acc", "math_accuracy"]),  # else both would be one task
        (["pass_rate", "code_pass_rate"], ["pass_rate", "code"]),
        (["eval/pass_rate", "eval/code/pass_rate"], ["eval", "code"]),
        (["val/aime/24/acc", "val/aime/25/acc"], ["24", "25"]),
        (["math", "code_"], ["math", "code"]),
    ],
)
def test_tasks_are_what_differs_in_the_names_of_columns_less_the_word_for_a_rate(
    names: list[str], tasks: list[str]
) -> None:
    assert list(_tasks(names).items()) == list(zip(names, tasks))


def test_points_part_thousands_where_a_comma_parts_decimals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "spreadsheet.csv"
    hours = (0, 250, 500, 1000, 2000, 4000, 12000)
    rows = [f"{h:,}".replace(",", ".") + f";{20 + h / 1000:.1f} %;1.000\n".replace(".", ",", 1) for h in hours]
    log.write_text("GPU-hours;pass_rate;n\n" + "".join(rows))
    [curve] = said(capsys, "read", str(log), "--column", "compute=GPU-hours")["sources"][0]["curves"]
    assert curve["compute"] == list(map(float, hours)), (
        "1.000 is a thousand: no evaluation is taken for a resumed run's"
    )
    assert curve["pass_rate"] == pytest.approx([0.2 + h / 1e5 for h in hours], abs=1e-3)
    assert numbers(["1.000", "12.500,5", "3"], "decimal").value_N.tolist() == [1000, 12500.5, 3]
    for cells in (["1.000", "12.5"], ["0.250", "0.500"]):
        assert numbers(cells, "decimal").value_N.tolist() == list(map(float, cells)), "decimals, whatever others write"


def test_a_rate_with_decimal_commas_is_found_by_its_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "fremd.csv"
    log.write_text("step;Treffer\n" + "".join(f"{10 * i};0,{20 + i}\n" for i in range(8)))
    [curve] = said(capsys, "read", str(log))["sources"][0]["curves"]
    assert curve["pass_rate"][:2] == [0.2, 0.21]
