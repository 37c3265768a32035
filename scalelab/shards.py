"""Shards: tokens, texts and records of experts of completions, in Ray's object store.

    engine ── collect ──► counts and keys: driver ──┬─ key ─► verifiers, which read the text
       └────► shards, in the store of its node      ├─ keys of a step ─► trainer ranks, which read tokens and records
                                                    └─ keys of a file ─► the thread that writes it

A shard is what one answer of an engine brought: an Arrow table of contents, and a list of records (up to a kilobyte a
token, fifty times the rest), for they are read at different places. The driver owns them, so that they outlive the
engine; what a node holds is lost with it. Answers smaller than `Cluster.shard_bytes` travel whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from scalelab.recipe.types import AnyRollout, Content, HeldContent, HeldRecord, HeldRollout, Rollout
from scalelab.rollout.types import AnyCompletion, Completion, HeldCompletion

if TYPE_CHECKING:
    import pyarrow

LOST = "tokens and text were lost with their node"
"""Remark beside a completion whose content is gone."""

FETCH_SECONDS = 60.0
"""Longest time to fetch what lies in shards; what has not come by then counts as lost."""

BRIEF_SECONDS = 10.0
"""Longest time to fetch it where the next step waits for that."""

SETTLED_SECONDS = 5.0
"""Longest time to read a shard that has come, or is known to be lost."""


@dataclass(frozen=True)
class StoredContent:
    """The content of one completion, in a table of several that lies in Ray's object store."""

    index: int
    """Row of the table."""
    ref: Any = None
    """Reference to the table; None until the driver has it."""


@dataclass(frozen=True)
class StoredRecord:
    """The record of one completion, in a list of several that lies in Ray's object store."""

    shape: tuple[int, ...]
    """[prompt and completion tokens, layers, experts per token]."""
    index: int
    """Place in the list."""
    ref: Any = None
    """Reference to the list; None until the driver has it."""


def contents_table(completions: Sequence[Completion]) -> pyarrow.Table:
    """The contents of completions, one row each."""
    import pyarrow as pa

    def lists(parts: Sequence[np.ndarray]) -> pyarrow.Array:
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.int32)
        return pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(parts)))

    columns = {
        "completion_ids": lists([one.token_ids for one in completions]),
        "logprobs_T": lists([one.logprobs_T for one in completions]),
        "forced_T": lists([one.forced_T for one in completions]),
        "text": pa.array([one.text.encode("utf-8", "surrogatepass") for one in completions], pa.large_binary()),
    }
    return pa.table(columns)


def row(table: pyarrow.Table, index: int) -> Content:
    """One completion's content; its token ids and log-probabilities are views of the table."""
    tokens = {name: table[name][index].values for name in ("completion_ids", "logprobs_T", "forced_T")}
    arrays = {name: values.to_numpy(zero_copy_only=False) for name, values in tokens.items()}
    return Content(**arrays, text=table["text"][index].as_py().decode("utf-8", "surrogatepass"))


def taken_out(
    completions: Sequence[Completion], shard_bytes: int
) -> tuple[list[AnyCompletion], pyarrow.Table | None, list[np.ndarray]]:
    """An engine's answer: completions with keys for what is large, and the shards with that.

    Args:
        completions: all of the answer.
        shard_bytes: size of their contents from which these are a shard.

    Returns:
        The completions, the table of their contents (None if they are small), and the records that training needs.
    """
    light, records = [], list[np.ndarray]()
    for one in completions:
        record, key = one.routed_TLK, None
        if isinstance(record, np.ndarray) and one.request.kind == "train":
            key = StoredRecord(record.shape, len(records))
            records.append(record)
        light.append(replace(one, routed_TLK=key))
    size = sum(one.token_ids.nbytes + one.logprobs_T.nbytes + one.forced_T.nbytes + len(one.text) for one in light)
    if not light or size < shard_bytes:
        return [*light], None, records
    return [_held(index, one) for index, one in enumerate(light)], contents_table(light), records


