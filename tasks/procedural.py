"""Procedural tasks: seeded problems without end, and splits by problem text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from tasks.errors import TaskError
from tasks.stream import epoch_position, in_held_out, stable_number
from tasks.types import Prompt

# Draws without a new problem after which the problems are taken to be used up.
_PATIENCE = 10_000

MOST_HELD_OUT = 20_000
"""Most problems that an evaluation gets: they are drawn until so many differ, a few thousand in a second."""


@dataclass(frozen=True)
class Procedural(ABC):
    """A task that makes its problems; all its splits are fixed by its fields.

    Attributes:
        name: task name; prompt ids are `name/problem`, so a problem drawn twice has one history.
        seed: of the problem streams. Which problems are held out does not depend on it.
        size: number of different training prompts, permuted anew every epoch.
        held_out_share: share of all problems that is never trained on, neither by SFT nor by RL.
    """

    name: str
    seed: int = 0
    size: int = 4096
    held_out_share: float = 0.2

    def __post_init__(self) -> None:
        if self.size < 1:
            raise TaskError(f"size of task {self.name} is {self.size}: need at least one training prompt")
        if not 0 < self.held_out_share < 1:
            raise TaskError(f"held_out_share of task {self.name} is {self.held_out_share}: give a share in (0, 1)")

    def __getstate__(self) -> dict[str, Any]:
        """The configuration without the problems made so far: a verifier on another machine does not need them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def held_out_size(self) -> int | None:
        """None: as many prompts are held out as the settings give different problems."""
        return None

    @property
    def has_thinking(self) -> bool:
        """True if completions begin inside `<think>`."""
        return True

    def describe(self) -> dict[str, Any]:
        """An empty description: the fields, which are in the configuration, say all."""
        return {}

    @abstractmethod
    def draw(self, number: int) -> Prompt:
        """The problem that belongs to a number in [0, 2^62), of either split."""

    def prompt(self, index: int) -> Prompt:
        """Training prompt number `index` of an endless stream over `size` different ones."""
        return self._pool[epoch_position(index, self.size, self.seed)]

    def held_out(self, n: int) -> list[Prompt]:
        """The first `n` held-out prompts, all different.

        Raises:
            TaskError: the settings allow fewer different problems, or there are more than `MOST_HELD_OUT`.
        """
        if n > MOST_HELD_OUT:
            raise TaskError(
                f"task {self.name} holds out {MOST_HELD_OUT:,} problems at most, {n:,} are asked for: evaluate fewer"
            )
        return self._distinct(n, held_out=True)

    @cached_property
    def _pool(self) -> list[Prompt]:
        return self._distinct(self.size, held_out=False)

    def _distinct(self, n: int, *, held_out: bool) -> list[Prompt]:
        prompts: dict[str, Prompt] = {}
        index = last_new = 0
        while len(prompts) < n:
            prompt = self._draw_from("prompt", index, held_out=held_out)
            if prompt.id not in prompts:
                prompts[prompt.id], last_new = prompt, index
            elif index - last_new > _PATIENCE:
                kind = type(self).__name__
                split, fewer = (
                    ("held-out", f"evaluate fewer, raise {kind}.held_out_share")
                    if held_out
                    else ("training", f"lower {kind}.size")
                )
                raise TaskError(
                    f"task {self.name} has about {len(prompts)} different {split} problems, {n} are asked for: "
                    f"{fewer}, or allow longer problems"
                )
            index += 1
        return list(prompts.values())

    def _draw_from(self, stream: str, index: int, *, held_out: bool) -> Prompt:
        return self._numbered(stream, index, held_out=held_out)[1]

    def _numbered(self, stream: str, index: int, *, held_out: bool) -> tuple[int, Prompt]:
        """A problem of one split, with the number that it is drawn from."""
        for number in self._numbers(stream, index, held_out):
            prompt = self.draw(number)
            if in_held_out(prompt.id, self.held_out_share) == held_out:
                return number, prompt
        raise TaskError(f"task {self.name} has too few different problems to split: allow longer problems")

    def _numbers(self, stream: str, index: int, held_out: bool) -> Iterator[int]:
        for attempt in range(_PATIENCE):
            yield stable_number(self.seed, stream, held_out, index, attempt)
