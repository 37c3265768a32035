"""Draw training prompts from a mix of tasks and never again those that the policy has learnt (ScaleRL §3.2).

No-positive-resampling: a prompt whose pass rate reached `retire_at` is retired for the rest of the run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from tasks.errors import TaskError
from tasks.task import Task
from tasks.types import Prompt

REFUSED_IN_A_ROW = 1_000_000
"""Prompts that a sampler may leave out one after the other, beside twice the task's number of prompts."""


class Curriculum(Protocol):
    """Protocol of curricula, the user's own: frozen settings that are called to make a run's sampler.

    A sampler is a `MixtureSampler` whose `weight` or `wants` says something else. What it remembers beyond the history
    belongs into `state_dict` and `load_state_dict`.
    """

    def __call__(
        self, tasks: Sequence[Task], weights: Mapping[str, float] | None, seed: int, retire_at: float | None
    ) -> MixtureSampler:
        """Make the sampler of one run from its tasks, their shares, its seed, and `Recipe.retire_at`."""
        ...


class MixtureSampler(Iterator[Prompt]):
    """A stream of prompts, each from a task drawn by weight; it ends when every prompt of every task is retired.

    Which task draw number i takes depends only on (seed, i, exhausted tasks), and each task's prompts come in the
    task's own order; so the whole state is a few counters and the history, and a resumed sampler goes on exactly
    as an uninterrupted one.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        weights: Mapping[str, float] | None = None,
        seed: int = 0,
        retire_at: float | None = 0.9,
    ) -> None:
        """Set the mix up.

        Args:
            tasks: tasks with different names.
            weights: task name → positive weight of its draws; None gives every task the same.
            seed: decides the order of the tasks (not of the prompts within one).
            retire_at: pass rate in (0, 1] from which a prompt is never drawn again; None turns this off.

        Raises:
            TaskError: no tasks, two of one name, weights that do not fit them, or a bad `retire_at`.
        """
        self._tasks = {task.name: task for task in tasks}
        if not tasks or len(self._tasks) != len(tasks):
            raise TaskError(f"need one or more tasks with different names, got {[task.name for task in tasks]}")
        self._weights = dict.fromkeys(self._tasks, 1.0) if weights is None else dict(weights)
        if set(self._weights) != set(self._tasks):
            raise TaskError(f"weights are for {sorted(self._weights)}, tasks are {sorted(self._tasks)}: name the same")
        for name, weight in self._weights.items():
            if not (math.isfinite(weight) and weight > 0):
                raise TaskError(f"weight of task {name} is {weight}: give a positive number, or leave the task out")
        if retire_at is not None and not 0 < retire_at <= 1:
            raise TaskError(f"retire_at is {retire_at}: give a pass rate in (0, 1], or None to keep every prompt")
        self._seed = seed
        self._retire_at = retire_at
        self._draws = 0
        self._next_index = dict.fromkeys(self._tasks, 0)
        self._skipped = dict.fromkeys(self._tasks, 0)
        self._history: dict[str, list[float]] = {}
        self._retired: dict[str, set[str]] = {name: set() for name in self._tasks}

    def __next__(self) -> Prompt:
        """Draw the next prompt.

        Raises:
            StopIteration: every prompt of every task is retired.
            TaskError: the curriculum takes none of the prompts that are left.
        """
        name = self._draw_task()
        task = self._tasks[name]
        for _ in range(REFUSED_IN_A_ROW + 2 * (task.size or 0)):
            prompt = task.prompt(self._next_index[name])
            self._next_index[name] += 1
            if prompt.id not in self._retired[name] and self.wants(prompt):
                return prompt
            self._skipped[name] += 1
        raise TaskError(f"the curriculum wants none of so many prompts of {name}: let its `wants` take some")

    def wants(self, prompt: Prompt) -> bool:
        """True if a prompt that is not retired may be drawn now; a curriculum may say otherwise."""
        return True

    def weight(self, name: str) -> float:
        """The share of a task's draws now; a curriculum may say otherwise."""
        return self._weights[name]

    def history(self, prompt_id: str) -> tuple[float, ...]:
        """Pass rates of a prompt so far."""
        return tuple(self._history.get(prompt_id, ()))

    def observe(self, prompt_id: str, pass_rate: float) -> None:
        """Record the pass rate of one group of completions, and retire the prompt if it is high enough.

        Raises:
            TaskError: the prompt is of no task in the mix, or the rate is not in [0, 1].
        """
        name = prompt_id.partition("/")[0]
        if name not in self._tasks:
            raise TaskError(f"prompt {prompt_id} is of no task in the mix ({', '.join(self._tasks)})")
        if not 0 <= pass_rate <= 1:
            raise TaskError(f"pass rate of {prompt_id} is {pass_rate}: expected a number in [0, 1]")
        self._history.setdefault(prompt_id, []).append(float(pass_rate))
        if self._retire_at is not None and pass_rate >= self._retire_at:
            self._retired[name].add(prompt_id)

    def metrics(self) -> dict[str, float]:
        """Counts since the start of the run, per task: drawn, retired, skipped (would have been drawn again)."""
        counts: dict[str, float] = {}
        for name in self._tasks:
            counts[f"drawn/{name}"] = self._next_index[name] - self._skipped[name]
            counts[f"retired/{name}"] = len(self._retired[name])
            counts[f"skipped/{name}"] = self._skipped[name]
        return counts

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed sampler needs (JSON-able)."""
        return {
            "tasks": sorted(self._tasks),
            "draws": self._draws,
            "next_index": dict(self._next_index),
            "skipped": dict(self._skipped),
            "history": {prompt_id: list(rates) for prompt_id, rates in self._history.items()},
            "retired": {name: sorted(ids) for name, ids in self._retired.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the sampler that gave `state` stood.

        Raises:
            TaskError: the state is of another set of tasks.
        """
        if list(state["tasks"]) != sorted(self._tasks):
            raise TaskError(f"sampler state is for tasks {state['tasks']}, this run mixes {sorted(self._tasks)}")
        self._draws = state["draws"]
        self._next_index = dict(state["next_index"])
        self._skipped = dict(state["skipped"])
        self._history = {prompt_id: list(rates) for prompt_id, rates in state["history"].items()}
        self._retired = {name: set(ids) for name, ids in state["retired"].items()}

    def _draw_task(self) -> str:
        live = [name for name in self._tasks if not self._exhausted(name)]
        if not live:
            raise StopIteration
        rng = random.Random(f"{self._seed}/{self._draws}")
        self._draws += 1
        return rng.choices(live, [self.weight(name) for name in live])[0]

    def _exhausted(self, name: str) -> bool:
        size = self._tasks[name].size
        return size is not None and len(self._retired[name]) >= size
