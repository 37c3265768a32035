"""Bugs that are planted into the lab, and the first seed of `tests.helpers.simulated_run` that shows each.

`python -m tests.helpers.planted_bugs` prints the table.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any
from unittest import mock

import moe.durable as durable
from moe.checkpoint.folder import CheckpointPolicy, prune, step_folder
from scalelab.cluster import engines
from scalelab.cluster.assignments import Assignments
from scalelab.rollout.types import Completion
from scalelab.run import checkpoint_store, journal
from scalelab.session import session, supervise
from scalelab.store import chain, folder, lease, lines, publication
from scalelab.store.account import Account
from scalelab.store.manifest import METRICS
from scalelab.store.retention import Retention
from scalelab.store.waiting_rollouts import prune_rollouts
from tests.helpers.simulated_parts import Engines
from tests.helpers.simulated_run import quickly, run_seed

SEEDS = 1000
"""Seeds within which each has to be found."""


def _append(file: FileIO, content: bytes) -> None:
    durable._write(file, content)


def _rename(fresh: Path, path: Path) -> None:
    os.replace(fresh, path)


def _by_files(path: Path, kept: Retention, *_: Any) -> None:
    files = {one: int(one.stem.split("_")[1]) for one in (path / "rollouts").glob("step_*.parquet")}
    for one in [one for one, step in files.items() if step not in kept.kept({*files.values()})]:
        one.unlink()


def _own_name(self: publication.CheckpointNames, step: int, keep: CheckpointPolicy | None) -> Path:
    path = step_folder(self.root, step)
    if keep is not None:
        prune(self.root, keep, path)
    return path


_write = chain.ChainFile.append


class _Swallowing(asyncio.TaskGroup):
    """asyncio's group as it is before CPython 3.13, which asks for the cancellation again (gh-116720)."""

    async def __aexit__(self, *error: Any) -> None:
        try:
            await super().__aexit__(*error)
        except BaseExceptionGroup:
            task = asyncio.current_task()
            while sys.version_info >= (3, 13) and task is not None and task.uncancel():
                pass
            raise


def _forgetful(self: chain.ChainFile, kind: str, **body: Any) -> Any:
    return None if kind == "undo" else _write(self, kind, **body)


def _both(self: Assignments, generator: int, completions: Sequence[Completion]) -> list[Completion]:
    return [one for one in completions if self._held[generator].pop(one.request.id) is not None or True]


def _stale(
    self: folder.RunFolder, account: Any, anew: bool, take: Callable[..., None] = folder.RunFolder._take
) -> None:
    with mock.patch.object(lines.Lines, "replace"):
        take(self, account, anew)


def _undo_spent(self: Account, step: int, tasks: int, undo: Callable[..., None] = Account._undo) -> None:
    undo(self, step, tasks)
    metrics = self.views[METRICS]
    self.hours = metrics[-1]["compute_by_role"] if metrics else {}


def _journal_first(
    self: folder.RunFolder, kind: str, view: str, records: Sequence[Any], _: Sequence[Any] = (), completions: str = ""
) -> None:
    name = f"rollouts/{completions}.parquet"
    more = {"files": {name: self._settled.pop(name)}} if name in self._settled else {}
    entry = self._journal.append(kind, records=list(records), **more)
    self._lines[view].write(*records)
    self._steps |= {record["step"]: entry.hash for record in records if kind == "step"}


async def _without_end(answer: Awaitable[Any], *_: Any) -> Any:
    return await answer


def _unsynced(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)


def _all_rollouts(root: Path, *_: Any) -> None:
    prune_rollouts(root)


def _whoever_asks(root: Path, keep: Iterable[str], *_: Any) -> None:
    prune_rollouts(root, keep)


Patch = tuple[Any, str, Any]

PLANTED: dict[str, tuple[Patch, ...]] = {
    "lines are not synced": ((chain, "append", _append), (lines, "append", _append)),
    "the folder is not synced after a rename": ((durable, "rename", _rename),),
    "a file is renamed before its content is synced": ((durable, "sync_all", lambda _: None),),
    "the lease is not looked at": (
        (lease.Lease, "check", lambda _: None),
        (chain.ChainFile, "check", lambda _: None),
    ),
    "ranks name their checkpoints themselves": ((publication.CheckpointNames, "begin", _own_name),),
    "a cancellation is swallowed": ((Engines, "group", _Swallowing),),
    "undone steps are not noted": ((chain.ChainFile, "append", _forgetful),),
    "completions are pruned by the files that are there": ((journal, "prune_completions", _by_files),),
    "a completion is taken twice": ((Assignments, "take", _both),),
    "the parent writes no ending": ((supervise, "_write_ending", lambda *_: None),),
    "a torn last line is kept": ((chain, "write_whole", lambda *_: None),),
    "files of a run that goes on are not written again": ((folder.RunFolder, "_take", _stale),),
    "compute is undone with its steps": ((Account, "_undo", _undo_spent),),
    "the journal is written before what follows from it": ((folder.RunFolder, "_record", _journal_first),),
    "an engine is waited for without end": ((engines, "answer", _without_end),),
    "the name of a run's folder is not synced": ((session, "make_folder", _unsynced),),
    "rollouts that a checkpoint under way names are deleted": ((checkpoint_store, "prune_rollouts", _all_rollouts),),
    "rollouts of the process that has taken the run over are deleted": (
        (checkpoint_store, "prune_rollouts", _whoever_asks),
    ),
}
"""Attributes that are replaced, by what is wrong then."""


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """Plant a bug."""
    with ExitStack() as stack:
        for target, name, value in PLANTED[bug]:
            stack.enter_context(mock.patch.object(target, name, value))
        yield


def first_seed(bug: str, seeds: Sequence[int]) -> tuple[int, str] | None:
    """The first seed that shows a bug, and what it says; None if none does."""
    with planted(bug):
        for seed in seeds:
            problem, _ = run_seed(seed)
            if problem is not None:
                return seed, problem
    return None


def main() -> None:
    """Print the table."""
    quickly()
    print("| planted | first seed | found by |\n|---|---|---|")
    for bug in sys.argv[1:] or PLANTED:
        found = first_seed(bug, range(SEEDS))
        seed, problem = found if found else ("none of 1,000", "–")
        print(f"| {bug} | {seed} | {problem.splitlines()[0][:160]} |", flush=True)


if __name__ == "__main__":
    main()
