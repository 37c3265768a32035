"""Tasks of finitely many problems: a held-out split by the problems' keys, and an endless stream of the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from typing import Any

from tasks.errors import TaskError
from tasks.stream import epoch_position, stable_number
from tasks.types import Prompt


class Finite(ABC):
    """Splits and stream of a frozen dataclass that has a fixed set of prompts and the fields below.

    The split and the order depend on the prompts' keys, the seed and the size of the split alone.
    """

    name: str
    seed: int
    held_out_size: int

    def __getstate__(self) -> dict[str, Any]:
        """The configuration without the loaded prompts: a verifier on another machine does not need them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @abstractmethod
    def _prompts(self) -> Mapping[str, Prompt]:
        """All prompts, by key."""

    @abstractmethod
    def _why_empty(self) -> str:
        """Reason why nothing may be left to train on, for a message."""

    @property
    def size(self) -> int:
        """Number of different training prompts."""
        return len(self._split[1])

    @property
    def held_out_count(self) -> int:
        """Number of held-out prompts."""
        return len(self._split[0])

    def prompt(self, index: int) -> Prompt:
        """Training prompt number `index` of an endless stream that permutes the prompts anew every epoch.

        Raises:
            TaskError: no prompt is left to train on.
        """
        if not self.size:
            raise TaskError(f"{self.name} has nothing to train on: {self._why_empty()}")
        return self._split[1][epoch_position(index, self.size, self.seed)]

    def held_out(self, n: int) -> list[Prompt]:
        """The first `n` held-out prompts.

        Raises:
            TaskError: fewer are held out.
        """
        if n > self.held_out_count:
            raise TaskError(f"{self.name} holds out {self.held_out_count} prompts, {n} are asked for")
        return self._split[0][:n]

    def _held_out_of(self, prompts: int) -> int:
        """Number of prompts to hold out of so many."""
        return self.held_out_size

    @cached_property
    def _split(self) -> tuple[list[Prompt], list[Prompt]]:
        """The held-out prompts, and those to train on."""
        prompts = self._prompts()
        chosen = [prompts[key] for key in sorted(prompts, key=lambda key: stable_number(self.seed, key))]
        held_out = self._held_out_of(len(chosen))
        return chosen[:held_out], chosen[held_out:]
