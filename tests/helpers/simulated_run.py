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
import errno
import gc
import inspect
import itertools
import json
import logging
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pyarrow.parquet

from moe.checkpoint import folder as checkpoints
from scalelab.cluster import engine_place, engines, faults, graders
from scalelab.errors import BROKEN_OFF, FAILED, INTERRUPTED, BrokenOffError, LabError
from scalelab.experiment import Resolved
from scalelab.session import drive as driving
from scalelab.session import session, supervise
from scalelab.store import chain, completions, folder, lease
from scalelab.store.audit import audit
from scalelab.store.chain import JOURNAL, read_chain
from scalelab.store.folder import RunFolder
from scalelab.store.lease import FencedError
from scalelab.store.manifest import MANIFEST, read_run_manifest
from scalelab.virtual.clock import StandStillError, VirtualLoop
from scalelab.watch.progress import Progress
from tasks.procedural import Procedural
from tests.helpers import crash_world
from tests.helpers.crash_points import _EVENTS, Disk, _writes
from tests.helpers.file_auditor import audit_files
from tests.helpers.simulated_parts import ACTORS, Actor, World

LIVES = 3
"""Most lives with faults."""
WITH_ACTORS = 5
"""One seed in so many has simulated actors of Ray under the lab's own pools."""
WITH_PARQUET = 25
"""One seed in so many writes Parquet; the others write rows as JSON, which takes a tenth of the time."""
MOST_EVENTS = 4_000
"""Events of the disk within which a life has to end."""

DISK = {
    "killed": 150,
    "ended by Ray": 150,
    "power cut": 150,
    "disorderly power cut": 150,
    "full disk": 150,
    "input/output error": 150,
    "read-only disk": 150,
    "slow disk": 150,
    "taken over": 150,
    "second driver": 150,
}
"""Faults at an event of the disk, and the latest such event."""
AT_RENAME, RENAMES = "taken over at a rename", 60
"""Fault in place of `taken over` in every second seed, and the latest rename."""
OTHERS = ("taken over", AT_RENAME, "second driver")
"""Faults by which a second driver works on the run."""
PARTS = {
    "trainer lost": 10,
    "trainer answers late": 10,
    "trainer answers no number": 10,
    "engine dies": 12,
    "engine answers late": 12,
    "raylet dead": 120,
    "asked to stop": 120,
    "clock jumps": 60,
    "ranks live on": 60,
}
"""Faults of parts, with the latest call or half second."""
ACTORS_ALONE = {
    "engine hangs": 12,
    "engine answers twice": 12,
    "engine answers what nobody asked": 12,
    "grader dies": 12,
    "grader hangs": 12,
    "grader answers late": 12,
    "grader answers too little": 12,
    "node leaves and returns": 60,
}
"""Faults of seeds with actors."""
FAULTS = (*DISK, AT_RENAME, *PARTS, *ACTORS_ALONE)
HARMLESS = ("asked to stop", "clock jumps", "trainer answers late", "trainer answers no number", "engine answers late")
"""Faults that happen in good runs, too."""
RESUME = "resume"
DEADLY = ("killed", "power cut", "disorderly power cut", "ended by Ray")


class DiedError(BaseException):
    """The process is dead: nothing that it does reaches the disk any more."""


class PowerCutError(BaseException):
    """The parent died with the process."""


@dataclass(frozen=True)
class Fault:
    """A fault of one life.

    Attributes:
        kind: one of `FAULTS`.
        at: number of the disk's event, of a part's call, or simulated half seconds, as the kind has it.
    """

    kind: str
    at: int


def with_actors(seed: int) -> bool:
    """True if a seed has simulated actors."""
    return seed % WITH_ACTORS == 0


