"""Code shared by the miniature tasks: seeded problems, splits by problem text, and a teacher who makes mistakes.

A miniature is a task that a model of a million parameters can learn on two cores. Its prompts end with `<think>`,
so that a completion begins with the working; `trace` shows working and answer as a sloppy teacher would write them.
The teacher is wrong in a given share of the steps and carries each wrong step through to the answer: a model that
imitates him solves only some problems, yet knows the right step as the likeliest, which is the room RL needs.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from dataclasses import dataclass

from tasks.errors import TaskError
from tasks.procedural import Procedural
from tasks.types import Prompt


@dataclass(frozen=True)
class Miniature(Procedural):
    """A procedural task with a teacher.

    Attributes:
        teacher_error: share of steps in which the teacher of `trace` errs.
    """

    teacher_error: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.teacher_error <= 1:
            raise TaskError(f"teacher_error of task {self.name} is {self.teacher_error}: give a share in [0, 1]")

    @abstractmethod
    def solve(self, prompt: Prompt, rng: random.Random) -> str:
        """The teacher's completion for a prompt of this task: working, `</think>`, answer."""

    def trace(self, index: int) -> tuple[Prompt, str]:
        """SFT example number `index`: any problem that is not held out, as the teacher solves it."""
        prompt = self._draw_from("trace", index, held_out=False)
        return prompt, self.solve(prompt, random.Random(f"{self.seed}/teacher/{index}"))
