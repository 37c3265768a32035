"""Evaluation sets: settings that say which prompts are evaluated, how and when; frozen, and free of gin."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import fields, replace
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, SkipValidation
from pydantic.dataclasses import dataclass

from moe.checked import CHECKED
from scalelab.errors import LabError
from tasks.data.datasets import dataset_task
from tasks.task import Task
from tasks.types import Prompt

HELD_OUT = "held_out"
"""Name of the set that holds the held-out split of the run's tasks."""

_AT_K = re.compile(r"(?:pass|majority)@(\d+)")


@plain_dataclass(frozen=True)
class Cadence:
    """Rule for evaluations of a set, or for checkpoints: every few steps, every few hours, or only at the end."""

    every: int | None
    every_hours: float | None

    def due(self, step: int, since: float, compute: float) -> bool:
        """Tell whether it is time after a step; arguments as in `Evaluation.due`."""
        if self.every_hours is not None:
            return since // self.every_hours < compute // self.every_hours
        return self.every is not None and step % self.every == 0

    def period(self, hours_of_step: float) -> float:
        """Steps from one evaluation to the next, where each takes so many device-hours; ∞ for the end alone."""
        if self.every_hours is not None:
            return max(1.0, self.every_hours / hours_of_step)
        return math.inf if self.every is None else float(self.every)

    def steps(self, last: int, hours_of_step: float | None) -> list[int]:
        """Steps that are evaluated; arguments as in `Evaluation.steps`."""
        if self.every_hours is None:
            due = [] if self.every is None else [*range(self.every, last + 1, self.every)]
        elif hours_of_step is None:
            due = [*range(1, last + 1)]
        else:
            hours = [step * hours_of_step for step in range(last + 1)]
            due = [step for step in range(1, last + 1) if self.due(step, hours[step - 1], hours[step])]
        return sorted({*self.first, *due, last})

    def most(self, hours: float | None) -> int | None:
        """Most evaluations within so many device-hours; None if they set no limit.

        Beside the first weights there is one for every `every_hours`, and one when the budget is spent.
        """
        if self.at_end:
            return 1
        return None if self.every_hours is None or hours is None else int(hours / self.every_hours) + 2

    @property
    def at_end(self) -> bool:
        """True for an evaluation of the last weights alone."""
        return self.every is None and self.every_hours is None

    @property
    def first(self) -> tuple[int, ...]:
        """Step 0, unless the last weights alone are evaluated."""
        return () if self.at_end else (0,)


@dataclass(frozen=True, config=CHECKED)
class EvaluationSet:
    """Settings that every kind of evaluation set has; None takes that of the run."""

    prompts: Annotated[int, Field(ge=2)] | None = None
    """Prompts of each task; a standard error needs two. None: `Evaluation.prompts`, or all of a benchmark that has a
    fixed number."""

    samples: PositiveInt | None = None
    """Completions of each prompt. None: `Evaluation.samples`."""

    max_tokens: PositiveInt | None = None
    """Most tokens of a completion. None: `Recipe.max_tokens`."""

    temperature: NonNegativeFloat = 1.0
    """Temperature of the sampling; 0 is greedy."""

    every: PositiveInt | None = None
    """Optimiser steps between evaluations. None, where `every_hours` is None, too: as `Evaluation` says."""

    every_hours: PositiveFloat | None = None
    """Device-hours between evaluations, in place of `every`."""

    at_end: bool = False
    """Evaluate the last weights alone."""

    metrics: tuple[str, ...] = ()
    """Metrics that get a curve and a fit of their own beside the mean reward: "passed", "pass@8", "majority@8",
    "truncated", "length" (a share of the longest), or the name of a part of the reward. All are in `evals.jsonl`."""

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if self.at_end and (self.every is not None or self.every_hours is not None):
            raise ValueError(f"{kind}.at_end excludes {kind}.every and every_hours: bind one of them")
        if self.temperature == 0 and (self.samples or 1) > 1:
            raise ValueError(f"{kind}.temperature = 0 gives one completion {self.samples} times: bind samples = 1")
        if len(set(self.metrics)) < len(self.metrics):
            raise ValueError(f"{kind}.metrics is {self.metrics}: name each once")


@dataclass(frozen=True, config=CHECKED)
class HeldOut(EvaluationSet):
    """The held-out split of every task of the run, which is never trained on (ScaleRL §2)."""

    @property
    def set_name(self) -> str:
        """Name of the set."""
        return HELD_OUT


