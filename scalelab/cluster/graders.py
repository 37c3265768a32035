"""The graders of a run: Ray actors with the tasks' verifiers, and the pool that the loop talks to.

The pool sends an actor a few completions at a time. An actor that dies, or answers nothing for too long, is replaced.
Nobody knows which of the completions it held was to blame, so each of them is graded again on another actor with
nothing beside it: an innocent one gets its verdict, and one that brings a second actor down is an `error`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from scalelab.cluster.actors import actor_class
from scalelab.cluster.heartbeats import Beating
from scalelab.errors import BrokenOffError, LabError
from scalelab.recipe.types import HeldContent
from scalelab.rollout.evaluation import answer_of
from scalelab.rollout.types import AnsweredVerdict, AnyCompletion, HeldCompletion, LostVerdict
from scalelab.run.config import Run
from scalelab.run.coroutines import Changes, TaskGroup
from scalelab.shards import LOST, fetched
from scalelab.waiting import LateError, LostError, answer, wait_for
from tasks.types import Prompt, Verdict, verdict

CHUNK, ENGINES = 8, 32
"""Completions in one call: few, so that a slow one holds up few others; and one for so many engines, if that is more.

A call takes the driver a millisecond, and 1,000 engines finish 376 completions a second. Slow ones come back `CHUNK` at
a time all the same: an actor with many would seem to hang.
"""

SLOW = 0.1
"""Share of `Cluster.stall_seconds` after which a call answers with what it has."""

DEPTH = 4
"""Calls outstanding at one actor: enough to keep its processes busy while the loop answers."""

Gradable: TypeAlias = str | HeldContent
"""Text of a completion, or the key of its content."""

STARTS = 3
"""Most deaths in a row of an actor before it is up."""


class GraderActor(Beating):
    """Grader of completions of all tasks of a run; the tasks' verifiers run untrusted code in child processes."""

    def __init__(self, tasks: Sequence[Any]) -> None:
        super().__init__()
        self._verifiers = {task.name: task.verifier() for task in tasks}

    def verify(self, items: list[tuple[Prompt, Gradable]], seconds: float) -> tuple[int, list[Verdict]]:
        """Grade items of one task: how many were, and their verdicts in order.

        Args:
            items: the prompts, each with a completion; one whose text is lost is an `error`.
            seconds: no others are begun after these.
        """
        task, began = items[0][0].task, time.monotonic()
        done, given = 0, list[Verdict]()
        with self.at(f"grading {len(items)} completions of {task}"):
            while len(given) == done < len(items) and (not done or time.monotonic() - began < seconds):
                some = items[done : done + CHUNK]
                given += self._verify(task, some)
                done += len(some)
        return done, given

    def _verify(self, task: str, items: list[tuple[Prompt, Gradable]]) -> list[Verdict]:
        """Verdicts on items of a task; where a text is fetched, with the answer in it, which evaluations count."""
        contents = fetched([None if isinstance(one, str) else one for _, one in items])
        texts = {n: one if isinstance(one, str) else contents[n].text for n, (_, one) in enumerate(items)
                 if isinstance(one, str) or n in contents}  # fmt: skip
        given = self._verifiers[task].verify([(items[n][0], text) for n, text in texts.items()]) if texts else []
        lost = {n: LostVerdict("error", 0.0, detail=LOST) for n in range(len(items)) if n not in texts}
        if len(given) != len(texts):
            return [*given, *lost.values()]  # `verify` counts them
        graded = dict(zip(texts, given, strict=True))
        answered = {n: AnsweredVerdict.of(graded[n], answer_of(items[n][0].text, texts[n])) for n in contents}
        return [(lost | graded | answered)[n] for n in range(len(items))]

    def describe(self) -> dict[str, Any]:
        """The sandbox tier of each task that runs code, for the manifest; starts the sandbox."""
        sandboxed = {name: verifier for name, verifier in self._verifiers.items() if hasattr(verifier, "sandbox")}
        return {name: verifier.sandbox.describe() for name, verifier in sandboxed.items()}


def gradable(completion: AnyCompletion) -> Gradable:
    """The part of a completion that goes to a grader: its text, or the key of its content."""
    return completion.content if isinstance(completion, HeldCompletion) else completion.text


