"""Deal requests to generators by outstanding tokens, so that none is lost or answered twice.

Plain books without Ray or clocks. A request is at exactly one place: waiting, or held by one generator; it leaves when
its first completion is taken, or when everything is forgotten.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from statistics import fmean

from scalelab.rollout.types import Completion, Kind, Request

# Completions of a task that its expected length is the mean of.
RECENT = 256


@dataclass
class Held:
    """Requests of one generator, and the tokens that each was expected to take when it was dealt."""

    requests: dict[str, Request] = field(default_factory=dict)
    tokens: dict[str, float] = field(default_factory=dict)

    @property
    def owed(self) -> float:
        """Expected tokens of all its requests."""
        return sum(self.tokens.values())


class Assignments:
    """Requests of a run, and the generators that are up, by number.

    A generator's load is the expected length of what it holds: the mean over the recent completions of the same task,
    and the request's `max_tokens` before there are any. Counting requests alike would give a generator that holds ten
    long ones as much as one that holds ten short ones.
    """

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._waiting: deque[Request] = deque()
        self._lengths: dict[str, deque[int]] = {}
        self._kinds: Counter[Kind] = Counter()
        self._following: set[int] = set()
        self.evaluating: set[int] = set()
        """Generators that are set aside for an evaluation: they get its requests alone, and all of them."""

    @property
    def up(self) -> int:
        """Generators that take requests."""
        return len(self._held)

    @property
    def outstanding(self) -> int:
        """Requests not answered yet."""
        return self._kinds.total()

    def outstanding_of(self, kind: Kind) -> int:
        """Requests of a kind that are not answered yet."""
        return self._kinds[kind]

    def is_up(self, generator: int) -> bool:
        """True if a generator takes requests."""
        return generator in self._held

    def set_aside(self, generators: Iterable[int]) -> None:
        """Reserve generators for an evaluation; those reserved before get no requests until `follow`."""
        chosen = set(generators)
        self._following = (self._following | self.evaluating) - chosen
        self.evaluating = chosen

    def follow(self, generator: int) -> bool:
        """Return a generator with the newest weights to training; False if it was not set aside."""
        was = generator in self._following
        self._following.discard(generator)
        return was

    def is_aside(self, generator: int) -> bool:
        """True if a generator gets no requests for training."""
        return generator in self.evaluating or generator in self._following

    def holds(self, generator: int) -> int:
        """Requests that a generator holds."""
        return len(self._held[generator].requests) if generator in self._held else 0

    def join(self, generator: int) -> None:
        """Add a generator that is up and holds the current weights."""
        self._held.setdefault(generator, Held())

    def leave(self, generator: int) -> int:
        """Remove a lost generator; its requests go first in the queue, and their number is returned."""
        lost = list(self._held.pop(generator, Held()).requests.values())
        self.evaluating.discard(generator)
        self._following.discard(generator)
        self._waiting.extendleft(reversed(lost))
        return len(lost)

    def add(self, requests: Iterable[Request]) -> None:
        """Queue requests."""
        requests = list(requests)
        self._waiting.extend(requests)
        self._kinds.update(request.kind for request in requests)

    def deal(self) -> dict[int, list[Request]]:
        """Deal queued requests, each to the generator with the fewest outstanding tokens of those that may have it."""
        dealt: dict[int, list[Request]] = {}
        usual = [generator for generator in self._held if not self.is_aside(generator)]
        places: dict[Kind, list[int]] = {"train": usual, "eval": sorted(self.evaluating) or usual}
        expected: dict[str, float] = {task: fmean(lengths) for task, lengths in self._lengths.items()}
        owed = {generator: held.owed for generator, held in self._held.items()}
        queued, self._waiting = self._waiting, deque()
        for request in queued:
            if not places[request.kind]:
                self._waiting.append(request)
                continue
            generator = min(places[request.kind], key=lambda one: (owed[one], one))
            tokens = min(expected.get(request.task, request.max_tokens), request.max_tokens)
            held = self._held[generator]
            held.requests[request.id], held.tokens[request.id] = request, tokens
            owed[generator] += tokens
            dealt.setdefault(generator, []).append(request)
        return dealt

    def take(self, generator: int, completions: Sequence[Completion]) -> list[Completion]:
        """Accept completions from a generator and settle their requests; forgotten ones are dropped."""
        held = self._held.get(generator, Held())
        mine = [completion for completion in completions if held.requests.pop(completion.request.id, None) is not None]
        for completion in mine:
            del held.tokens[completion.request.id]
            self._kinds[completion.request.kind] -= 1
            task = completion.request.task
            self._lengths.setdefault(task, deque(maxlen=RECENT)).append(len(completion.token_ids))
        return mine

    def drop(self, ids: Set[str]) -> dict[int, list[str]]:
        """Forget some requests; returns the ids that each generator should abort."""
        vain: dict[int, list[str]] = {}
        for generator, held in self._held.items():
            for id in ids & held.requests.keys():
                self._kinds[held.requests.pop(id).kind] -= 1
                del held.tokens[id]
                vain.setdefault(generator, []).append(id)
        queued, self._waiting = self._waiting, deque()
        for request in queued:
            if request.id in ids:
                self._kinds[request.kind] -= 1
            else:
                self._waiting.append(request)
        return vain

    def forget(self) -> dict[int, list[str]]:
        """Forget every request; returns the ids that each generator should abort."""
        vain = {generator: list(held.requests) for generator, held in self._held.items() if held.requests}
        self._held = {generator: Held() for generator in self._held}
        self._waiting.clear()
        self._kinds.clear()
        return vain
