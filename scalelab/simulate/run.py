"""A run on a simulated clock: the schedule is the real one, and the decisions around it are those of `Driver`.

Events are ends of completions, verdicts on groups, optimiser steps and weight updates; nothing happens per token. An
event's time is *work time*: where cores are shared (`Rates.cores`), wall time passes more slowly than it, by the number
of parts at work over the number of cores. Evaluation, checkpoints and faults are left out.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scalelab.plan.lengths import Lengths
from scalelab.plan.rates import Rates
from scalelab.run.generators import WAITING
from scalelab.schedule.books import Schedule
from scalelab.simulate.engine import LeastLoaded, SimulatedEngine

DRAW = 256  # groups whose lengths are drawn at once


@dataclass(frozen=True)
class Shape:
    """What is simulated, apart from speed."""

    generators: int
    """Engines."""
    trainers: int
    """Trainer units: each is a whole copy of the model."""
    groups_per_step: int
    generations: int
    """Completions of a group."""
    slots: int
    """Sequences side by side in an engine."""
    prompt_tokens: float
    kept: float = 1.0
    """Share of the groups that is left in the loss."""


@dataclass
class Totals:
    """Counters since the beginning; differences of two are what a window of the run did."""

    wall: float = 0.0
    steps: int = 0
    completions: int = 0
    tokens: int = 0
    generators_idle: float = 0.0
    """Engine-seconds without a sequence."""
    running: float = 0.0
    """Sequence-seconds."""
    trainer_idle: float = 0.0
    """Seconds without a step or an export."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Groups trained on, by trainer version − oldest version."""

    def since(self, before: Totals) -> Totals:
        """What happened after `before`."""
        values = {name: value - getattr(before, name) for name, value in vars(self).items()}
        return Totals(**values)


@dataclass
class _Group:
    left: int
    tokens: int
    version: int


