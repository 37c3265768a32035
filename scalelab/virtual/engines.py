"""Many simulated engines in step with each other, on a simulated clock.

All engines take their decoding steps together, and sequences are spread evenly over them. So N engines with S places
each are one pool of N · S places, whose step takes `step_seconds + sequence_seconds · ⌈sequences / N⌉`. The real
`Decoder` has vLLM make a token for every sequence in a step, a drawn one counts. Sequences start, and weights change,
between two steps.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

from scalelab.run.ports import CompletionT, RequestT, WeightsT, capacity
from scalelab.run.settings import Rates
from scalelab.virtual.clock import VirtualLoop, set_done, sleep_until, ticks, virtual_loop

_WeightsIn = TypeVar("_WeightsIn", contravariant=True)


@dataclass(eq=False, slots=True)
class Call(Generic[CompletionT]):
    """One call of `generate`: the answers to its requests as they come in."""

    answers: list[CompletionT]
    left: int
    done: asyncio.Future[None]
    kind: str = "train"


@dataclass(eq=False, slots=True)
class Stream(Generic[RequestT, CompletionT]):
    """One request of a call."""

    request: RequestT
    call: Call[CompletionT] | None
    number: int


class Decoder(Protocol[RequestT, CompletionT, _WeightsIn]):
    """Generator of the sequences' tokens."""

    def start(self, sequence: Stream[RequestT, CompletionT]) -> None:
        """Begin a sequence with the next step."""

    def steps_to_end(self) -> int:
        """Steps until a sequence may end; at least 1."""

    def advance(self, steps: int) -> Sequence[tuple[Stream[RequestT, CompletionT], CompletionT]]:
        """Take steps, and return the sequences that ended with the last of them, each with its completion."""

    def load(self, version: int, weights: _WeightsIn) -> None:
        """Swap the weights between two steps."""

    def forget(self) -> None:
        """Drop all sequences."""

    def tokens(self, completion: CompletionT) -> int:
        """Tokens of a completion."""


@dataclass
class Usage:
    """Totals of the engines, in wall seconds of their clock."""

    idle: float = 0.0
    """Engine-seconds without a sequence."""
    sequences: float = 0.0
    """Sequence-seconds."""
    completions: int = 0
    tokens: int = 0
    updates: int = 0


