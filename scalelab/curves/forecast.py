"""Effect of further compute: forecasts, compute for a target, advice to extend a run or not, crossings of curves.

Axes: `_M` draws, `_C` points of compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalelab.curves.analysis import Analysis
from scalelab.curves.fitting.intervals import Interval, equal_tailed
from scalelab.curves.fitting.models import LOG_ZERO, Array
from scalelab.curves.fitting.posterior import Draws
from scalelab.curves.fitting.shapes import widen
from scalelab.errors import LabError
from scalelab.numbers import percent

UNREACHABLE = 0.95
"""Probability that A lies below a target from which on the target is called not reachable."""

WORTHWHILE = 0.01
"""Gain in pass rate below which doubling the budget is not worth it, unless the caller says otherwise."""


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
        compute: median of the compute at which the curve reaches it; None if it more likely never does.
        interval: of that compute; the upper end is None where "never" is among the possibilities.
        probability: that the curve reaches it at all (A above it).
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
        gain_if_doubled: expected gain from spending as much again.
        interval: of that gain.
        probability_worthwhile: that it reaches `worthwhile`.
        worthwhile: the gain that was asked for.
        reading: `extend`, `stop` or `unclear`, with the reason.
    """

    spent: float
    gain_per_hour: float
    gain_if_doubled: float
    interval: Interval
    probability_worthwhile: float
    worthwhile: float
    reading: str


def forecast(analysis: Analysis, at: Sequence[float]) -> list[Forecast]:
    """Forecasts at some compute.

    Raises:
        LabError: a compute that is not positive, or a fit without uncertainty.
    """
    draws = analysis.curve_draws()
    for compute in at:
        if not compute > 0 or not np.isfinite(compute):
            raise LabError(f"cannot forecast at a compute of {compute:g}: give positive numbers")
    middle_C = np.median(draws.value(list(at)), axis=0)
    ends = zip(*analysis.evaluation_interval(list(at)), *analysis.value_interval(list(at)))
    return [
        Forecast(float(compute), float(middle), (float(low), float(high)), (float(curve_low), float(curve_high)))
        for compute, middle, (low, high, curve_low, curve_high) in zip(at, middle_C, ends)
    ]


def compute_for(analysis: Analysis, target: float) -> Target:
    """The compute needed to reach a pass rate.

    Raises:
        LabError: the target is no pass rate.
    """
    if not 0 < target < 1:
        raise LabError(f"a target of {target:g} is no pass rate: give one between 0 and 1")
    draws = analysis.curve_draws()
    tails = [(1 - analysis.level) / 2, 0.5, (1 + analysis.level) / 2]
    ends = _reached(draws, draws.model.inverse(draws.theta_MP, target), tails)
    if analysis.shapes is None:
        probability = float(np.isfinite(draws.model.inverse(draws.theta_MP, target)).mean())
    else:
        u_M = analysis.shapes.reached(target)
        probability = float(np.isfinite(u_M).mean())
        wider = _reached(draws, u_M, tails)
        ends = [min(ends[0], wider[0]), ends[1], max(ends[2], wider[2])]
    low, median, high = (value if np.isfinite(value) else None for value in ends)
    if 1 - probability >= UNREACHABLE:
        reading = f"not reachable: A is below it with {percent(1 - probability)}"
        return Target(target, None, (None, None), probability, reading)
    unit = analysis.fit.curve.unit
    if median is None:
        reading = f"probably not reachable: A is below it with {percent(1 - probability)}"
    elif median <= analysis.fit.window[1]:
        reading = "reached already" if probability > 0.99 else "reached already, as far as the curve tells"
    else:
        reading = f"{median - analysis.fit.window[1]:.3g} {unit} more"
    return Target(target, median, (low, high), probability, reading)


def extend_or_stop(analysis: Analysis, worthwhile: float = WORTHWHILE) -> Extension:
    """Estimate the gain of doubling the budget, and whether it is worthwhile."""
    if not worthwhile >= 0:
        raise LabError(f"a gain of {worthwhile:g} is none: give the pass rate that doubling the budget is to add")
    spent = analysis.fit.window[1]
    here_M, soon_M, doubled_M = analysis.curve_draws().value([spent, spent * 1.01, 2 * spent]).T
    gain_M = doubled_M - here_M
    expected, interval = float(gain_M.mean()), equal_tailed(gain_M, analysis.level)
    if analysis.shapes is not None:
        before_M, after_M = analysis.shapes.value([spent, 2 * spent]).T
        low, high = widen(gain_M[:, None], (after_M - before_M)[:, None], analysis.level, analysis.shapes.stretch)
        interval, gain_M = (max(0.0, float(low[0])), float(high[0])), after_M - before_M
    probability = float((gain_M >= worthwhile).mean())
    gain = f"doubling the budget is expected to add {expected:.3f} ({interval[0]:.3f} to {interval[1]:.3f})"
    if probability >= 0.8:
        reading = f"extend: {gain}"
    elif probability <= 0.2:
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
    )


