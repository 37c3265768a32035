"""The generators of a run: one vLLM engine per Ray actor, and the group through which the driver talks to them.

A generator that dies, fails, or hangs is replaced. What it held goes to the others at once; the new one comes with the
current weights before it gets work, and a late answer of the old one counts for nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from moe.weights.buckets import Bucket
from scalelab.errors import LabError
from scalelab.rollout.config import GeneratorConfig
from scalelab.rollout.thinking import Transitions
from scalelab.rollout.types import Completion, Request
from scalelab.run.actors import actor_class
from scalelab.run.assignments import Assignments
from scalelab.run.config import Run
from scalelab.run.faults import Faults
from scalelab.run.placement import Reservation
from scalelab.run.waits import LateError, Waits, wait_for
from tasks.stream import stable_number

# Requests kept waiting at an engine, as a share of its places, so that none stands empty while the driver answers.
WAITING = 0.5


class GeneratorActor:
    """One vLLM engine; the methods are those of `scalelab.rollout.generator.Generator`."""

    def __init__(
        self, model: str, config: GeneratorConfig, phrase_ids: Sequence[int], end_think: Transitions, seed: int
    ) -> None:
        from scalelab.rollout.generator import Generator

        self._generator = Generator(model, config, phrase_ids, end_think, seed=seed)
        self._moved = (0.0, time.monotonic())

    def up(self) -> None:
        """Return, once the engine is up."""

    def submit(self, requests: list[Request]) -> None:
        """Start generating."""
        self._generator.submit(requests)

    def collect(self, max_items: int, timeout: float) -> tuple[list[Completion], dict[str, float]]:
        """Finished completions, and the engine's statistics so far with `stalled_seconds`.

        These are measured here, where no delay of the driver counts: time with unfinished work and no step of the
        engine.
        """
        completions = self._generator.collect(max_items, timeout, linger=0.05)
        stats, now = self._generator.stats(), time.monotonic()
        if stats["steps"] != self._moved[0] or not self._generator.outstanding().completions:
            self._moved = (stats["steps"], now)
        return completions, stats | {"stalled_seconds": now - self._moved[1]}

    def update_weights(self, version: int, buckets: list[Bucket]) -> int:
        """Swap the weights in flight; returns the version."""
        self._generator.update_weights(version, buckets)
        return version

    def abort(self, ids: list[str]) -> None:
        """Forget requests."""
        self._generator.abort(ids)


@dataclass(frozen=True, eq=False)
class _Weights:
    """Weights as they were published once. Version numbers come again after a return to a checkpoint; these do not."""

    version: int
    buckets: Any
    """Reference to them; None for those that every engine starts with."""


@dataclass
class _Place:
    """A generator's place, which a series of actors may hold."""

    index: int
    actor: Any
    weights: _Weights | None
    """What it holds; None while it starts again."""
    life: int = 0
    updating: bool = False
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"generator {self.index}"