class SimulatedEngines(Generic[RequestT, CompletionT, WeightsT]):
    """The port of engines on a simulated clock.

    Args:
        rates: how long things take.
        engines: how many there are.
        places: sequences side by side in each.
        decoder: makes the tokens.
        changed: called when something has happened that others may wait for.
    """

    def __init__(
        self,
        rates: Rates,
        engines: int,
        places: int,
        decoder: Decoder[RequestT, CompletionT, WeightsT],
        changed: Callable[[], None],
    ) -> None:
        self.rates, self._each = rates, places
        self.version, self.running, self.outstanding = 0, 0, 0
        self.usage = Usage()
        self._decoder, self._changed = decoder, changed
        self._step, self._sequence = ticks(rates.step_seconds), ticks(rates.sequence_seconds)
        self._waiting: deque[Stream[RequestT, CompletionT]] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._loop: VirtualLoop
        self._weights: tuple[int, WeightsT, asyncio.Future[None]] | None = None
        self.resize(engines)

    def resize(self, engines: int) -> None:
        """Change the number of engines; sequences without a place keep going beside the others."""
        self.engines, self.places = engines, engines * self._each
        self._capacity = capacity(self.places)
        self._wake()

    @property
    def room(self) -> int:
        """Completions that could be asked for now."""
        return self._capacity - self.outstanding

    @property
    def busy(self) -> int:
        """Engines with at least one sequence."""
        return min(self.engines, self.running)

    async def generate(self, requests: Sequence[RequestT]) -> list[CompletionT]:
        """Generate all completions of a group, in the order of the requests."""
        answers = cast("list[CompletionT]", [None] * len(requests))  # each is there before the call is done
        call = Call(answers, len(requests), asyncio.get_running_loop().create_future())
        self._waiting.extend(Stream(request, call, number) for number, request in enumerate(requests))
        self.outstanding += len(requests)
        if self.running < self.places:
            self._wake()
        await call.done
        return call.answers

    def set_aside(self, count: int) -> int:
        """Set none aside: all take their steps, and weights, together."""
        return 0

    async def update(self, version: int, weights: WeightsT) -> None:
        """Send weights to the engines, which take them between two steps and stand still for it."""
        loop = virtual_loop()
        await sleep_until(loop.now + ticks(self.rates.transfer_seconds), f"weights {version} to arrive")
        taken = loop.create_future()
        self._weights = version, weights, taken
        self._wake()
        await taken

    def forget(self) -> None:
        """Drop all requests."""
        self._waiting.clear()
        self._decoder.forget()
        self._weights = None
        self.running = self.outstanding = 0

    def totals(self) -> Mapping[str, float]:
        """Counters since the start."""
        usage = self.usage
        return {
            "completions": usage.completions,
            "tokens": usage.tokens,
            "idle_seconds": usage.idle,
            "updates": usage.updates,
        }

    def passed(self, seconds: float) -> None:
        """Count wall seconds that have passed."""
        self.usage.idle += seconds * (self.engines - self.busy)
        self.usage.sequences += seconds * self.running

    async def serve(self) -> None:
        """Decode step by step until cancelled; steps in which nothing can happen are taken at once."""
        self._loop = virtual_loop()
        while True:
            if self._weights is not None:
                await self._take_weights(*self._weights)
            self._admit()
            if self.running:
                await self._decode()
            elif self._weights is None:
                await self._event(None)

    async def _decode(self) -> None:
        """Take steps until a sequence may end, or until the first step after an arrival."""
        loop = self._loop
        each = self._step + self._sequence * -(-self.running // self.engines)
        begun, steps = loop.now, self._decoder.steps_to_end()
        if steps > 1:
            await self._event(begun + steps * each)
            steps = min(steps, max(1, -(-(loop.now - begun) // each)))
        end = begun + steps * each
        if loop.now < end:
            await sleep_until(end, "the end of a decoding step", last=True)
        for stream, completion in self._decoder.advance(steps):
            self._finish(stream, completion)

    async def _event(self, latest: int | None) -> None:
        """Wait for requests or weights, but not beyond a tick; other events of that tick come first."""
        event = self._arrival = self._loop.create_future()
        timer = None if latest is None else self._loop.call_at_tick(latest, set_done, event, last=True)
        what = "requests or weights"  # noqa: F841 - read by messages about a clock that stands still
        try:
            await event
        finally:
            self._arrival = None
            if timer is not None:
                timer.cancel()

    async def _take_weights(self, version: int, weights: WeightsT, taken: asyncio.Future[None]) -> None:
        self._weights = None
        self._decoder.load(version, weights)
        self.usage.updates += 1
        paused = ticks(self.rates.pause_seconds)
        if paused:
            await sleep_until(virtual_loop().now + paused, f"the engines to take weights {version}")
        self.version = version
        if not taken.done():
            taken.set_result(None)
        self._changed()

    def _admit(self) -> None:
        while self._waiting and self.running < self.places:
            self._decoder.start(self._waiting.popleft())
            self.running += 1

    def _finish(self, sequence: Stream[RequestT, CompletionT], completion: CompletionT) -> None:
        call = sequence.call
        assert call is not None  # `generate` gives every sequence its call
        call.answers[sequence.number] = completion
        call.left -= 1
        self.running -= 1
        self.outstanding -= 1
        self.usage.completions += 1
        self.usage.tokens += self._decoder.tokens(completion)
        if not call.left and not call.done.done():
            call.done.set_result(None)

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


DrawnStream = Stream[int, tuple[int, int]]
"""A request that is a number of tokens, whose completion is that and the version of its first token."""
DrawnSequence = tuple[int, tuple[DrawnStream, tuple[int, int]]]
"""A running sequence: steps to its end, and the request with its completion."""


class DrawnDecoder:
    """Sequences whose lengths are known, by the step at which they end.

    A request is its length in tokens. A completion is that length and the version of its first token.
    """

    def __init__(self) -> None:
        self._taken = self._version = 0
        self._steps: list[int] = []
        """Heap of the steps at which a sequence ends: there are far fewer of them than sequences."""
        self._ending: dict[int, list[tuple[DrawnStream, tuple[int, int]]]] = {}

    def start(self, sequence: DrawnStream) -> None:
        """Begin a sequence with the next step."""
        self.put([(sequence.request, (sequence, (sequence.request, self._version)))])

    def put(self, sequences: Sequence[DrawnSequence]) -> None:
        """Go on with sequences."""
        for steps, ended in sequences:
            end = self._taken + steps
            if (ending := self._ending.get(end)) is not None:
                ending.append(ended)
            else:
                self._ending[end] = [ended]
                heapq.heappush(self._steps, end)

    def take(self, count: int) -> list[DrawnSequence]:
        """Take so many of the running sequences out, of all lengths alike."""
        running = [(end - self._taken, one) for end in sorted(self._steps) for one in self._ending[end]]
        chosen = {number * len(running) // count for number in range(count)} if count else set()
        self.forget()
        self.put([one for number, one in enumerate(running) if number not in chosen])
        return [running[number] for number in sorted(chosen)]

    def steps_to_end(self) -> int:
        """Steps until the next sequence ends."""
        return self._steps[0] - self._taken

    def advance(self, steps: int) -> list[tuple[DrawnStream, tuple[int, int]]]:
        """Take steps, and return the sequences that ended with the last of them, in the order of their start."""
        self._taken += steps
        if self._steps and self._steps[0] == self._taken:
            return self._ending.pop(heapq.heappop(self._steps))
        return []

    def load(self, version: int, weights: None) -> None:
        """Note the version of the tokens that come; there are no weights."""
        self._version = version

    def forget(self) -> None:
        """Drop all sequences."""
        self._steps.clear()
        self._ending.clear()

    def tokens(self, completion: tuple[int, int]) -> int:
        """Tokens of a completion."""
        return completion[0]
