"""Events in any order: each step and each group once, no group lost, and the end is the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scalelab.errors import LabError, first_error
from scalelab.recipe.types import AnyRollout
from scalelab.rollout.evaluation import Graded
from scalelab.run.evaluation_sets import Cadence
from scalelab.run.evaluations import EvaluationAtRest, EvaluationPoint, PreparedSet
from scalelab.run.settings import Budget
from scalelab.schedule.schedule import PipelineRL, PPOOffPolicy, Synchronous
from scalelab.virtual.clock import virtual_loop
from tasks.types import Prompt
from tests.helpers.fake_world import Work, World

SCHEDULES = (PipelineRL(8), PipelineRL(2), PipelineRL(0), PPOOffPolicy(3), Synchronous())
BOUNDS = {PipelineRL(8): 8, PipelineRL(2): 2, PipelineRL(0): 0, PPOOffPolicy(3): 2, Synchronous(): 0}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("pauses", [False, True])
def test_a_run_without_faults_takes_every_step_within_the_bound(tmp_path: Path, schedule: Any, pauses: bool) -> None:
    world = World(tmp_path, schedule, pauses=pauses)
    world.run()
    world.audit()
    assert max(world.stale) <= BOUNDS[schedule]
    assert world.went_back == []
    assert world.evaluated == [0, 4, 8, 12] or not isinstance(schedule, Synchronous)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_engines_are_asked_for_no_more_than_they_have_room_for(tmp_path: Path, schedule: Any) -> None:
    world = World(tmp_path, schedule)
    world.capacity = 2 * Work.generations
    world.run()
    assert world.most_training == world.capacity


@pytest.mark.parametrize("seed", range(10))
def test_weights_go_on_being_published_while_engines_set_aside_evaluate(tmp_path: Path, seed: int) -> None:
    beside = {}
    for aside in (0, 1):
        world = World(tmp_path, PipelineRL(8), seed, aside=aside)
        world.run()
        world.audit()
        assert max(world.stale) <= 8
        beside[aside] = world.updates_beside
    assert beside[0] == 0 < beside[1]


def test_the_first_steps_are_taken_beside_the_evaluation_of_the_base_model_where_engines_are_set_aside(
    tmp_path: Path,
) -> None:
    steps = {}
    for aside in (0, 1):
        worlds = [World(tmp_path, PipelineRL(8), seed, aside=aside) for seed in range(10)]
        for world in worlds:
            world.run()
            world.audit()
            assert world.evaluated[0] == 0, "and it is the base model that is evaluated"
        steps[aside] = sum(world.steps_beside_the_first for world in worlds)
    assert steps[0] == 0 < steps[1]


@pytest.mark.parametrize("call", range(1, 31, 3))
def test_a_trainer_lost_beside_an_evaluation_of_its_own_engines_costs_no_group(tmp_path: Path, call: int) -> None:
    world = World(tmp_path, PipelineRL(2), lose=[call], aside=1)
    world.run()
    world.audit()


@pytest.mark.parametrize("call", range(1, 31))
def test_a_trainer_lost_at_any_call_costs_no_group(tmp_path: Path, call: int) -> None:
    """The calls are steps, exports and checkpoints: so also in publication, beside an evaluation, and at the end."""
    world = World(tmp_path, PipelineRL(2), lose=[call])
    world.run()
    world.audit()
    assert len(world.went_back) == (world.calls >= call)


def test_a_trainer_lost_while_the_last_checkpoint_is_taken_costs_no_group(tmp_path: Path) -> None:
    whole = World(tmp_path, PipelineRL(2), steps=11)  # the last checkpoint is not one that is due
    whole.run()
    world = World(tmp_path, PipelineRL(2), steps=11, lose=[whole.calls])
    world.run()
    world.audit()
    assert world.went_back == [9]


@pytest.mark.parametrize("call", range(1, 12))
def test_two_faults_one_right_after_the_other_cost_no_group(tmp_path: Path, call: int) -> None:
    world = World(tmp_path, PipelineRL(8), lose=[call, call + 1])
    world.run()
    world.audit()
    assert len(world.went_back) >= 1


PARTS = (("engine",), ("grader",), ("engine", "grader"))


@pytest.mark.parametrize("parts", PARTS, ids="+".join)
@pytest.mark.parametrize("aside", [0, 1])
@pytest.mark.parametrize("call", range(1, 31))
def test_parts_lost_at_once_with_the_trainer_at_any_call_cost_no_group(
    tmp_path: Path, call: int, aside: int, parts: tuple[str, ...]
) -> None:
    world = World(tmp_path, PipelineRL(2), lose=[call], at_once=parts, aside=aside)
    world.run()
    world.audit()
    assert max(world.stale) <= 2
    assert all(world.deaths[part] == len(world.went_back) for part in parts)


@pytest.mark.parametrize("part", ["engine", "grader"])
@pytest.mark.parametrize("call", range(1, 61, 3))
def test_an_engine_or_a_grader_lost_at_any_call_costs_no_group(tmp_path: Path, call: int, part: str) -> None:
    """An engine is asked for groups and sent weights: so also in publication, and with an evaluation of its own."""
    world = World(tmp_path, PipelineRL(8), aside=1, lose_parts={part: [call]})
    world.run()
    world.audit()
    assert world.deaths[part] == (world.part_calls[part] >= call)
    assert world.went_back == []


@settings(max_examples=60)
@given(
    schedule=st.sampled_from(SCHEDULES),
    seed=st.integers(0, 1000),
    aside=st.integers(0, 1),
    pauses=st.booleans(),
    lose=st.lists(st.integers(1, 40), max_size=2, unique=True),
    engine=st.lists(st.integers(1, 80), max_size=3, unique=True),
    grader=st.lists(st.integers(1, 60), max_size=3, unique=True),
)
def test_losses_of_any_roles_at_any_calls_cost_no_group(
    schedule: Any, seed: int, aside: int, pauses: bool, lose: list[int], engine: list[int], grader: list[int]
) -> None:
    with TemporaryDirectory() as name:
        parts = {"engine": engine, "grader": grader}
        world = World(Path(name), schedule, seed, lose, aside=aside, pauses=pauses, lose_parts=parts)
        world.run()
        world.audit()
        assert max(world.stale) <= BOUNDS[schedule]


def test_faults_beyond_the_limit_end_the_run_with_the_reason(tmp_path: Path) -> None:
    world = World(tmp_path, PipelineRL(8), lose=range(1, 100), restarts=2)
    with pytest.raises(ExceptionGroup) as caught:
        world.run()
    assert "no restart is left" in str(first_error(caught.value))


@pytest.mark.slow
@settings(max_examples=60)
@given(
    schedule=st.sampled_from(SCHEDULES),
    seed=st.integers(0, 1000),
    lose=st.lists(st.integers(1, 40), max_size=3, unique=True),
    stop_at=st.floats(0.01, 90.0),
)
@example(schedule=PPOOffPolicy(3), seed=0, lose=[10], stop_at=65.0)  # an evaluation later than the checkpoint's
def test_a_run_stopped_at_any_moment_goes_on_as_if_it_had_not_been(
    schedule: Any, seed: int, lose: list[int], stop_at: float
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        first = World(folder, schedule, seed, lose, stop_at)
        first.run()
        first.audit(stopped=True)
        assert first.kept["schedule"]["trainer_version"] == len(first.trained), "a checkpoint of the last step is kept"
        if first.loop.over and not first.loop.stopping:
            return
        second = World(folder, schedule, seed + 1)
        second.books.restore(first.kept, folder, print)
        second.trained, second.evaluated = first.trained, first.evaluated
        second.books.add_evaluated(second.last_evaluated())
        second.run()
        second.audit()


@settings(max_examples=60)
@given(
    schedule=st.sampled_from(SCHEDULES),
    seed=st.integers(0, 1000),
    capacity=st.sampled_from([4, 10, 100]),
    hours=st.floats(0.0005, 0.06),
)
@example(schedule=PPOOffPolicy(3), seed=0, capacity=4, hours=0.011)  # in the middle of a batch that never fills
def test_a_budget_of_hours_that_is_spent_at_any_moment_ends_the_run(
    schedule: Any, seed: int, capacity: int, hours: float
) -> None:
    with TemporaryDirectory() as name:
        world = World(Path(name), schedule, seed, hours=hours)
        world.capacity = capacity
        world.run()
        world.audit(spent=True)
        assert world.kept["schedule"]["trainer_version"] == world.books.version


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("pauses", [False, True])
def test_evaluations_and_checkpoints_by_hours_follow_each_multiple_that_a_step_has_passed(
    tmp_path: Path, schedule: Any, pauses: bool
) -> None:
    class Noting(World):
        def stepped(self, names: list[str], step: Any, result: Any, seconds: dict[str, float]) -> LabError | None:
            hours.append(self.books.ledger.compute)
            return super().stepped(names, step, result, seconds)

    hours: list[float] = [0.0]
    every = 0.004
    world = Noting(tmp_path, schedule, pauses=pauses, every_hours=every)
    asked: list[int] = []
    world.loop.checkpoint_due = Cadence(None, every).due
    due = world.evaluation.due

    def noted(version: int, names: Any = None) -> Any:
        asked.append(version)
        return due(version, names)

    world.evaluation.due = noted  # type: ignore[method-assign]
    world.run()
    world.audit()
    passed = [step for step in range(1, 13) if int(hours[step] / every) > int(hours[step - 1] / every)]
    assert asked[:1] == [0]
    assert set(asked) == {0, *passed, 12}
    assert set(world.saved) == {*passed, 12}
    assert len(passed) > 2


class Metered(World):
    """A world that charges time only when the loop asks it to, as one on a simulated clock does."""

    charged = 0.0

    async def _charge_every_second(self) -> None:
        pass

    def charge(self, stepping: bool) -> None:
        now = asyncio.get_running_loop().time()
        self.books.ledger.advance(now - self.charged, evaluation_share=0.0, trainer_idle=not stepping)
        self.charged = now

    async def step(self, step: Any) -> str:
        self.charge(stepping=False)
        assert not self.loop.budget_spent, "no step begins then"
        return await super().step(step)


@settings(max_examples=60)
@given(schedule=st.sampled_from(SCHEDULES), seed=st.integers(0, 1000), hours=st.floats(0.0005, 0.06))
def test_no_step_begins_once_the_wait_for_its_batch_has_spent_the_budget(
    schedule: Any, seed: int, hours: float
) -> None:
    with TemporaryDirectory() as name:
        world = Metered(Path(name), schedule, seed, hours=hours)
        world.run()
        world.audit(spent=True)


@settings(max_examples=30)
@given(
    schedule=st.sampled_from(SCHEDULES),
    seed=st.integers(0, 1000),
    pauses=st.booleans(),
    cancel_at=st.floats(0.01, 90.0),
)
def test_a_run_that_is_cancelled_at_any_moment_goes_on_from_a_checkpoint(
    schedule: Any, seed: int, pauses: bool, cancel_at: float
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        first = World(folder, schedule, seed, pauses=pauses, cancel_at=cancel_at)
        with suppress(asyncio.CancelledError):  # or it has ended
            first.run()
        second = World(folder, schedule, seed + 1, pauses=pauses)
        second.books.restore(first.kept, folder, print)
        second.trained = first.trained[: second.books.version]
        second.evaluated = [step for step in first.evaluated if step <= second.books.version]
        second.books.add_evaluated(second.last_evaluated())
        second.run()
        second.audit()


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), save_at=st.floats(0.01, 60.0), lose=st.lists(st.integers(1, 40), max_size=1))
def test_a_checkpoint_can_be_asked_for_at_any_moment(seed: int, save_at: float, lose: list[int]) -> None:
    """A node of the trainer may be about to go."""
    with TemporaryDirectory() as name:
        world = World(Path(name), PipelineRL(8), seed, lose, save_at=save_at)
        world.run()
        world.audit()
        if not lose:
            taken = (
                world.asked_to_save and not world.loop.save_asked
            )  # after the last step there is nothing left to take
            assert len(world.saved) == 4 + taken, "the four that were due, and this one"


def test_an_alarm_that_is_to_stop_the_run_leaves_a_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path, PipelineRL(8))
    world.stop_after = 5
    with pytest.raises(LabError, match="stopped by a monitor"):
        world.run()
    world.audit(stopped=True)
    assert world.kept["schedule"]["trainer_version"] == len(world.trained) == 5


def test_lost_rollouts_of_a_checkpoint_are_generated_again(tmp_path: Path) -> None:
    first = World(tmp_path, PPOOffPolicy(3))
    first.stop_after = 2  # in the middle of a round, whose groups have all finished
    with pytest.raises(LabError):
        first.run()
    assert first.kept["rollouts"] is not None
    (tmp_path / first.kept["rollouts"]).unlink()
    second = World(tmp_path, PPOOffPolicy(3))
    said: list[str] = []
    second.books.restore(first.kept, tmp_path, said.append)
    assert "have to be generated again" in said[0]
    second.trained, second.evaluated = first.trained, first.evaluated
    second.run()
    second.audit()


def test_a_return_says_how_many_completions_wait_without_their_record_of_experts(tmp_path: Path) -> None:
    first = World(tmp_path, PPOOffPolicy(3))
    first.stop_after = 2
    with pytest.raises(LabError):
        first.run()
    waiting = [group for group in first.books.groups.values() if group.rollouts]
    record: Any = SimpleNamespace(shape=(8, 2, 1))
    for group in waiting:
        group.rollouts = [replace(one, routed_TLK=record) for one in group.rollouts or ()]
    second = World(tmp_path, PPOOffPolicy(3))
    said: list[str] = []
    second.books.restore(first.books.capture().written(tmp_path), tmp_path, said.append)
    count = sum(len(group.rollouts or ()) for group in waiting)
    assert said == [f"{count} completions waited for a step; for them the trainer's own router chooses the experts"]
    assert count
    second.trained, second.evaluated = first.trained, first.evaluated
    second.run()
    second.audit()


class Timed(World):
    """A world that notes every moment at which something happens."""

    async def _charge_every_second(self) -> None:
        clock = virtual_loop()
        self.moments: list[float] = []
        clock.moved = lambda _: self.moments.append(clock.time())


@pytest.mark.parametrize("schedule", [PipelineRL(2), PPOOffPolicy(3)], ids=str)
@pytest.mark.parametrize("how", ["stop_at", "cancel_at"])
def test_ctrl_c_at_each_await_leaves_a_checkpoint_to_go_on_from(tmp_path: Path, schedule: Any, how: str) -> None:
    """Once ends the run in order, twice at once; between two moments of the run every coroutine awaits."""
    whole = Timed(tmp_path, schedule, steps=6)
    whole.run()
    assert len(whole.moments) > 50
    for moment in whole.moments:
        ends: dict[str, Any] = {how: moment}
        first = Timed(tmp_path, schedule, steps=6, **ends)
        with suppress(asyncio.CancelledError):  # or it has ended
            first.run()
        second = World(tmp_path, schedule, seed=1, steps=6)
        second.books.restore(first.kept, tmp_path, print)
        version = second.books.version
        assert how == "cancel_at" or version == len(first.trained), "no step is lost"
        second.trained = first.trained[:version]
        second.evaluated = [step for step in first.evaluated if step <= version]
        second.books.add_evaluated(second.last_evaluated())
        second.run()
        second.audit()


def test_a_set_for_the_end_alone_is_evaluated_on_the_last_weights_whenever_the_hours_are_over(tmp_path: Path) -> None:
    again = 0
    for number in range(40, 136):
        world = World(tmp_path, PipelineRL(2), steps=40, hours=number / 4000)
        late = [Prompt(f"late/{one}", "late", "?", "!") for one in range(3)]
        world.evaluation.sets = {**world.evaluation.sets, "late": PreparedSet(late, Work())}  # type: ignore[arg-type]
        world.run()
        last = world.books.version
        assert world.books.evaluated_on == {"held_out": last, "late": last}
        assert world.books.due == {}
        assert world.evaluated[-1] == last
        assert world.evaluated_again in ([], [last]), "the last weights alone are evaluated twice, on different sets"
        again += len(world.evaluated_again)
    assert again, "in some, the last step was due for the held-out set before the hours were over"


class EarlyWork(Work):
    """Work of one completion a prompt."""

    generations = 1


def test_evaluations_in_flight_take_all_samples_from_a_part_of_the_budget_on(tmp_path: Path) -> None:
    world = World(tmp_path, PipelineRL(2))
    prompts = [Prompt(f"e/{number}", "t", "?", "!") for number in range(3)]
    world.evaluation.sets = {"held_out": PreparedSet(prompts, Work(), EarlyWork(), 0.6)}  # type: ignore[arg-type]
    sizes: list[tuple[float, int]] = []
    record = world.evaluation.record

    def noted(spent: EvaluationPoint, graded: list[Graded], again: str) -> None:
        sizes.append((spent.part, len(graded)))
        record(spent, graded, again)

    world.evaluation.record = noted
    world.run()
    assert sizes[0] == (0.0, 3)
    assert sizes[-1] == (1.0, 6)
    assert [count for _, count in sizes] == [6 if part >= 0.6 else 3 for part, _ in sizes]


def test_evaluations_at_rest_take_all_samples_from_a_part_of_the_budget_on(tmp_path: Path) -> None:
    world = World(tmp_path, PipelineRL(2))
    budget, asked = Budget(steps=10, hours=4.0), []
    done: Future[None] = Future()
    done.set_result(None)

    async def generate(spent: EvaluationPoint, weights: int, sets: Sequence[PreparedSet]) -> list[AnyRollout]:
        asked.append((spent.version, spent.part, sum(one.expected for one in sets)))
        return []

    evaluation = EvaluationAtRest(
        world.books,
        budget,
        lambda version: version,
        generate,
        lambda version: SimpleNamespace(add=len, finish=lambda: done, drop=lambda: None),
        lambda spent, graded: None,
        lambda: 0.0,
        {"held_out": PreparedSet([Prompt("e/0", "t", "?", "!")], Work(), EarlyWork(), 0.6)},  # type: ignore[arg-type]
    )
    for version, hours in ((0, 0.0), (2, 1.0), (3, 2.4), (5, 3.0), (6, 3.0)):
        world.books.ledger.hours["trainer"] = hours
        evaluation.due(version)
    asyncio.run(evaluation.rest())
    assert asked == [(0, 0.0, 1), (2, 0.25, 1), (3, 0.6, 2), (5, 0.75, 2), (6, 0.75, 2)]
