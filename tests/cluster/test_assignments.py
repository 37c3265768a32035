"""Every request is answered exactly once, whatever dies, and work goes where the least is owed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scalelab.cluster.assignments import RECENT, TOGETHER, Assignments, Held, LeastOwing
from scalelab.rollout.types import Completion, Request


def request(name: str, task: str = "math", max_tokens: int = 100) -> Request:
    return Request(name, (1,), max_tokens, task=task)


def completion(of: Request, tokens: int = 10) -> Completion:
    zeros = np.zeros(tokens)
    return Completion(of, zeros.astype(np.int32), zeros, ((0, 0, tokens),), zeros.astype(bool), False, False)


def places(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, count - 1), unique=True, max_size=4) if count else st.just([])


class Pool:
    """Engines that hold what they were dealt, answer it in any order, die, hang on to answers, and come back."""

    def __init__(self, engines: int) -> None:
        self.books = Assignments(2)
        self.engines: dict[int, dict[str, Request]] = {}
        self.late: list[tuple[int, Request]] = []
        self.asked: list[Request] = []
        self.answered: Counter[str] = Counter()
        for engine in range(engines):
            self.come_up(engine)

    def deal(self) -> None:
        for engine, requests in self.books.deal().items():
            assert not self.engines[engine].keys() & {one.id for one in requests}, "an engine refuses a second request"
            self.engines[engine] |= {one.id: one for one in requests}

    def come_up(self, engine: int) -> None:
        self.engines.setdefault(engine, {})
        self.books.join(engine)
        self.deal()

    def die(self, engine: int) -> None:
        """Its answers may be on their way already."""
        self.late += [(engine, one) for one in self.engines.pop(engine).values()]
        self.books.leave(engine)
        self.deal()

    def answer_late(self) -> None:
        """Answers of the dead; those of an actor whose place is taken never reach the books (`ClusterEngines`)."""
        for engine, one in self.late:
            if engine not in self.engines:
                self.take(engine, [one])

    def take(self, engine: int, requests: list[Request]) -> None:
        self.answered.update(one.request.id for one in self.books.take(engine, [completion(one) for one in requests]))


@given(st.data())
def test_every_request_is_answered_once_however_engines_die_and_come_back(data: st.DataObject) -> None:
    pool = Pool(data.draw(st.integers(1, 3), label="engines"))
    for move in data.draw(
        st.lists(st.sampled_from(["ask", "answer", "die", "late", "up"]), max_size=40), label="moves"
    ):
        if move == "ask":
            requests = [request(f"{len(pool.asked) + n}") for n in range(data.draw(st.integers(1, 6)))]
            pool.asked += requests
            pool.books.add(requests)
            pool.deal()
        elif move == "up":
            pool.come_up(data.draw(st.integers(0, 2)))
        elif move == "late":
            pool.answer_late()
        elif pool.engines:
            engine = data.draw(st.sampled_from(sorted(pool.engines)))
            if move == "die":
                pool.die(engine)
            else:
                held = sorted(pool.engines[engine])
                pool.take(engine, [pool.engines[engine].pop(held[n]) for n in data.draw(places(len(held)))])
        for one in pool.books._held.values():
            assert one.owed == sum(one.tokens.values())
            assert one.tokens.keys() == one.requests.keys()
        owed = [(one.owed, engine) for engine, one in pool.books._held.items()]
        assert pool.books._least_owing()["train"].first() == min(owed, default=(0, None))[1]
    in_engines = sum(map(len, pool.engines.values()))
    assert pool.books.outstanding == len(pool.asked) - pool.answered.total() >= in_engines
    pool.come_up(0)
    for engine in list(pool.engines):
        pool.take(engine, list(pool.engines[engine].values()))
    assert pool.answered == Counter(one.id for one in pool.asked)
    assert pool.books.outstanding == 0


@given(
    st.lists(st.sampled_from(["train", "eval"]), max_size=20),
    st.sets(st.integers(0, 3)),
    st.sets(st.integers(0, 3)),
)
def test_those_set_aside_get_the_evaluation_alone_and_those_released_nothing(
    kinds: list[Any], first: set[int], then: set[int]
) -> None:
    books = Assignments()
    for engine in range(4):
        books.join(engine)
    books.set_aside(first)
    books.set_aside(then)
    books.add(Request(f"{number}", (1,), 10, kind=kind) for number, kind in enumerate(kinds))
    dealt = books.deal()
    usual = set(range(4)) - first - then
    for engine, requests in dealt.items():
        for one in requests:
            assert engine in (usual if one.kind == "train" or not then else then)
    left = len(kinds) - sum(map(len, dealt.values()))
    assert left == sum(not (usual if kind == "train" or not then else then) for kind in kinds)
    assert books.outstanding_of("eval") + books.outstanding_of("train") == books.outstanding == len(kinds)
    for engine in first - then:
        books.follow(engine)
    books.set_aside(())
    for engine in then:
        books.follow(engine)
    assert left == sum(map(len, books.deal().values())), "everybody takes what waited"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=200))
def test_the_one_that_owes_least_is_found_among_entries_that_stay_few(moves: list[tuple[int, int]]) -> None:
    held = {engine: Held() for engine in range(4)}
    least = LeastOwing(held)
    for engine, tokens in moves:
        held.setdefault(engine, Held()).owed = tokens
        least.changed(engine)
        assert least.first() == min((one.owed, engine) for engine, one in held.items())[1]
        assert len(least._heap) <= 4 * len(held)


def test_completions_get_back_the_prompts_that_engines_do_not_send() -> None:
    books = Assignments()
    books.join(0)
    books.add([Request("a", (1, 2, 3), 10)])
    [asked] = books.deal()[0]
    [taken] = books.take(0, [completion(Request("a", (), 10))])
    assert taken.request is asked
    assert asked.prompt_ids == (1, 2, 3)


def test_the_answer_of_a_lost_engine_counts_for_nothing() -> None:
    books = Assignments()
    books.join(0)
    books.add([request("a")])
    books.deal()
    assert books.leave(0) == 1
    assert books.take(0, [completion(request("a"))]) == []
    books.join(1)
    assert [one.id for one in books.deal()[1]] == ["a"]
    assert books.take(0, [completion(request("a"))]) == []
    assert len(books.take(1, [completion(request("a"))])) == 1
    assert books.take(1, [completion(request("a"))]) == []


def test_what_a_lost_engine_held_goes_before_what_waits() -> None:
    books = Assignments()
    books.join(0)
    books.add([request(name) for name in "ab"])
    books.deal()
    books.leave(0)
    books.add([request("c")])
    books.join(1)
    assert [one.id for one in books.deal()[1]] == ["a", "b", "c"]


def test_requests_go_where_the_fewest_tokens_are_owed() -> None:
    books = Assignments()
    books.join(0)
    past = [request(f"{task}{n}", task, 1000) for task in ("math", "code") for n in range(4)]
    books.add(past)
    books.deal()
    books.take(0, [completion(one, 10 if one.id.startswith("math") else 100) for one in past])
    books.join(1)
    books.add([request("long", "code", 1000), *(request(f"short{n}", "math", 1000) for n in range(10))])
    dealt = {engine: [one.id for one in requests] for engine, requests in books.deal().items()}
    assert sorted(map(len, dealt.values())) == [1, 10], "one answer of 100 tokens weighs as much as ten of 10"
    assert ["long"] in dealt.values()


@given(
    places=st.integers(0, 12),
    groups=st.lists(st.tuples(st.sampled_from(["train", "eval"]), st.integers(1, 9)), max_size=8),
)
def test_requests_of_one_prompt_go_together_only_where_they_would_wait(
    places: int, groups: list[tuple[Any, int]]
) -> None:
    books, held = Assignments(places), Counter({0: 0, 1: 0, 2: 0})
    for engine in held:
        books.join(engine)
    for number, (kind, size) in enumerate(groups):
        books.add([Request(f"{number}/{one}", (number,), 10, kind=kind) for one in range(size)])
        before, left = Counter(held), size
        for engine, requests in books.deal().items():
            held[engine] += len(requests)
        while left:  # one after the other by hand, to the emptiest
            engine = min(before, key=lambda one: (before[one], one))
            together = min(left, TOGETHER if before[engine] >= places and kind == "train" else 1)
            before[engine] += together
            left -= together
        assert held == before


def test_a_full_generator_gets_no_requests_of_other_prompts_with_one() -> None:
    books = Assignments(0)
    for engine in (0, 1):
        books.join(engine)
    books.add([Request(f"{prompt}{one}", (prompt,), 10) for prompt in range(4) for one in range(2)])
    dealt = {engine: [one.id for one in requests] for engine, requests in books.deal().items()}
    assert dealt == {0: ["00", "01", "20", "21"], 1: ["10", "11", "30", "31"]}


def test_a_request_is_never_expected_to_pass_its_limit() -> None:
    books = Assignments()
    for engine in (0, 1):
        books.join(engine)
    books.add([request("unknown", "new", 500), *(request(f"small{n}", "new", 50) for n in range(10))])
    dealt: dict[int, Any] = books.deal()
    assert sorted(map(len, dealt.values())) == [1, 10]


def test_what_is_forgotten_is_never_taken() -> None:
    books = Assignments()
    books.join(0)
    books.add([request("a"), request("b")])
    books.deal()
    books.add([request("waiting")])
    assert books.forget() == {0: ["a", "b"]}
    assert books.outstanding == 0
    assert books.is_up(0)
    assert books.take(0, [completion(request("a"))]) == []


@given(st.lists(st.tuples(st.sampled_from(["math", "code"]), st.integers(1, 500)), max_size=700))
def test_a_task_is_expected_to_take_the_mean_of_its_recent_completions(lengths: list[tuple[str, int]]) -> None:
    books = Assignments()
    books.join(0)
    for number, (task, tokens) in enumerate(lengths):
        one = request(str(number), task, 10**6)
        books.add([one])
        books.deal()
        books.take(0, [completion(one, tokens)])
    for task in ("math", "code"):
        mine = [tokens for one, tokens in lengths if one == task][-RECENT:]
        books.add([request(task, task, 10**6)])
        books.deal()
        assert books._held[0].tokens[task] == (round(sum(mine) / len(mine)) if mine else 10**6)
