"""A rehearsal of the verifiers runs the run's own, and breaks where they would grade wrongly or not at all."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import NoReturn

import pytest

from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.rehearse.result import RoleResult
from scalelab.rehearse.roles import Role
from scalelab.rehearse.setting import RehearsalSettings
from scalelab.rehearse.verifier import rehearse
from tasks.data.datasets import CodeDataset, MathDataset
from tasks.math.miniature import MathMiniature
from tasks.own import RewardTask
from tasks.task import Task
from tasks.types import Prompt


def of(*tasks: Task) -> RoleResult:
    run = replace(resolve("math_code").run, tasks=tasks, task_weights=None)
    run = replace(run, evaluation=replace(run.evaluation, benchmarks=()))
    return rehearse(RehearsalSettings(run, device("h100")), Role("verifier", "verifier", 0, 3))


@dataclass(frozen=True)
class Lenient(RewardTask):
    """Anything passes."""

    def problem(self, rng: random.Random) -> tuple[str, str]:
        number = rng.randrange(10**9)
        return f"{number} + 1", f"{number + 1}"

    def reward(self, prompt: Prompt, answer: str) -> float:
        return 1.0


@dataclass(frozen=True)
class Raising(Lenient):
    """No reward is ever given."""

    def reward(self, prompt: Prompt, answer: str) -> float:
        raise RuntimeError("no such column")


class Unwilling(MathDataset):
    """Its verifier cannot be made."""

    def verifier(self) -> NoReturn:
        raise OSError("no processes left")


@dataclass(frozen=True)
class Tagged(Lenient):
    """An answer stands between tags."""

    def reward(self, prompt: Prompt, answer: str) -> float:
        return float(f"<answer>{prompt.gold}</answer>" in answer)


def test_a_reward_that_does_not_take_the_gold_for_an_answer_is_no_error() -> None:
    assert of(Tagged(name="tagged")).problems == []


def test_the_verifiers_of_both_kinds_tell_right_from_wrong_without_data() -> None:
    result = of(MathDataset("polaris_53k"), CodeDataset("deepcoder"), MathMiniature())
    assert result.problems == []
    assert [(phase.name, phase.ok) for phase in result.phases] == [("start", True), ("grade", True)]
    assert result.stands_for == 3
    assert any("deepcoder has the tier" in line for line in result.not_rehearsed)
    assert any("the problems of polaris_53k" in line for line in result.not_rehearsed)


@pytest.mark.parametrize(
    ("task", "phases", "said"),
    [
        (Lenient(name="easy"), ["start", "grade"], "grade: easy: an empty answer is passed"),
        (Raising(name="broken"), ["start", "grade"], "grade: broken: the gold as an answer is error: "),
        (Unwilling("polaris_53k"), ["start"], "start: OSError"),
    ],
)
def test_a_verifier_that_grades_wrongly_breaks(task: Task, phases: list[str], said: str) -> None:
    result = of(task)
    assert [phase.name for phase in result.phases] == phases
    assert said in result.problems[0]
    assert result.verdict == "breaks"
