"""The protocols of tasks and verifiers, and a check that a class follows them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tasks.errors import TaskError
from tasks.types import Prompt, Verdict


class Verifier(Protocol):
    """Grader of completions; safe to call from several threads at once.

    Cheap to create: processes start with the first item that needs them. Not picklable while it runs; a worker on
    another machine makes its own with `task.verifier()`, since tasks are plain picklable configuration.
    """

    def verify(self, items: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        """One verdict per (prompt, completion), in order; never raises because of what a completion says."""
        ...

    def close(self) -> None:
        """End the processes behind the verifier; it can be called twice."""
        ...


@runtime_checkable
class Task(Protocol):
    """A source of prompts with a fixed held-out split and a verifier.

    A class of one's own follows it as a frozen dataclass that can be pickled; `tasks.own` has base classes.
    """

    @property
    def name(self) -> str:
        """The task's name, in prompt ids (`name/…`), weights, ledgers and fits; without a slash."""
        ...

    @property
    def size(self) -> int | None:
        """Number of different training prompts: 0 for a task that only evaluates, None if the stream never repeats."""
        ...

    @property
    def held_out_size(self) -> int | None:
        """Largest held-out split that the settings allow, known without loading data; None if nothing bounds it."""
        ...

    @property
    def has_thinking(self) -> bool:
        """True if completions begin inside `<think>`; if not, the whole completion is graded."""
        ...

    def prompt(self, index: int) -> Prompt:
        """Training prompt number `index` ≥ 0 of an endless stream; a finite set is permuted anew every epoch."""
        ...

    def held_out(self, n: int) -> list[Prompt]:
        """The first `n` prompts of the fixed i.i.d. held-out split, which no training index ever yields.

        Raises:
            TaskError: the split holds fewer than `n` prompts.
        """
        ...

    def verifier(self) -> Verifier:
        """A new verifier for this task's prompts."""
        ...

    def describe(self) -> dict[str, Any]:
        """Origin of the problems (JSON-able), for a run's manifest; empty if there is nothing to say."""
        ...


@dataclass(frozen=True)
class TrialProblem:
    """A problem with a right and a wrong answer, with which a verifier can be tried where no data are.

    Attributes:
        gold: what the verifier grades against.
        right: an answer that passes.
        wrong: one that does not.
    """

    gold: Any
    right: str
    wrong: str


def has_worked_examples(task: Task) -> bool:
    """True if a task has worked examples: a method `trace(index)`, and, where it says so, data for it."""
    return callable(getattr(task, "trace", None)) and getattr(task, "has_trace", True)


def worked_example(task: Task, index: int) -> tuple[Prompt, str]:
    """Example number `index` of a task's own `trace`: a prompt that is not held out, and a completion to learn.

    Raises:
        TaskError: it is something else, or nothing to learn.
    """
    found = task.trace(index)  # type: ignore[attr-defined] # a task need not have any
    if (
        not isinstance(found, tuple)
        or [type(one) for one in found] != [Prompt, str]
        or not found[1]
        or found[0].task != task.name
    ):
        raise TaskError(
            f"trace({index}) of task {task.name} returns {str(found)[:60]!r}: return a prompt of the task, such as "
            "self.prompt(index), and the text of a completion"
        )
    return found


_VALUES = ("name", "size", "held_out_size", "has_thinking")
_MISSING = object()
_METHODS = {"prompt": 1, "held_out": 1, "verifier": 0, "describe": 0}


def require_task(candidate: Any) -> None:
    """Check that a class, or an object, follows the `Task` protocol; nothing of it is evaluated.

    Raises:
        TaskError: a member is missing, or a method does not take the arguments that it is called with.
    """
    cls = candidate if isinstance(candidate, type) else type(candidate)
    fields = getattr(cls, "__dataclass_fields__", {})
    members = {name: inspect.getattr_static(cls, name, _MISSING) for name in (*_VALUES, *_METHODS)}
    missing = [name for name, member in members.items() if member is _MISSING and name not in fields]
    if missing:
        raise TaskError(
            f"{cls.__qualname__} is no task, it lacks {', '.join(missing)}: "
            "extend tasks.own.RewardTask, or add what tasks/task.py describes"
        )
    for name, count in _METHODS.items():
        method = members[name]
        if not callable(method):
            raise TaskError(f"{cls.__qualname__}.{name} is a {type(method).__name__}: a task has a method of that name")
        if not inspect.isfunction(method):
            continue
        try:
            inspect.signature(method).bind(*range(count + 1))
        except TypeError as problem:
            raise TaskError(f"{cls.__qualname__}.{name} is called with {count} arguments: {problem}") from None
