"""A whole run under deterministic simulation: every seed is a life with faults, restarts and an end, in one process.

The loop, books, journal, store, lease, session, supervision and recovery are the real ones; in some seeds so are the
pools of engines and graders. Simulated are the clock, the disk's faults (a process killed at any write, power cuts that
lose what was not synced, ENOSPC, EIO, a disk that is slow or becomes read-only), the engines, the trainer, the graders,
the actors and nodes of Ray, and a second driver whose writes fall between those of the first in any order.

After each life `scalelab check` and an auditor that shares no code with the writer look at the files, and every line of
the journal that was acknowledged must be there. A death must leave its reason, a life must end within
`simulated_parts.LONGEST` simulated seconds, and lives without faults must bring the run to its end.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import logging
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pyarrow.parquet

from moe.checkpoint import folder as checkpoints
from scalelab.cluster import engine_place, engines, faults, graders
from scalelab.experiment import Resolved
from scalelab.session import drive as driving
from scalelab.session import session, supervise
from scalelab.store import chain, completions, folder, lease
from tasks.procedural import Procedural
from tests.helpers.simulated_faults import Fault, good_plan, parsed, plan
from tests.helpers.simulated_lives import Simulation
from tests.helpers.simulated_parts import ACTORS, World
from tests.helpers.simulated_rows import InlineThread, Rows, RowsFile

HELD_OUT = cache(Procedural.held_out)
"""Draws the held-out prompts of all seeds once."""
_current: Simulation | None = None
_hooked = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _current is not None:
        _current.happens(event, arguments)


def _seconds() -> float:
    loop = asyncio._get_running_loop()
    return loop.time() if loop is not None else 0.0


@contextmanager
def simulated(simulation: Simulation) -> Iterator[None]:
    """Put the simulated parts in place of the real ones."""
    global _current, _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    append = chain.ChainFile.append

    def noting(self: chain.ChainFile, kind: str, **body: Any) -> chain.ChainEntry:
        entry = append(self, kind, **body)
        simulation.acknowledged.append(entry.hash)
        simulation.begun |= kind in ("step", "evaluation")
        return entry

    def actor_class(cls: type, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(remote=lambda *_: ACTORS[cls.__name__](cast(World, simulation.world_of_actors)))

    ray = SimpleNamespace(
        kill=lambda actor: actor.die(),
        nodes=lambda: [
            {"NodeID": node, "Alive": True, "Resources": {"CPU": 1}}
            for node in simulation.world_of_actors.nodes  # type: ignore[union-attr]
        ],
    )
    known = {"versions": {}, "git_commit": None, "hardware": {"processor": "simulated"}}
    ticks = itertools.count()
    # The wall's time goes back now and then, the monotonic one never.
    clock = SimpleNamespace(time=lambda: 1e9 - next(ticks) % 7, monotonic=lambda: 0.001 * next(ticks))
    on_loop = SimpleNamespace(time=_seconds, monotonic=_seconds)
    patches: list[tuple[Any, str, Any]] = [
        (session, "_run", simulation.world),
        (session, "_observe", lambda *_: None),
        (session, "check_disk", lambda *_: None),
        (session, "step_hours", lambda *_: 0.0),
        (driving, "stops", lambda: ()),
        (driving, "heed_signals", lambda: None),
        (session, "process_facts", lambda _: known),
        (session, "facts", _few_facts),
        (session, "Lease", lambda *a, **k: lease.Lease(*a, **{**k, "holder": simulation.identity()})),
        (os, "getpid", lambda: 10**6 + (simulation.life.number if simulation.life else 0)),
        (lease, "_lives", lambda path, *_: simulation.alive(path)),
        (lease, "this_process", simulation.identity),
        (lease.Lease, "keep", lambda self: self.release),
        (completions, "ThreadPoolExecutor", InlineThread),
        (checkpoints, "ThreadPoolExecutor", InlineThread),
        (chain.ChainFile, "append", noting),
        (sys.modules["scalelab.run.journal"], "time", clock),
        (supervise, "_run", simulation.process),
        (supervise, "time", SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic)),
        (Procedural, "held_out", HELD_OUT),
    ]
    if simulation.actors:
        patches += [(module, "actor_class", actor_class) for module in (engines, graders)]
        patches += [(module, "ray", ray) for module in (engines, graders)]
        patches += [(module, "wait_for", lambda answer, *_: answer.now) for module in (engines, graders)]
        patches += [(module, "time", on_loop) for module in (engines, graders, faults, engine_place)]
    if not simulation.parquet:
        patches += [(module, "completions_table", Rows.of) for module in (completions, folder)]
        patches += [
            (pyarrow.parquet, "read_table", Rows.read),
            (sys.modules["scalelab.store.audit"], "take_rows", Rows.columns),
            (pyarrow.parquet, "write_table", RowsFile.write),
            (pyarrow.parquet, "ParquetWriter", RowsFile),
        ]
    with ExitStack() as stack:
        for target, name, value in patches:
            stack.enter_context(mock.patch.object(target, name, value))
        _current = simulation
        try:
            yield
        finally:
            _current = None


def _few_facts(resolved: Resolved) -> dict[str, Any]:
    run = resolved.run
    held_out = {task.name: run.evaluation.prompts for task in run.tasks}
    policy = {"keep_last": run.checkpoints.keep_last}
    kept = {"keep_last": run.retention.keep_last, "train_every": run.retention.train_every}
    return {"experiment": resolved.name, "held_out": held_out, "checkpoint_policy": policy, "retention": kept}


def run_seed(seed: int, lives: Sequence[Sequence[Fault]] | None = None) -> tuple[str | None, Counter[str]]:
    """Run one seed; gives what was wrong, and how often each kind of fault was made."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as name:
        simulation = Simulation(seed, Path(name), lives)
        try:
            with simulated(simulation):
                simulation.run()
        except Exception as error:
            place_of = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place_of.filename).name}:{place_of.lineno}"
            return f"{type(error).__name__} ({where}): {str(error)[:500]}", simulation.made
        return None, simulation.made


