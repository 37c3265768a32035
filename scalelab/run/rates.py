"""Speeds of a run's parts, as a simulated clock needs them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scalelab.errors import LabError

TICKS_PER_SECOND = 2**26
"""Resolution of simulated time."""
_LEAST = 1 / TICKS_PER_SECOND
"""Shortest decoding step, in seconds."""


@dataclass(frozen=True)
class Rates:
    """Seconds per operation of one generator engine and of one trainer unit."""

    step_seconds: float
    """A decoding step of one engine, however few sequences it has."""
    sequence_seconds: float
    """Seconds that each sequence adds to a decoding step."""
    train_token_seconds: float
    """A token of prompt or completion, in an optimiser step on one trainer unit; n units share the tokens evenly."""
    train_step_seconds: float = 0.0
    """Seconds of an optimiser step without those of its tokens."""
    export_seconds: float = 0.0
    """The trainer gathers the weights for the generators, before its next step can begin."""
    transfer_seconds: float = 0.0
    """The weights are under way while both sides work."""
    pause_seconds: float = 0.0
    """Generators stand still to take them."""
    verify_seconds: float = 0.0
    """Seconds from a group's last token to its last verdict."""
    host_seconds: float = 0.0
    """Seconds in which the verifiers grade a completion, one after the other; of `cores`, they hold one meanwhile."""
    cores: int | None = None
    """Cores that generators, trainer units and host work share, one core each; None: no part waits for a core."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 <= value < math.inf:
                raise LabError(f"{name} is {value:g}: give a rate of 0 or more")
        if self.cores is not None and self.cores < 1:
            raise LabError(f"cores is {self.cores}: give at least 1, or leave it out")
        if (
            self.step_seconds + self.sequence_seconds < _LEAST
            or self.train_token_seconds + self.train_step_seconds <= 0
        ):
            raise LabError("a decoding step and an optimiser step must take some time: give rates above 0")
