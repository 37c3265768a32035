"""The hundred families of problems of reasoning-gym as tasks: https://github.com/open-thought/reasoning-gym."""

from __future__ import annotations

import difflib
import random
import re
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from tasks.errors import TaskError
from tasks.own import RewardTask
from tasks.puzzles import demand_solver, reasoning_gym
from tasks.rewards import Reward
from tasks.types import Prompt

# Some families draw all their problems at the start.
_PROBLEMS = 2**14
# `game_of_life_halting` gives full marks to any text, `codeio` runs stored code in this process.
_REFUSED = ("game_of_life_halting", "codeio")


@dataclass(frozen=True)
class ReasoningGym(RewardTask):
    r"""One family of reasoning-gym, such as `countdown`, graded by its own scorer.

    The answer that is scored is the last `\boxed{}`, the last `<answer>` or else the whole answer. `pass_at` is 1 by
    default, because some scorers give a little to any text.
    """

    name: str = "countdown"
    """The family, and the task's name."""

    family: str = ""
    """The family, where the task goes by another name."""

    settings: dict[str, int | float | str | bool] = field(default_factory=dict)
    """Difficulty: fields of the family's configuration, such as `{"min_numbers": 3, "max_numbers": 3}`."""

    partial: bool = False
    """Take the scorer's partial credit as the reward; if not, what is not right is 0."""

    number: bool = False
    """Grade in place of the scorer the number that an answer states, as in `4 + 3 = 7` or `The answer is 7.`; for
    families whose answers are numbers. A formula does not count: one that repeats the problem would be right."""

    size: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of in _REFUSED:
            raise TaskError(f"family {self.of} of reasoning-gym cannot be graded safely: choose another")
        if self.number and self.partial:
            raise TaskError(f"task {self.name} has number and partial: a number is right or wrong, so bind one of them")

    @property
    def of(self) -> str:
        """The family's name."""
        return self.family or self.name

    def problem(self, rng: random.Random) -> tuple[str, Any]:
        """A problem of the family; what its scorer needs is the whole entry's index."""
        index = rng.randrange(_PROBLEMS)
        entry = self._problems[index]
        return f"{entry['question'].strip()}\n", {"index": index, "answer": entry["answer"]}

    def reward(self, prompt: Prompt, answer: str) -> Reward:
        """The scorer's reward for the answer, or 1 for the right number."""
        if self.number:
            return float(stated_number(answer) == Fraction(prompt.gold["answer"]))
        score = float(self._problems.score_answer(committed(answer), self._problems[prompt.gold["index"]]))
        return min(max(score, 0.0), 1.0) if self.partial else float(score >= 1.0)

    def describe(self) -> dict[str, Any]:
        """Family, difficulty and the version of reasoning-gym."""
        from importlib.metadata import version

        return {"family": self.of, "settings": dict(self.settings), "reasoning_gym": version("reasoning-gym")}

    @cached_property
    def _problems(self) -> Any:
        factory = reasoning_gym("factory")
        if self.of not in factory.DATASETS:
            near = difflib.get_close_matches(self.of, factory.DATASETS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(sorted(factory.DATASETS))}"
            raise TaskError(f"reasoning-gym has no family {self.of!r}: {hint}")
        demand_solver(self.of)
        try:
            return factory.create_dataset(self.of, size=_PROBLEMS, seed=0, **self.settings)
        except (TypeError, ValueError, AssertionError) as problem:
            raise TaskError(f"settings {dict(self.settings)} do not fit family {self.of}: {problem}") from problem


_BOX = re.compile(r"\\boxed\{([^{}]*)\}")


def committed(answer: str) -> str:
    r"""The part of an answer that counts: its last `\boxed{}`, its last `<answer>`, or all of it."""
    _, opened, rest = answer.rpartition("<answer>")
    if opened:
        return rest.partition("</answer>")[0].strip()
    boxes = _BOX.findall(answer)
    return boxes[-1].strip() if boxes else answer.strip()


_STATING = re.compile(r"=|\bis\b")
_NUMBER = re.compile(r"[\s*$:]*([-\u2013\u2212]?\d{1,40}(?:\.\d{1,40})?)(?![\w^]|\.\d|\s*[-\u2013\u2212+*/(])")


def stated_number(answer: str) -> Fraction | None:
    """The number that stands after the last `=` or `is` of the part that counts; None if there is no bare number."""
    found = _NUMBER.match(_STATING.split(committed(answer))[-1])
    return Fraction(found[1].replace("\u2013", "-").replace("\u2212", "-")) if found else None
