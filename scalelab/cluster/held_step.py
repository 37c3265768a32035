"""A trainer rank's part in a step whose completions, or their records of experts, lie in shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from moe.sequences import TrainingSequence
from scalelab.recipe.sequences import PlannedSequences
from scalelab.recipe.types import NOT_RECORDED, Content, HeldRecord
from scalelab.shards import fetched, fetched_records

Planned: TypeAlias = PlannedSequences | list[TrainingSequence]
"""A step's completions: whole ones come as sequences."""


@dataclass(frozen=True)
class Lost:
    """Places of completions in a step whose content, or whose record of experts, could not be fetched."""

    contents: frozenset[int] = frozenset()
    records: frozenset[int] = frozenset()

    @classmethod
    def together(cls, ranks: Iterable[Lost]) -> Lost:
        """Join what ranks lack: all have to train on the same, and one rank may lose what others have."""
        all_of = [*ranks]
        return cls(
            frozenset[int]().union(*(one.contents for one in all_of)),
            frozenset[int]().union(*(one.records for one in all_of)),
        )


class HeldStep:
    """The step to come. Ranks fetch it first and train later, on what all of them have."""

    def __init__(self) -> None:
        self._planned: Planned = []
        self._contents: dict[int, Content] = {}
        self._keys: Sequence[HeldRecord | None] = ()
        self._records: dict[int, np.ndarray] = {}

    def fetch(self, planned: Planned, keys: Sequence[HeldRecord | None], seconds: float) -> Lost:
        """Fetch what lies in shards.

        Args:
            planned: the step's completions.
            keys: of their records of experts, one for each or None; empty if they have none.
            seconds: longest time for contents, and again for records; what has not come by then counts as lost.
        """
        self._planned, self._keys = planned, keys
        wanted = planned.keys if isinstance(planned, PlannedSequences) else []
        self._contents, self._records = fetched(wanted, seconds), fetched_records(keys, seconds)
        contents = frozenset(n for n, key in enumerate(wanted) if key is not None and n not in self._contents)
        records = frozenset(n for n, key in enumerate(keys) if key is not None and n not in self._records)
        return Lost(contents, records)

    def take(self, lost: Lost) -> list[TrainingSequence]:
        """The step's sequences, in order, and let go of it.

        Completions without content are left out. Of one without a record, or whose record is lost, the trainer's own
        router chooses the experts.

        Args:
            lost: what some rank lacks.
        """
        there = [n for n in range(len(self._planned)) if n not in lost.contents]
        if isinstance(self._planned, PlannedSequences):
            contents = {n: one for n, one in self._contents.items() if n not in lost.contents}
            sequences = self._planned.filled(contents).built()
        else:
            sequences = self._planned
        each = next((key.shape[1:] for key in self._keys if key is not None), None)
        if each is not None:
            sequences = [
                one if one.routed_TLK is not None else replace(one, routed_TLK=self._record(n, lost, (len(one), *each)))
                for n, one in zip(there, sequences, strict=True)
            ]
        self._planned, self._contents, self._keys, self._records = [], {}, (), {}
        return sequences

    def _record(self, place: int, lost: Lost, shape: tuple[int, ...]) -> np.ndarray:
        record = None if place in lost.records else self._records.get(place)
        return np.full(shape, NOT_RECORDED, np.int16) if record is None else record
