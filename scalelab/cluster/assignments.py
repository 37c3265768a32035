"""Requests of a run's engines: in groups, as `generate` is given them, and dealt to generators by outstanding tokens.

Plain books without Ray or clocks. A request is at exactly one place: waiting, or held by one generator; it leaves when
its first completion is taken, or when everything is forgotten. So none is lost or answered twice.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

from scalelab.rollout.types import AnyCompletion, Kind, Request
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

    answers: dict[str, AnyCompletion | None]
    left: int
    done: asyncio.Future[None]
    kind: Kind

    async def completions(self) -> list[AnyCompletion]:
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
        answers: dict[str, AnyCompletion | None] = {request.id: None for request in own}
        group = RequestGroup(answers, len(own), asyncio.get_running_loop().create_future(), own[0].kind)
        self._of.update((request.id, group) for request in own)
        return own, group

    def finish(self, completion: AnyCompletion) -> None:
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


class LeastOwing:
    """The generator that owes the fewest tokens, in a time that does not grow with their number.

    Args:
        held: what each holds, by number; who changes it says so.
    """

    def __init__(self, held: Mapping[int, Held]) -> None:
        self._held = held
        self._build()

    def _build(self) -> None:
        self._heap = [(held.owed, generator) for generator, held in self._held.items()]
        heapify(self._heap)

    def changed(self, generator: int) -> None:
        """Note what a generator owes now; what it owed before stays in the heap until it comes up."""
        if generator not in self._held:
            return
        heappush(self._heap, (self._held[generator].owed, generator))
        if len(self._heap) > 4 * len(self._held):
            self._build()

    def first(self) -> int | None:
        """The generator, of equals the one with the lowest number; None if there are none."""
        while self._heap:
            owed, generator = self._heap[0]
            if owed == self._held[generator].owed:
                return generator
            heappop(self._heap)
        return None


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
        self._least: dict[Kind, LeastOwing] | None = None
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
        self._change()

    def follow(self, generator: int) -> bool:
        """Return a generator with the newest weights to training; False if it was not set aside."""
        was = generator in self._following
        self._following.discard(generator)
        if was:
            self._change()
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
        self._change()

    def leave(self, generator: int) -> int:
        """Remove a lost generator; its requests go first in the queue, and their number is returned."""
        lost = list(self._held.pop(generator, Held()).requests.values())
        self.evaluating.discard(generator)
        self._following.discard(generator)
        self._waiting.extendleft(reversed(lost))
        self._change()
        return len(lost)

    def _change(self) -> None:
        """Note that other generators than before may get a request."""
        self.changes += 1
        self._least = None

    def _least_owing(self) -> dict[Kind, LeastOwing]:
        """The generators that may have a request for training, and those for an evaluation's."""
        if self._least is None:
            apart = self.evaluating | self._following
            usual = LeastOwing({number: held for number, held in self._held.items() if number not in apart})
            evaluating = LeastOwing({number: self._held[number] for number in self.evaluating})
            self._least = {"train": usual, "eval": evaluating if self.evaluating else usual}
        return self._least

    def _owes(self, generator: int) -> None:
        """Note that what a generator owes has changed."""
        if self._least is not None:
            for least in {*self._least.values()}:
                least.changed(generator)

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
        least = self._least_owing()
        expected = {task: lengths.mean for task, lengths in self._lengths.items()}
        queued, self._waiting = self._waiting, deque()
        while queued:
            request = queued.popleft()
            generator = least[request.kind].first()
            if generator is None:
                self._waiting.append(request)
                continue
            held, together = self._held[generator], [request]
            if request.kind == "train" and len(held.requests) >= self._places:
                together += _more_of_its_prompt(request, queued)
            for one in together:
                held.put(one, min(expected.get(one.task, one.max_tokens), one.max_tokens))
            self._owes(generator)
            dealt.setdefault(generator, []).extend(together)
        return dealt

    def take(self, generator: int, completions: Sequence[AnyCompletion]) -> list[AnyCompletion]:
        """Accept completions from a generator and settle their requests; forgotten ones are dropped.

        Returns:
            Each with its request as it was added: generators send no prompt back.
        """
        held = self._held.get(generator, Held())
        asked = [(one, held.pop(one.request.id)) for one in completions]
        mine = [replace(one, request=request) for one, request in asked if request is not None]
        for completion in mine:
            self._kinds[completion.request.kind] -= 1
            self._lengths[completion.request.task].add(completion.tokens)
        self._owes(generator)
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
            self._owes(generator)
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
        self._change()
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