@dataclass(frozen=True, config=CHECKED)
class Benchmark(EvaluationSet):
    """Problems that are evaluated and never trained on, such as AIME-24 beside the held-out split (ScaleRL, Fig. 1)."""

    data: str = ""
    """Name of a data set of the table in docs/tasks.md, such as "aime_24"; empty where `task` is bound."""

    task: SkipValidation[Task] | None = None
    """A task, of which the held-out prompts are taken, in place of `data`."""

    name: str = ""
    """Name of the set and of its curve; empty is that of the task or of the data set."""

    folder: str | None = None
    """Local folder of the data set; None downloads from the hub."""

    allow_overlap: bool = False
    """Go on although the run trains on some of the problems; their number is said and recorded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.data) == (self.task is not None):
            raise ValueError("Benchmark needs data (a name such as 'aime_24') or a task, one of them")
        if "/" in self.name:
            raise ValueError(f"Benchmark.name {self.name!r} holds a slash, which ends the name in prompt ids")

    @property
    def set_name(self) -> str:
        """Name of the set."""
        return self.name or self.data or (self.task.name if self.task is not None else "")

    def named_task(self, trained: Sequence[Task]) -> Task:
        """The benchmark's task under the set's name; a data set is asked as the tasks that are trained on ask.

        Raises:
            ValueError: the task cannot be renamed.
        """
        task = like_trained(self.data, trained, self.folder) if self.task is None else self.task
        if not self.name or self.name == task.name:
            return task
        if "name" not in {field.name for field in fields(task)}:  # type: ignore[arg-type]
            raise ValueError(f"Benchmark.name: {type(task).__name__} has no field name, so it keeps {task.name!r}")
        return replace(task, name=self.name)  # type: ignore[type-var]


def like_trained(data: str, trained: Sequence[Any], folder: str | None = None, **settings: Any) -> Task:
    """The task of a data set of the table, which asks as the tasks do that a run trains on.

    Args:
        data: name of the data set.
        trained: the run's tasks; none for a model that belongs to no run.
        folder: local folder of the data set.
        settings: fields of the task that go before.
    """
    alike = [task for task in trained if hasattr(task, "chat")]
    asked = {
        "chat": alike[0].chat if alike else not trained,
        "thinking": alike[0].has_thinking if alike else bool(trained),
        "system": getattr(alike[0], "system", "") if alike else "",
    }
    return dataset_task(data, folder=folder, **{**asked, **settings})


@plain_dataclass(frozen=True)
class ReadySet:
    """An evaluation set of a run, with every setting filled in.

    Attributes:
        name: of the set.
        tasks: whose held-out prompts are taken; each has a curve.
        prompts: of each task; None takes all.
        samples: completions of each prompt.
        early_samples: completions of each prompt before `full_from`.
        full_from: part of the budget from which there are `samples`.
        max_tokens: most tokens of a completion.
        temperature: of the sampling.
        metrics: that get a curve beside the mean reward.
        cadence: when it is evaluated.
        trained: whether the run trains on these tasks.
        allow_overlap: whether problems that are trained on, too, are counted only.
    """

    name: str
    tasks: tuple[Task, ...]
    prompts: int | None
    samples: int
    early_samples: int
    full_from: float
    max_tokens: int
    temperature: float
    metrics: tuple[str, ...]
    cadence: Cadence
    trained: bool
    allow_overlap: bool

    @property
    def planned(self) -> int:
        """Most completions of an evaluation, known without loading data; of a data set at most so many."""
        return sum(self.prompts_of(task) or task.held_out_size or 0 for task in self.tasks) * self.samples

    @property
    def planned_mean(self) -> float:
        """Completions of an evaluation, as `planned`, in the mean over the run's budget."""
        return self.planned * (1 - self.full_from * (1 - self.early_samples / self.samples))

    def prompts_of(self, task: Task) -> int | None:
        """Prompts of one of the tasks: as many as a task that is trained on says of itself; None takes all."""
        own: int | None = getattr(task, "evaluation_prompts", None)
        return own if self.trained and own is not None else self.prompts

    def held_out(self, task: Task) -> list[Prompt]:
        """The prompts of one of the tasks.

        Raises:
            LabError: there are fewer than two.
            TaskError: there are fewer than asked for.
        """
        asked = self.prompts_of(task)
        count = task.held_out_count if asked is None else asked  # type: ignore[attr-defined]
        if count < 2:
            raise LabError(
                f"evaluation set {self.name} has {count} prompts of {task.name}, and it takes two or more: bind "
                "another data set, or raise held_out_size"
            )
        return task.held_out(count)

    @property
    def all_prompts(self) -> list[Prompt]:
        """The prompts of all tasks."""
        return [prompt for task in self.tasks for prompt in self.held_out(task)]


def check_metrics(ready: ReadySet) -> None:
    """Check that a set samples enough for its metrics.

    Raises:
        ValueError: it does not.
    """
    for metric in ready.metrics:
        if (match := _AT_K.fullmatch(metric)) and not 2 <= int(match[1]) <= ready.early_samples:
            kind = "HeldOut" if ready.trained else "Benchmark"
            more = "; name passed in its place" if int(match[1]) < 2 else f": raise {kind}.samples"
            raise ValueError(
                f"{metric} of evaluation set {ready.name} is no metric of {ready.early_samples} completions a "
                f"prompt{more}"
            )
