"""The protocol that every tracker of a run follows, the names of those there are, and what they are sent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

TrackerName = Literal["wandb", "mlflow", "trackio", "webhook", "mail"]

ALERTS = ("webhook", "mail")
"""Trackers that are no packages: they tell people of alarms and of the run's end."""

UNSENT = ("step", "version", "time")
"""Keys of a line that are not sent as numbers."""

COLUMNS = ("task", "prompt_id", "prompt", "completion", "outcome", "reward", "detail", "tokens")
"""Fields of a completion that are sent."""

Values = Mapping[str, float]
Rows = Sequence[Mapping[str, Any]]


class Tracker(Protocol):
    """A service for watching runs; every method may raise, and may take its time."""

    def numbers(self, step: int, values: Values) -> None:
        """Add numbers of an optimiser step, by names such as `train/loss`."""

    def alarm(self, step: int, name: str, text: str) -> None:
        """Report that a monitor's limit was passed."""

    def completions(self, step: int, rows: Rows) -> None:
        """Add sampled completions of the evaluation at a step, with prompt and verdict."""

    def go_back(self, step: int) -> None:
        """Remove the numbers of later steps, or mark them as undone."""

    def close(self, status: str) -> None:
        """Send the rest; `status` is finished, interrupted or failed."""


def scalars(record: Mapping[str, Any], under: str) -> Iterator[tuple[str, float]]:
    """All finite numbers of a record, nested ones by names such as `train/seconds/wait`."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{under}/{key}")
        elif isinstance(value, int | float) and key not in UNSENT and math.isfinite(value):
            yield f"{under}/{key}", float(value)
