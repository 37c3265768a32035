"""One seed of a simulated run: its lives, its parent, a second driver, and the disk that they share."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import random
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from scalelab.errors import BROKEN_OFF, FAILED, INTERRUPTED, BrokenOffError, LabError
from scalelab.experiment import Resolved
from scalelab.session import drive as driving
from scalelab.session import session, supervise
from scalelab.store import lease
from scalelab.store.audit import audit
from scalelab.store.chain import JOURNAL, read_chain
from scalelab.store.folder import RunFolder
from scalelab.store.lease import FencedError
from scalelab.store.manifest import MANIFEST, read_run_manifest
from scalelab.virtual.clock import StandStillError, VirtualLoop
from scalelab.watch.progress import Progress
from tests.helpers import crash_world
from tests.helpers.crash_points import _EVENTS, Disk
from tests.helpers.file_auditor import audit_files
from tests.helpers.simulated_drivers import DiedError, Life, PowerCutError, Turns
from tests.helpers.simulated_faults import AT_RENAME, DEADLY, OTHERS, Fault, plan, with_actors
from tests.helpers.simulated_parts import Actor, World

WITH_PARQUET = 25
"""One seed in so many writes Parquet; the others write rows as JSON, which takes a tenth of the time."""
MOST_EVENTS = 4_000
"""Events of the disk within which a life has to end."""
RESUME = "resume"


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
            if not life.faults and not self._others_meet and not self._finished():
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
        else:
            self.disk.follow(event, paths, arguments)

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
        return lease.read_note(file, lease._LONGEST).get("pid") in self._alive

    def identity(self) -> dict[str, Any]:
        """Facts of the process that this thread is."""
        return {"node": "simulated", "pid": self.life.number if self.life else 0}
