"""Requests of a run's engines: in groups, as `generate` is given them, and dealt to generators by outstanding tokens.

Plain books without Ray or clocks. A request is at exactly one place: waiting, or held by one generator; it leaves when
its first completion is taken, or when everything is forgotten. So none is lost or answered twice.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from heapq import heapify, heapreplace

from scalelab.rollout.types import Completion, Kind, Request
from scalelab.run.ports import EvaluationLostError

RECENT = 256
"""Completions of a task that its expected length is the mean of."""

TOGETHER = 4
"""Most requests of one prompt that a full generator gets at a time.

They would wait anywhere, and so they cost one call and one computation of the prompt. With more, generators would end
a batch at times further apart.
"""


@dataclass(eq=False)
class RequestGroup:
    """The requests of one call of `generate`, as they are answered."""

    answers: dict[str, Completion | None]
    left: int
    done: asyncio.Future[None]
    kind: Kind

    async def completions(self) -> list[Completion]:
        """All completions, in the order of the requests, once the last is there."""
        await self.done
        return [completion for completion in self.answers.values() if completion is not None]


class RequestGroups:
    """Groups with requests that are not answered yet."""

    def __init__(self) -> None:
        self._epoch = 0
        self._of: dict[str, RequestGroup] = {}

    def begin(self, requests: Sequence[Request]) -> tuple[list[Request], RequestGroup]:
        """Begin a group; returns its requests under names that never come again.

        After a return to a checkpoint the names that they had come again.
        """
        own = [replace(request, id=f"{self._epoch}/{request.id}") for request in requests]
        answers: dict[str, Completion | None] = {request.id: None for request in own}
        group = RequestGroup(answers, len(own), asyncio.get_running_loop().create_future(), own[0].kind)
        self._of.update((request.id, group) for request in own)
        return own, group

    def finish(self, completion: Completion) -> None:
        """Take a completion; the last of a group ends it."""
        group = self._of.pop(completion.request.id)
        group.answers[completion.request.id] = completion
        group.left -= 1
        if not group.left and not group.done.done():
            group.done.set_result(None)

    def forget(self) -> None:
        """Drop all groups."""
        self._epoch += 1
        self._of.clear()

    def lose_evaluation(self, error: EvaluationLostError) -> set[str]:
        """End the groups of the running evaluation with an error; returns the names of their requests."""
        gone = {id for id, group in self._of.items() if group.kind == "eval"}
        for id in gone:
            group = self._of.pop(id)
            if not group.done.done():
                group.done.set_exception(error)
        return gone


@dataclass
class Held:
    """Requests of one generator, and the tokens that each was expected to take when it was dealt."""

    requests: dict[str, Request] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    owed: int = 0
    """Expected tokens of all its requests; whole numbers, so that sums and differences are exact."""

    def put(self, request: Request, tokens: int) -> None:
        """Add a request."""
        self.requests[request.id], self.tokens[request.id] = request, tokens
        self.owed += tokens

    def pop(self, id: str) -> Request | None:
        """Remove a request and return it; None if it is not here."""
        request = self.requests.pop(id, None)
        if request is not None:
            self.owed -= self.tokens.pop(id)
        return request


@dataclass
class RecentLengths:
    """The last `RECENT` lengths of a task's completions, with their sum."""

    last: deque[int] = field(default_factory=deque)
    total: int = 0

    def add(self, tokens: int) -> None:
        """Add a length."""
        self.last.append(tokens)
        self.total += tokens
        if len(self.last) > RECENT:
            self.total -= self.last.popleft()

    @property
    def mean(self) -> int:
        """Their mean, rounded."""
        return round(self.total / len(self.last))


