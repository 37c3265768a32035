"""Processor time of the driver, which is one process however many engines there are."""

from __future__ import annotations

COMPLETION_SECONDS = 2.0e-4
"""Bookkeeping of a completion (`tools/bench/driver.py books`)."""
ENGINE_SECONDS = 4.0e-5
"""Calls of an engine's actor, in each second, whatever it generates."""
BUSY = 0.7
"""Cores from which the driver holds answers back: what comes in bursts waits behind it."""


def driver_cores(completions_per_second: float, engines: int) -> float:
    """Cores that the driver is busy with.

    Args:
        completions_per_second: of all engines, evaluations included.
        engines: that generate.
    """
    return completions_per_second * COMPLETION_SECONDS + engines * ENGINE_SECONDS


def driver_warning(cores: float) -> str | None:
    """What to do where the driver is too busy; None where it is not."""
    if cores < BUSY:
        return None
    return (
        f"the driver would be busy with {cores:.2f} of the one core that it has: give an engine more devices "
        "(GeneratorConfig.tensor_parallel), or let two runs share the devices"
    )
