"""Completions of a run: filters, pages, one prompt through the run, hostile files, and the command."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab import parquet
from scalelab.cli import main
from scalelab.errors import LabError
from scalelab.view import rollouts as module
from scalelab.view.rollouts import Filter, Rollouts
from tests.helpers.view_runs import HOSTILE, add_rollouts, made_run, rollout_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_run(tmp_path_factory.mktemp("rollouts") / "run")


STEPS = (0, 80, 150)
ROWS = [row | {"step": step} for step in STEPS for row in rollout_rows(step)]


@pytest.mark.slow
@given(
    step=st.none() | st.sampled_from(STEPS), task=st.none() | st.sampled_from(("math", "code")),
    outcome=st.none() | st.sampled_from(("passed", "failed", "not passed", "interrupted", "truncated")),
    text=st.none() | st.sampled_from(("ANSWER 80", "think 3", "nowhere")), offset=st.integers(0, 80),
    limit=st.integers(1, 30),
)  # fmt: skip
def test_filters_and_pages_agree_with_a_slow_search(
    folder: Path, step: int | None, task: str | None, outcome: str | None, text: str | None, offset: int, limit: int
) -> None:
    def passes(row: dict) -> bool:
        wanted = {
            None: True, "not passed": row["outcome"] != "passed", "interrupted": row["interrupted"],
            "truncated": row["truncated"],
        }.get(outcome, row["outcome"] == outcome)  # fmt: skip
        words = f"{row['prompt']}\0{row['completion']}\0{row['detail']}".lower()
        return wanted and step in (None, row["step"]) and task in (None, row["task"]) and (text or "").lower() in words

    expected = [row for row in ROWS if passes(row)]
    found = Rollouts(folder).rows(Filter(step=step, task=task, outcome=outcome, text=text), offset, limit)
    assert found["total"] == len(expected)
    assert found["outcomes"] == Counter(row["outcome"] for row in expected)
    shown = [(row["step"], row["prompt_id"], row["outcome"]) for row in found["rows"]]
    assert shown == [(row["step"], row["prompt_id"], row["outcome"]) for row in expected[offset : offset + limit]]


def test_one_completion_is_whole_with_its_tokens(folder: Path) -> None:
    rollouts = Rollouts(folder)
    row = rollouts.row("step_000080.3")
    [expected] = [rollout_rows(80)[3]]
    assert row["completion"] == expected["completion"]
    assert row["pieces"] == expected["pieces"]
    assert row["logprobs"] == expected["logprobs"]
    assert row["spans"] == [[80, 0, 2], [81, 2, 4]]
    assert row["forced"] == [False, False, True, False]
    for id in ("step_000080.999", "step_000080.-1", "../../etc/passwd.0", "", "step_000081.0"):
        with pytest.raises(LabError, match="no completion"):
            rollouts.row(id)


def test_a_completion_with_too_many_tokens_is_shown_without_them_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MOST_VALUES", len(rollout_rows(80)))
    row = Rollouts(folder).row("step_000080.3")
    assert "so it is not read" in row["remark"]
    assert row["completion"] == rollout_rows(80)[3]["completion"]
    assert "logprobs" not in row


def test_a_prompt_is_followed_through_the_run(folder: Path) -> None:
    found = Rollouts(folder).prompt("math", "math/2")
    assert [entry["step"] for entry in found] == list(STEPS)
    assert all(len(entry["rows"]) == 2 for entry in found)


def test_prompts_that_fell_come_first(folder: Path) -> None:
    found = Rollouts(folder).prompts("math", 0, 150)

    def passes(prompt: str, step: int) -> int:
        return sum(r["outcome"] == "passed" for r in ROWS if (r["prompt_id"], r["step"]) == (prompt, step))

    change = [passes(row["prompt_id"], 150) - passes(row["prompt_id"], 0) for row in found["rows"]]
    order = [(one >= 0, one == 0, -abs(one)) for one in change]
    assert order == sorted(order)
    assert (found["fell"], found["rose"]) == (sum(one < 0 for one in change), sum(one > 0 for one in change))
    for row in found["rows"]:
        assert row["passed"] == [passes(row["prompt_id"], step) for step in STEPS]


def test_a_run_of_before_has_no_tokens_and_is_shown(tmp_path: Path) -> None:
    path = add_rollouts(tmp_path, 10)
    old = ["task", "prompt_id", "prompt", "completion", "outcome", "reward", "detail", "tokens"]
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(path, columns=old), path)
    row = Rollouts(tmp_path).row("step_000010.0")
    assert "logprobs" not in row
    assert row["outcome"] in ("passed", "failed")


def test_files_that_are_not_parquet_are_problems_and_the_rest_is_shown(tmp_path: Path) -> None:
    add_rollouts(tmp_path, 10)
    (tmp_path / "rollouts" / "step_000020.parquet").write_bytes(b"PAR1 nonsense PAR1")
    (tmp_path / "rollouts" / "step_000030.parquet").symlink_to("/etc/passwd")
    (tmp_path / "rollouts" / "notes.parquet").write_bytes(b"")
    rollouts = Rollouts(tmp_path)
    assert [entry["step"] for entry in rollouts.steps()] == [10]
    assert len(rollouts.problems) == 2


def test_a_file_that_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_rollouts(tmp_path, 10)
    monkeypatch.setattr(parquet, "MOST_VALUES", 10)
    rollouts = Rollouts(tmp_path)
    assert rollouts.steps() == []
    assert "so it is not read" in rollouts.problems[0]


def test_a_text_that_repeats_a_million_times_costs_what_is_shown(tmp_path: Path) -> None:
    """A dictionary makes a small file of a huge column: only the rows of a page are unpacked."""
    (tmp_path / "rollouts").mkdir()
    count, text = 50_000, "x" * 20_000
    codes = pyarrow.array([0] * count, pyarrow.int32())
    long = pyarrow.DictionaryArray.from_arrays(codes, [text])
    outcome = pyarrow.DictionaryArray.from_arrays(codes, ["passed"])
    table = pyarrow.table(
        {"completion": long, "prompt": long, "outcome": outcome, "task": outcome, "prompt_id": outcome}
    )
    pyarrow.parquet.write_table(table, tmp_path / "rollouts" / "step_000000.parquet")
    found = Rollouts(tmp_path).rows(Filter(), offset=count - 5)
    assert found["total"] == count
    assert len(found["rows"]) == 5
    assert len(found["rows"][0]["completion"]) == module.PREVIEW


def test_new_files_appear(tmp_path: Path) -> None:
    add_rollouts(tmp_path, 10)
    rollouts = Rollouts(tmp_path)
    assert len(rollouts.steps()) == 1
    add_rollouts(tmp_path, 20)
    assert [entry["step"] for entry in rollouts.steps()] == [10, 20]


def test_the_command_prints_completions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollouts", str(folder), "--step", "80", "--failed", "--limit", "2"]) == 0
    printed = capsys.readouterr().out
    assert "✗ failed" in printed
    assert "test 3: got 1" in printed
    assert "\033[" not in printed
    assert "2 of " in printed


def test_the_command_shows_the_last_evaluation_beside_completions_of_later_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path / "run")
    last = max((run / "rollouts").glob("step_*.parquet"))
    shutil.copy(last, run / "rollouts" / "train_000999.parquet")
    assert main(["rollouts", str(run), "--limit", "1"]) == 0
    assert f"evaluation at step {int(last.stem[5:])} " in capsys.readouterr().out
    for one in (run / "rollouts").glob("step_*.parquet"):
        one.unlink()
    assert main(["rollouts", str(run), "--limit", "1"]) == 0
    assert "train step 999 " in capsys.readouterr().out


def test_the_command_compares_steps_and_runs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollouts", str(folder), "--step", "150", "--vs", "0"]) == 0
    assert "prompts pass less often at step 150 than at step 0" in capsys.readouterr().out
    other = made_run(tmp_path / "other", seed=3)
    assert main(["rollouts", str(folder), "--vs", str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shared"] == 12
    for row in found["changed"]:
        assert row["before"] != row["after"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--step", "81"], "the nearest step is 80"),
        (["--task", "chess"], "there are: code, math"),
        (["--limit", "0"], "give 1 or more"),
        (["--vs", "7"], "kept no completions of step 7"),
        (["--vs", "nowhere"], "no such run folder"),
    ],
)
def test_the_command_says_what_is_wrong(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollouts", str(folder), *arguments]) == 1
    assert words in capsys.readouterr().err


def test_the_command_lets_no_escape_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made_run(tmp_path / "run", text=HOSTILE)
    for more in ([], ["--vs", "0"]):
        assert main(["rollouts", str(folder), *more]) == 0
        printed = capsys.readouterr().out
        assert "\x1b" not in printed
        assert "\u202e" not in printed


def test_prompts_are_shown_with_the_beginning_of_their_texts(folder: Path) -> None:
    rows = Rollouts(folder).prompts("math", None, None)["rows"]
    assert {row["prompt_id"]: row["prompt"] for row in rows} == {f"math/{one}": f"What is {one}?" for one in range(6)}


def test_a_prompt_with_fewer_completions_in_a_later_evaluation_has_not_fallen(tmp_path: Path) -> None:
    for step, n in ((0, 4), (10, 2)):
        path = add_rollouts(tmp_path, step, tasks=("math",), per_task=1, k=n)
        rows = [{**row, "outcome": "passed"} for row in pyarrow.parquet.read_table(path).to_pylist()]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    found = Rollouts(tmp_path).prompts(None, 0, 10)
    assert (found["fell"], found["rose"], found["rows"][0]["passed"]) == (0, 0, [4, 2])


def test_a_file_that_comes_changes_goes_and_comes_back_is_read_as_it_is_now(tmp_path: Path) -> None:
    rollouts = Rollouts(tmp_path)

    def total() -> int:
        found: int = rollouts.rows(Filter())["total"]
        return found

    assert total() == 0
    path = add_rollouts(tmp_path, 10, per_task=2)
    assert total() == 2 * 2 * 2
    add_rollouts(tmp_path, 20, per_task=1)
    assert total() == 2 * 2 * (2 + 1)
    add_rollouts(tmp_path, 10, per_task=5)
    assert total() == 2 * 2 * (5 + 1)
    path.rename(tmp_path / "elsewhere")
    assert total() == 2 * 2 * 1
    (tmp_path / "elsewhere").rename(path)
    assert total() == 2 * 2 * (5 + 1), "its time and its size are those that it had"