def band(analysis: Analysis, compute: Array | Sequence[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lower end, median and upper end of the curve at some compute, for plots."""
    low, high = analysis.value_interval(compute)
    return low, np.median(analysis.curve_draws().value(compute), axis=0), high


def entry(analysis: Analysis) -> dict[str, Any]:
    """The keys that name a curve in JSON."""
    curve = analysis.fit.curve
    return {"source": curve.source, "run": curve.run, "task": curve.task, "clock": curve.clock}


def _reached(draws: Draws, u_M: Array, tails: Sequence[float]) -> list[float]:
    """Quantiles of the compute at which curves reach a pass rate; infinite where they never do."""
    compute_M = np.where(u_M <= LOG_ZERO, 0.0, np.exp(np.minimum(u_M, 600) + draws.log_reference))
    compute_M[np.isinf(u_M)] = np.inf
    return [float(value) for value in np.quantile(compute_M, tails, method="inverted_cdf")]


@dataclass(frozen=True)
class Crossing:
    """Crossing of two runs' curves.

    Attributes:
        first: a run.
        second: another.
        probability: that one is ahead where it is ahead most probably, and the other where that is.
        compute: median compute of the crossing; None unless each is ahead somewhere with `LEAD`.
        interval: its interval, given that they cross.
        leader_before: who is probably ahead before it.
    """

    first: str
    second: str
    probability: float
    compute: float | None
    interval: Interval | None
    leader_before: str


LEAD = 0.8
"""Probability of being ahead that counts as a lead where crossings are looked for."""


def crossings(items: Sequence[Analysis], size: int = 1000) -> tuple[Crossing, ...]:
    """The crossings of every pair on a logarithmic grid, from the first evaluation to a hundred times the compute."""
    if len(items) < 2:
        return ()
    start = max(item.fit.window[0] for item in items)
    end = 100 * max(item.fit.window[1] for item in items)
    compute_C = np.geomspace(start, end, 120)
    drawn = [_spread_out(item.curve_draws(), size).value(compute_C) for item in items]
    order = np.random.default_rng(0).permutation(min(len(each) for each in drawn))
    return tuple(
        _crossing(items[one], items[other], compute_C, drawn[one][: len(order)], drawn[other][order])
        for one in range(len(items))
        for other in range(one + 1, len(items))
    )


def _crossing(first: Analysis, second: Analysis, compute_C: Array, one_MC: Array, two_MC: Array) -> Crossing:
    """A crossing of two curves: each must lead somewhere, or curves that are the same would seem to cross."""
    ahead_MC = one_MC > two_MC
    lead_C = ahead_MC.mean(0)
    top, bottom = int(lead_C.argmax()), int(lead_C.argmin())
    runs = first.fit.curve.run, second.fit.curve.run
    crossed_M = ahead_MC[:, top] & ~ahead_MC[:, bottom]
    before = runs[0] if top < bottom else runs[1]
    if lead_C[top] < LEAD or lead_C[bottom] > 1 - LEAD or not crossed_M.any():
        return Crossing(*runs, probability=float(crossed_M.mean()), compute=None, interval=None, leader_before=before)
    low, high = sorted((top, bottom))
    between_MC = ahead_MC[crossed_M, low : high + 1]
    last_M = between_MC.shape[1] - 2 - np.argmax((between_MC[:, 1:] != between_MC[:, :-1])[:, ::-1], axis=1)
    at_M = np.sqrt(compute_C[low + last_M] * compute_C[low + last_M + 1])
    return Crossing(
        *runs,
        probability=float(crossed_M.mean()),
        compute=float(np.median(at_M)),
        interval=equal_tailed(at_M, first.level),
        leader_before=before,
    )


def _spread_out(draws: Draws, size: int) -> Draws:
    """Fewer draws, evenly taken."""
    chosen_M = np.linspace(0, len(draws) - 1, min(size, len(draws))).astype(int)
    return replace(
        draws,
        theta_MP=draws.theta_MP[chosen_M],
        noise_M=draws.noise_M[chosen_M],
        spread_M=draws.spread_M[chosen_M],
        drift_M=draws.drift_M[chosen_M],
    )
