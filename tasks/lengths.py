"""Lengths and evaluations of one task, where they differ from those of the run."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.errors import TaskError


@dataclass(frozen=True, kw_only=True)
class OwnLengths:
    """Settings of a task's completions and evaluations."""

    max_tokens: int | None = None
    """Most tokens of a completion of this task; None is the recipe's."""

    interrupt: tuple[int, int] | None = None
    """First and last token at which the thinking is ended by force; None is as the recipe's length control says."""

    typical_tokens: int | None = None
    """Median length of a completion, for plans and simulations; None assumes half of the most."""

    evaluation_prompts: int | None = None
    """Held-out prompts of an evaluation; None is as many as the run's evaluations say."""

    def check_lengths(self, thinking: bool) -> None:
        """Check the settings.

        Args:
            thinking: whether completions begin inside `<think>`.

        Raises:
            TaskError: naming one that cannot be.
        """
        for name, least in (("max_tokens", 1), ("typical_tokens", 1), ("evaluation_prompts", 2)):
            if (value := getattr(self, name)) is not None and value < least:
                raise TaskError(f"{name} is {value}: give {least} or more")
        if self.interrupt is not None and not (thinking and 0 <= self.interrupt[0] <= self.interrupt[1]):
            raise TaskError(
                f"interrupt is {self.interrupt} and thinking {thinking}: give (first, last) and thinking = True"
            )
