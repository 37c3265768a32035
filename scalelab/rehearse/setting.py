"""The settings of a rehearsal, for all roles; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from scalelab.hardware import Device
from scalelab.run.config import Run


@dataclass(frozen=True)
class RehearsalSettings:
    """The settings of a rehearsal.

    Attributes:
        run: the experiment.
        hardware: the GPU that is simulated; "cpu" takes the CPU's kernels.
        micro_batches: of an optimiser step of the run, by which exchanges are counted.
        imbalance: tokens that a rank's experts get, as a multiple of their even share.
    """

    run: Run
    hardware: Device
    micro_batches: int = 1
    imbalance: float = 1.0
