"""Tasks of one recipe that rise, or fall, in parallel or not: the ratio of their B, and of their C_mid.

Tasks trained by one policy rise in parallel if a factor of compute takes both the same share of their way: in log
compute the curves then have one steepness, and a shift between them. So the question is whether B₁/B₂ lies within a
margin of 1; the ratio of C_mid is the shift. Both are read from the tasks' draws given sigmoids, all seeds together.

Axes: `_M` draws.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np

from scalelab.curves.analysis import Analysis
from scalelab.curves.fitting.intervals import Interval, equal_tailed
from scalelab.curves.fitting.models import SIGMOID
from scalelab.defaults import PARALLEL_MARGIN
from scalelab.errors import LabError
from scalelab.numbers import percent, with_interval_of_ratio

ParallelVerdict = Literal["parallel", "not parallel", "cannot tell", "one rises, one falls"]

ERROR = 0.1
"""Probability that a verdict is wrong."""


@dataclass(frozen=True)
class Parallel:
    """Two tasks of one recipe.

    Attributes:
        run: the recipe.
        tasks: the two.
        B_ratio: median of B₁/B₂.
        B_interval: of that ratio, with 1 − error.
        C_mid_ratio: median of C_mid₁/C_mid₂.
        C_mid_interval: of that ratio.
        within: probability that B₁/B₂ lies within the margin.
        margin: the ratio up to which tasks count as parallel.
        verdict: `parallel` if the interval lies within the margin, `not parallel` if it lies outside of it; none of
            these where `one rises, one falls`.
        seeds: of each of the two.
    """

    run: str
    tasks: tuple[str, str]
    B_ratio: float
    B_interval: Interval
    C_mid_ratio: float
    C_mid_interval: Interval
    within: float
    margin: float
    verdict: ParallelVerdict
    seeds: tuple[int, int]

    def text(self) -> str:
        """The two tasks in a sentence."""
        first, second = self.tasks
        if self.verdict == "one rises, one falls":
            return f"{self.run}: {first} and {second}: {self.verdict}, so whether they are parallel is not asked"
        word = f"parallel within {self.margin:g}" if self.verdict == "parallel" else self.verdict
        chance = f"within {self.margin:g} with {percent(self.within)}"
        B = with_interval_of_ratio(self.B_ratio, self.B_interval)
        shift = with_interval_of_ratio(self.C_mid_ratio, self.C_mid_interval)
        return f"{self.run}: {first} and {second}: {word}; ratio of B {B} ({chance}), of C_mid {shift}"

    def as_json(self) -> dict[str, Any]:
        """The entry of `--json`."""
        return vars(self).copy()


def parallel(items: Iterable[Analysis], margin: float = PARALLEL_MARGIN) -> list[Parallel]:
    """Every pair of tasks of every recipe.

    Args:
        items: fitted sigmoids of any runs and tasks.
        margin: ratio of B, above 1, up to which two tasks count as parallel.

    Raises:
        LabError: the margin is no ratio above 1.
    """
    if not margin > 1:
        raise LabError(f"a margin of {margin:g} makes no sense: give a ratio of B above 1, such as {PARALLEL_MARGIN:g}")
    items, found = list(items), []
    for run in dict.fromkeys(item.fit.curve.run for item in items):
        tasks = [item for item in items if item.fit.curve.run == run and item.fit.model is SIGMOID and item.curves]
        found += [
            _pair(first, second, margin)
            for first, second in combinations(tasks, 2)
            if first.fit.curve.counted_in == second.fit.curve.counted_in
        ]
    return found


def _pair(first: Analysis, second: Analysis, margin: float) -> Parallel:
    one, two = (item.draws().sigmoid for item in (first, second))
    size = min(len(one), len(two))
    order_M = np.random.default_rng(0).permutation(size)  # the tasks' draws are independent
    theta_MP = one.theta_MP[:size] - two.theta_MP[:size][order_M]
    log_B_M, log_shift_M = theta_MP[:, 2], theta_MP[:, 3] + one.log_reference - two.log_reference
    low, high = equal_tailed(np.exp(log_B_M), 1 - ERROR)
    verdict: ParallelVerdict = "cannot tell"
    if first.falls != second.falls:
        verdict = "one rises, one falls"
    elif 1 / margin < low and high < margin:
        verdict = "parallel"
    elif high < 1 / margin or low > margin:
        verdict = "not parallel"
    return Parallel(
        run=first.fit.curve.run,
        tasks=(first.fit.curve.task, second.fit.curve.task),
        B_ratio=float(np.exp(np.median(log_B_M))),
        B_interval=(low, high),
        C_mid_ratio=float(np.exp(np.median(log_shift_M))),
        C_mid_interval=equal_tailed(np.exp(log_shift_M), 1 - ERROR),
        within=float((np.abs(log_B_M) < np.log(margin)).mean()),
        margin=margin,
        verdict=verdict,
        seeds=(len(first.fit.curve.seeds), len(second.fit.curve.seeds)),
    )