def plan(seed: int) -> list[list[Fault]]:
    """The faults of each life of a seed; lives without faults follow."""
    draw, latest = random.Random(f"plan {seed}"), DISK | PARTS | (ACTORS_ALONE if with_actors(seed) else {})
    lives = []
    for _ in range(draw.randint(1, LIVES)):
        kinds = draw.sample(list(latest), draw.choice((1, 1, 2, 3)))
        if with_actors(seed):
            kinds.append(draw.choice(list(ACTORS_ALONE)))
        faults = [Fault(kind, draw.randint(1, latest[kind])) for kind in dict.fromkeys(kinds)]
        if seed % 2:
            faults = [Fault(AT_RENAME, 1 + at.at % RENAMES) if at.kind == "taken over" else at for at in faults]
        lives.append(faults)
    return lives


def good_plan(seed: int) -> list[list[Fault]]:
    """Lives of a good run: it is stopped and resumed, clocks jump, and parts are slow."""
    draw, latest = random.Random(f"good {seed}"), DISK | PARTS
    return [
        [Fault(kind, draw.randint(1, latest[kind])) for kind in draw.sample(HARMLESS, draw.randint(0, 3))]
        for _ in range(draw.randint(1, 2))
    ]


def settings_of(seed: int) -> Resolved:
    """The configuration of a seed's run."""
    draw = random.Random(f"settings {seed}")
    values = {
        "Budget__steps": draw.choice((3, 3, 4, 5)),
        "Run__checkpoint_every": draw.choice((1, 2)),
        "CheckpointPolicy__keep_last": draw.choice((1, 2)),
        "Retention__keep_last": draw.choice((None, 2)),
    }
    if with_actors(seed):
        values |= {"Cluster__generators": 2, "Cluster__verifiers": 2}
    resolved = crash_world.settings(**values)
    object.__setattr__(resolved.run, "tasks", crash_world.settings().run.tasks)  # they draw thousands of prompts, once
    return resolved


