"""`scalelab task check` names every reward that would spoil a run, and no honest one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalelab.cli import main
from tasks.check import _seconds, check_task
from tasks.math.miniature import MathMiniature
from tasks.own import FunctionTask
from tasks.types import Verdict

TASKS = """
import random
from dataclasses import dataclass

from scalelab.own import Prompt, RewardTask

SEEN = []


@dataclass(frozen=True)
class Honest(RewardTask):
    name: str = "honest"
    workers: int = 1

    def problem(self, rng):
        word = "".join(rng.choices("abcdefgh", k=6))
        return f"Write {word} backwards.", word[::-1]

    def reward(self, prompt, answer):
        return sum(a == b for a, b in zip(answer, prompt.gold)) / len(prompt.gold)


@dataclass(frozen=True)
class Leaks(Honest):
    name: str = "leaks"

    def reward(self, prompt, answer):
        SEEN.append(answer)
        return float(answer == prompt.gold and len(SEEN) < 20)


@dataclass(frozen=True)
class Chance(Honest):
    name: str = "chance"

    def reward(self, prompt, answer):
        return random.random() if answer == prompt.gold else 0.0


@dataclass(frozen=True)
class Spoils(Honest):
    name: str = "spoils"
    reward_seconds: float = 0.1

    def problem(self, rng):
        text, gold = super().problem(rng)
        return text, [gold]

    def reward(self, prompt, answer):
        if len(answer) > 5_000:
            while True: pass
        if not answer:
            return float("nan")
        if "\\ufffe" in answer:
            raise KeyError("no such field")
        return {"right": float(prompt.gold.pop() == answer)} if answer[0] != "9" else {"form": 0.0}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "my_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("my_tasks", None)


def test_every_reward_that_would_spoil_a_run_is_named_in_80_columns(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["task", "check", "my_tasks.py", "--prompts", "3"]) == 1
    said = capsys.readouterr().out
    honest, leaks, chance, spoils = (said.split("task ")[number] for number in range(1, 5))
    assert "all is well" in honest
    assert "!" not in honest
    assert "!  rewards after others  perfect: 1, then 0" in leaks
    assert "!  rewards given again" in chance
    for line in ("!  golds ", "!  parts ", "!  error ", "!  timeout "):
        assert line in spoils
    assert "returned nan as reward" in spoils
    assert max(map(len, said.splitlines())) <= 80


def test_rewards_that_hang_are_waited_for_three_times_and_each_time_told(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "my_tasks.py").write_text(TASKS.replace("len(answer) > 5_000", "True"))
    assert main(["task", "check", "my_tasks.Spoils"]) == 1
    said = capsys.readouterr()
    assert said.err.count("spoils, ") == said.err.count(": no reward after ") == 3, "a wait of a minute has a word"
    assert "timeout" in said.out
    assert " golds  " not in said.out, "which would be as many waits again"
    slept = [Verdict("timeout", 0.0, seconds=55.0)]
    assert (
        "(limit 5 of a processor, 50 asleep)"
        in _seconds(FunctionTask(prompts="p.jsonl", function=lambda prompt, answer: 1.0), slept).found
    )


def test_one_class_is_checked_with_its_fields_set_and_printed_as_json(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["task", "check", "my_tasks.Honest", "--set", "my_tasks.Honest.size=50", "--prompts", "2", "--json"]
    assert main(command) == 0
    found = {one["what"]: one["found"] for one in json.loads(capsys.readouterr().out)["honest"]}
    assert found["prompts"].startswith("50 different; 20 held-out")


def test_what_is_no_task_is_refused_in_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "empty.py").write_text("x = 1\n")
    (home / "broken.py").write_text("def\n")
    for target, said in {
        "empty.py": "has no task: extend RewardTask or FileTask",
        "broken.py": "broken.py:1: ",
        "none.py": "there is no file none.py",
        "my_tasks.Gone": "defines no 'Gone'",
    }.items():
        assert main(["task", "check", target]) == 1
        printed = capsys.readouterr().err
        assert said in printed
        assert printed.count("\n") == 1


def test_a_task_with_thinking_and_a_verifier_of_its_own_is_well() -> None:
    findings = {one.what: one for one in check_task(MathMiniature(name="math", size=64), prompts=2)}
    assert [one for one in findings.values() if not one.ok] == []
    assert "worked examples" in findings
    few = MathMiniature(size=20, min_terms=2, max_terms=2, max_value=9, held_out_share=0.05)
    [found] = [one for one in check_task(few, prompts=2) if one.what == "prompts"]
    assert found.ok
    assert 2 <= int(found.found.split("; ")[1].split()[0]) < 20, "as many as there are"
