"""Records of experts (router replay) in Ray's object store, from the engines to the trainer's ranks.

    engine ── collect_apart ──► completions, shapes ──► driver: keys alone ──► rank.hold, rank.replay
       └──────────────────────► records, in the store of the engine's node ──────────┘

A record has up to a kilobyte for each token, fifty times what the rest of a completion has. The driver owns the
objects, so that they outlive the engine; those that a node holds are lost with it. Checkpoints have none: after a
return to one, the trainer's own router chooses for the completions that had waited.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from moe.sequences import TrainingSequence
from scalelab.recipe.types import NOT_RECORDED, HeldRecord
from scalelab.rollout.types import Completion

FETCH_SECONDS = 60.0
"""Longest time to fetch records; those that have not come by then count as lost."""


@dataclass(frozen=True)
class StoredRecord:
    """The record of one completion, in a list of several that lies in Ray's object store."""

    shape: tuple[int, ...]
    """[prompt and completion tokens, layers, experts per token]."""
    index: int
    """Place in the list."""
    ref: Any = None
    """Reference to the list; None until the driver has it."""


def taken_out(completions: Sequence[Completion]) -> tuple[list[Completion], list[np.ndarray]]:
    """Completions with keys in place of their records, and the records that training needs, in an engine."""
    light: list[Completion] = []
    records: list[np.ndarray] = []
    for one in completions:
        record, key = one.routed_TLK, None
        if isinstance(record, np.ndarray) and one.request.kind == "train":
            key = StoredRecord(record.shape, len(records))
            records.append(record)
        light.append(replace(one, routed_TLK=key))
    return light, records


def stored(records: list[np.ndarray]) -> list[StoredRecord]:
    """Put records into this node's store; gives their keys."""
    ref = ray.put(records)
    return [StoredRecord(record.shape, index, ref) for index, record in enumerate(records)]


def with_keys(completions: Sequence[Completion], ref: Any) -> list[Completion]:
    """Completions from `taken_out`, with the reference to the records, in the driver."""
    return [
        replace(one, routed_TLK=replace(one.routed_TLK, ref=ref)) if isinstance(one.routed_TLK, StoredRecord) else one
        for one in completions
    ]


def fetched(records: Sequence[HeldRecord | None]) -> list[np.ndarray | None]:
    """Fetch records; None in the place of those that are lost, or do not come in time.

    Args:
        records: the keys; None for a completion that needs none.
    """
    refs = {one.ref: None for one in records if isinstance(one, StoredRecord)}
    lists: dict[Any, list[np.ndarray]] = {}
    ends = time.monotonic() + FETCH_SECONDS
    try:
        lists = dict(zip(refs, ray.get([*refs], timeout=FETCH_SECONDS), strict=True))
    except RayError:  # at least one is lost: which?
        for ref in refs:
            try:
                lists[ref] = ray.get(ref, timeout=max(0.0, ends - time.monotonic()))
            except RayError:
                continue
    return [
        lists[one.ref][one.index] if isinstance(one, StoredRecord) and one.ref in lists else None for one in records
    ]


class Replayed:
    """A rank's part: the records of the step to come.

    Ranks fetch them first and train later: all have to replay the same ones, and one rank may lose what others have.
    """

    def __init__(self) -> None:
        self._keys: Sequence[HeldRecord | None] = ()
        self._records: list[np.ndarray | None] = []

    def hold(self, keys: Sequence[HeldRecord | None]) -> list[int]:
        """Fetch the records of a step; returns the places of those that are lost."""
        self._keys, self._records = keys, fetched(keys)
        pairs = zip(self._keys, self._records, strict=True)
        return [place for place, (key, record) in enumerate(pairs) if key is not None and record is None]

    def put_into(self, sequences: Sequence[TrainingSequence], lost: Sequence[int]) -> list[TrainingSequence]:
        """The step's sequences with their records.

        Args:
            sequences: those of the step, in the order of the keys. The trainer's own router chooses for what has
                neither key nor record.
            lost: places of the records that some rank could not fetch: none replays them.
        """
        gone = set(lost)
        each = next((key.shape[1:] for key in self._keys if key is not None), None)
        whole = []
        for place, (one, record) in enumerate(zip(sequences, self._records, strict=True)):
            if each is not None and one.routed_TLK is None:
                if record is None or place in gone:
                    record = np.full((len(one), *each), NOT_RECORDED, np.int16)
                one = replace(one, routed_TLK=record)
            whole.append(one)
        self._keys, self._records = (), []
        return whole