def _held(index: int, one: Completion) -> HeldCompletion:
    sampled_T = ~one.forced_T
    return HeldCompletion(
        request=one.request,
        tokens=one.tokens,
        sampled=int(np.count_nonzero(sampled_T)),
        finite=bool(np.all(np.isfinite(one.logprobs_T[sampled_T]))),
        spans=one.spans,
        truncated=one.truncated,
        interrupted=one.interrupted,
        content=StoredContent(index),
        routed_TLK=one.routed_TLK if isinstance(one.routed_TLK, StoredRecord) else None,
    )


def stored(records: list[np.ndarray]) -> list[StoredRecord]:
    """Put records into this node's store; gives their keys."""
    import ray

    ref = ray.put(records)
    return [StoredRecord(record.shape, index, ref) for index, record in enumerate(records)]


def with_keys(completions: Sequence[AnyCompletion], contents: Any, records: Any) -> list[AnyCompletion]:
    """Completions from `taken_out`, with the references to their shards, in the driver."""
    whole: list[AnyCompletion] = []
    for one in completions:
        if isinstance(one.routed_TLK, StoredRecord):
            one = replace(one, routed_TLK=replace(one.routed_TLK, ref=records))
        if isinstance(one, HeldCompletion) and isinstance(one.content, StoredContent):
            one = replace(one, content=replace(one.content, ref=contents))
        whole.append(one)
    return whole


def _shards(refs: Iterable[Any], seconds: float) -> dict[Any, Any]:
    """Fetch shards; those that are lost, or do not come in time, are left out."""
    import ray
    from ray.exceptions import RayError

    shards: dict[Any, Any] = {}
    once, ends = [*dict.fromkeys(refs)], time.monotonic() + seconds
    try:
        return dict(zip(once, ray.get(once, timeout=seconds), strict=True))
    except RayError:  # at least one is lost, or late: which? None may wait for another's time
        settled, _ = ray.wait(once, num_returns=len(once), timeout=max(0.0, ends - time.monotonic()))
    for ref in settled:
        try:
            shards[ref] = ray.get(ref, timeout=SETTLED_SECONDS)
        except RayError:
            continue
    return shards


def fetched_records(keys: Sequence[HeldRecord | None], seconds: float = FETCH_SECONDS) -> dict[int, np.ndarray]:
    """Fetch records of experts, by their places among the keys; without those that are lost.

    Args:
        keys: None for a completion that needs none.
        seconds: longest time that it may take.
    """
    places = {place: key for place, key in enumerate(keys) if isinstance(key, StoredRecord)}
    shards = _shards((key.ref for key in places.values()), seconds) if places else {}
    return {place: shards[key.ref][key.index] for place, key in places.items() if key.ref in shards}


def fetched(keys: Sequence[HeldContent | None], seconds: float = FETCH_SECONDS) -> dict[int, Content]:
    """Fetch contents, by their places among the keys; without those that are lost.

    Args:
        keys: None for a completion that needs none.
        seconds: longest time that it may take.
    """
    places = {place: key for place, key in enumerate(keys) if isinstance(key, StoredContent)}
    shards = _shards((key.ref for key in places.values()), seconds) if places else {}
    return {place: row(shards[key.ref], key.index) for place, key in places.items() if key.ref in shards}


def with_contents(rollouts: Sequence[AnyRollout], seconds: float = FETCH_SECONDS) -> list[Rollout | None]:
    """Completions with their contents; None in the place of one that is lost.

    Args:
        rollouts: graded completions.
        seconds: longest time that it may take; the thread that calls it waits.
    """
    contents = fetched([one.content if isinstance(one, HeldRollout) else None for one in rollouts], seconds)
    return [
        one if isinstance(one, Rollout) else one.filled(contents[place]) if place in contents else None
        for place, one in enumerate(rollouts)
    ]
