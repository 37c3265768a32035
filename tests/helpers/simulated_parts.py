"""Simulated engines, graders, trainer and Ray of `tests.helpers.simulated_run`.

In most seeds the ports themselves are simulated, which is cheap. In the others the lab's own pools of engines and
graders run on simulated Ray actors, which die, hang, answer late, twice or nonsense, on nodes that leave and return.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayActorError

from moe.checkpoint.folder import Manifest, digest, publish, write_manifest
from moe.durable import write_whole
from scalelab.cluster.engines import ClusterEngines
from scalelab.cluster.faults import Faults
from scalelab.cluster.graders import ClusterGraders
from scalelab.errors import BrokenOffError, LabError
from scalelab.rollout.types import AnyCompletion, Completion, Request
from scalelab.run.coroutines import TaskGroup
from scalelab.run.ports import TrainerLostError
from scalelab.run.world import build_loop, evaluate_in_flight
from scalelab.store.folder import RunFolder
from tasks.types import Prompt, Verdict
from tests.helpers import crash_world

if TYPE_CHECKING:
    from tests.helpers.simulated_drivers import Life
    from tests.helpers.simulated_lives import Simulation

LONGEST = 20_000.0
"""Simulated seconds within which a life has to end."""

NODES = [f"{number:056x}" for number in (1, 2)]


class World(crash_world.World):
    """The parts of a run, whose times are drawn and which are lost as the life's faults say."""

    trainer: Trainer

    def __init__(self, run: Any, folder: RunFolder, simulation: Simulation, life: Life) -> None:
        super().__init__(run, folder)
        self.simulation, self.life = simulation, life
        self.nodes = set(NODES)
        self.returned = asyncio.Event()
        self.trainer = Trainer(self)
        self.engines: Any = Engines(self)
        self.dead = self.jumped = False
        if simulation.actors:
            faults = Faults(run.cluster, folder.add_fault, self.progress.say)
            devices = SimpleNamespace(share=1.0, strategy=lambda _: None, release=lambda: None)
            simulation.world_of_actors = self
            self.engines = ClusterEngines(run, Path("model"), [], None, self.changes, faults, devices)  # type: ignore[arg-type]
            self.engines.ready()
            self.graders: Any = ClusterGraders(run, self.changes)
            self.graders.describe()

    def happens(self, kind: str, count: int) -> bool:
        """True if a part's fault comes at this count of its calls."""
        if self.life.at(kind) != count:
            return False
        self.simulation.made[kind] += 1
        return True

    def clock(self) -> float:
        """Seconds of the event loop, with a jump where the machine was suspended."""
        jumps, now = self.life.at("clock jumps"), asyncio.get_running_loop().time()
        if jumps is not None and now > jumps:
            self.jumped = True
            return now + 1000
        return now

    def resume(self) -> None:
        """Go on from the newest checkpoint."""
        self.checkpoint_store.go_back(self.trainer.load)

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
        if (when := self.life.at("asked to stop")) is not None:
            asyncio.get_running_loop().call_later(when / 2, self._stop)
        try:
            async with asyncio.timeout(LONGEST), TaskGroup() as group:
                beside = [group.create_task(self._look()), group.create_task(self._lose_node())]
                await self.loop.run()
                for one in beside:
                    one.cancel()
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
                self.dead = True
                raise BrokenOffError("Ray's raylet died")

    async def _lose_node(self) -> None:
        """Announce the end of a node, let it go, in some lives all others with it, and let them return."""
        leaves = self.life.at("node leaves and returns")
        if leaves is None or not self.simulation.actors:
            return
        await asyncio.sleep(leaves / 2)
        self.simulation.made["node leaves and returns"] += 1
        self.engines.drain({NODES[0]: 0.0})
        await self.pause(60)
        gone = NODES if leaves % 3 == 0 else NODES[:1]
        self.nodes.difference_update(gone)
        for actor in [actor for node in gone for actor in self.simulation.actors_of(node)]:
            actor.die()
        self.engines.drain({})
        await self.pause(400)
        self.nodes.update(gone)
        self.returned.set()

    async def save(self) -> Any:
        """Take a checkpoint of trainer and books as they are now."""
        path, state = self.checkpoint_store.begin()
        await asyncio.sleep(1.0)  # as contents are fetched and written
        return self._saved(self.trainer.save(path, state()))

    async def _saved(self, taken: Any) -> None:
        await taken
        self.checkpoint_store.prune()

    async def check(self) -> None:
        """Give its name to a checkpoint that has become whole."""
        self.checkpoint_store.publish()

    async def rest(self) -> None:
        """Take the last checkpoint, and wait until it is on the disk."""
        if self.checkpoint_store.due:
            await (await self.save())
        await self.trainer.finish_saving()
        self.checkpoint_store.prune()

    async def go_back(self, error: TrainerLostError) -> None:
        """Replace the trainer, and go back to the newest checkpoint."""
        self._journal.charge(stepping=False)
        self._journal.broken = True
        await self.pause(60)
        self.trainer.lost = True
        self.trainer = self.loop.trainer = Trainer(self, self.trainer.calls)
        self.checkpoint_store.go_back(self.trainer.load)
        self._journal.charge(stepping=False)
        self._journal.broken = False


