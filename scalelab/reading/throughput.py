"""Work done for each unit of compute: whether the hours of several runs are of one kind, and of one load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalelab.errors import LabError
from scalelab.reading.columns import WORK
from scalelab.reading.curve import Curve

LOADS = 2.0
"""Ratio of the work that two runs get done in a core-hour from which they had different machines or loads.

Recipes differ in it as well, by the length of their completions: tokens are counted, which that does not move.
"""

SLOW = 4.0
"""Ratio by which a stretch of a run is slower than its median stretch from which it is named."""


@dataclass(frozen=True)
class Throughput:
    """Work of one seed of a run.

    Attributes:
        name: the run, and the seed where it has several.
        completions: trained on, for each unit of compute.
        tokens: likewise.
        steps: likewise.
    """

    name: str
    completions: float
    tokens: float
    steps: float


def throughputs(item: Curve) -> list[Throughput]:
    """Work done for each unit of compute by every seed; NaN for what the evaluations do not count."""
    found = []
    for seed, label in enumerate(item.seeds):
        mine = item.select(np.flatnonzero(item.seed_N == seed))
        name = f"{item.run} (seed {label})" if len(item.seeds) > 1 else item.run
        rates = [_slope(mine, axis) for axis in ("completions", "tokens", "step")]
        found.append(Throughput(name, *rates))
    return found


def refuse_other_loads(curves: Sequence[Curve]) -> None:
    """Refuse to compare runs by hours of processors that were not loaded alike.

    An hour of a core is as much work as the machine has left for it. Hours of GPUs, which nobody else uses, and of a
    simulated clock are not looked at, nor runs that do not count tokens.

    Raises:
        LabError: with the work that they got done, and the axis that does hold.
    """
    loaded = [item for item in curves if item.unit == "core-hours" and item.clock != "virtual"]
    found = [one for item in loaded for one in throughputs(item) if np.isfinite(one.tokens) and one.tokens > 0]
    if len(found) < 2:
        return
    slowest, fastest = (choose(found, key=lambda one: one.tokens) for choose in (min, max))
    if fastest.tokens < LOADS * slowest.tokens:
        return
    axis = next((axis for axis in WORK if all(np.isfinite(_slope(item, axis)) for item in curves)), "step")
    raise LabError(
        f"core-hours of different machines or loads: {fastest.name} trained on {fastest.tokens:,.0f} tokens in one, "
        f"{slowest.name} on {slowest.tokens:,.0f}. Compare them by what load does not move: --column compute={axis}"
    )


def slow_stretch(item: Curve) -> str:
    """The slowest stretch between two evaluations of a run on a wall clock, in a sentence; empty if none stands out.

    A fault, a pause or another's load takes hours in which the recipe did nothing.
    """
    if item.clock == "virtual" or not item.unit.endswith("-hours") or "step" not in item.other_N:
        return ""
    slowest, note = SLOW, ""
    for seed in range(len(item.seeds)):
        mine = item.select(np.flatnonzero(item.seed_N == seed))
        steps_N, hours_N = np.diff(mine.other_N["step"]), np.diff(mine.compute_N)
        whole_N = (steps_N > 0) & (hours_N > 0)
        if whole_N.sum() < 3:
            continue
        pace_N = np.where(whole_N, hours_N / np.where(whole_N, steps_N, 1), np.nan)
        times_N = pace_N / np.nanmedian(pace_N)
        if np.nanmax(times_N) > slowest:
            at = int(np.nanargmax(times_N))
            slowest = float(times_N[at])
            since, until = mine.compute_N[at], mine.compute_N[at + 1]
            note = (
                f"from {since:.4g} to {until:.4g} {item.unit} a step took {slowest:.0f} times what it usually does: "
                "a fault, a pause or load, which bends the curve; --column compute=step leaves it out"
            )
    return note


def _slope(item: Curve, name: str) -> float:
    """Growth of a count over the growth of compute, from the first evaluation to the last."""
    if name not in item.other_N or len(item) < 2:
        return float("nan")
    spent, counted = np.ptp(item.compute_N), np.ptp(item.other_N[name])
    return float(counted / spent) if spent > 0 else float("nan")
