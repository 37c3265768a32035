"""Miniature math: sums and differences of one-digit terms from reasoning-gym, worked out one step at a time."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tasks.errors import TaskError
from tasks.miniature import Miniature
from tasks.puzzles import one_generator
from tasks.stream import stable_number
from tasks.task import Verifier
from tasks.thinking import THINK_CLOSE, THINK_OPEN
from tasks.types import Prompt


@dataclass(frozen=True)
class MathMiniature(Miniature):
    """Chains like `4 + 9 - 7`; the more terms, the more steps in which a model can go wrong.

    Attributes:
        name: task name.
        min_terms: fewest terms of a chain (two or more).
        max_terms: most terms of a chain.
        max_digits: most digits of a term.
        max_value: chains stay within 0 and this after every term: the sums to be learnt are few, so that what RL
            has to teach is care and not the addition table.
    """

    name: str = "math"
    min_terms: int = 3
    max_terms: int = 6
    max_digits: int = 1
    max_value: int = 19

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.min_terms <= self.max_terms:
            raise TaskError(f"chains of {self.min_terms} to {self.max_terms} terms: need 2 <= min_terms <= max_terms")
        if self.max_digits < 1:
            raise TaskError(f"max_digits is {self.max_digits}: terms need at least one digit")
        if self.max_value < 9:
            raise TaskError(f"max_value is {self.max_value}: too few chains stay below it, give 9 or more")

    def draw(self, number: int) -> Prompt:
        """The first chain within bounds that reasoning-gym makes for seeds derived from a number."""
        attempt = 0
        while True:
            entry = self._chains[stable_number(number, attempt)]
            values = _partial_results(entry["metadata"]["expression"])
            if all(0 <= value <= self.max_value for value in values):
                break
            attempt += 1
        expression = entry["metadata"]["expression"].replace(" ", "")
        return Prompt(
            id=f"{self.name}/{expression}",
            task=self.name,
            text=f"Compute {expression}\n{THINK_OPEN}",
            gold=entry["answer"],
            meta={"expression": entry["metadata"]["expression"], "terms": entry["metadata"]["num_terms"]},
        )

    def solve(self, prompt: Prompt, rng: random.Random) -> str:
        """`4+9=13 13-7=6</think>6`, each step wrong with probability `teacher_error`."""
        first, *rest = prompt.meta["expression"].split()
        value, steps = int(first), []
        for sign, term in zip(rest[::2], rest[1::2]):
            result = value + int(sign + term)
            if rng.random() < self.teacher_error:
                result = self._slip(result, rng)
            steps.append(f"{value}{sign}{term}={result}")
            value = result
        return f"{' '.join(steps)}{THINK_CLOSE}{value}"

    def _slip(self, result: int, rng: random.Random) -> int:
        """Miscounted by one or two, or a ten lost or gained."""
        near = [result + off for off in (-10, -2, -1, 1, 2, 10)]
        return rng.choice([value for value in near if 0 <= value <= self.max_value] or near)

    def verifier(self) -> Verifier:
        """Exact integers at once, other spellings through Math-Verify."""
        from tasks.math.verifier import MathVerifier

        return MathVerifier()

    @cached_property
    def _chains(self) -> Any:
        chains = one_generator("arithmetic.chain_sum")
        return chains.ChainSumDataset(
            chains.ChainSumConfig(
                min_terms=self.min_terms, max_terms=self.max_terms, min_digits=1, max_digits=self.max_digits, seed=0
            )
        )


def _partial_results(expression: str) -> list[int]:
    """`4 - 1 - 7` → [4, 3, -4]."""
    first, *rest = expression.split()
    values = [int(first)]
    for sign, term in zip(rest[::2], rest[1::2]):
        values.append(values[-1] + int(sign + term))
    return values