@dataclass(eq=False)
class GraderPlace:
    """One actor after the other at one place in the pool."""

    index: int
    actor: Any
    turn: int
    """Number of its node in turns; the next actor goes to the next node."""
    up: bool = False
    calls: int = 0
    """Calls that it holds."""
    reserved: bool = False
    """True while it is reserved for a completion that is graded again."""
    answered: float = 0.0
    """Time of its last answer, or of the first work after a pause."""
    lost: asyncio.Future[LabError] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Resolved with the reason when this actor is given up."""


@cache
def turns(cores: tuple[tuple[str, int], ...]) -> list[str]:
    """Nodes in the order in which they take graders: each as often as it has cores, evenly mixed.

    Args:
        cores: number of every node's cores.
    """
    return [node for _, node in sorted(((turn + 0.5) / count, node) for node, count in cores for turn in range(count))]


class ClusterGraders:
    """Port of graders on a Ray cluster: a pool of actors, each of which is replaced when it is lost.

    Args:
        run: the run.
        changes: told of whatever others may wait for.
    """

    def __init__(self, run: Run, changes: Changes) -> None:
        self._tasks, self._cluster, self._changes = run.graded_tasks, run.cluster, changes
        self._actors = [self._start(index) for index in range(run.cluster.verifiers)]
        self._workers: list[GraderPlace] = []
        self._counts = Counter(restarts=0, retried=0, errors=0)
        self._chunk = max(CHUNK, run.cluster.generators // ENGINES)
        self.outstanding = 0
        self._queued = 0

    def _start(self, turn: int) -> Any:
        """Start a new actor; nodes take turns by their cores, for Ray puts all actors without devices on one.

        Raises:
            BrokenOffError: no node is left, as for a moment after the death of Ray on the only one.
        """
        cores = {node["NodeID"]: math.ceil(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
        nodes = turns(tuple(sorted(cores.items())))
        if not nodes:
            raise BrokenOffError("no node of the Ray cluster is left to grade on: go on with --resume")
        node = NodeAffinitySchedulingStrategy(nodes[turn % len(nodes)], soft=False)
        actor = actor_class(GraderActor, "verifier", self._cluster, concurrency=DEPTH + 1, strategy=node)
        return actor.remote(self._tasks)

    def describe(self) -> dict[str, Any]:
        """Wait for the actors to be up; describe their number and their sandbox."""
        refs = [actor.describe.remote() for actor in self._actors]
        found = [self._first_answer(index, ref) for index, ref in enumerate(refs)]
        return {"workers": len(found), "sandboxes": [one for n, one in enumerate(found) if one not in found[:n]]}

    def _first_answer(self, index: int, ref: Any) -> dict[str, Any]:
        """Wait for an actor to describe itself; one that dies on the way is replaced."""
        for start in range(1, STARTS + 1):
            try:
                described: dict[str, Any] = wait_for(ref, self._cluster.startup_seconds, f"verifier {index} to come up")
                return described
            except LostError:
                if start == STARTS:
                    raise
            self._actors[index] = self._start(index + start)
            ref = self._actors[index].describe.remote()
        raise AssertionError("unreachable: the last start returns or raises")

    def actors(self) -> dict[str, Any]:
        """The actors that there are now, by name."""
        actors = [worker.actor for worker in self._workers] or self._actors
        return {f"verifier {index}": actor for index, actor in enumerate(actors)}

    # The port.

    @property
    def room(self) -> int:
        """Completions that could be sent to an actor now; 0 while some wait."""
        if self._queued:
            return 0
        return sum((DEPTH - worker.calls) * self._chunk for worker in self._workers if worker.up)

    @property
    def counts(self) -> dict[str, int]:
        """Actors replaced (`restarts`), completions graded again (`retried`) and given up (`errors`)."""
        return dict(self._counts)

    async def grade(self, prompt: Prompt, completions: Sequence[AnyCompletion]) -> list[Verdict]:
        """Grade completions of one prompt, in their order."""
        items = [(prompt, gradable(completion)) for completion in completions]
        self.outstanding += len(items)
        try:
            chunks = [items[at : at + self._chunk] for at in range(0, len(items), self._chunk)]
            verdicts = await asyncio.gather(*map(self._grade, chunks))
        finally:
            self.outstanding -= len(items)
        return [one for chunk in verdicts for one in chunk]

    async def serve(self) -> None:
        """Keep the actors up until cancelled.

        Raises:
            LabError: one dies again and again before it is up.
        """
        self._workers = [GraderPlace(index, actor, index, up=True) for index, actor in enumerate(self._actors)]
        self._changes.notify()
        async with TaskGroup() as group:
            for worker in self._workers:
                group.create_task(self._keep_up(worker), name=f"verifier {worker.index}")

    # One actor.

    async def _keep_up(self, worker: GraderPlace) -> None:
        """Replace an actor whenever it is lost."""
        while True:
            await worker.lost
            self._counts["restarts"] += 1
            for start in range(1, STARTS + 1):
                ray.kill(worker.actor)
                worker.turn += 1
                worker.actor = self._start(worker.turn)
                what = f"verifier {worker.index} to come up again"
                try:
                    await answer(worker.actor.describe.remote(), self._cluster.startup_seconds, what)
                    break
                except LabError as error:
                    if start == STARTS:
                        raise LabError(f"verifier {worker.index} failed {STARTS} times to come up: {error}") from error
            worker.lost = asyncio.get_running_loop().create_future()
            worker.up, worker.reserved, worker.calls = True, False, 0
            self._changes.notify()

    async def _grade(self, items: list[tuple[Prompt, Gradable]]) -> list[Verdict]:
        """Grade a few completions on any actor; if it is lost, grade each again on another, alone."""
        given: list[Verdict] = []
        while left := items[len(given) :]:
            worker = await self._next(self._least_busy)
            worker.calls += 1
            try:
                given += await self._call(worker, left)
            except LabError:
                self._counts["retried"] += len(left)
                given += [await self._grade_alone(item, worker) for item in left]
        return given

    async def _grade_alone(self, item: tuple[Prompt, Gradable], lost_at: GraderPlace) -> Verdict:
        """Grade one completion on an actor that does nothing else; the verdict is `error` if that is lost, too."""
        given: Verdict | None = None
        while given is None:
            given = await self._reserve(await self._next(lambda: self._other(lost_at)), item)
        return given

    async def _reserve(self, worker: GraderPlace, item: tuple[Prompt, Gradable]) -> Verdict | None:
        """Keep an actor free until it has no work, and grade a completion on it; None if its work kills it before."""
        actor, worker.reserved = worker.actor, True
        try:
            await self._changes.until(lambda: worker.calls == 0 or not worker.up, "a verifier without work")
            if not worker.up:
                return None
            worker.calls += 1
            [given] = await self._call(worker, [item])
            return given
        except LabError as error:
            self._counts["errors"] += 1
            return verdict("error", detail=f"two verifiers were lost grading it; the last: {error}")
        finally:  # at a cancellation, too
            if worker.actor is actor:
                worker.reserved = False
                self._changes.notify()

    async def _next(self, choose: Callable[[], GraderPlace | None]) -> GraderPlace:
        self._queued += 1
        try:
            return await self._changes.until(choose, "a free verifier")
        finally:
            self._queued -= 1

    def _least_busy(self) -> GraderPlace | None:
        free = [worker for worker in self._workers if worker.up and not worker.reserved and worker.calls < DEPTH]
        return min(free, key=lambda one: one.calls, default=None)

    def _other(self, lost_at: GraderPlace) -> GraderPlace | None:
        """Choose another actor for a completion that is graded again, if there is one."""
        others = [worker for worker in self._workers if worker is not lost_at] or self._workers
        free = [worker for worker in others if worker.up and not worker.reserved]
        return min(free, key=lambda one: one.calls, default=None)

    async def _call(self, worker: GraderPlace, items: list[tuple[Prompt, Gradable]]) -> list[Verdict]:
        """Have an actor grade items; gives verdicts of the first of them, of one at least.

        Raises:
            LabError: the actor is lost, by this call or another.
        """
        if worker.calls == 1:
            worker.answered = time.monotonic()
        lost, actor = worker.lost, worker.actor
        what = f"verifier {worker.index} to grade {items[0][0].id}" + (" and others" if len(items) > 1 else "")
        ref = actor.verify.remote(items, SLOW * self._cluster.stall_seconds)
        waiting = asyncio.ensure_future(self._patiently(worker, ref, what))
        try:
            await asyncio.wait({waiting, lost}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                answered: tuple[int, list[Verdict]] = waiting.result()
                count, verdicts = answered
                worker.answered = time.monotonic()
                if len(verdicts) != count:
                    raise LabError(f"{what}: {len(verdicts)} verdicts for {count} completions; mend the verifier")
                return verdicts
            raise lost.result()
        except LabError as error:
            if not lost.done():
                worker.up = False
                lost.set_result(error)
            raise
        finally:
            waiting.cancel()
            if worker.lost is lost and not lost.done():
                worker.calls -= 1
            self._changes.notify()

    async def _patiently(self, worker: GraderPlace, ref: Any, what: str) -> Any:
        """Await an answer as long as the actor gives other answers meanwhile."""
        seconds = self._cluster.stall_seconds
        while True:
            left = worker.answered + seconds - time.monotonic()
            try:
                return await answer(ref, max(0.01, left), what)
            except LateError:
                if worker.answered + seconds <= time.monotonic():
                    raise LateError(f"waited {seconds:.0f} s for {what}: it hangs") from None
