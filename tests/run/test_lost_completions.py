"""Completions whose text is lost before they are graded are generated again, for training and evaluations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scalelab.cluster.faults import Faults
from scalelab.errors import LabError
from scalelab.rollout.evaluation import Graded, evaluate
from scalelab.rollout.types import LostVerdict, Request
from scalelab.run.evaluations import generate_and_grade
from scalelab.run.grading import AGAIN
from scalelab.run.loop import LOST_STEPS
from scalelab.run.ports import StepLostError
from scalelab.run.settings import Cluster
from scalelab.schedule.schedule import PipelineRL
from scalelab.session.drive import unwrapped
from tasks.types import Prompt, Verdict, verdict
from tests.helpers.fake_world import World
from tests.run.test_local_evaluation import NAMED, PROMPTS, completion
from tests.run.test_loop_orders import BOUNDS, SCHEDULES

GENERATIONS = 3
LOST = LostVerdict("error", 0.0, detail="gone")


def evaluated(losses: int) -> tuple[list[Graded], list[str]]:
    """An evaluation in which every prompt's second completion is lost so many times, and what was asked for."""
    asked: list[str] = []

    async def generate(requests: Sequence[Request]) -> list[Any]:
        asked.extend(one.id for one in requests)
        return [completion(one) for one in requests]

    async def grade(prompt: Prompt, completions: Sequence[Any]) -> list[Verdict]:
        lost = [one.text for one in completions if one.text.endswith("1") and asked.count(one.text) <= losses]
        return [LOST if one.text in lost else verdict("passed", detail=one.text) for one in completions]

    found = asyncio.run(generate_and_grade(NAMED, generate, grade, lambda them: [Graded.of(one) for one in them]))
    return found, asked


def test_an_evaluation_counts_every_prompt_although_each_lost_a_completion() -> None:
    found, asked = evaluated(1)
    assert evaluate(found)["t"].n_prompts == len(PROMPTS)
    assert evaluate(found)["t"].outcomes == {"passed": len(PROMPTS) * GENERATIONS}
    assert len(asked) == len(PROMPTS) * (GENERATIONS + 1), "those that are there are not generated again"
    assert len({one.detail for one in found}) == len(found), "each is graded as the completion of its own request"


def test_what_is_lost_again_and_again_stays_an_error() -> None:
    found, asked = evaluated(AGAIN + 1)
    assert [one.outcome for one in found].count("error") == len(PROMPTS)
    assert len(asked) == len(PROMPTS) * (GENERATIONS + AGAIN)
    with pytest.raises(LabError, match="gone"):
        evaluate(found)


class Losing(World):
    """A world in which every group loses a completion at first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, PipelineRL(2))
        self.again = 0
        self.seen: set[str] = set()

    async def generate(self, requests: Sequence[str]) -> list[int]:
        self.again += len(requests) == 1
        return await super().generate(requests)

    async def grade(self, prompt: Prompt, completions: Sequence[int]) -> list[Any]:
        given: list[Any] = await super().grade(prompt, completions)
        if prompt.id not in self.seen:
            self.seen.add(prompt.id)
            given[-1] = LOST
        return given


def test_training_has_the_lost_completions_of_its_groups_generated_again(tmp_path: Path) -> None:
    world = Losing(tmp_path)
    world.run()
    assert world.books.version == 12
    assert world.again >= len(world.seen) > 12


class LosingSteps(World):
    """A world in which every completion of some steps is lost."""

    def __init__(self, folder: Path, schedule: Any, lost: Sequence[int]) -> None:
        super().__init__(folder, schedule)
        self.lost, self.steps_asked = lost, 0

    async def step(self, step: Any) -> str:
        self.steps_asked += 1
        if self.steps_asked in self.lost:
            await self._pause()
            raise StepLostError("no completion arrived")
        return await super().step(step)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_step_that_lost_all_is_taken_once_its_groups_are_generated_again(tmp_path: Path, schedule: Any) -> None:
    """No step is undone, none is empty, no group is trained on twice or left out, and none is too old."""
    world = LosingSteps(tmp_path, schedule, lost=(2, 3, 7))
    world.run()
    assert world.books.version == 12
    assert world.went_back == []
    trained = [name for _, names in world.trained for name in names]
    assert len(trained) == len({*trained}) == 12 * 3
    assert max(world.stale) <= BOUNDS[schedule]


def test_a_run_whose_steps_are_lost_again_and_again_ends(tmp_path: Path) -> None:
    world = LosingSteps(tmp_path, PipelineRL(2), lost=range(3, 3 + LOST_STEPS))
    with pytest.raises(BaseExceptionGroup) as found:
        world.run()
    assert isinstance(unwrapped(found.value), StepLostError)


def test_a_run_says_and_records_what_its_steps_lost() -> None:
    events: list[dict[str, Any]] = []
    lines: list[str] = []
    faults = Faults(Cluster(), events.append, lines.append)
    faults.lost_completions(3, 8)
    faults.lost_completions(8, 8)
    assert lines == [
        "3 of the 8 completions of a step did not arrive: their node is gone, or too slow; the step goes on without "
        "them",
        "8 of the 8 completions of a step did not arrive: their node is gone, or too slow; they are generated again",
    ]
    assert [(one["event"], one["role"]) for one in events] == [("untrained", "trainer")] * 2
