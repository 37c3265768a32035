"""Processor time of the driver, which is one process however many engines there are.

Both figures are a line over `tools/bench/driver.py books --engines 64 1000 2000` on an AMD EPYC of 2022 (Zen 4): 0.05,
0.16 to 0.20 and 0.34 core with 24, 419 and 688 completions a second; by the line 0.05, 0.23 and 0.35.
"""

from __future__ import annotations

FIXED_CORES = 0.04
COMPLETION_SECONDS = 4.5e-4
"""Ray's calls, books, grading and its part of a step, for a completion of 5,900 tokens."""
BUSY = 0.7
"""Cores from which the driver holds answers back: what comes in bursts waits behind it."""


def driver_cores(completions_per_second: float) -> float:
    """Cores that the driver is busy with.

    Args:
        completions_per_second: of all engines, evaluations included.
    """
    return FIXED_CORES + completions_per_second * COMPLETION_SECONDS


def driver_seconds(completions: float) -> float:
    """Seconds in which the driver handles so many completions, one after the other."""
    return completions * COMPLETION_SECONDS / (1 - FIXED_CORES)


def driver_warning(cores: float) -> str | None:
    """Advice for a driver that is too busy; None for one that is not."""
    if cores < BUSY:
        return None
    return f"the driver would need {cores:.2f} of the one core that it has: let two runs share the devices"
