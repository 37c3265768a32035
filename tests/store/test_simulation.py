"""Whole runs under simulated faults lose nothing and end; bugs that are planted are found by the seeds."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from moe import durable
from scalelab.store import chain, lease, lines
from tests.helpers.crash_points import in_process
from tests.helpers.simulated_run import FAULTS, Engines, parsed, plan, run_seed

SHARES, SEEDS = 2, 1000
"""Processes that share the seeds."""

Planted = Callable[[], Any]


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_a_thousand_seeds_lose_nothing_and_end(share: int) -> None:
    each = SEEDS // SHARES
    script = str(Path(__file__).parents[1] / "helpers" / "simulated_run.py")
    done = in_process(script, "--seeds", str(each), "--start", str(share * each), seconds=3000)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    made = dict(re.findall(r"'([\w/ ]+)': (\d+)", done.stdout.splitlines()[-1]))
    assert len(made) == len(FAULTS)
    assert all(int(count) > 0 for count in made.values()), f"some kind of fault was never made: {made}"


def test_a_seed_is_the_same_each_time() -> None:
    for seed in (3, 6):
        assert run_seed(seed) == run_seed(seed)
    assert plan(7) == plan(7) != plan(8)


def test_a_line_that_replays_a_seed_is_read_as_it_was_written() -> None:
    told = ";".join("+".join(f"{fault.kind}@{fault.at}" for fault in faults) for faults in plan(11))
    assert parsed(told) == plan(11)


@contextmanager
def no_fsync_of_lines() -> Iterator[None]:
    """Lines are written and not synced."""

    def append(file: FileIO, content: bytes) -> None:
        durable._write(file, content)

    with mock.patch.object(chain, "append", append), mock.patch.object(lines, "append", append):
        yield


@contextmanager
def no_look_at_the_lease() -> Iterator[None]:
    """A process never looks whether another one has taken the run over."""
    with mock.patch.object(lease.Lease, "check"), mock.patch.object(chain.ChainFile, "check"):
        yield


class Swallowing(asyncio.TaskGroup):
    """asyncio's group as it is before CPython 3.13, which asks for the cancellation again (gh-116720)."""

    async def __aexit__(self, *error: Any) -> None:
        try:
            await super().__aexit__(*error)
        except BaseExceptionGroup:
            task = asyncio.current_task()
            while sys.version_info >= (3, 13) and task is not None and task.uncancel():
                pass
            raise


@contextmanager
def a_swallowed_cancellation() -> Iterator[None]:
    """Engines start anew in `while True` when an actor dies as they are cancelled."""
    with mock.patch.object(Engines, "group", Swallowing):
        yield


@contextmanager
def no_word_of_what_is_undone() -> Iterator[None]:
    """A return to a checkpoint writes nothing into the journal."""
    append = chain.ChainFile.append

    def forgetful(self: chain.ChainFile, kind: str, **body: Any) -> Any:
        return None if kind == "undo" else append(self, kind, **body)

    with mock.patch.object(chain.ChainFile, "append", forgetful):
        yield


PLANTED: dict[str, Planted] = {
    "fsync left out": no_fsync_of_lines,
    "lease not looked at": no_look_at_the_lease,
    "cancellation swallowed": a_swallowed_cancellation,
    "undone steps not noted": no_word_of_what_is_undone,
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, capsys: pytest.CaptureFixture[str]) -> None:
    with PLANTED[bug]():
        for seed in range(SEEDS):
            problem, _ = run_seed(seed)
            if problem is not None:
                with capsys.disabled():
                    print(f"\n{bug}: found by seed {seed}: {problem[:150]}")
                return
    pytest.fail(f"{SEEDS} seeds do not show it")
