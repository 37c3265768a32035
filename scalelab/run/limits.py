"""Lengths of one task's completions: its own settings where it has any, else the recipe's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalelab.recipe.length_control import ForcedInterruption, LengthControl
from scalelab.recipe.recipe import Recipe
from tasks.task import Task


@dataclass(frozen=True)
class TaskLimits:
    """Limits on one task's completions.

    Attributes:
        max_tokens: most tokens of a completion.
        control: what interrupts long thinking; None for a task without thinking.
        typical: median length in tokens; None if the task does not say.
    """

    max_tokens: int
    control: LengthControl | None
    typical: int | None = None


def limits_of(task: Task, recipe: Recipe, most: int | None = None) -> TaskLimits:
    """The limits of a task's completions under a recipe.

    Args:
        task: may have `max_tokens`, `interrupt` (first, last token) and `typical_tokens`; None is the recipe's.
        recipe: the run's.
        most: most tokens of a task that does not say; None is as the recipe says.
    """
    control, window = recipe.length_control, getattr(task, "interrupt", None)
    if control is not None and control.phrase and not task.has_thinking:
        control = None
    elif isinstance(control, ForcedInterruption) and window is not None:
        control = replace(control, earliest=window[0], latest=window[1])
    own = getattr(task, "max_tokens", None)
    return TaskLimits(own or most or recipe.max_tokens, control, getattr(task, "typical_tokens", None))


def check_limits(tasks: Sequence[Task], recipe: Recipe) -> None:
    """Check that every task's limits fit each other and the recipe.

    Raises:
        ValueError: naming those that do not, and what would do.
    """
    for task in tasks:
        limits = limits_of(task, recipe)
        if limits.max_tokens > recipe.max_tokens:
            raise ValueError(
                f"max_tokens ({limits.max_tokens}) of {task.name} exceeds Recipe.max_tokens ({recipe.max_tokens}), for "
                "which engines and memory are sized: lower the one or raise the other"
            )
        if isinstance(limits.control, ForcedInterruption) and limits.control.latest >= limits.max_tokens:
            raise ValueError(
                f"an interruption at token {limits.control.latest} leaves no room for an answer within max_tokens "
                f"({limits.max_tokens}) of {task.name}: give the task a window of its own, interrupt = (first, last)"
            )
        if (limits.typical or 0) > limits.max_tokens:
            raise ValueError(
                f"typical_tokens ({limits.typical}) of {task.name} exceeds max_tokens ({limits.max_tokens}): lower it"
            )


def task_shares(names: Sequence[str], weights: Sequence[float] | None) -> dict[str, float]:
    """Share of each task among the prompts drawn."""
    given = weights or [1.0] * len(names)
    return {name: weight / sum(given) for name, weight in zip(names, given, strict=True)}
