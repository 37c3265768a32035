"""Effect of further compute, by the curve's draws: forecasts, compute for a target, advice to extend a run or not.

Axes: `_M` draws, `_C` points of compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.analysis import Analysis
from scalelab.curves.fitting.intervals import Interval, equal_tailed, tails_of
from scalelab.defaults import WORTHWHILE
from scalelab.errors import LabError
from scalelab.numbers import percent, quantity

UNREACHABLE = 0.95
"""Probability that a curve stays below a target from which on the target is called not reachable."""

FAR_OFF = 100.0
"""Multiple of the compute spent beyond which no compute is named for a target."""

STOP, EXTEND = 0.2, 0.8
"""Probability that the gain is worthwhile up to which the advice is to stop, and from which on it is to extend."""


@dataclass(frozen=True)
class Forecast:
    """The pass rate at some compute.

    Attributes:
        at: the compute.
        value: median of the curve there.
        interval: where an evaluation there would fall: the curve's uncertainty, drift and sampling noise.
        curve_interval: where the curve itself lies.
    """

    at: float
    value: float
    interval: Interval
    curve_interval: Interval


@dataclass(frozen=True)
class Target:
    """The compute that a pass rate takes.

    Attributes:
        target: the pass rate.
        compute: median of the compute at which the curve reaches it, or falls to it where the task forgets (0 if it
            starts there or beyond); None if it more likely never does.
        interval: of that compute; the upper end is None where "never" is among the possibilities.
        probability: that the curve reaches it at all, with whatever compute.
        reading: in words.
    """

    target: float
    compute: float | None
    interval: tuple[float | None, float | None]
    probability: float
    reading: str


@dataclass(frozen=True)
class Extension:
    """Advice to extend a run or to stop.

    Attributes:
        spent: compute so far.
        gain_per_hour: expected gain in pass rate per further unit of compute, at the end of the run.
        gain_if_doubled: median of the gain from spending as much again.
        interval: of that gain.
        probability_worthwhile: that it reaches `worthwhile`.
        worthwhile: the gain that was asked for.
        reading: `extend`, `stop` or `unclear`, with the reason.
        text: the gain in words, such as "add 0.020 (0.010 to 0.030)".
    """

    spent: float
    gain_per_hour: float
    gain_if_doubled: float
    interval: Interval
    probability_worthwhile: float
    worthwhile: float
    reading: str
    text: str


def forecast(analysis: Analysis, at: Sequence[float]) -> list[Forecast]:
    """Forecasts at some compute.

    Raises:
        LabError: a compute that is not positive, or a fit without uncertainty.
    """
    for compute in at:
        if not compute > 0 or not np.isfinite(compute):
            raise LabError(f"cannot forecast at a compute of {compute:g}: give positive numbers")
    middle_C = np.median(analysis.draws().value(list(at)), axis=0)
    ends = zip(*analysis.evaluation_interval(list(at)), *analysis.value_interval(list(at)))
    return [
        Forecast(float(compute), float(middle), (float(low), float(high)), (float(curve_low), float(curve_high)))
        for compute, middle, (low, high, curve_low, curve_high) in zip(at, middle_C, ends)
    ]


def compute_for(analysis: Analysis, target: float) -> Target:
    """The compute needed to reach a pass rate, or to fall to it where the task forgets.

    Raises:
        LabError: the target is no pass rate.
    """
    if not 0 < target < 1:
        raise LabError(f"a target of {target:g} is no pass rate: give one between 0 and 1")
    return target_of(analysis, target, analysis.draws().reached(target))


def target_of(analysis: Analysis, target: float, reached_M: Array) -> Target:
    """Summary of the compute at which the draws reach a pass rate.

    Args:
        analysis: the curve.
        target: the pass rate.
        reached_M: compute at which each draw reaches it, or falls to it, infinite for never.
    """
    side, reachable, there = "below", "reachable", "reached"
    if analysis.falls:
        side, reachable, there = "above", "fallen to", "fallen to it"
    probability = float(np.isfinite(reached_M).mean())
    tails = tails_of(analysis.level, 0.5)
    ends = np.quantile(reached_M, tails, method="inverted_cdf")
    low, median, high = (float(value) if np.isfinite(value) else None for value in ends)
    if 1 - probability >= UNREACHABLE:
        reading = f"not {reachable}: the curve stays {side} it with {percent(1 - probability)}"
        return Target(target, None, (None, None), probability, reading)
    end, unit = analysis.fit.window[1], analysis.fit.curve.unit
    if median is None:
        reading = f"probably not {reachable}: the curve stays {side} it with {percent(1 - probability)}"
    elif median == 0 and analysis.falls:
        reading = "below it from the start, and it falls"
    elif median <= end:
        already = float((reached_M <= end).mean())
        reading = f"{there} already" if already > 0.99 else f"probably {there} already ({percent(already)})"
    elif median > FAR_OFF * end:
        reading = f"more than {FAR_OFF:g} times the compute so far, which no run can foretell"
    else:
        reading = f"{quantity(median - end, unit)} more"
    return Target(target, median, (low, high), probability, reading)


def extend_or_stop(analysis: Analysis, worthwhile: float = WORTHWHILE) -> Extension:
    """Estimate the gain of doubling the budget, and whether it is worthwhile."""
    if not worthwhile >= 0:
        raise LabError(f"a gain of {worthwhile:g} is none: give the pass rate that doubling the budget is to add")
    spent = analysis.fit.window[1]
    here_M, soon_M, doubled_M = analysis.draws().value([spent, spent * 1.01, 2 * spent]).T
    gain_M = doubled_M - here_M
    expected, interval = float(np.median(gain_M)), equal_tailed(gain_M, analysis.level)
    probability = float((gain_M >= worthwhile).mean())
    text, worse = gain_text(expected, interval, analysis.falls), analysis.falls and interval[1] <= 0
    gain = f"doubling the budget would {text}"
    if probability >= EXTEND:
        reading = f"extend: {gain}"
    elif probability <= STOP and worse:
        reading = f"stop: more compute makes this task worse, as it forgets; {gain}"
    elif probability <= STOP:
        reading = f"stop: {gain}, below {worthwhile:g} with {percent(1 - probability)}"
    else:
        reading = f"unclear: {gain}; at least {worthwhile:g} with {percent(probability)}"
    return Extension(
        spent=spent,
        gain_per_hour=float((soon_M - here_M).mean() / (0.01 * spent)),
        gain_if_doubled=expected,
        interval=interval,
        probability_worthwhile=probability,
        worthwhile=worthwhile,
        reading=reading,
        text=text,
    )


def gain_text(gain: float, interval: Interval, falls: bool) -> str:
    """Gain in words, such as "add 0.020 (0.010 to 0.030)".

    Args:
        gain: in pass rate.
        interval: of that gain.
        falls: whether it may be a loss.
    """
    if falls and interval[1] <= 0:
        return f"lower it by {abs(gain):.3f} ({abs(interval[1]):.3f} to {abs(interval[0]):.3f})"
    middle, low, high = (f"{round(one, 3) + 0.0:.3f}" for one in (gain, *interval))  # never -0.000
    return f"{'change it by' if falls else 'add'} {middle} ({low} to {high})"


def band(analysis: Analysis, compute: Array | Sequence[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lower end, median and upper end of the curve at some compute, for plots."""
    low, high = analysis.value_interval(compute)
    return low, np.median(analysis.draws().value(compute), axis=0), high


def entry(analysis: Analysis) -> dict[str, Any]:
    """The keys that name a curve in JSON."""
    curve = analysis.fit.curve
    return {
        "source": curve.source,
        "run": curve.run,
        "task": curve.task,
        "clock": curve.clock,
        "forgets": analysis.falls,
    }
