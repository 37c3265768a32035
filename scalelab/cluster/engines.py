"""The engines of a run as Ray actors: requests go to the one with the fewest outstanding tokens, weights to all.

An engine that dies, fails, or hangs is replaced. Its requests go to the others at once; the new one gets the current
weights before it gets work. If there is no device for it, as after the loss of a node, the others go on without it
until there is. An engine leaves a node that is about to go before the node is gone. Every engine actor is served by a
task group of its own: a failure in it ends that actor alone, and a late answer of the actor is dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from moe.weights.segments import Segment
from scalelab.cluster.actors import actor_class
from scalelab.cluster.assignments import Assignments, RequestGroups
from scalelab.cluster.engine_actor import EngineActor
from scalelab.cluster.engine_place import EnginePlace, Weights
from scalelab.cluster.faults import Faults
from scalelab.cluster.placement import Reservation
from scalelab.errors import LabError, first_error
from scalelab.rollout.types import AnyCompletion, Request
from scalelab.run.config import Run
from scalelab.run.coroutines import Changes, TaskGroup
from scalelab.run.ports import EvaluationLostError, capacity
from scalelab.shards import with_keys
from scalelab.transfer.listener import Listener
from scalelab.waiting import LateError, LostError, answer, wait_for
from tasks.stream import stable_number

RETRY_SECONDS = 1.0
"""Seconds between two attempts to fetch weights that were unavailable."""

LINGER_EACH, LONGEST_LINGER = 1 / 60, 16.0
"""Seconds for which a full engine's completions, and requests for it, wait for others, for each engine of the run.

A call of Ray's takes the driver a millisecond, however much it carries, and 1,000 engines finish 376 completions a
second. A request that waits leaves no place of a full engine empty: it holds half as many again as it has places
(`capacity`). One that is not full finishes fewer completions, for which others wait a shorter time, as it is filled.
"""


class DrainedError(LabError):
    """The engine's node is about to go."""