class Assignments:
    """Requests of a run, and the generators that are up, by number.

    A generator's load is the expected length of what it holds: the mean over the recent completions of the same task,
    and the request's `max_tokens` before there are any. Counting requests alike would give a generator that holds ten
    long ones as much as one that holds ten short ones.

    Args:
        places: completions that a generator works on at the same time; what it holds beyond them waits in it.
    """

    def __init__(self, places: float = math.inf) -> None:
        self._places = places
        self._held: dict[int, Held] = {}
        self._waiting: deque[Request] = deque()
        self._lengths: defaultdict[str, RecentLengths] = defaultdict(RecentLengths)
        self._kinds: Counter[Kind] = Counter()
        self._following: set[int] = set()
        self.changes = 0
        """Number of changes of which generators are up, and of which are set aside."""
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
        self.changes += 1

    def follow(self, generator: int) -> bool:
        """Return a generator with the newest weights to training; False if it was not set aside."""
        was = generator in self._following
        self._following.discard(generator)
        self.changes += was
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
        self.changes += 1

    def leave(self, generator: int) -> int:
        """Remove a lost generator; its requests go first in the queue, and their number is returned."""
        lost = list(self._held.pop(generator, Held()).requests.values())
        self.evaluating.discard(generator)
        self._following.discard(generator)
        self._waiting.extendleft(reversed(lost))
        self.changes += 1
        return len(lost)

    def add(self, requests: Iterable[Request]) -> None:
        """Queue requests."""
        requests = list(requests)
        self._waiting.extend(requests)
        self._kinds.update(request.kind for request in requests)

    def deal(self) -> dict[int, list[Request]]:
        """Deal queued requests, each to the generator with the fewest outstanding tokens of those that may have it.

        Where all of these are full, a few requests for training of one prompt go together.
        """
        dealt: dict[int, list[Request]] = {}
        if not self._waiting:
            return dealt
        apart = self.evaluating | self._following
        usual = [(held.owed, generator) for generator, held in self._held.items() if generator not in apart]
        evaluating = [(self._held[generator].owed, generator) for generator in self.evaluating] or usual
        heaps: dict[Kind, list[tuple[int, int]]] = {"train": usual, "eval": evaluating}
        heapify(usual)
        heapify(evaluating)
        expected = {task: lengths.mean for task, lengths in self._lengths.items()}
        queued, self._waiting = self._waiting, deque()
        while queued:
            request = queued.popleft()
            heap = heaps[request.kind]
            if not heap:
                self._waiting.append(request)
                continue
            generator = heap[0][1]
            held, together = self._held[generator], [request]
            if request.kind == "train" and len(held.requests) >= self._places:
                together += _more_of_its_prompt(request, queued)
            for one in together:
                held.put(one, min(expected.get(one.task, one.max_tokens), one.max_tokens))
            heapreplace(heap, (held.owed, generator))
            dealt.setdefault(generator, []).extend(together)
        return dealt

    def take(self, generator: int, completions: Sequence[Completion]) -> list[Completion]:
        """Accept completions from a generator and settle their requests; forgotten ones are dropped."""
        held = self._held.get(generator, Held())
        mine = [completion for completion in completions if held.pop(completion.request.id) is not None]
        for completion in mine:
            self._kinds[completion.request.kind] -= 1
            self._lengths[completion.request.task].add(len(completion.token_ids))
        return mine

    def drop(self, ids: Set[str]) -> dict[int, list[str]]:
        """Forget some requests; returns the ids that each generator should abort."""
        abort_ids: dict[int, list[str]] = {}
        for generator, held in self._held.items():
            for id in ids & held.requests.keys():
                request = held.pop(id)
                assert request is not None
                self._kinds[request.kind] -= 1
                abort_ids.setdefault(generator, []).append(id)
        queued, self._waiting = self._waiting, deque()
        for request in queued:
            if request.id in ids:
                self._kinds[request.kind] -= 1
            else:
                self._waiting.append(request)
        return abort_ids

    def forget(self) -> dict[int, list[str]]:
        """Forget every request; returns the ids that each generator should abort."""
        abort_ids = {generator: list(held.requests) for generator, held in self._held.items() if held.requests}
        self._held = {generator: Held() for generator in self._held}
        self._waiting.clear()
        self._kinds.clear()
        return abort_ids


def _more_of_its_prompt(request: Request, queued: deque[Request]) -> list[Request]:
    """Take those from the head of the queue that go where this one goes."""
    more: list[Request] = []
    what = request.kind, request.prompt_ids
    while len(more) < TOGETHER - 1 and queued and (queued[0].kind, queued[0].prompt_ids) == what:
        more.append(queued.popleft())
    return more
