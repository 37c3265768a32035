"""Draws of each prompt over a run, and the cost of its rewards, as far as no data set is loaded for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scalelab.errors import LabError
from scalelab.run.config import Run
from scalelab.run.settings import task_shares
from tasks.data.datasets import DatasetTask
from tasks.errors import TaskError
from tasks.own import FileTask
from tasks.procedural import Procedural
from tasks.task import Task

MANY = 1.0
"""Epochs from which a message warns that prompts run out."""


@dataclass(frozen=True)
class PromptDraws:
    """Draws of one task's prompts over a run.

    Attributes:
        different: training prompts.
        drawn: draws over all steps, if no prompt is retired.
    """

    different: int
    drawn: int

    @property
    def epochs(self) -> float:
        """Times that each prompt is drawn."""
        return self.drawn / self.different


def different_prompts(task: Task) -> int | None:
    """Number of a task's training prompts, where no data set need be downloaded to know it."""
    return task.size if _known(task) else None


def _known(task: Task) -> bool:
    return isinstance(task, Procedural | FileTask) or (isinstance(task, DatasetTask) and bool(task.file))


def held_out_problems(run: Run) -> list[str]:
    """Reasons why evaluation sets cannot be, for fewer prompts are held out than they ask for."""
    found = []
    for one in run.sets:
        for task in filter(_known, one.tasks):
            try:
                one.held_out(task)
            except (LabError, TaskError) as problem:
                found.append(str(problem))
    return found


def draws(run: Run, steps: int) -> dict[str, PromptDraws]:
    """Draws of each task whose number of prompts is known, by name.

    Args:
        run: the run.
        steps: its optimiser steps.
    """
    shares = task_shares([task.name for task in run.tasks], run.task_weights)
    grow = min(steps, run.recipe.prompts_grow_until or 0)  # then each step draws as many
    drawn = sum(map(run.recipe.prompts_at, range(grow))) + (steps - grow) * run.recipe.prompts_per_step
    found: dict[str, PromptDraws] = {}
    for task in run.tasks:
        if size := different_prompts(task):
            found[task.name] = PromptDraws(size, round(drawn * shares[task.name]))
    return found


def running_out(run: Run, of_task: Mapping[str, PromptDraws]) -> list[str]:
    """Warnings of tasks whose prompts are drawn more than once."""
    learnt = "" if run.recipe.retire_at is None else "; learnt ones are not drawn again, so the mix loses the task"
    return [
        f"{name}: {one.different:,} different prompts, drawn {one.drawn:,} times: each {one.epochs:.3g} times{learnt}"
        for name, one in of_task.items()
        if one.epochs > MANY
    ]


def reward_seconds(run: Run) -> float:
    """Processor time of a step's rewards in seconds, of tasks that say what one costs (`seconds_per_reward`)."""
    shares = task_shares([task.name for task in run.tasks], run.task_weights)
    each = sum(shares[task.name] * getattr(task, "seconds_per_reward", 0.0) for task in run.tasks)
    return each * run.recipe.completions_per_step


def verify_seconds(run: Run, verifiers: int) -> float:
    """Mean seconds in which so many verifiers grade a completion, of tasks that say what a reward costs.

    Each verifier grades as many completions of a task side by side as the task has `workers`.
    """
    shares = task_shares([task.name for task in run.tasks], run.task_weights)
    each = (
        shares[task.name] * getattr(task, "seconds_per_reward", 0.0) / getattr(task, "workers", 1) for task in run.tasks
    )
    return sum(each) / verifiers


def uncounted(run: Run) -> list[str]:
    """Remarks on evaluation sets whose problems nobody counted, and which are planned at an assumed number."""
    found = []
    for one in run.sets:
        for task in one.tasks:
            if isinstance(task, DatasetTask) and task.uncounted and one.prompts_of(task) is None:
                found.append(
                    f"nobody counted the problems of {task.dataset}: planned with {task.held_out_size:,}, and all that "
                    "there are will be evaluated; bind Benchmark.prompts to take fewer"
                )
    return list(dict.fromkeys(found))