def shrunk(seed: int) -> str:
    """The line that replays a failing seed, with as few faults as it takes."""
    lives = [list(faults) for faults in plan(seed)]
    for number in range(len(lives)):
        for fault in list(lives[number]):
            fewer = [[one for one in faults if one is not fault] for faults in lives]
            if run_seed(seed, fewer)[0] is not None:
                lives = fewer
    told = ";".join("+".join(f"{fault.kind}@{fault.at}" for fault in faults) for faults in lives)
    return f"python -m tests.helpers.simulated_run --seed {seed} --faults '{told}'"


def quickly() -> None:
    """Look for garbage seldom, and for warnings never: both take a fifth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    logging.disable(logging.WARNING)


def main() -> None:
    """Run seeds, and print what was made and what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--faults", help="these faults in place of the seed's")
    parser.add_argument("--good", action="store_true", help="good runs: `check` must find nothing")
    args = parser.parse_args()
    quickly()
    if args.seed is not None:
        problem, made = run_seed(args.seed, parsed(args.faults) if args.faults is not None else None)
        print(problem or "nothing is wrong", dict(made))
        sys.exit(problem is not None)
    made, failed, began = Counter[str](), 0, time.process_time()
    for seed in range(args.start, args.start + args.seeds):
        problem, one = run_seed(seed, good_plan(seed) if args.good else None)
        made.update(one)
        if problem is not None:
            failed += 1
            print(f"seed {seed}: {problem}" + ("" if args.good else f"\n  {shrunk(seed)}"), flush=True)
    spent = time.process_time() - began
    told = dict(made.most_common())
    print(f"{args.seeds} seeds in {spent:.0f} s of processor time, {failed} failed; faults made: {told}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
