"""Tasks whose verdicts err in training and not in evaluations: does noise in the reward cost rate or asymptote?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tasks.errors import TaskError
from tasks.stream import stable_number
from tasks.task import Task, Verifier, has_worked_examples
from tasks.types import Prompt, Verdict

TRAINED_ON = "trained_on"
"""Mark in the `meta` of a prompt whose verdicts err."""


@dataclass(frozen=True)
class NoisyVerdicts:
    """A task some of whose verdicts on training prompts are turned round; held-out prompts keep the true ones.

    Which verdicts, depends on prompt and completion alone, as with a grader that reads some answers wrongly. The
    prompts of both splits are the task's own.

    Attributes:
        task: the task.
        false_pass: share of failed completions that pass.
        false_refusal: share of passed completions that fail.
    """

    task: Task
    false_pass: float = 0.0
    false_refusal: float = 0.0

    def __post_init__(self) -> None:
        for name in ("false_pass", "false_refusal"):
            share = getattr(self, name)
            if not 0 <= share < 1:
                raise TaskError(f"{name} of task {self.name} is {share}: give a share in [0, 1)")

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task.name

    @property
    def size(self) -> int | None:
        """Number of different training prompts."""
        return self.task.size

    @property
    def held_out_size(self) -> int | None:
        """Largest held-out split, as far as the task knows."""
        return self.task.held_out_size

    @property
    def has_thinking(self) -> bool:
        """True if completions begin inside `<think>`."""
        return self.task.has_thinking

    @property
    def has_trace(self) -> bool:
        """True if the task has worked examples."""
        return has_worked_examples(self.task)

    def prompt(self, index: int) -> Prompt:
        """Training prompt number `index`, with a mark."""
        found = self.task.prompt(index)
        return replace(found, meta={**found.meta, TRAINED_ON: True})

    def held_out(self, n: int) -> list[Prompt]:
        """The first `n` held-out prompts."""
        return self.task.held_out(n)

    def trace(self, index: int) -> tuple[Prompt, str]:
        """Worked example number `index`."""
        found: tuple[Prompt, str] = self.task.trace(index)  # type: ignore[attr-defined] # a task need not have any
        return found

    def verifier(self) -> NoisyVerifier:
        """The task's verifier, with errors."""
        return NoisyVerifier(self.task.verifier(), self.false_pass, self.false_refusal)

    def describe(self) -> dict[str, Any]:
        """Origin of the problems."""
        return self.task.describe()


@dataclass(frozen=True)
class NoisyVerifier:
    """A verifier some of whose verdicts on training prompts are turned round; attributes as in `NoisyVerdicts`."""

    true: Verifier
    false_pass: float
    false_refusal: float

    def verify(self, items: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        """One verdict per (prompt, completion), in order."""
        return [self._reported(*item, found) for item, found in zip(items, self.true.verify(items), strict=True)]

    def close(self) -> None:
        """End the processes behind the verifier."""
        self.true.close()

    def _reported(self, prompt: Prompt, completion: str, found: Verdict) -> Verdict:
        shares = {"passed": self.false_refusal, "failed": self.false_pass}
        share = shares.get(found.outcome, 0.0) if TRAINED_ON in prompt.meta else 0.0
        if stable_number("noise", prompt.id, completion) >= share * 2**62:
            return found
        if found.outcome == "passed":
            return replace(found, outcome="failed", reward=0.0, detail="turned round: passed in truth")
        return replace(found, outcome="passed", reward=1.0, detail="turned round: failed in truth")