class Generators:
    """The generator actors: requests go to the one that owes the fewest tokens, weights to all."""

    def __init__(self, run: Run, model: Path, phrase_ids: Sequence[int], end_think: Transitions) -> None:
        self._run, self._cluster = run, run.cluster
        self._arguments = (str(model), run.generator_config, tuple(phrase_ids), end_think)
        self._weights = _Weights(0, None)
        bundles = [run.generator.tensor_parallel] * run.cluster.generators
        self._reservation = Reservation(run.cluster, bundles, "the generators")
        self._places = [_Place(n, self._start(n, 0), self._weights) for n in range(run.cluster.generators)]
        self._assigned = Assignments()
        self._past: Counter[str] = Counter()
        self._arrived: Callable[[], None] | None = None

    def _start(self, index: int, life: int) -> Any:
        devices = self._run.generator.tensor_parallel
        strategy = self._reservation.strategy(index * devices)
        actor = actor_class(GeneratorActor, self._cluster, devices=devices, concurrency=4, strategy=strategy)
        # Engines with one seed draw alike, and so would a new engine and the one that it replaces.
        return actor.remote(*self._arguments, stable_number(self._run.seed, "generator", index, life) % 2**31)

    def ready(self) -> None:
        """Wait until every engine is up."""
        starting = [place.actor.up.remote() for place in self._places]
        wait_for(starting, self._cluster.startup_seconds, "the generator's engine to start")

    @property
    def version(self) -> int:
        """The oldest weights that a request started now could be generated with."""
        return min((place.weights.version for place in self._up() if place.weights), default=self._weights.version)

    @property
    def outstanding(self) -> int:
        """Completions asked for and not there yet."""
        return self._assigned.outstanding

    @property
    def free(self) -> int:
        """Completions that can be submitted now: to empty places in the engines, and to wait for the next."""
        return round(self._run.generator.max_sequences * self._assigned.up * (1 + WAITING)) - self.outstanding

    def total(self, name: str) -> float:
        """One of the engines' counters (`Generator.stats`) as of their last answers, summed over all, dead ones too."""
        return self._past[name] + sum(place.stats.get(name, 0.0) for place in self._places)

    def attach(self, waits: Waits, then: Callable[[list[Completion]], None], faults: Faults) -> None:
        """Begin: from now on completions go to `then`, and a lost generator is booked and replaced."""
        self._waits, self._then, self._faults = waits, then, faults
        for place in self._places:
            self._join(place)

    def submit(self, requests: Sequence[Request]) -> None:
        """Start generating, each request where the fewest tokens are owed."""
        self._assigned.add(requests)
        self._deal()

    def update(self, version: int, buckets: Any, then: Callable[[], None]) -> None:
        """Swap the weights of all generators in flight, and call `then` when the last has them.

        Args:
            version: policy version.
            buckets: reference to them; one that starts later gets the same.
            then: called once, when all that are up (one at least) hold the weights.
        """
        self._weights, self._arrived = _Weights(version, buckets), then
        for place in self._up():
            self._update(place)

    def forget(self) -> None:
        """Forget all requests; completions of them that still come are dropped."""
        for index, ids in self._assigned.forget().items():
            place = self._places[index]
            self._ask(place, place.actor.abort.remote(ids), "to forget requests", lambda _: None)

    def stop(self) -> None:
        """End the engines' processes and give their devices back."""
        for place in self._places:
            place.life += 1
            ray.kill(place.actor)
        self._reservation.release()

    # One generator's life.

    def _up(self) -> list[_Place]:
        return [place for place in self._places if self._assigned.is_up(place.index)]

    def _ask(
        self, place: _Place, ref: Any, what: str, then: Callable[[Any], None], seconds: float | None = None
    ) -> None:
        """Wait for an answer of the actor that holds the place now; whatever fails, the actor is replaced."""
        life = place.life

        def answered(answer: Any) -> None:
            if place.life == life:
                then(answer)

        def failed(error: LabError) -> None:
            if place.life == life:
                self._replace(place, error)

        self._waits.add(ref, f"{place.name} {what}", answered, failed, seconds)

    def _join(self, place: _Place) -> None:
        """Give work to a generator that is up, once it holds the current weights."""
        if place.weights is not self._weights:
            self._update(place)
            return
        self._assigned.join(place.index)
        self._collect(place)
        self._deal()
        if place.life:
            self._faults.recovered("generator", place.name)
        self._check_arrived()

    def _replace(self, place: _Place, error: LabError) -> None:
        """End what is left of a generator, give its requests to the others, and start a new one in its place."""
        self._past.update(place.stats)
        place.life, place.weights, place.updating, place.stats = place.life + 1, None, False, {}
        requeued = self._assigned.leave(place.index)
        ray.kill(place.actor)  # Ray kills a process that does not obey, such as a stopped one, within seconds
        self._faults.lost("generator", place.name, error, requeued=requeued)
        place.actor = self._start(place.index, place.life)

        def came_up(_: Any) -> None:
            place.weights = self._weights if self._weights.buckets is None else _Weights(0, None)
            self._join(place)

        self._ask(place, place.actor.up.remote(), "to start again", came_up, self._cluster.startup_seconds)
        self._deal()
        self._check_arrived()

    def _collect(self, place: _Place) -> None:
        """Keep one call for finished completions standing at a generator."""

        def collected(answer: tuple[list[Completion], dict[str, float]]) -> None:
            completions, place.stats = answer
            stalled = place.stats.pop("stalled_seconds")
            mine = self._assigned.take(place.index, completions)
            if stalled > self._cluster.hang_seconds:
                self._replace(place, LateError(f"{place.name} made no token for {stalled:.0f} s: it hangs"))
            else:
                self._collect(place)
            self._then(mine)

        self._ask(place, place.actor.collect.remote(1024, 1.0), "to answer", collected, self._cluster.hang_seconds)

    def _deal(self) -> None:
        for index, requests in self._assigned.deal().items():
            place = self._places[index]
            self._ask(place, place.actor.submit.remote(requests), "to take requests", lambda _: None)

    def _update(self, place: _Place) -> None:
        """Bring a generator to the current weights, however often these change meanwhile."""
        if place.updating:
            return
        place.updating = True

        weights = self._weights

        def updated(_: int) -> None:
            place.weights, place.updating = weights, False
            if weights is not self._weights:
                self._update(place)
            elif not self._assigned.is_up(place.index):
                self._join(place)
            else:
                self._check_arrived()

        ref = place.actor.update_weights.remote(weights.version, weights.buckets)
        self._ask(place, ref, f"to take weights {weights.version}", updated)

    def _check_arrived(self) -> None:
        up = self._up()
        if self._arrived and up and all(place.weights is self._weights for place in up):
            then, self._arrived = self._arrived, None
            then()