class InlineThread:
    """An executor that does everything at once, so that a seed is the same each time."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Do the work now."""
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self, **_: Any) -> None:
        """Do nothing."""

    def map(self, work: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
        """Do all the work."""
        return map(work, parts)

    def __enter__(self) -> InlineThread:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


@dataclass(eq=False)
class Life:
    """One process that works on the run."""

    number: int
    faults: Sequence[Fault]
    events: int = 0
    renames: int = 0
    dead: bool = False
    full: bool = False
    read_only: bool = False
    slow: float = 0.0
    pending: Path | None = None
    """File that is being synced until the next event."""
    told: Path | None = None
    """Folder that it has told its parent."""
    reason: str | None = None
    """Reason for its failure that it has told its parent."""

    def at(self, kind: str) -> int | None:
        """Moment at which a kind of fault comes in this life; None if it does not."""
        return next((fault.at for fault in self.faults if fault.kind == kind), None)


class Turns:
    """Two drivers of which one runs at a time, and which change over at drawn events of the disk."""

    def __init__(self, draw: random.Random) -> None:
        self._left = draw.choice((1, 3, 10, 30, 100, 10**6))
        self._counts = [draw.choice((1, 1, 2, 5, 20, 80)) for _ in range(draw.randint(0, 8))]
        self._go = {True: threading.Semaphore(0), False: threading.Semaphore(0)}
        self._both, self._first_runs = True, False
        self._main = threading.get_ident()
        self.problem: BaseException | None = None

    def run(self, work: Callable[[], None]) -> threading.Thread:
        """Begin the second driver; returns when it is the first one's turn again."""

        def second() -> None:
            try:
                work()
            except BaseException as error:
                self.problem = error
            self._both = False
            self._go[True].release()

        thread = threading.Thread(target=second, daemon=True)
        thread.start()
        self._go[True].acquire()
        return thread

    def event(self) -> None:
        """Count an event of the driver whose turn it is, and change over if it has had its share."""
        self._left -= 1
        if self._left > 0 or not self._both:
            return
        first = threading.get_ident() == self._main
        self._left = self._counts.pop() if self._counts else 10**6
        if self._left == 10**6 and not first:
            return  # the second goes on to its end
        self._go[not first].release()
        self._go[first].acquire()

    def finish(self, thread: threading.Thread) -> None:
        """Let the second driver go on to its end."""
        self._left = 10**9
        self._go[False].release()
        thread.join()


class Simulation:
    """One seed.

    Args:
        seed: decides on all.
        root: an empty folder.
        lives: faults of each life; None: those of the seed.
    """

    def __init__(self, seed: int, root: Path, lives: Sequence[Sequence[Fault]] | None = None) -> None:
        self.seed, self.lives = seed, list(plan(seed) if lives is None else lives)
        self.path, self._beside = root / "disk" / "run", root / "beside"
        self.path.parent.mkdir()
        self._beside.mkdir()
        self._disks = 0
        self.disk = self._new_disk()
        self.draw = random.Random(f"times {seed}")
        self.actors = with_actors(seed)
        self.parquet = seed % WITH_PARQUET == 0
        self.acknowledged: list[str] = []
        self.begun = False
        """True once a line of a step or an evaluation was acknowledged."""
        self.made: Counter[str] = Counter()
        self.orphans: list[Generator[Any, Any, Any]] = []
        """Ranks of the trainer that outlived their process."""
        self.counts: Counter[str] = Counter()
        self.born: list[Actor] = []
        self.world_of_actors: World | None = None
        self._resolved = settings_of(seed)
        self._lives = 0
        self._last: Life | None = None
        self._now: dict[int, Life] = {}
        self._alive: set[int] = set()
        self._busy: set[int] = set()
        self._turns: Turns | None = None
        self._second: threading.Thread | None = None

    def actors_of(self, node: str) -> list[Actor]:
        """The actors on a node."""
        return [actor for actor in self.born if actor.node == node and not actor.dead]

    @property
    def life(self) -> Life | None:
        """The process that this thread is."""
        return self._now.get(threading.get_ident())

    def run(self) -> None:
        """Live through all faults and then to the end; whatever is not as it should be is an AssertionError."""
        for _ in range(2 * len(self.lives) + 3):
            if self._finished():
                break
            self._watched()
            self._look()
        assert self._finished(), "lives without faults did not bring the run to its end"
        audit_files(self.path, self._tasks, self._resolved.run.budget.steps)

    @property
    def _tasks(self) -> list[str]:
        return [task.name for task in self._resolved.run.tasks]

    def _finished(self) -> bool:
        return (self.path / MANIFEST).exists() and read_run_manifest(self.path).get("status") == "finished"

    def _look(self) -> None:
        """Check what lives left."""
        if not (self.path / MANIFEST).exists():
            assert not self.begun, "the manifest of a run that had taken steps is gone"
            return  # it had not begun: whoever started it starts it again
        self._keeps_what_it_wrote()
        found = audit(self.path)
        assert found.problems == [], f"scalelab check: {found.problems}"
        audit_files(self.path, self._tasks, None)

    def _keeps_what_it_wrote(self) -> None:
        there = {entry.hash for entry in read_chain((self.path / JOURNAL).read_bytes()).entries}
        lost = [one for one in self.acknowledged if one not in there]
        assert lost == [], f"{len(lost)} acknowledged lines of the journal are lost"

    # The parent, and a process of the run.

    def _watched(self) -> None:
        """Run the parent, which starts processes again whose machine failed."""
        said: list[str] = []
        parent = Life(0, ())
        self._now[threading.get_ident()] = parent
        pauses = (1.0,) * (len(self.lives) + 1)
        try:
            first = RESUME if (self.path / MANIFEST).exists() else "begin"
            code = supervise.supervise([first], [RESUME], self.path, said.append, pauses)
        except PowerCutError:
            return
        finally:
            del self._now[threading.get_ident()]
        if code in (BROKEN_OFF, FAILED):
            self._has_its_reason()

    def _has_its_reason(self) -> None:
        """Check that the end of the last process was not silent."""
        if self._last is None or self._disk_failed or not (self.path / MANIFEST).exists():
            return
        manifest = read_run_manifest(self.path)
        assert manifest.get("status") != "running", "a process ended, and its status says that it runs"
        assert manifest.get("status") != "failed" or manifest.get("reason"), "a process ended, and nobody knows why"

    @property
    def _disk_failed(self) -> bool:
        """True if the last process could perhaps not write why it ended."""
        kinds = {fault.kind for fault in self._last.faults} if self._last else set()
        return bool(kinds & {"full disk", "read-only disk", "input/output error", *OTHERS})

    def process(self, command: Sequence[str]) -> tuple[int, bool, SimpleNamespace, bool]:
        """Live one life, as the parent sees it: exit code, whether asked to stop, what it told, whether it hung."""
        parent = self._now[threading.get_ident()]
        self._has_its_reason()
        life = self._last = self._born(self.lives.pop(0) if self.lives else ())
        try:
            code = self._live(life, command == [RESUME])
        finally:
            self._now[threading.get_ident()] = parent
            if self._turns is not None and self._second is not None:
                self._turns.finish(self._second)
                problem, self._turns, self._second = self._turns.problem, None, None
                if problem is not None:
                    raise problem
        if code is None:
            self._last = None
            raise PowerCutError
        return code, False, SimpleNamespace(folder=life.told, reason=life.reason), False

    def _born(self, faults: Sequence[Fault]) -> Life:
        self._lives += 1
        life = Life(self._lives, faults)
        self._alive.add(life.number)
        return life

    def _live(self, life: Life, resume: bool) -> int | None:
        """Begin the run, or go on with it, until it ends or a fault ends this life; gives the exit code."""
        self._now[threading.get_ident()] = life
        progress = cast(Progress, crash_world.Quiet())

        def take(path: Path) -> None:
            life.told = path

        try:
            if resume:
                session.resume(self.path, self._resolved, None, progress, take)
            else:
                self.acknowledged.clear()  # of a run that had not begun
                session.execute(self._resolved, self.path, progress, take)
        except StandStillError as error:
            raise AssertionError(f"life {life.number} stands still: {error}") from error
        except DiedError:
            return self._code_of(life)
        except KeyboardInterrupt:
            return INTERRUPTED
        except BaseExceptionGroup as errors:
            if errors.subgroup(DiedError) is None:
                raise
            return self._code_of(life)
        except (LabError, OSError) as error:
            if life.dead:
                return self._code_of(life)
            if not life.faults and not self._others_meet:
                raise AssertionError(f"a life without faults ended: {error}") from error
            if isinstance(error, FencedError) and not self._others_meet:
                raise AssertionError("a process believes that it lost the run, and nobody took it") from error
            life.reason = str(error)
            return BROKEN_OFF if isinstance(error, BrokenOffError) else FAILED
        finally:
            self._alive.discard(life.number)
            if not life.dead:
                self._return_from_sync(life)
        return 0

    @property
    def _others_meet(self) -> bool:
        return any(self.made[kind] for kind in OTHERS)

    def _code_of(self, life: Life) -> int | None:
        """Exit code of a process that is dead; None if its parent is dead, too."""
        if life.at("ended by Ray") == life.events:
            return 1
        return -9 if life.at("killed") == life.events else None

    def world(self, run: Any, _: Any, folder: RunFolder, progress: Any) -> None:
        """The run itself, in place of the cluster."""
        assert self.life is not None
        self.born.clear()
        self.counts.clear()
        world = World(run, folder, self, self.life)
        if "resumed" in folder.manifest:
            world.resume()
        driving.drive(world.main, lambda: VirtualLoop(0), progress)

    # The disk.

    def happens(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Follow an event of the disk, and make the fault that comes with it."""
        if event not in _EVENTS or threading.get_ident() in self._busy:
            return
        life = self.life
        if life is None:
            return
        paths = [self._below(path) for path in _EVENTS[event](arguments)]
        if not paths or any(path is None for path in paths):
            return
        if life.dead:
            raise DiedError
        self._return_from_sync(life)
        if event != "open":
            life.events += 1
            if life.events > MOST_EVENTS:
                raise AssertionError(f"life {life.number} goes on for ever: {MOST_EVENTS} events of the disk")
            if self._turns is not None:
                self._turns.event()
            if life.dead:
                raise DiedError
            self._fault(life, event, cast(list[Path], paths), arguments)
        elif life.read_only:
            raise OSError(errno.EROFS, "Read-only file system", str(paths[0]))
        with self._still():
            self._follow(life, event, cast(list[Path], paths), arguments)

    @contextmanager
    def _still(self) -> Iterator[None]:
        self._busy.add(threading.get_ident())
        try:
            yield
        finally:
            self._busy.discard(threading.get_ident())

    def _return_from_sync(self, life: Life) -> None:
        """Put on the disk what a life has synced: the sync has returned, whatever its next event comes to."""
        if life.pending is not None:
            with self._still():
                self.disk.sync(life.pending)
            life.pending = None

    def _follow(self, life: Life, event: str, paths: list[Path], arguments: tuple[Any, ...]) -> None:
        if event == "durable.sync":
            life.pending = paths[0]
        elif event == "os.rename":
            self.disk.rename(paths[0], paths[1])
        elif event == "os.remove":
            self.disk.remove(paths[0])
        elif event == "os.mkdir":
            self.disk.made(paths[0])
        elif event == "durable.write" or _writes(arguments):
            self.disk.written(paths[0])

    def _fault(self, life: Life, event: str, paths: list[Path], arguments: tuple[Any, ...]) -> None:
        self._end(life, event, paths, arguments)
        life.renames += event == "os.rename"
        self._other_writers(life, event)
        for kind in ("full disk", "read-only disk", "slow disk"):
            if life.at(kind) == life.events:
                self.made[kind] += 1
                life.full |= kind == "full disk"
                life.read_only |= kind == "read-only disk"
                life.slow = self.draw.random() * 20 if kind == "slow disk" else life.slow
        if life.slow and event == "durable.sync":
            self._wait(life.slow)
        if life.read_only:
            raise OSError(errno.EROFS, "Read-only file system", str(paths[0]))
        if life.full and event == "durable.write":
            self._write_part(life, paths[0], arguments)
            raise OSError(errno.ENOSPC, "No space left on device", str(paths[0]))
        if event in ("durable.sync", "durable.write", "os.rename") and life.at("input/output error") == life.events:
            self.made["input/output error"] += 1
            if event == "durable.write":
                self._write_part(life, paths[0], arguments)
            raise OSError(errno.EIO, "Input/output error", str(paths[0]))

    def _write_part(self, life: Life, path: Path, arguments: tuple[Any, ...]) -> None:
        """Write a part of what a disk then refuses."""
        content = bytes(arguments[1])
        length = random.Random(f"part {self.seed} {life.number} {life.events}").randint(0, len(content))
        with self._still():
            self.disk.written(path)
            with open(path, "ab", buffering=0) as file:
                file.write(content[:length])

    def _end(self, life: Life, event: str, paths: list[Path], arguments: tuple[Any, ...]) -> None:
        """End the process, if that is its fault at this event."""
        for kind in DEADLY:
            if life.at(kind) != life.events:
                continue
            self.made[kind] += 1
            with self._still():
                if "power" in kind:
                    for one in self._now.values():
                        one.dead = True  # a second driver's machine has the same power
                    self.orphans.clear()
                    self.disk.cut(orderly=kind == "power cut")
                    self.disk = self._new_disk()
                elif event == "durable.write":
                    content = bytes(arguments[1])
                    with open(paths[0], "ab", buffering=0) as file:
                        file.write(content[: self.draw.randint(0, len(content))])
            life.dead = True
            raise DiedError

    def _other_writers(self, life: Life, event: str) -> None:
        """Let others write between two writes of this process: a second driver, and ranks of an earlier one."""
        if self.orphans and life.events % 7 == 0:
            orphan = self.orphans.pop(0)  # which makes events itself
            self.made["ranks live on"] += inspect.getgeneratorstate(orphan) == inspect.GEN_SUSPENDED
            with suppress(StopIteration, OSError):  # most often their folder is gone
                next(orphan)
                self.orphans.append(orphan)
        counts = {kind: life.renames if kind == AT_RENAME else life.events for kind in OTHERS}
        if event != "os.rename":
            del counts[AT_RENAME]
        for kind, count in counts.items():
            if life.at(kind) == count and self._turns is None and (self.path / MANIFEST).exists():
                if self._finished():
                    continue
                self.made[kind] += 1
                if kind != "second driver":
                    self._alive.discard(life.number)  # as far as the other one can tell
                self._turns = Turns(self.draw)
                self._second = self._turns.run(lambda: self._meet(self._born(())))

    def _meet(self, life: Life) -> None:
        """Live as the second driver."""
        try:
            self._live(life, resume=True)
        finally:
            del self._now[threading.get_ident()]

    def _wait(self, seconds: float) -> None:
        """Let simulated time pass while the process waits for its disk."""
        loop = asyncio._get_running_loop()
        if isinstance(loop, VirtualLoop):
            loop.now += int(seconds * 2**26)

    def _new_disk(self) -> Disk:
        self._disks += 1
        beside = self._beside / str(self._disks)
        beside.mkdir()
        return Disk(self.path.parent, beside)

    def _below(self, path: Any) -> Path | None:
        if not isinstance(path, str | bytes | Path):
            return None
        text = os.path.abspath(os.fsdecode(path))
        if not f"{text}/".startswith(f"{self.path.parent}/") or "/lease." in text or "/tensorboard/" in text:
            return None
        return Path(text)

    def alive(self, file: Path) -> bool:
        """True if the process of a lease lives, as others see it."""
        return lease._holder_of(file).get("pid") in self._alive

    def identity(self) -> dict[str, Any]:
        """Facts of the process that this thread is."""
        return {"node": "simulated", "pid": self.life.number if self.life else 0}


class Rows:
    """A table of completions in the seeds that write none as Parquet."""

    schema = None

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    @classmethod
    def of(cls, rollouts: Sequence[Any], trainer: Any = None) -> Rows:
        """The columns that an audit reads."""
        names = ("task", "prompt_id", "reward", "outcome")
        return cls([{name: getattr(one, name) for name in names} for one in rollouts])

    @classmethod
    def read(cls, path: Path, **_: Any) -> Rows:
        """Read a file."""
        return cls([json.loads(line) for line in Path(path).read_text().splitlines()])

    @classmethod
    def columns(cls, path: Path, _: Any, names: Sequence[str]) -> dict[str, list[Any]]:
        """Read some columns, as `scalelab.parquet.take_rows` does."""
        rows = cls.read(path).to_pylist()
        return {name: [row[name] for row in rows] for name in names}

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows."""
        return self._rows


class RowsFile:
    """Writer of such a table, part by part."""

    def __init__(self, path: Path, _: Any = None) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115

    def write_table(self, table: Rows) -> None:
        """Add rows."""
        self._file.write("".join(json.dumps(row) + "\n" for row in table.to_pylist()))

    def close(self) -> None:
        """End the file."""
        self._file.close()

    @classmethod
    def write(cls, table: Rows, path: Path) -> None:
        """Write a whole file."""
        file = cls(path)
        file.write_table(table)
        file.close()


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


def parsed(text: str) -> list[list[Fault]]:
    """The faults in a line that `shrunk` gave."""
    lives = [[one.split("@") for one in life.split("+") if one] for life in text.split(";")]
    return [[Fault(kind, int(at)) for kind, at in life] for life in lives]


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