class Trainer(crash_world.Trainer):
    """A trainer that carries calls out in order, is lost at one, and writes checkpoints while training goes on."""

    lost = False

    def __init__(self, world: World, calls: int = 0) -> None:
        super().__init__(world.run)
        self._world, self.calls = world, calls
        self._last: asyncio.Future[Any] | None = None
        self._writing: asyncio.Future[Any] | None = None

    def _in_turn(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Awaitable[Any]:
        before, world = self._last, self._world

        async def turn() -> Any:
            if before is not None:
                await asyncio.wait([before])
            await world.pause()
            self.calls += 1
            if world.happens("trainer answers late", self.calls):
                await world.pause(1000)
            if world.happens("trainer lost", self.calls):
                self.lost = True
            if self.lost:
                raise TrainerLostError("a rank died")
            return await work()

        self._last = asyncio.ensure_future(turn())
        self._last.add_done_callback(lambda one: one.cancelled() or one.exception())  # seen, whoever waits
        return asyncio.shield(self._last)

    def step(self, *arguments: Any, **more: Any) -> Any:
        """Take a step; a loss that is no number is skipped, as the trainer does."""

        async def work() -> Any:
            result = await super(Trainer, self).step(*arguments, **more)
            if not self._world.happens("trainer answers no number", self.calls):
                return result
            return dataclasses.replace(result, loss=math.nan, grad_norm=math.inf, skipped=True)

        return self._in_turn(work)

    def publish(self, version: int) -> Any:
        """The weights."""
        return self._in_turn(lambda: super(Trainer, self).publish(version))

    def save(self, path: str, state: Any) -> Any:
        """Take a checkpoint, and write it in the background."""

        async def take() -> None:
            await self.finish_saving()
            steps = self.steps
            self._writing = asyncio.ensure_future(self._write(Path(path), json.dumps(dict(state)), steps))
            self._writing.add_done_callback(lambda one: one.cancelled() or one.exception())

        return self._in_turn(take)

    async def finish_saving(self) -> None:
        """Wait until nothing is being written."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing

    async def _write(self, path: Path, state: str, steps: int) -> None:
        """Write a checkpoint in the order in which `moe.checkpoint.saver` does; ranks know no lease."""
        simulation, work = self._world.simulation, self._written(path, state, steps)
        outlives = self._world.life.at("ranks live on") is not None
        try:
            for _ in work:
                await self._world.pause(60.0 if outlives else 2.0)
        finally:  # the ranks may outlive the process, and write on in the next one's life
            if outlives:
                simulation.orphans.append(work)

    def _written(self, target: Path, state: str, steps: int) -> Any:
        fresh = target.with_name(f".{target.name}.writing")
        fresh.mkdir(exist_ok=True)
        yield
        write_whole(fresh / "state.json", state)
        yield
        write_whole(fresh / "weights", json.dumps(steps))
        yield
        files = {file.name: digest(file) for file in fresh.iterdir()}
        write_manifest(fresh, Manifest(steps, self._hf, {}, 1, ("model", "state"), files))
        publish(fresh, target)


class Engines(crash_world.Engines):
    """Engines whose actors die with Ray at the moment at which the run is being ended, and lose what they had."""

    group = TaskGroup
    """The kind of group that an actor's coroutines are in."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world, self._calls = world, 0

    async def generate(self, requests: Sequence[Request]) -> list[AnyCompletion]:
        """Answer late, and after a loss with newer weights."""
        self._calls += 1
        await self._world.pause(8.0)
        if self._world.happens("engine dies", self._calls) or self._world.happens("engine answers late", self._calls):
            await self._world.pause(200.0)
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
            if self._world.dead:
                raise LabError("an actor died") from None
            raise


# Ray's actors.


class Answer:
    """An actor's answer on its way, in place of Ray's object reference."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Any]], now: Any) -> None:
        self.now = now
        self._task: asyncio.Future[Any] | None = None
        try:
            self._task = asyncio.ensure_future(work()) if asyncio.get_running_loop() else None
            self._task.add_done_callback(lambda one: one.cancelled() or one.exception())  # type: ignore[union-attr]
        except RuntimeError:  # at start-up, where `wait_for` takes `now`
            return

    def __await__(self) -> Any:
        assert self._task is not None
        return asyncio.shield(self._task).__await__()


class Actor:
    """A simulated actor: its methods are called as those of Ray's are.

    Args:
        world: the parts of the run that it is of.
    """

    kind = ""

    def __init__(self, world: World) -> None:
        self.world, self.dead, self.calls = world, False, 0
        self.node = min(world.nodes, key=lambda node: len(world.simulation.actors_of(node)), default=None)
        world.simulation.born.append(self)

    def die(self) -> None:
        """End; whoever waits for it is told."""
        self.dead = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(type(self), f"do_{name}"):
            raise AttributeError(name)
        method = getattr(self, f"do_{name}")
        at_once: dict[str, Any] = {"up": self.node, "describe": {}}
        now = at_once.get(name)

        def remote(*arguments: Any) -> Answer:
            return Answer(lambda: self._call(name, method, arguments), now)

        def options(num_returns: int) -> Any:
            """A call with shards beside its answer, of which there are none."""
            return SimpleNamespace(remote=lambda *arguments: (remote(*arguments), *[None] * (num_returns - 1)))

        return SimpleNamespace(remote=remote, options=options)

    async def _call(self, name: str, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        world = self.world
        if name in ("collect", "verify"):
            count = world.simulation.counts[self.kind] = world.simulation.counts[self.kind] + 1
            if world.happens(f"{self.kind} dies", count):
                self.dead = True
            if world.happens(f"{self.kind} hangs", count):
                await asyncio.sleep(10 * LONGEST)
            if world.happens(f"{self.kind} answers late", count):
                await world.pause(100.0)
        if self.dead or world.dead:
            await world.pause(1.0)
            raise RayActorError
        answer = await method(*arguments)
        if self.dead:
            raise RayActorError
        return answer


class EngineActor(Actor):
    """An engine's process."""

    kind = "engine"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._held: dict[str, tuple[float, Request]] = {}
        self._sent: list[Completion] = []
        self._made, self._version = 0, 0

    async def do_up(self) -> str:
        """Start, where there is a node for it."""
        await self.world.pause(20.0)
        while self.node not in self.world.nodes:
            if self.world.nodes:
                self.node = min(self.world.nodes)
            else:
                await self.world.returned.wait()
        return self.node

    async def do_submit(self, requests: Sequence[Request]) -> None:
        """Take requests."""
        now = asyncio.get_running_loop().time()
        for request in requests:
            self._held[request.id] = now + self.world.simulation.draw.random() * 8.0, request

    async def do_abort(self, ids: Sequence[str]) -> None:
        """Forget requests."""
        for one in ids:
            self._held.pop(one, None)

    async def do_take_weights(self, weights: Any) -> str | None:
        """Take weights; those of a trainer that is lost cannot be had."""
        await self.world.pause(1.0)
        if weights is not None and self.world.trainer.lost:
            return "its trainer is gone"
        self._version = weights or 0
        return None

    async def do_collect(self, requests: Sequence[Request] = ()) -> tuple[list[Completion], dict[str, float]]:
        """Take requests, and give what is finished; once also what was given before, and what nobody asked for."""
        await self.do_submit(requests)
        world, clock = self.world, asyncio.get_running_loop().time
        ends = clock() + 10.0  # fewer turns than an engine would take
        while not (done := [id for id, (when, _) in self._held.items() if when <= clock()]) and clock() < ends:
            await asyncio.sleep(min([ends, *(when for when, _ in self._held.values())]) - clock() + 0.01)
        made = [crash_world._completion(self._held.pop(id)[1], self._version) for id in done]
        count = world.simulation.counts[self.kind]
        if made and world.happens("engine answers twice", count):
            made = [*made, *made, *self._sent]
        if made and world.happens("engine answers what nobody asked", count):
            made.append(dataclasses.replace(made[0], request=dataclasses.replace(made[0].request, id="no such")))
        self._sent, self._made = made, self._made + len(made)
        stats = {"stalled_seconds": 0.0, "completions": float(self._made), "busy_seconds_train": clock() / 4}
        return made, stats


class GraderActor(Actor):
    """A verifier's process."""

    kind = "grader"

    async def do_describe(self) -> dict[str, Any]:
        """Come up."""
        await self.world.pause(10.0)
        return {}

    async def do_verify(self, items: list[tuple[Prompt, str]], seconds: float) -> tuple[int, list[Verdict]]:
        """Grade; once with an answer that is no list of so many verdicts."""
        await self.world.pause(3.0)
        given = [crash_world.graded(prompt, text) for prompt, text in items]
        if self.world.happens("grader answers too little", self.world.simulation.counts[self.kind]):
            return len(items), given[:-1]
        return len(items), given


ACTORS: dict[str, type[Actor]] = {"EngineActor": EngineActor, "GraderActor": GraderActor}
"""Simulated classes of actors, by the names of the real ones."""
