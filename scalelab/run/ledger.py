"""The compute ledger: device-hours by role, the x-axis of every curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ROLES = ("generator", "trainer", "evaluation")


@dataclass
class Ledger:
    """Device-hours since RL began, waiting included.

    Every second of wall time is charged for every device held. A generator's second is charged to `evaluation` for
    the share of its work that was evaluation, a trainer's second if the trainer stood idle while an evaluation ran;
    all else is charged to the role. `compute`, the x-axis, leaves `evaluation` out: a curve must not depend on how
    closely it was looked at (ScaleRL §2 counts training compute).

    Attributes:
        generators: devices that generators hold; one that they share with a trainer rank counts as half of each.
        trainers: devices that trainer ranks hold, likewise.
        hours: by role.
    """

    generators: float
    trainers: float
    hours: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ROLES, 0.0))

    @property
    def compute(self) -> float:
        """Generator and trainer device-hours so far."""
        return self.hours["generator"] + self.hours["trainer"]

    def advance(self, seconds: float, *, evaluation_share: float, trainer_idle: bool) -> None:
        """Add `seconds` of wall time to the totals.

        Args:
            seconds: wall time since the last call.
            evaluation_share: part of the generators' work in that time that was evaluation, in [0, 1].
            trainer_idle: whether the trainer had nothing to do.
        """
        if seconds < 0 or not 0 <= evaluation_share <= 1:
            raise ValueError(f"cannot charge {seconds} s with an evaluation share of {evaluation_share}")
        hours = seconds / 3600
        self.hours["generator"] += hours * self.generators * (1 - evaluation_share)
        self.hours["evaluation"] += hours * self.generators * evaluation_share
        self.hours["evaluation" if trainer_idle and evaluation_share else "trainer"] += hours * self.trainers

    def at_least(self, hours: Mapping[str, float]) -> None:
        """Raise the totals to the recorded ones, which include the compute of undone steps."""
        self.hours = {role: max(spent, hours.get(role, 0.0)) for role, spent in self.hours.items()}

    def state_dict(self) -> dict[str, Any]:
        """Hours by role."""
        return dict(self.hours)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.hours = {role: float(state[role]) for role in ROLES}
