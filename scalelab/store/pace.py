"""Pace of a run: what its steps cost beside what its plan has, and what the rest of its budget will take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from scalelab.numbers import compact

SETTLED = 3
"""First steps of a run that are left out: compilation, empty engines."""
FEWEST = 5
"""Steps that a pace needs behind those."""


@dataclass(frozen=True)
class RunPace:
    """Measured cost of a run's steps, and the forecast that follows from it.

    Attributes:
        steps: first and last step that were read.
        step_compute: compute of a step, the median, in the run's unit.
        planned: the same by the plan, which has lower bounds; None if the run's devices are not named.
        left: steps to the end of the budget.
        compute: what they take at this pace, evaluations among them, in the run's unit.
        hours: the same on the run's clock.
        cost: the price of that compute, in the currency of `Budget.hour_price`; None where none was given.
    """

    steps: tuple[int, int]
    step_compute: float
    planned: float | None
    left: int
    compute: float
    hours: float
    cost: float | None = None

    def lines(self, unit: str) -> list[str]:
        """Sentences for people."""
        said = f"a step takes {self.step_compute:.3g} {unit} in the median"
        if self.planned:
            said += f", {self.step_compute / self.planned:.2f} times the plan's {self.planned:.3g}"
        left = f"{self.left} steps are left: {self.compute:.3g} {unit} and {self.hours:.3g} hours at this pace"
        left += ", evaluations among them"
        return [said, left if self.cost is None else f"{left}, for {compact(self.cost)}"]


def pace(manifest: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> RunPace | None:
    """Read the pace off a run's steps; None where there are too few, or lines lack what it needs.

    Args:
        manifest: content of the run's `manifest.json`.
        records: lines of its `metrics.jsonl`.
    """
    try:
        by_step = {int(one["step"]): (float(one["compute"]), float(one["time"])) for one in records}
        last, budget, planned = max(by_step), manifest["budget"], manifest["planned_step_compute"]
        read = [step for step in sorted(by_step)[SETTLED:] if step - 1 in by_step]
        costs = [by_step[step][0] - by_step[step - 1][0] for step in read]
        seconds = [by_step[step][1] - by_step[step - 1][1] for step in read]
        left, mean = max(0, int(budget["steps"]) - last), fmean(costs) if costs else 0.0
        if len(read) < FEWEST or not min(mean, median(costs)) > 0:
            return None
        if budget["hours"] is not None:
            left = min(left, max(0, math.ceil((float(budget["hours"]) - by_step[last][0]) / mean)))
        hours = left * mean * median(seconds) / median(costs) / 3600
        planned, price = None if planned is None else float(planned), budget.get("hour_price")
        cost = None if price is None else left * mean * float(price)
        cost = cost if cost is not None and math.isfinite(cost) else None
        return RunPace((read[0], read[-1]), median(costs), planned, left, left * mean, hours, cost)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None
