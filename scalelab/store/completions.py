"""Graded completions on the disk: Parquet, written by columns and in parts while the completions come.

A part goes from NumPy arrays to the file in a thread, so that neither the memory nor the event loop of a run feels how
many completions an evaluation has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from moe.durable import own_partial, put_in_place
from scalelab.recipe.types import NO_CONTENT, AnyRollout, HeldRollout, Rollout
from scalelab.shards import FETCH_SECONDS, LOST, with_contents
from tasks.text import clean

if TYPE_CHECKING:
    import pyarrow

PART_TOKENS = 200_000
"""Tokens after which a part is written: a row group of the file."""
SHOWN = 4
"""Number of passed, and of failed, completions of each task that are shown once a file is whole."""
DECIMALS = 4
"""Decimals of the log-probabilities that are kept."""


def completions_table(
    held: Sequence[AnyRollout], trainer: Sequence[np.ndarray] | None = None, seconds: float = FETCH_SECONDS
) -> pyarrow.Table:
    """Rows of `rollouts/*.parquet`; contents that lie elsewhere are fetched, and one that is lost leaves its verdict.

    Args:
        held: graded completions.
        trainer: for each, float32[prompt and completion], the trainer's log-probabilities just before its step;
            empty for one that it was not trained on.
        seconds: longest time to wait for contents.
    """
    import pyarrow as pa

    rollouts = [there or _without_content(one) for one, there in zip(held, with_contents(held, seconds), strict=True)]

    def texts(name: str) -> pyarrow.Array:
        return pa.array([clean(getattr(one, name)) for one in rollouts], pa.string())

    def of_tokens(parts: Sequence[np.ndarray], kind: type) -> pyarrow.Array:
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.int32)
        values = np.concatenate(parts).astype(kind) if parts else np.empty(0, kind)
        return pa.ListArray.from_arrays(offsets, values)

    def rounded(parts: Sequence[np.ndarray]) -> pyarrow.Array:
        return of_tokens([np.round(one.astype(np.float64), DECIMALS) for one in parts], np.float64)

    columns = {name: texts(field) for name, field in (("task", "task"), ("prompt_id", "prompt_id"))}
    columns |= {"prompt": texts("prompt"), "completion": texts("text"), "outcome": texts("outcome")}
    columns |= {
        "reward": pa.array([float(one.reward) for one in rollouts], pa.float64()),
        "detail": texts("detail"),
        "gold": texts("gold"),
        "parts": pa.array([json.dumps(dict(one.parts)) if one.parts else "" for one in rollouts], pa.string()),
        "tokens": pa.array([one.tokens for one in held], pa.int64()),
        "truncated": pa.array([bool(one.truncated) for one in rollouts], pa.bool_()),
        "interrupted": pa.array([bool(one.interrupted) for one in rollouts], pa.bool_()),
        "versions": pa.array([[version for version, _, _ in one.spans] for one in rollouts], pa.list_(pa.int64())),
        "token_ids": of_tokens([one.completion_ids for one in rollouts], np.int64),
        "logprobs": rounded([one.logprobs_T for one in rollouts]),
        "forced": of_tokens([one.forced_T for one in rollouts], np.bool_),
        "spans": pa.array([[list(span) for span in one.spans] for one in rollouts], pa.list_(pa.list_(pa.int64()))),
    }
    if trainer is not None:
        # Those of one whose tokens are lost would stand beside none.
        cut = [given[len(one.prompt_ids) :][: one.tokens] for one, given in zip(rollouts, trainer, strict=True)]
        columns["trainer_logprobs"] = rounded(cut)
    return pa.table(columns)


def _without_content(one: AnyRollout) -> Rollout:
    assert isinstance(one, HeldRollout)
    return replace(one, spans=(), detail=one.detail or LOST).filled(NO_CONTENT)


class CompletionsFile:
    """A Parquet file of graded completions, written in parts by a thread of its own.

    It has its name only once it is whole.

    Args:
        path: of the file.
        shown: gets a few passed and failed completions of each task once the file is whole.
        settle: called with the path and the temporary one just before the file gets its name.
    """

    def __init__(
        self,
        path: Path,
        shown: Callable[[list[dict[str, Any]]], None] | None = None,
        settle: Callable[[Path, Path], None] = lambda path, unfinished: None,
    ) -> None:
        self._path, self._shown, self._settle = path, shown, settle
        self._partial = own_partial(path)
        self._part: list[AnyRollout] = []
        self._tokens = 0
        self._chosen: dict[tuple[str, bool], list[tuple[int, int, AnyRollout]]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="completions")
        self._written: Future[None] | None = None
        self._file: Any = None

    def add(self, rollouts: Sequence[AnyRollout]) -> None:
        """Take completions; returns at once.

        Raises:
            OSError: earlier ones could not be written.
        """
        self._part += rollouts
        self._tokens += sum(one.tokens for one in rollouts)
        if self._shown is not None:
            self._choose(rollouts)
        if self._tokens >= PART_TOKENS:
            if self._written is not None and self._written.done():
                self._written.result()
            self._send()

    def finish(self) -> Future[None]:
        """Write what is left and give the file its name; once this is done, it is on the disk."""
        self._send()
        return self._thread.submit(self._put_in_place)

    def drop(self) -> None:
        """Delete what was written, unless the file is whole."""
        self._thread.shutdown(cancel_futures=True)
        if self._file is not None:
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def _send(self) -> None:
        part, before = self._part, self._written
        self._part, self._tokens = [], 0
        self._written = self._thread.submit(self._write, part, before)

    def _write(self, part: Sequence[AnyRollout], before: Future[None] | None) -> None:
        from pyarrow import parquet

        if before is not None:
            before.result()  # a part that could not be written fails all later ones
        table = completions_table(part)
        if self._file is None:
            self._file = parquet.ParquetWriter(self._partial, table.schema)
        self._file.write_table(table)

    def _put_in_place(self) -> None:
        assert self._written is not None
        self._written.result()
        self._file.close()
        self._file = None
        self._settle(self._path, self._partial)
        put_in_place(self._partial, self._path)
        if self._shown is not None:
            chosen = [one for alike in self._chosen.values() for _, _, one in alike]
            self._shown(completions_table(chosen).to_pylist())
            self._chosen.clear()  # each would keep a shard until the next evaluation

    def _choose(self, rollouts: Sequence[AnyRollout]) -> None:
        """Keep some of the same prompts of every evaluation, whichever are finished first."""
        for one in rollouts:
            alike = self._chosen.setdefault((one.task, one.outcome == "passed"), [])
            alike.append((crc32(one.prompt_id.encode()), len(alike), one))
            alike.sort(key=lambda ranked: ranked[:2])
            del alike[SHOWN:]
