"""One generator engine on the simulated clock: continuous batching as processor sharing.

All running sequences advance together, so a sequence that starts at virtual token v with length L ends at v + L. A heap
of ends and one clock in tokens is the whole state; between two starts or ends nothing has to be done.
"""

from __future__ import annotations

import heapq
from collections import deque

from scalelab.plan.rates import Rates


class SimulatedEngine:
    """Sequences side by side, and a queue of those that wait for a place."""

    __slots__ = ("backlog", "rates", "running", "since", "slots", "stamp", "virtual")

    def __init__(self, rates: Rates, slots: int) -> None:
        self.rates, self.slots = rates, slots
        self.running: list[tuple[float, str]] = []
        self.backlog: deque[tuple[int, str]] = deque()
        self.virtual = self.since = 0.0
        self.stamp = 0

    def advance(self, now: float) -> None:
        """Generate up to `now`."""
        elapsed = now - self.since
        if elapsed <= 0:  # it stands still for a weight update
            return
        count = len(self.running)
        if count:
            self.virtual += elapsed / (self.rates.step_seconds + self.rates.sequence_seconds * count)
        self.since = now

    def submit(self, tokens: int, group: str) -> None:
        """Start a completion of a group, or queue it; `advance` first."""
        if len(self.running) < self.slots:
            heapq.heappush(self.running, (self.virtual + tokens, group))
        else:
            self.backlog.append((tokens, group))

    def next_end(self) -> float:
        """When the next completion ends; there must be one running."""
        step = self.rates.step_seconds + self.rates.sequence_seconds * len(self.running)
        return self.since + max(0.0, self.running[0][0] - self.virtual) * step

    def take_ended(self) -> list[str]:
        """Groups of the completions that end now, at `next_end`; those that waited start in their places."""
        self.virtual = max(self.virtual, self.running[0][0])
        ended = []
        while self.running and self.running[0][0] <= self.virtual:
            ended.append(heapq.heappop(self.running)[1])
        for _ in range(min(len(ended), len(self.backlog))):
            tokens, group = self.backlog.popleft()
            heapq.heappush(self.running, (self.virtual + tokens, group))
        return ended

    def pause(self, seconds: float) -> None:
        """Stand still from now on; `advance` first."""
        self.since += seconds


class LeastLoaded:
    """Which engine has the fewest completions outstanding, in constant time."""

    def __init__(self, engines: int) -> None:
        self.counts = [0] * engines
        self._by_count: list[set[int]] = [set(range(engines))]
        self._least = 0

    def take(self) -> int:
        """The least loaded engine, which gets one more."""
        while not self._by_count[self._least]:
            self._least += 1
        engine = self._by_count[self._least].pop()
        self._move(engine, self._least, self._least + 1)
        return engine

    def release(self, engine: int, number: int) -> None:
        """`number` completions of an engine have ended."""
        count = self.counts[engine]
        self._by_count[count].remove(engine)
        self._move(engine, count, count - number)
        self._least = min(self._least, count - number)

    def _move(self, engine: int, old: int, new: int) -> None:
        while new >= len(self._by_count):
            self._by_count.append(set())
        self._by_count[new].add(engine)
        self.counts[engine] = new
