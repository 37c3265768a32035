"""Draws: resumed equals uninterrupted, the learnt never come back, weights hold."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import TaskError
from tasks.sampler import MixtureSampler
from tasks.stream import epoch_position, in_held_out
from tasks.types import Prompt


class Listed:
    """A finite task whose prompts are numbers."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size

    def prompt(self, index: int) -> Prompt:
        number = epoch_position(index, self.size, seed=3)
        return Prompt(f"{self.name}/{number}", self.name, str(number), number)


def listed(name: str, size: int) -> Any:
    """A `Listed` in the place of a whole task: a sampler asks for no more."""
    return Listed(name, size)


def make(
    seed: int = 0, retire_at: float | None = 0.9, sizes: tuple[int, ...] = (7, 11), weights: Any = None
) -> MixtureSampler:
    return MixtureSampler([listed("a", sizes[0]), listed("b", sizes[1])], weights, seed, retire_at)


def play(sampler: MixtureSampler, rates: Iterable[float]) -> list[str]:
    """Draw one prompt per rate and report the rate; the ids drawn."""
    drawn = []
    for rate in rates:
        prompt = next(sampler)
        sampler.observe(prompt.id, rate)
        drawn.append(prompt.id)
    return drawn


rates = st.lists(st.sampled_from([0.0, 0.5, 0.875, 0.9375, 1.0]), max_size=40)


@given(st.integers(0, 5), st.data())
def test_a_resumed_sampler_goes_on_as_an_uninterrupted_one(seed: int, data: st.DataObject) -> None:
    before, after = data.draw(rates), data.draw(rates)
    easy = sum(rate >= 0.9 for rate in before + after)
    sizes = (easy + 1, easy + 1)
    whole, first, second = make(seed, sizes=sizes), make(seed, sizes=sizes), make(seed, sizes=sizes)
    expected = play(whole, before + after)
    play(first, before)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert play(second, after) == expected[len(before) :]
    assert second.state_dict() == whole.state_dict()
    assert second.metrics() == whole.metrics()


@given(st.lists(st.sampled_from([0.0, 0.875, 1.0]), max_size=17))
def test_a_prompt_that_reached_the_rate_is_never_drawn_again(observed: list[float]) -> None:
    sampler, learnt = make(), set()
    for rate in observed:
        prompt = next(sampler)
        assert prompt.id not in learnt
        sampler.observe(prompt.id, rate)
        if rate >= 0.9:
            learnt.add(prompt.id)
    counts = sampler.metrics()
    assert counts["retired/a"] + counts["retired/b"] == len(learnt)
    assert counts["drawn/a"] + counts["drawn/b"] == len(observed)


def test_every_prompt_comes_once_an_epoch_in_a_new_order() -> None:
    epochs = [[epoch_position(e * 50 + i, 50, seed=1) for i in range(50)] for e in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_tasks_are_drawn_by_weight_and_a_learnt_one_leaves_its_share_to_the_others() -> None:
    sampler = make(sizes=(5, 4000), weights={"a": 3.0, "b": 1.0}, retire_at=None)
    drawn = Counter(next(sampler).task for _ in range(2000))
    assert 0.70 < drawn["a"] / 2000 < 0.80
    sampler = make(sizes=(5, 4000), weights={"a": 3.0, "b": 1.0})
    for number in range(5):
        sampler.observe(f"a/{number}", 1.0)
    assert {next(sampler).task for _ in range(100)} == {"b"}


def test_without_retirement_everything_comes_again_but_history_is_kept() -> None:
    sampler = make(retire_at=None, sizes=(1, 1))
    play(sampler, [1.0] * 20)
    assert sum(map(len, sampler.state_dict()["history"].values())) == 20
    assert sampler.metrics()["retired/a"] == 0


class Fewer(MixtureSampler):
    """Takes no prompt whose number is odd, and draws the second task only once a prompt was passed."""

    def wants(self, prompt: Prompt) -> bool:
        return int(prompt.id.rpartition("/")[2]) % 2 == 0

    def weight(self, name: str) -> float:
        return 1.0 if name == "a" or self._history else 0.0


def test_a_curriculum_weighs_tasks_and_leaves_prompts_out() -> None:
    tasks = [listed("a", 7), listed("b", 11)]
    sampler = Fewer(tasks, None, 0, None)
    first = [next(sampler).id for _ in range(20)]
    assert {one.partition("/")[0] for one in first} == {"a"}
    sampler.observe(first[0], 0.5)
    assert sampler.history(first[0]) == (0.5,)
    later = [next(sampler).id for _ in range(40)]
    assert {one.partition("/")[0] for one in later} == {"a", "b"}
    assert all(int(one.rpartition("/")[2]) % 2 == 0 for one in first + later)


def test_a_curriculum_that_wants_nothing_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.sampler.REFUSED_IN_A_ROW", 50)
    sampler = make()
    monkeypatch.setattr(sampler, "wants", lambda prompt: False)
    with pytest.raises(TaskError, match="the curriculum wants none of so many prompts of"):
        next(sampler)


def test_prompts_end_when_every_one_is_retired() -> None:
    sampler = make(sizes=(1, 1))
    sampler.observe("a/0", 1.0)
    sampler.observe("b/0", 0.9)
    assert next(sampler, None) is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: MixtureSampler([]), "one or more tasks"),
        (lambda: MixtureSampler([listed("a", 1), listed("a", 1)]), "different names"),
        (lambda: make(weights={"a": 1.0}), "name the same"),
        (lambda: make(weights={"a": 1.0, "b": 0.0}), "positive"),
        (lambda: make(weights={"a": 1.0, "b": float("nan")}), "positive"),
        (lambda: make(retire_at=1.5), "retire_at"),
        (lambda: make().observe("c/1", 0.5), "no task in the mix"),
        (lambda: make().observe("a/1", 1.5), "expected a number"),
        (lambda: make().load_state_dict({"tasks": ["a"]}), "this run mixes"),
    ],
)
def test_wrong_use_is_one_line_that_says_what_to_do(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises(TaskError, match=says):
        wrong()


@given(st.floats(0.05, 0.5))
def test_the_held_out_share_is_kept(share: float) -> None:
    held = sum(in_held_out(str(number), share) for number in range(3000)) / 3000
    assert abs(held - share) < 0.06