class ClusterEngines:
    """The port of engines on a Ray cluster.

    Args:
        run: the run.
        model: Hugging Face folder that every engine starts from.
        phrase_ids: token ids of the interrupting phrase.
        end_think: how the end of thinking is recognised.
        changes: told of whatever others may wait for.
        faults: told of every engine that is lost.
        reservation: devices that others hold, too; None takes some for the engines alone.
    """

    def __init__(
        self,
        run: Run,
        model: Path,
        phrase_ids: Sequence[int],
        end_think: Any,
        changes: Changes,
        faults: Faults,
        reservation: Reservation | None = None,
    ) -> None:
        self._run, self._cluster, self._changes, self._faults = run, run.cluster, changes, faults
        self._arguments = (str(model), run.generator_setup, tuple(phrase_ids), end_think)
        # An engine may be silent for five times as long.
        most = min(LONGEST_LINGER, run.cluster.hang_seconds / 10)
        self._linger = min(most, LINGER_EACH * run.cluster.generators)
        self._weights = Weights(0, None)
        bundles = [run.generator.tensor_parallel] * run.cluster.generators
        self._reservation = reservation or Reservation(run.cluster, bundles, "the generators")
        self._places = [EnginePlace(n, self._start(n, 0), self._weights) for n in range(run.cluster.generators)]
        self._assigned = Assignments(run.generator.max_sequences)
        self._groups = RequestGroups()
        self._past: Counter[str] = Counter()
        self._lost_seconds = 0.0
        self._weights_changed = asyncio.Event()
        self._draining: Mapping[str, float] = {}
        self._draining_changed = asyncio.Event()
        self._usual_ones: list[EnginePlace] = []
        self._oldest: int | None = None
        self._usual_since = -1, -1
        self._taken = 0

    def _start(self, index: int, restarts: int) -> Any:
        devices, held = self._run.generator.tensor_parallel, self._reservation
        strategy = held.strategy(index * devices)
        actor = actor_class(
            EngineActor, "engine", self._cluster, devices=devices * held.share, concurrency=4, strategy=strategy
        )
        # Engines with one seed draw alike, and so would a new engine and the one that it replaces.
        seed = stable_number(self._run.seed, "generator", index, restarts) % 2**31
        return actor.remote(*self._arguments, seed, self._linger, self._cluster.shard_bytes)

    def ready(self) -> None:
        """Wait until every engine is up; one that is lost on the way is replaced.

        Raises:
            LabError: an engine says what is wrong, or they cannot be replaced any more.
        """
        for place, up in [(place, place.actor.up.remote()) for place in self._places]:
            while not self._came_up(place, up):
                up = place.actor.up.remote()

    def _came_up(self, place: EnginePlace, up: Any) -> bool:
        """Wait for an engine to start; returns False if it was lost, and another starts in its place."""
        try:
            place.node = wait_for(up, self._cluster.startup_seconds, f"{place.name} to start")
        except (LostError, LateError) as error:
            ray.kill(place.actor)
            self._faults.lost("generator", place.name, error)
            place.restarts += 1
            place.actor = self._start(place.index, place.restarts)
            return False
        self._faults.recovered("generator", place.name)
        return True

    def actors(self) -> dict[str, Any]:
        """The current actors by name."""
        return {place.name: place.actor for place in self._places}

    def versions(self) -> dict[str, int | None]:
        """The version of the weights that each holds, by name; None while it starts again."""
        return {place.name: place.weights.version if place.weights else None for place in self._places}

    # The port.

    @property
    def version(self) -> int:
        """The oldest weights that a request made now could be generated with."""
        self._usual()
        return self._weights.version if self._oldest is None else self._oldest

    @property
    def outstanding(self) -> int:
        """Completions asked for and not there yet."""
        return self._assigned.outstanding

    @property
    def room(self) -> int:
        """Completions that can be asked for now: to empty places in the engines, and to wait for the next."""
        outstanding = self._assigned.outstanding_of("train") if self._assigned.evaluating else self.outstanding
        return capacity(self._run.generator.max_sequences * len(self._usual())) - outstanding

    def totals(self) -> dict[str, float]:
        """The engines' counters (`Generator.stats`) as of their last answers, summed over all, dead ones too.

        `lost_device_seconds` is what engines that were lost would have had until others took their place.
        """
        total: Counter[str] = Counter(self._past)
        for place in self._places:
            total.update(place.stats)
        lost = self._lost_seconds + sum(place.lost_seconds() for place in self._places)
        return {**total, "lost_device_seconds": lost * self._devices}

    @property
    def _devices(self) -> float:
        """Devices of an engine; one that it shares with a trainer rank counts as half."""
        return self._run.generator.tensor_parallel * self._cluster.share

    def listeners(self) -> list[Listener]:
        """The engines that new weights can be broadcast to: those that are up and not set aside, all in one version."""
        devices = self._run.generator.tensor_parallel
        return [Listener(one.name, one.actor, devices) for one in self._usual() if one.weights is self._weights]

    async def generate(self, requests: Sequence[Request]) -> list[AnyCompletion]:
        """Generate all completions of a group, in the order of the requests."""
        own, group = self._groups.begin(requests)
        self._assigned.add(own)
        self._deal()
        return await group.completions()

    async def update(self, version: int, weights: list[Segment]) -> None:
        """Swap the weights of all engines in flight; returns when all that are up, one at least, hold them."""
        self._weights = mine = Weights(version, weights)
        self._tell_of_weights()

        def arrived() -> bool:
            up = self._usual()
            return bool(up) and all(place.weights is mine for place in up)

        await self._changes.until(arrived, f"weights {version} in all engines")

    def set_aside(self, count: int) -> int:
        """Let engines keep their weights for an evaluation; returns how many do, since one at least goes on as usual.

        They get evaluation requests alone, and all of them. 0 ends it: each takes the newest weights, then any request.
        """
        up = [place.index for place in self._usual() if place.weights is self._weights]
        chosen = up[1:][-count:] if count else []
        self._assigned.set_aside(chosen)
        self._tell_of_weights()
        self._deal()
        return len(chosen)

    def forget(self) -> None:
        """Drop all requests; their late completions are discarded."""
        self._groups.forget()
        for place in self._places:
            place.dealt = []
            place.to_send.clear()
        self._give_up(self._assigned.forget())

    def drain(self, nodes: Mapping[str, float]) -> None:
        """Stop engines on Ray nodes that are about to go, as long as others can take their requests.

        Args:
            nodes: all such nodes, with the time when each is to be gone (seconds since 1970, 0 if that is not known);
                to be called again while there are some, for others may come up elsewhere.
        """
        self._draining = nodes
        self._draining_changed.set()
        self._draining_changed = asyncio.Event()
        self._changes.notify()

    async def serve(self) -> None:
        """Keep the engines at work, and replace those that are lost, until cancelled."""
        async with TaskGroup() as group:
            for place in self._places:
                group.create_task(self._serve(place), name=place.name)

    def stop(self) -> None:
        """End the engines' processes and give their devices back."""
        for place in self._places:
            ray.kill(place.actor)
        self._reservation.release()

    # One engine.

    async def _serve(self, place: EnginePlace) -> None:
        """Let an engine work; when it is lost, give what it held to the others and start a new one in its place."""
        while True:
            try:
                await self._serve_actor(place)
            except* LabError as errors:
                error = first_error(errors)
            was_up = self._assigned.is_up(place.index)
            self._past.update(place.stats)
            place.lost_since = time.monotonic() if place.lost_since is None else place.lost_since
            place.restarts, place.weights, place.stats = place.restarts + 1, None, {}
            self._taken += 1
            place.dealt, place.abort_ids = [], []
            place.to_send.clear()
            place.to_abort.clear()
            last = self._assigned.evaluating == {place.index}
            requeued = self._assigned.leave(place.index)
            if last:
                self._lose_evaluation(error)
            ray.kill(place.actor)  # Ray kills a process that does not end, such as a stopped one, within seconds
            drained = isinstance(error, DrainedError)
            if self._assigned.up and (drained or (isinstance(error, LateError) and not was_up)):
                self._faults.missing(place.name, error, self._assigned.up)
            else:
                facts = {"evaluation": "lost"} if last else {}
                self._faults.lost("generator", place.name, error, requeued=requeued, **facts)
            self._deal()
            if drained:
                await self._node_gone(place)
            place.actor, place.node = self._start(place.index, place.restarts), None

    async def _node_gone(self, place: EnginePlace) -> None:
        """Wait until Ray reports that an engine's node is gone: until then it counts the node's devices as present.

        If the node stays, that is said, and the wait ends: Ray starts nothing on such a node, so that the next engine
        comes up when the node goes after all.
        """
        seconds = max(0.0, self._draining.get(str(place.node), 0.0) - time.time()) + self._cluster.startup_seconds
        what = f"the node of {place.name} to go"
        try:
            async with asyncio.timeout(seconds):
                await self._changes.until(lambda: place.node not in self._draining, what)
        except TimeoutError:
            self._faults.overdue(place.name, LateError(f"waited {seconds:.0f} s for {what}, as `ray drain-node` said"))

    async def _serve_actor(self, place: EnginePlace) -> None:
        """Serve one engine actor until it is lost: first weights, then requests, completions and newer weights.

        Raises:
            BaseExceptionGroup: of the `LabError` that ended it.
        """
        async with TaskGroup() as group:
            if place.weights is None:
                up = place.actor.up.remote()
                place.node = await answer(up, self._cluster.startup_seconds, f"{place.name} to start again")
                place.weights = self._weights if self._weights.segments is None else Weights(0, None)
                self._taken += 1
            while place.weights is not self._weights:
                await self._take_weights(place)
            self._lost_seconds += place.lost_seconds()
            place.lost_since = None
            self._assigned.join(place.index)
            for task in (self._tell, self._collect, self._follow_weights, self._abort, self._watch_node):
                group.create_task(task(place), name=f"{place.name}: {task.__name__.strip('_')}")
            self._faults.recovered("generator", place.name)
            self._deal()

    async def _tell(self, place: EnginePlace) -> None:
        """Send an engine the requests that it was dealt, many in one call."""
        while True:
            await place.to_send.wait()
            places = self._run.generator.max_sequences
            await asyncio.sleep(self._linger * min(1.0, self._assigned.holds(place.index) / places))
            place.to_send.clear()
            sent = self._assigned.holds(place.index) - len(place.dealt)
            if not place.dealt or sent >= places:  # they would wait: `_collect` takes them
                continue
            requests, place.dealt = place.dealt, []
            told = place.actor.submit.remote(requests)
            await answer(told, self._cluster.stall_seconds, f"{place.name} to take requests")

    async def _abort(self, place: EnginePlace) -> None:
        """Make an engine abort forgotten requests."""
        while True:
            await place.to_abort.wait()
            place.to_abort.clear()
            ids, place.abort_ids = place.abort_ids, []
            told = place.actor.abort.remote(ids)
            await answer(told, self._cluster.stall_seconds, f"{place.name} to forget requests")

    async def _watch_node(self, place: EnginePlace) -> None:
        """Wait until the engine's node is about to go and another engine stays.

        Raises:
            DrainedError: so it is.
        """
        while not (place.node in self._draining and any(one.node not in self._draining for one in self._up())):
            await self._draining_changed.wait()
        raise DrainedError(f"the node of {place.name} is about to go")

    async def _collect(self, place: EnginePlace) -> None:
        """Take finished completions, one call at a time, and send what was dealt; an engine without tokens hangs."""
        while True:
            requests, place.dealt = [place.dealt] if place.dealt else [], []
            ref, contents, records = place.actor.collect.options(num_returns=3).remote(*requests)
            completions, place.stats = await answer(ref, self._cluster.hang_seconds, f"{place.name} to answer")
            completions = with_keys(completions, contents, records)
            stalled = place.stats.pop("stalled_seconds")
            if stalled > self._cluster.hang_seconds:
                raise LateError(f"{place.name} made no token for {stalled:.0f} s: it hangs")
            for completion in self._assigned.take(place.index, completions):
                self._groups.finish(completion)
            if completions:
                self._changes.notify()

    async def _follow_weights(self, place: EnginePlace) -> None:
        """Send an engine the newest weights; repeat if newer ones appear meanwhile."""
        while True:
            changed = self._weights_changed
            if place.weights is self._weights and self._assigned.follow(place.index):
                self._deal()
            if place.weights is self._weights or place.index in self._assigned.evaluating:
                await changed.wait()
            else:
                await self._take_weights(place)
                self._changes.notify()

    async def _take_weights(self, place: EnginePlace) -> None:
        """Bring an engine to the newest weights.

        Those of a trainer that is gone cannot be had: the engine goes on with what it has until there are others.

        Raises:
            LateError: no weights could be had for as long as that may take.
        """
        seconds = self._cluster.startup_seconds + self._run.save_seconds
        ends = time.monotonic() + seconds
        while True:
            weights, changed = self._weights, self._weights_changed
            what = f"{place.name} to take weights {weights.version}"
            problem = await answer(place.actor.take_weights.remote(weights.segments), self._cluster.stall_seconds, what)
            if problem is None:
                place.weights = weights
                self._taken += 1
                return
            if time.monotonic() > ends:
                raise LateError(f"waited {seconds:.0f} s for {what}: {problem}")
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), RETRY_SECONDS)

    def _tell_of_weights(self) -> None:
        """Notify waiters that weights were published, or that engines may take them."""
        self._weights_changed.set()
        self._weights_changed = asyncio.Event()

    def _lose_evaluation(self, error: LabError) -> None:
        """Abort the evaluation whose last engine is lost: no other engine has its weights."""
        lost = EvaluationLostError(f"an evaluation lost the last of its engines: {error}")
        self._give_up(self._assigned.drop(self._groups.lose_evaluation(lost)))

    def _give_up(self, abort_ids: dict[int, list[str]]) -> None:
        for index, ids in abort_ids.items():
            self._places[index].abort_ids += ids
            self._places[index].to_abort.set()
        self._changes.notify()

    def _deal(self) -> None:
        for index, requests in self._assigned.deal().items():
            self._places[index].dealt += requests
            self._places[index].to_send.set()
        self._changes.notify()

    def _up(self) -> list[EnginePlace]:
        return [place for place in self._places if self._assigned.is_up(place.index)]

    def _usual(self) -> list[EnginePlace]:
        """Engines that are up and were not set aside; the loop asks after every change, so they are kept."""
        since = self._assigned.changes, self._taken
        if since != self._usual_since:
            self._usual_ones = [place for place in self._up() if not self._assigned.is_aside(place.index)]
            self._oldest = min((place.weights.version for place in self._usual_ones if place.weights), default=None)
            self._usual_since = since
        return self._usual_ones
