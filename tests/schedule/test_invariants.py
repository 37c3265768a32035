"""All three schedules, whatever the order of events: nothing is stale, lost, trained on twice, or stuck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalelab.recipe.recipe import Recipe
from scalelab.schedule.schedule import PipelineRL, PPOOffPolicy, Schedule, Synchronous

Config = PipelineRL | PPOOffPolicy | Synchronous

CONFIGS = st.one_of(
    st.builds(PipelineRL, st.integers(0, 6)), st.builds(PPOOffPolicy, st.integers(1, 6)), st.just(Synchronous())
)


def largest_staleness(config: Config) -> int:
    if isinstance(config, Synchronous):
        return 0
    return config.k if isinstance(config, PipelineRL) else config.k - 1


@dataclass
class World:
    """Generators, a trainer and faults around a schedule, with books of its own to hold the schedule's against."""

    config: Config
    groups_per_step: int
    steps: int
    versions: list[int]
    """Version that each generator holds."""
    choices: st.DataObject
    growth: Callable[[int], int] | None = None
    schedule: Schedule = field(init=False)
    oldest: dict[str, int] = field(default_factory=dict)
    """Oldest version in each outstanding group's tokens."""
    generating: list[str] = field(default_factory=list)
    settled: Counter[str] = field(default_factory=Counter)
    trained: int = 0
    dropped: int = 0
    drawn: int = 0

    def __post_init__(self) -> None:
        self.schedule = self.begun()

    def begun(self) -> Schedule:
        schedule = self.config.start(self.groups_per_step, self.steps)
        schedule.growth = self.growth
        return schedule

    def pick(self, names: list[str]) -> str:
        return names[self.choices.draw(st.integers(0, len(names) - 1))]

    def actions(self) -> list[str]:
        """Events that can happen now, apart from faults."""
        found = ["start"] * (self.schedule.may_start(min(self.versions)) > 0)
        found += ["finish", "drop"] * bool(self.generating)
        found += ["train"] * (self.schedule.batch() is not None)
        found += ["publish"] * (min(self.versions) < self.schedule.trainer_version and self.schedule.may_publish())
        return found

    def start(self) -> None:
        room = self.schedule.may_start(min(self.versions))
        for _ in range(self.choices.draw(st.integers(1, room))):
            name, self.drawn = f"group{self.drawn}", self.drawn + 1
            self.schedule.book_start(name, min(self.versions))
            self.oldest[name] = min(self.versions)
            self.generating.append(name)

    def finish(self) -> None:
        name = self.pick(self.generating)
        self.generating.remove(name)
        self.schedule.book_finish(name)

    def drop(self) -> None:
        name = self.pick(self.generating)
        self.generating.remove(name)
        self.settle([name])
        self.schedule.book_drop(name)
        self.dropped += 1

    def train(self) -> None:
        batch = self.schedule.batch()
        assert batch is not None
        step = self.schedule.trainer_version
        assert len(batch) == (self.groups_per_step if self.growth is None else self.growth(step))
        assert not set(batch) & set(self.generating)
        for name in batch:
            assert 0 <= self.schedule.trainer_version - self.oldest[name] <= largest_staleness(self.config)
        self.settle(batch)
        self.schedule.book_step(batch)
        self.trained += len(batch)

    def publish(self) -> None:
        """One generator gets the newest weights; the others get them later."""
        if not isinstance(self.config, PipelineRL):
            assert not self.generating, "weights changed in flight"
        behind = [g for g, version in enumerate(self.versions) if version < self.schedule.trainer_version]
        self.versions[behind[self.choices.draw(st.integers(0, len(behind) - 1))]] = self.schedule.trainer_version

    def lose(self) -> None:
        """Completions in flight are lost with an engine, and the whole group is generated again."""
        name = self.pick(self.generating)
        self.oldest[name] = min(self.versions)

    def reload(self) -> None:
        """The driver dies, and a resumed one starts what was in flight anew, on generators with the newest weights."""
        state = self.schedule.state_dict()
        copy = self.begun()
        copy.load_state_dict(state)
        assert copy == self.schedule
        self.schedule = copy
        self.versions = [self.schedule.trainer_version] * len(self.versions)
        for name in copy.in_flight:
            self.oldest[name] = self.schedule.trainer_version

    def settle(self, names: list[str]) -> None:
        for name in names:
            del self.oldest[name]
            self.settled[name] += 1

    def check(self) -> None:
        assert self.drawn == self.trained + self.dropped + self.schedule.outstanding
        assert self.schedule.outstanding == len(self.generating) + self.schedule.waiting == len(self.oldest)
        assert sorted(self.schedule.in_flight) == sorted(self.generating)
        assert self.schedule.generating == len(self.generating)
        assert max(self.settled.values(), default=1) == 1


@pytest.mark.slow
@settings(max_examples=400)
@given(config=CONFIGS, groups_per_step=st.integers(1, 5), generators=st.integers(1, 3), choices=st.data())
def test_whatever_happens_nothing_is_stale_lost_or_stuck(
    config: Config, groups_per_step: int, generators: int, choices: st.DataObject
) -> None:
    growth = None
    if more := choices.draw(st.integers(0, 4)):  # a batch that grows, to the last step or to one before
        until = choices.draw(st.integers(1, 12))
        recipe = Recipe(
            prompts_per_step=groups_per_step + more, prompts_at_start=groups_per_step, prompts_grow_until=until
        )
        growth = recipe.prompts_at
    world = World(config, groups_per_step, choices.draw(st.integers(1, 12)), [0] * generators, choices, growth)
    for _ in range(choices.draw(st.integers(10, 120))):
        if world.schedule.trainer_version == world.steps:
            break
        actions = world.actions()
        assert actions, "deadlock: nobody can do anything"
        actions += ["lose"] * bool(world.generating) + ["reload"]
        getattr(world, choices.draw(st.sampled_from(actions)))()
        world.check()


