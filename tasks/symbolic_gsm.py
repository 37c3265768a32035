"""Grade-school word problems with drawn names and numbers: a stand-in for GSM8K that needs no data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tasks.data.datasets import MATH_TEMPLATE
from tasks.procedural import Procedural
from tasks.puzzles import reasoning_gym
from tasks.stream import problem_key
from tasks.task import Verifier
from tasks.types import Prompt

# reasoning-gym draws the template of every problem at the start.
_PROBLEMS = 2**16


@dataclass(frozen=True)
class SymbolicGSM(Procedural):
    """GSM-Symbolic (arXiv 2410.05229), as made by reasoning-gym, asked as a chat and answered without thinking.

    Attributes:
        name: task name.
        held_out_share: share of all problems that is never trained on; all come from some ninety templates.
    """

    name: str = "gsm_symbolic"
    held_out_share: float = 0.1

    @property
    def has_thinking(self) -> bool:
        """False: the whole completion is graded."""
        return False

    def draw(self, number: int) -> Prompt:
        """A template's problem, for names and numbers derived from a number."""
        entry = self._problems[number % _PROBLEMS]
        asked = MATH_TEMPLATE.replace("{problem}", entry["question"])
        return Prompt(
            id=f"{self.name}/{problem_key(entry['question'])}",
            task=self.name,
            text=asked,
            gold=entry["answer"],
            chat=({"role": "user", "content": asked.strip()},),
        )

    def verifier(self) -> Verifier:
        """Numbers at once, other spellings through Math-Verify; the whole completion is graded."""
        from tasks.math.verifier import MathVerifier

        return MathVerifier(whole_if_unclosed=True)

    @cached_property
    def _problems(self) -> Any:
        symbolic = reasoning_gym("arithmetic.gsm_symbolic")
        return symbolic.GSMSymbolicDataset(symbolic.GSMSymbolicDatasetConfig(size=_PROBLEMS, seed=0))
