"""Miniature code: write a Python function that applies a few integer operations, told in words or by examples."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.errors import TaskError
from tasks.miniature import Miniature
from tasks.thinking import THINK_CLOSE, THINK_OPEN
from tasks.types import Prompt

if TYPE_CHECKING:
    from tasks.task import Verifier

# Hidden inputs of every function: both signs, zero, and more than any constant of an operation.
HIDDEN_INPUTS = (-17, -6, -3, -1, 0, 1, 2, 4, 9, 23)


@dataclass(frozen=True)
class Operation:
    """One integer operation: how a prompt says it, how Python writes it, what it does."""

    words: str
    code: str
    apply: Callable[[int, int], int]

    @property
    def takes_number(self) -> bool:
        """True if the operation has a constant."""
        return "{n}" in self.words


OPERATIONS = {
    "add": Operation("add {n}", "x+{n}", lambda x, n: x + n),
    "subtract": Operation("subtract {n}", "x-{n}", lambda x, n: x - n),
    "multiply": Operation("times {n}", "x*{n}", lambda x, n: x * n),
    "remainder": Operation("mod {n}", "x%{n}", lambda x, n: x % n),
    "negate": Operation("negate", "-x", lambda x, n: -x),
    "square": Operation("square", "x*x", lambda x, n: x * x),
}

AppliedOperation = tuple[str, int]
"""An operation's name and its constant (0 where it takes none)."""


@dataclass(frozen=True)
class CodeMiniature(Miniature):
    """Functions like `square, add 3, negate`; the more operations, the more steps in which a model can go wrong.

    Attributes:
        name: task name.
        min_operations: fewest operations of a function.
        max_operations: most operations of a function.
        examples_share: share of prompts that show `f(0)` and `f(1)` of a linear function instead of words.
    """

    name: str = "code"
    min_operations: int = 2
    max_operations: int = 5
    examples_share: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.min_operations <= self.max_operations:
            raise TaskError(
                f"functions of {self.min_operations} to {self.max_operations} operations: "
                "need 1 <= min_operations <= max_operations"
            )
        if not 0 <= self.examples_share <= 1:
            raise TaskError(f"examples_share is {self.examples_share}: give a share in [0, 1]")

    def draw(self, number: int) -> Prompt:
        """The function that belongs to a seed."""
        rng = random.Random(number)
        by_examples = rng.random() < self.examples_share
        steps = _line(rng) if by_examples else self._chain(rng)
        shown = [run(steps, 0), run(steps, 1)] if by_examples else []
        problem = ", ".join(
            [f"f({x})={y}" for x, y in enumerate(shown)] or [OPERATIONS[name].words.format(n=n) for name, n in steps]
        )
        return Prompt(
            id=f"{self.name}/{problem}",
            task=self.name,
            text=f"Write {problem}\n{THINK_OPEN}",
            gold={
                "kind": "call",
                "entry_point": "f",
                "cases": [{"args": [x], "expected": run(steps, x)} for x in HIDDEN_INPUTS],
            },
            meta={"steps": [list(step) for step in steps], "shown": shown},
        )

    def solve(self, prompt: Prompt, rng: random.Random) -> str:
        """`x*x, x+3</think>def f(x): …`, each step wrong with probability `teacher_error`.

        From examples the slope is worked out first: `17-5=12, x*12, x+5`.
        """
        shown = prompt.meta["shown"]
        slip = _misread if shown else _mistake
        steps = [
            slip((name, n), rng) if rng.random() < self.teacher_error else (name, n) for name, n in prompt.meta["steps"]
        ]
        working = [OPERATIONS[name].code.format(n=n) for name, n in steps]
        if shown:
            working.insert(0, f"{shown[1]}-{shown[0]}={steps[0][1]}")
        return f"{', '.join(working)}{THINK_CLOSE}{program(steps)}"

    def _chain(self, rng: random.Random) -> list[AppliedOperation]:
        count = rng.randint(self.min_operations, self.max_operations)
        names = [rng.choice(sorted(OPERATIONS)) for _ in range(count)]
        return [(name, rng.randint(2, 9) if OPERATIONS[name].takes_number else 0) for name in names]

    def verifier(self) -> Verifier:
        """Have the function compute the hidden inputs, in the sandbox if it must run for it."""
        from tasks.code.verifier import CodeVerifier

        return CodeVerifier()


def run(steps: Sequence[AppliedOperation], x: int) -> int:
    """Apply the operations to `x`."""
    for name, n in steps:
        x = OPERATIONS[name].apply(x, n)
    return x


def program(steps: Sequence[AppliedOperation]) -> str:
    """The function that applies the operations, one per line."""
    lines = [f"    x={OPERATIONS[name].code.format(n=n)}" for name, n in steps]
    return "\n".join(["def f(x):", *lines, "    return x"])


def _line(rng: random.Random) -> list[AppliedOperation]:
    return [("multiply", rng.randint(2, 9)), (rng.choice(("add", "subtract")), rng.randint(1, 20))]


def _misread(step: AppliedOperation, rng: random.Random) -> AppliedOperation:
    """Copy the operation with its constant off by one."""
    name, n = step
    return name, n + rng.choice((-1, 1))


def _mistake(step: AppliedOperation, rng: random.Random) -> AppliedOperation:
    """A wrong step: the constant misread, or another operation taken."""
    name, n = step
    if n and rng.random() < 0.5:
        return _misread(step, rng)
    other = rng.choice([other for other in sorted(OPERATIONS) if other != name])
    return other, (n or rng.randint(2, 9)) if OPERATIONS[other].takes_number else 0
