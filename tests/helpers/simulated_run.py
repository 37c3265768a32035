"""A whole run under deterministic simulation: every seed is a life with faults, restarts and an end, in one process.

The loop, books, journal, store, lease, session and recovery are the real ones. Simulated are the clock, the disk's
faults (a process killed at any write, power cuts that lose what was not synced, ENOSPC, EIO), the engines, the trainer,
the graders, the actors of Ray, and a second driver that takes the folder while the first stands still at any write.

After each life `scalelab check` and an auditor that shares no code with the writer look at the files, and every line of
the journal that was acknowledged must be there. A life without faults must bring the run to its end.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from moe.checkpoint import folder as checkpoints
from scalelab.errors import BrokenOffError, LabError
from scalelab.experiment import Resolved
from scalelab.rollout.types import Completion, Request
from scalelab.run import tasks
from scalelab.run.ports import TrainerLostError
from scalelab.run.world import build_loop, evaluate_in_flight
from scalelab.session import session
from scalelab.store import chain, completions, lease
from scalelab.store.audit import audit
from scalelab.store.chain import JOURNAL, read_chain
from scalelab.store.folder import MANIFEST, RunFolder, read_run_manifest
from scalelab.store.lease import FencedError
from scalelab.virtual.clock import StandStillError, VirtualLoop
from scalelab.watch.progress import Progress
from tests.helpers import crash_world
from tests.helpers.crash_points import _EVENTS, Disk, _writes
from tests.helpers.file_auditor import audit_files

LIVES = 4
"""Most lives with faults."""
LATEST = {"trainer lost": 12, "engine lost": 16}
"""Latest call at which a part is lost; other faults come up to the 220th event, or second."""
LONGEST = 50_000.0
"""Simulated seconds within which a life has to end."""
SETTINGS = {"Budget__steps": 6, "Run__checkpoint_every": 2, "CheckpointPolicy__keep_last": 2}

FAULTS = (
    *("killed", "power cut", "disorderly power cut", "full disk", "input/output error", "taken over"),
    *("trainer lost", "engine lost", "raylet dead", "asked to stop", "clock jumps"),
)


class DiedError(BaseException):
    """The process is dead: nothing that it does reaches the disk any more."""


@dataclass(frozen=True)
class Fault:
    """A fault of one life.

    Attributes:
        kind: one of `FAULTS`.
        at: number of the disk's event, of the trainer's call, or simulated seconds, as the kind has it.
    """

    kind: str
    at: int


def plan(seed: int) -> list[list[Fault]]:
    """The faults of each life of a seed; one life without faults follows."""
    draw = random.Random(f"plan {seed}")
    lives = []
    for _ in range(draw.randint(1, LIVES)):
        kinds = draw.sample(FAULTS, draw.choice((1, 1, 2, 3)))
        lives.append([Fault(kind, draw.randint(1, LATEST.get(kind, 220))) for kind in kinds])
    return lives


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
    dead: bool = False
    full: bool = False

    def at(self, kind: str) -> int | None:
        """Moment at which a kind of fault comes in this life; None if it does not."""
        return next((fault.at for fault in self.faults if fault.kind == kind), None)


class Simulation:
    """One seed.

    Args:
        seed: decides on all.
        root: an empty folder.
        lives: faults of each life; None: those of the seed.
    """

    def __init__(self, seed: int, root: Path, lives: Sequence[Sequence[Fault]] | None = None) -> None:
        self.seed, self.lives = seed, plan(seed) if lives is None else lives
        self.path, self._beside = root / "disk" / "run", root / "beside"
        self.path.parent.mkdir()
        self._beside.mkdir()
        self._disks = 0
        self.disk = self._new_disk()
        self.draw = random.Random(f"times {seed}")
        self.acknowledged: list[str] = []
        self.made: Counter[str] = Counter()
        self._born = 0
        self._now: Life | None = None
        self._alive: set[int] = set()
        self._busy = False
        self._pending: Path | None = None

    def run(self) -> None:
        """Live through all faults and then to the end; whatever is not as it should be is an AssertionError."""
        for faults in self.lives:
            self._live(faults)
            self._look()
            if self._finished():
                break
        for _ in range(2):  # an end that the disk kept from being written is written by the next
            if not self._finished():
                self._live(())
                self._look()
        assert self._finished(), "a life without faults did not bring the run to its end"
        audit_files(self.path, self._tasks, crash_world.settings(**SETTINGS).run.budget.steps)

    @property
    def _tasks(self) -> list[str]:
        return [task.name for task in crash_world.settings(**SETTINGS).run.tasks]

    def _finished(self) -> bool:
        return (self.path / MANIFEST).exists() and read_run_manifest(self.path).get("status") == "finished"

    def _look(self) -> None:
        """Check what a life left."""
        if not (self.path / MANIFEST).exists():  # it had not begun: whoever started it starts it again
            shutil.rmtree(self.path, ignore_errors=True)
            self.acknowledged.clear()
            return
        there = {entry.hash for entry in read_chain((self.path / JOURNAL).read_bytes()).entries}
        lost = [one for one in self.acknowledged if one not in there]
        assert lost == [], f"{len(lost)} acknowledged lines of the journal are lost"
        found = audit(self.path)
        assert found.problems == [], f"scalelab check: {found.problems}"
        audit_files(self.path, self._tasks, None)

    # A life.

    def _live(self, faults: Sequence[Fault]) -> None:
        """Begin the run, or go on with it, until it ends or a fault ends this life."""
        self._born += 1
        before, life = self._now, Life(self._born, faults)
        self._now = life
        self._alive.add(life.number)
        resolved = crash_world.settings(**SETTINGS)
        progress = cast(Progress, crash_world.Quiet())
        try:
            if (self.path / MANIFEST).exists():
                session.resume(self.path, resolved, None, progress)
            else:
                shutil.rmtree(self.path, ignore_errors=True)
                session.execute(resolved, self.path, progress)
        except StandStillError as error:
            raise AssertionError(f"life {life.number} stands still: {error}") from error
        except (DiedError, KeyboardInterrupt):
            pass
        except BaseExceptionGroup as errors:
            if errors.subgroup(DiedError) is None:
                raise
        except (LabError, OSError) as error:
            if not life.faults:
                raise AssertionError(f"a life without faults ended: {error}") from error
            if isinstance(error, FencedError) and not self.made["taken over"]:
                raise AssertionError("a process believes that it lost the run, and nobody took it") from error
        finally:
            self._alive.discard(life.number)
            self._now = before

    def world(self, run: Any, folder: RunFolder, progress: Any, _: Any = None) -> None:
        """The run itself, in place of the cluster."""
        assert self._now is not None
        world = World(run, folder, self, self._now)
        if "resumed" in folder.manifest:
            world.resume()
        session.drive(world.main, lambda: VirtualLoop(0), progress)

    # The disk.

    def happens(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Follow an event of the disk, and make the fault that comes with it."""
        if self._busy or self._now is None or event not in _EVENTS:
            return
        paths = [self._below(path) for path in _EVENTS[event](arguments)]
        if not paths or any(path is None for path in paths):
            return
        life = self._now
        if life.dead:
            raise DiedError
        if event != "open":
            life.events += 1
            self._fault(life, event, cast(list[Path], paths), arguments)
        with self._still():
            self._follow(event, cast(list[Path], paths), arguments)

    @contextmanager
    def _still(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _follow(self, event: str, paths: list[Path], arguments: tuple[Any, ...]) -> None:
        if self._pending is not None:
            self.disk.sync(self._pending)
            self._pending = None
        if event == "durable.sync":
            self._pending = paths[0]
        elif event == "os.rename":
            self.disk.rename(paths[0], paths[1])
        elif event == "os.remove":
            self.disk.remove(paths[0])
        elif event == "os.mkdir":
            self.disk.made(paths[0])
        elif event == "durable.write" or _writes(arguments):
            self.disk.written(paths[0])

    def _fault(self, life: Life, event: str, paths: list[Path], arguments: tuple[Any, ...]) -> None:
        for kind, orderly in (("killed", None), ("power cut", True), ("disorderly power cut", False)):
            if life.at(kind) == life.events:
                self.made[kind] += 1
                with self._still():
                    self._die(orderly, event, paths, arguments)
                life.dead = True
                raise DiedError
        begun = (self.path / MANIFEST).exists() and not self._finished()
        if life.at("taken over") == life.events and begun:
            self.made["taken over"] += 1
            self._alive.discard(life.number)  # as far as the other one can tell
            with _another_loop():
                self._live(())
        if life.at("full disk") == life.events:
            self.made["full disk"] += 1
            life.full = True
        if life.full and event == "durable.write":
            raise OSError(errno.ENOSPC, "No space left on device", str(paths[0]))
        if event in ("durable.sync", "durable.write", "os.rename") and life.at("input/output error") == life.events:
            self.made["input/output error"] += 1
            raise OSError(errno.EIO, "Input/output error", str(paths[0]))

    def _die(self, orderly: bool | None, event: str, paths: list[Path], arguments: tuple[Any, ...]) -> None:
        """Leave what the end of a process, or of the power, leaves."""
        if orderly is None:
            if event == "durable.write":
                content = bytes(arguments[1])
                with open(paths[0], "ab", buffering=0) as file:
                    file.write(content[: self.draw.randint(0, len(content))])
            return
        if self._pending is not None:  # the sync before this event had returned
            self.disk.sync(self._pending)
            self._pending = None
        self.disk.cut(orderly)
        self.disk = self._new_disk()

    def _new_disk(self) -> Disk:
        self._disks += 1
        beside = self._beside / str(self._disks)
        beside.mkdir()
        return Disk(self.path.parent, beside)

    def _below(self, path: Any) -> Path | None:
        if not isinstance(path, str | bytes | Path):
            return None
        whole = Path(path if isinstance(path, str | Path) else path.decode()).absolute()
        return whole if whole.is_relative_to(self.path.parent) else None

    def alive(self, file: Path) -> bool:
        """True if the process of a lease lives, as others see it."""
        return lease._holder_of(file).get("pid") in self._alive

    def identity(self) -> dict[str, Any]:
        """Facts of the process that lives now."""
        assert self._now is not None
        return {"node": "simulated", "pid": self._now.number}


@contextmanager
def _another_loop() -> Iterator[None]:
    """Let another event loop run inside a callback of this thread's."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(running)


class World(crash_world.World):
    """The parts of a run, whose times are drawn and which are lost as the life's faults say."""

    def __init__(self, run: Any, folder: RunFolder, simulation: Simulation, life: Life) -> None:
        super().__init__(run, folder)
        self.simulation, self.life = simulation, life
        self.engines = Engines(self)  # type: ignore[assignment]
        self.trainer = Trainer(self)

    def clock(self) -> float:
        """Seconds of the event loop, with jumps where the machine was suspended."""
        jumps = self.life.at("clock jumps")
        now = asyncio.get_running_loop().time()
        if jumps is not None and now > jumps:
            self.jumped = True
            return now + 1000
        return now

    def resume(self) -> None:
        """Go on from the newest checkpoint."""
        self.keeper.go_back(self.trainer.load)

    async def pause(self, most: float = 3.0) -> None:
        """Take a drawn time."""
        await asyncio.sleep(self.simulation.draw.random() * most)

    async def main(self, attach: Callable[[Any], None] = lambda _: None) -> None:
        """Run to the end of the budget, beside a look at Ray as the cluster has it."""
        self.loop, self._journal = build_loop(
            self,
            self.clock,
            simulated=False,
            evaluation=lambda journal: evaluate_in_flight(self, journal, self.clock),
        )
        attach(self.loop)
        self.jumped = False
        if (when := self.life.at("asked to stop")) is not None:
            asyncio.get_running_loop().call_later(when / 2, self._stop)
        try:
            async with asyncio.timeout(LONGEST), tasks.TaskGroup() as group:
                look = group.create_task(self._look())
                await self.loop.run()
                look.cancel()
        except TimeoutError:
            raise AssertionError(f"life {self.life.number} did not end within {LONGEST:.0f} simulated s") from None
        finally:
            self.simulation.made["clock jumps"] += self.jumped

    def _stop(self) -> None:
        self.simulation.made["asked to stop"] += 1
        self.loop.stop()

    async def _look(self) -> None:
        dies = self.life.at("raylet dead")
        while True:
            await asyncio.sleep(1.0)
            self._journal.charge(self.loop.stepping.locked())
            self.changes.notify()
            if dies is not None and asyncio.get_running_loop().time() > dies / 2:
                self.simulation.made["raylet dead"] += 1
                self.engines.dead = True  # type: ignore[attr-defined]
                raise BrokenOffError("Ray's raylet died")

    def save(self) -> Any:
        """Take a checkpoint of trainer and books as they are now."""
        path, state = self.keeper.begin()
        return self._saved(self.trainer.save(path, state))

    async def _saved(self, taken: Any) -> None:
        await taken
        self.keeper.prune()

    async def go_back(self, error: TrainerLostError) -> None:
        """Replace the trainer, and go back to the newest checkpoint."""
        self._journal.charge(stepping=False)
        self._journal.broken = True
        await self.pause(60)
        self.trainer = self.loop.trainer = Trainer(self, self.trainer.calls)
        self.keeper.go_back(self.trainer.load)
        self._journal.charge(stepping=False)
        self._journal.broken = False


class Trainer(crash_world.Trainer):
    """A trainer that carries calls out in the order in which they are made, and is lost at one of them."""

    def __init__(self, world: World, calls: int = 0) -> None:
        super().__init__(world.run)
        self._world, self.calls = world, calls
        self._last: asyncio.Future[Any] | None = None

    def _in_turn(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Awaitable[Any]:
        before = self._last

        async def turn() -> Any:
            if before is not None:
                await asyncio.wait([before])
            await self._world.pause()
            self.calls += 1
            if self.calls == self._world.life.at("trainer lost"):
                self._world.simulation.made["trainer lost"] += 1
                self.lost = True
            if self.lost:
                raise TrainerLostError("a rank died")
            return await work()

        self._last = asyncio.ensure_future(turn())
        self._last.add_done_callback(lambda one: one.cancelled() or one.exception())  # seen, whoever waits
        return asyncio.shield(self._last)

    lost = False

    def step(self, *arguments: Any, **more: Any) -> Any:
        """Take a step."""
        return self._in_turn(lambda: super(Trainer, self).step(*arguments, **more))

    def publish(self, version: int) -> Any:
        """The weights."""
        return self._in_turn(lambda: super(Trainer, self).publish(version))

    def save(self, path: str, state: Any) -> Any:
        """Write a checkpoint."""
        return self._in_turn(lambda: super(Trainer, self).save(path, state))


class Engines(crash_world.Engines):
    """Engines whose actors die with Ray at the moment at which the run is being ended, and lose what they had."""

    group = tasks.TaskGroup
    """The kind of group that an actor's coroutines are in."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world, self.dead, self._calls = world, False, 0

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer late, and after a loss with newer weights."""
        self._calls += 1
        await self._world.pause(8.0)
        if self._calls == self._world.life.at("engine lost"):
            self._world.simulation.made["engine lost"] += 1
            await self._world.pause(60.0)
        return await super().generate(requests)

    async def update(self, version: int, weights: Any) -> None:
        """Take newer weights after a while."""
        await self._world.pause()
        await super().update(version, weights)

    async def serve(self) -> None:
        """Start another actor whenever one is lost, as the cluster's engines do."""
        while True:
            try:
                async with self.group() as group:
                    group.create_task(self._actor())
            except* LabError:
                await self._world.pause()

    async def _actor(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.dead:
                raise LabError("an actor died") from None
            raise


_current: Simulation | None = None
_hooked = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _current is not None:
        _current.happens(event, arguments)


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
        return entry

    facts = {"versions": {}, "git_commit": None, "hardware": {"processor": "simulated"}}
    ticks = iter(range(10**9))
    clock = SimpleNamespace(time=lambda: 1e9 - next(ticks) % 7, monotonic=lambda: 0.001 * next(ticks))
    with ExitStack() as stack:
        for target, name, value in (
            (session, "_run", simulation.world),
            (session, "_observe", lambda *_: None),
            (session, "check_disk", lambda *_: None),
            (session, "step_hours", lambda *_: 0.0),
            (session, "stops", lambda: ()),
            (session, "heed_signals", lambda: None),
            (session, "process_facts", lambda _: facts),
            (session, "facts", _few_facts),
            (session, "Lease", lambda *a, **k: lease.Lease(*a, **{**k, "holder": simulation.identity()})),
            (os, "getpid", lambda: 10**6 + (simulation._now.number if simulation._now else 0)),
            (lease, "_lives", lambda path, *_: simulation.alive(path)),
            (lease.Lease, "keep", lambda self: self.release),
            (completions, "ThreadPoolExecutor", InlineThread),
            (checkpoints, "ThreadPoolExecutor", InlineThread),
            (chain.ChainFile, "append", noting),
            (sys.modules["scalelab.run.journal"], "time", clock),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        _current = simulation
        try:
            yield
        finally:
            _current = None


def _few_facts(resolved: Resolved) -> dict[str, Any]:
    held_out = {task.name: resolved.run.evaluation.prompts for task in resolved.run.tasks}
    policy = {"keep_last": resolved.run.checkpoints.keep_last}
    return {"experiment": resolved.name, "held_out": held_out, "checkpoint_policy": policy}


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


def main() -> None:
    """Run seeds, and print what was made and what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--faults", help="these faults in place of the seed's")
    args = parser.parse_args()
    if args.seed is not None:
        problem, made = run_seed(args.seed, parsed(args.faults) if args.faults is not None else None)
        print(problem or "nothing is wrong", dict(made))
        sys.exit(problem is not None)
    made, failed, began = Counter[str](), 0, time.monotonic()
    for seed in range(args.start, args.start + args.seeds):
        problem, one = run_seed(seed)
        made.update(one)
        if problem is not None:
            failed += 1
            print(f"seed {seed}: {problem}\n  {shrunk(seed)}", flush=True)
    spent = time.monotonic() - began
    print(f"{args.seeds} seeds in {spent:.0f} s, {failed} failed; faults made: {dict(made.most_common())}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
