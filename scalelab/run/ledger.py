"""The compute ledger: device-hours by role, the x-axis of every curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ROLES = ("generator", "trainer", "evaluation", "faults")


@dataclass
class Ledger:
    """Device-hours since RL began, waiting included.

    Every second of wall time is charged for every device held. A generator's second is charged to `evaluation` for
    the share of its work that was evaluation, a trainer's second if the trainer stood idle while an evaluation ran;
    all else is charged to the role. `compute`, the x-axis, leaves `evaluation` out: a curve must not depend on how
    closely it was looked at (ScaleRL §2 counts training compute). What a fault cost goes to `faults`: the devices of
    lost actors until they are back, and all work that a return to a checkpoint undid. It is part of `compute`, since
    the devices were held, and `undisturbed` leaves it out.

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
        """Generator and trainer device-hours so far, with those that faults cost."""
        return self.undisturbed + self.hours["faults"]

    @property
    def undisturbed(self) -> float:
        """Generator and trainer device-hours so far, without those that faults cost."""
        return self.hours["generator"] + self.hours["trainer"]

    def advance(
        self, seconds: float, *, evaluation_share: float, trainer_idle: bool, lost: float = 0.0, broken: bool = False
    ) -> float:
        """Add `seconds` of wall time to the totals.

        Args:
            seconds: wall time since the last call.
            evaluation_share: part of the generators' work in that time that was evaluation, in [0, 1].
            trainer_idle: whether the trainer had nothing to do.
            lost: device-seconds for which generators were lost and that are not charged yet.
            broken: whether the whole run stood still for a fault.

        Returns:
            The device-seconds of `lost` that are charged now: never more than generators had in `seconds`.
        """
        if seconds < 0 or not 0 <= evaluation_share <= 1:
            raise ValueError(f"cannot charge {seconds} s with an evaluation share of {evaluation_share}")
        hours = seconds / 3600
        if broken:
            self.hours["faults"] += hours * (self.generators + self.trainers)
            return 0.0
        gone = min(max(lost / 3600, 0.0), hours * self.generators)
        self.hours["faults"] += gone
        at_work = hours * self.generators - gone
        self.hours["generator"] += at_work * (1 - evaluation_share)
        self.hours["evaluation"] += at_work * evaluation_share
        self.hours["evaluation" if trainer_idle and evaluation_share else "trainer"] += hours * self.trainers
        return 3600 * gone

    def at_least(self, hours: Mapping[str, float]) -> None:
        """Raise the totals to the recorded ones, which include the compute of undone steps."""
        self.hours = {role: max(spent, hours.get(role, 0.0)) for role, spent in self.hours.items()}

    def go_back(self, checkpoint: Mapping[str, float]) -> None:
        """Count as lost to faults what was spent since a checkpoint, but for evaluations, which are kept.

        Args:
            checkpoint: hours by role when it was taken.
        """
        for role in ("generator", "trainer"):
            since = max(0.0, self.hours[role] - checkpoint.get(role, 0.0))
            self.hours["faults"] += since
            self.hours[role] -= since

    def state_dict(self) -> dict[str, Any]:
        """Hours by role."""
        return dict(self.hours)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.hours = {role: float(state.get(role, 0.0)) for role in ROLES}