class Simulation:
    """One run, event by event."""

    def __init__(self, schedule: Schedule, shape: Shape, rates: Rates, lengths: Lengths, seed: int = 0) -> None:
        self.schedule, self.shape, self.rates, self.lengths = schedule, shape, rates, lengths
        self.engines = [SimulatedEngine(rates, shape.slots) for _ in range(shape.generators)]
        self.balance = LeastLoaded(shape.generators)
        self.rng = np.random.default_rng(seed)
        self.now = 0.0
        self.history: list[Totals] = []
        """Totals at the end of every step."""
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._serial = 0
        self._groups: dict[str, _Group] = {}
        self._drawn: list[np.ndarray] = []
        self._count = 0
        self._capacity = round(shape.generators * shape.slots * (1 + WAITING))
        self._outstanding = self._running = 0
        self._busy: set[int] = set()
        """Engines with at least one sequence."""
        self._paused = 0.0
        """Until when engines stand still for their last update."""
        self._version = 0
        self._updating = self._training = False
        self._crowded = False
        """Whether the engines had less room than the schedule admitted groups."""
        self._trainer_free = self._host_free = 0.0
        self._totals = Totals()

    def run(self, *, steps: int | None = None, hours: float | None = None) -> list[Totals]:
        """Run to the end of the schedule's steps, or to these steps or hours of wall time.

        Returns:
            Totals at the end of every step.

        Raises:
            RuntimeError: nothing can happen any more.
        """
        last = self.schedule.steps if steps is None else steps
        limit = float("inf") if hours is None else 3600 * hours
        self._generate()
        while self.schedule.trainer_version < last and self._totals.wall < limit:
            if not self._events:
                raise RuntimeError(f"the simulated run stands still at step {self.schedule.trainer_version}")
            at, _, then, what = heapq.heappop(self._events)
            self._pass(at)
            then(what)
        return self.history

    # Time.

    def _at(self, time: float, then: Callable[[Any], None], what: Any = None) -> None:
        self._serial += 1
        heapq.heappush(self._events, (time, self._serial, then, what))

    def _pass(self, at: float) -> None:
        """Let time go on to `at`; wall time is stretched where more parts are at work than there are cores."""
        elapsed, totals = at - self.now, self._totals
        if elapsed > 0:
            trainer = self._trainer_free > self.now
            if self.rates.cores is not None:
                parts = len(self._busy) + self.shape.trainers * trainer + (self._host_free > self.now)
                elapsed *= max(1.0, parts / self.rates.cores)
            totals.wall += elapsed
            totals.generators_idle += elapsed * (self.shape.generators - len(self._busy))
            totals.running += elapsed * self._running
            totals.trainer_idle += 0.0 if trainer else elapsed
        self.now = at

    # Generators.

    def _generate(self) -> None:
        """As `Driver.generate`: what the schedule admits and the engines have room for."""
        room = (self._capacity - self._outstanding) // self.shape.generations
        admitted = self.schedule.may_start(self._version)
        count = min(room, admitted)
        self._crowded = room < admitted
        touched = set()
        for _ in range(count):
            name, tokens_G = f"group{self._count}", self._draw()
            self._count += 1
            self.schedule.started(name, self._version)
            self._groups[name] = _Group(len(tokens_G), int(tokens_G.sum()), self._version)
            for tokens in tokens_G.tolist():
                index = self.balance.take()
                engine = self.engines[index]
                if index not in touched:
                    touched.add(index)
                    self._advance(index)
                engine.submit(tokens, name)
            self._outstanding += len(tokens_G)
        for index in sorted(touched):
            self._expect(index)

    def _draw(self) -> np.ndarray:
        if not self._drawn:
            self._drawn = list(self.lengths.draw(self.rng, DRAW, self.shape.generations))[::-1]
        return self._drawn.pop()

    def _advance(self, index: int) -> None:
        engine = self.engines[index]
        self._running -= len(engine.running)
        engine.advance(self.now)
        if not engine.running:
            engine.since = max(engine.since, self._paused)

    def _expect(self, index: int) -> None:
        """Book the next end of an engine whose sequences have changed; what was booked before is void."""
        engine = self.engines[index]
        self._running += len(engine.running)
        engine.stamp += 1
        if engine.running:
            self._busy.add(index)
            self._at(engine.next_end(), self._ended, (index, engine.stamp))
        else:
            self._busy.discard(index)

    def _ended(self, what: tuple[int, int]) -> None:
        index, stamp = what
        engine = self.engines[index]
        if stamp != engine.stamp:
            return
        self._advance(index)
        ended = engine.take_ended()
        self._expect(index)
        self.balance.release(index, len(ended))
        self._outstanding -= len(ended)
        for name in ended:
            self._complete(name)
        if self._crowded:
            self._generate()

    def _complete(self, name: str) -> None:
        """One completion of a group has come in; the last one's verdict makes the group whole."""
        group = self._groups[name]
        group.left -= 1
        if self.rates.host_seconds:
            self._host_free = max(self._host_free, self.now) + self.rates.host_seconds
            self._at(self._host_free, self._graded, None if group.left else name)
        elif not group.left:
            self._at(self.now + self.rates.verify_seconds, self._graded, name)

    def _graded(self, name: str | None) -> None:
        if name is not None:
            self.schedule.finished(name)
            self._step()

    # Trainer.

    def _step(self) -> None:
        """As `Driver.step`: an optimiser step when the trainer is free and the schedule has a batch."""
        names = None if self._training else self.schedule.batch()
        if names is None:
            return
        self._training = True
        groups = [self._groups.pop(name) for name in names]
        prompts = self.shape.prompt_tokens * self.shape.generations * len(groups)
        tokens = sum(group.tokens for group in groups)
        seconds = self.rates.train_step_seconds
        seconds += self.shape.kept * (tokens + prompts) * self.rates.train_token_seconds / self.shape.trainers
        for group in groups:
            self._totals.staleness[self.schedule.trainer_version - group.version] += 1
        self._totals.tokens += tokens
        self._totals.completions += self.shape.generations * len(groups)
        self._trainer_free = max(self.now, self._trainer_free) + seconds
        self._at(self._trainer_free, self._stepped, names)

    def _stepped(self, names: list[str]) -> None:
        self._training = False
        self.schedule.trained(names)
        self._note()
        self._publish()
        self._generate()
        self._step()

    def _note(self) -> None:
        self._totals.steps = self.schedule.trainer_version
        self.history.append(replace(self._totals, staleness=Counter(self._totals.staleness)))

    # Weights.

    def _publish(self) -> None:
        """As `Driver.publish`: one update at a time, and only when the schedule allows."""
        version = self.schedule.trainer_version
        if self._updating or self._training or self._version == version or not self.schedule.may_publish():
            return
        self._updating = True
        self._trainer_free = max(self.now, self._trainer_free) + self.rates.export_seconds
        self._at(self._trainer_free, self._idle)
        self._at(self._trainer_free + self.rates.transfer_seconds, self._arrived, version)

    def _idle(self, _: None) -> None:
        """The export is over: from here on the trainer's time counts as idle, unless a step has begun."""

    def _arrived(self, version: int) -> None:
        """The weights are at the engines, which stand still to take them."""
        self._paused = self.now + self.rates.pause_seconds
        for index in sorted(self._busy):
            self._advance(index)
            self.engines[index].pause(self.rates.pause_seconds)
            self._expect(index)
        self._at(self._paused, self._updated, version)

    def _updated(self, version: int) -> None:
        self._updating, self._version = False, version
        self._publish()
        self._generate()