@pytest.mark.slow
@settings(max_examples=100)
@given(config=CONFIGS, groups_per_step=st.integers(1, 4), steps=st.integers(1, 10), choices=st.data())
def test_a_run_takes_its_steps_and_draws_no_more_than_they_train_on(
    config: Config, groups_per_step: int, steps: int, choices: st.DataObject
) -> None:
    world = World(config, groups_per_step, steps, [0, 0], choices)
    while world.schedule.trainer_version < steps:
        actions = [action for action in world.actions() if action != "drop"]
        getattr(world, choices.draw(st.sampled_from(actions)))()
    assert world.drawn == world.trained == steps * groups_per_step
    assert world.schedule.outstanding == 0
    assert world.schedule.batch() is None
    assert world.schedule.may_start(steps) == 0
    assert world.schedule.may_publish(), "the final evaluation measures the last weights"


@pytest.mark.parametrize("config", [PipelineRL(2), PPOOffPolicy(3), Synchronous()], ids=str)
def test_a_resumed_run_with_fewer_or_more_steps_comes_to_its_end(config: Config) -> None:
    for steps in (2, 7):
        schedule = config.start(2, 4)
        for number in range(schedule.may_start(0)):
            schedule.book_start(f"g{number}", 0)
        resumed = config.start(2, steps)
        resumed.load_state_dict(schedule.state_dict())
        while resumed.trainer_version < steps:
            version = resumed.trainer_version
            for number in range(resumed.may_start(version)):
                resumed.book_start(f"v{version}-{number}", version)
            for name in resumed.in_flight:
                resumed.book_finish(name)
            batch = resumed.batch()
            assert batch is not None
            resumed.book_step(batch)


@pytest.mark.parametrize("config", [PipelineRL(0), PPOOffPolicy(1), Synchronous()], ids=str)
def test_the_synchronous_case_is_the_same_in_all_three(config: Config) -> None:
    schedule = config.start(2, 10)
    assert schedule.may_start(0) == 2
    for name in ("a", "b"):
        schedule.book_start(name, 0)
    assert schedule.may_start(0) == 0
    schedule.book_finish("b")
    assert schedule.batch() is None
    schedule.book_finish("a")
    assert schedule.batch() == ["a", "b"], "in the order of drawing, whichever finished first"
    schedule.book_step(["a", "b"])
    assert schedule.may_start(0) == 0, "the generator has not got version 1 yet"
    assert schedule.may_publish()
    assert schedule.may_start(1) == 2


def test_a_round_is_generated_by_one_policy_and_trained_on_step_after_step() -> None:
    schedule = PPOOffPolicy(2).start(2, 3)
    assert schedule.may_start(0) == 4
    for name in "abcd":
        schedule.book_start(name, 0)
    for name in "dcb":
        schedule.book_finish(name)
        assert schedule.batch() is None
        assert not schedule.may_publish()
    schedule.book_finish("a")
    assert schedule.batch() == ["a", "b"]
    schedule.book_step(["a", "b"])
    assert schedule.may_start(1) == 0, "the round goes on with what version 0 generated"
    assert not schedule.may_publish()
    assert schedule.batch() == ["c", "d"]
    schedule.book_step(["c", "d"])
    assert schedule.may_publish()
    assert schedule.may_start(0) == 0
    assert schedule.may_start(2) == 2, "one step is left: the last round is shorter"


def test_a_dropped_group_of_a_round_is_made_up_for_by_the_same_policy() -> None:
    schedule = PPOOffPolicy(2).start(1, 4)
    schedule.book_start("a", 0)
    schedule.book_start("b", 0)
    schedule.book_finish("a")
    schedule.book_drop("b")
    assert schedule.batch() is None
    assert schedule.may_start(0) == 1


def test_a_straggler_is_overtaken_until_its_deadline_and_then_waited_for() -> None:
    schedule = PipelineRL(1).start(1, 10)
    schedule.book_start("slow", 0)
    schedule.book_start("quick", 0)
    schedule.book_finish("quick")
    assert schedule.batch() == ["quick"]
    schedule.book_step(["quick"])
    schedule.book_start("later", 1)
    schedule.book_finish("later")
    assert schedule.batch() is None, "training on `later` at version 1 would leave `slow` for version 2: too old"
    schedule.book_finish("slow")
    assert schedule.batch() == ["slow"]


@pytest.mark.parametrize("config", [PipelineRL(2), PPOOffPolicy(2), Synchronous()], ids=str)
def test_books_refuse_what_cannot_be(config: Config) -> None:
    schedule = config.start(1, 10)
    schedule.book_start("g", 0)
    with pytest.raises(ValueError, match="outstanding already"):
        schedule.book_start("g", 0)
    with pytest.raises(ValueError, match="never started"):
        schedule.book_finish("other")
    with pytest.raises(ValueError, match="has not finished"):
        schedule.book_step(["g"])
    schedule.book_finish("g")
    with pytest.raises(ValueError, match="finished already"):
        schedule.book_finish("g")
    with pytest.raises(ValueError, match="never started"):
        schedule.book_drop("other")


def test_a_k_that_counts_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        PipelineRL(-1)
    with pytest.raises(ValueError, match="greater than 0"):
        PPOOffPolicy(0)
