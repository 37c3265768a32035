"""Settings of a fit and checks of it: the half-budget back-test, and evaluations that fall out of the curve.

Axes: `_M` draws, `_N` points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.intervals import Interval, check_level, tails_of
from scalelab.curves.fitting.joint import Fit, FitError, fit_curve
from scalelab.curves.fitting.models import POWER, SIGMOID
from scalelab.curves.fitting.noise import DEFAULT, Prior
from scalelab.curves.fitting.paper import fit_paper
from scalelab.curves.fitting.posterior import Draws, posterior
from scalelab.defaults import LEVEL
from scalelab.errors import LabError
from scalelab.numbers import compact
from scalelab.reading.curve import Curve

FitMethod = Literal["joint", "paper", "power"]
FIT_METHODS: tuple[FitMethod, ...] = get_args(FitMethod)

DRIVES = 0.25
"""The prior is said to drive the answer if switching it off moves an end of A's interval by this share of its width,
or of `MARGIN` where the interval is narrower than that."""


@dataclass(frozen=True)
class Options:
    """Settings of a fit.

    Attributes:
        method: `joint` (sigmoid, all parameters at once), `paper` (its grid), `power` (power law, all at once).
        since: start of the window; None leaves out the first epoch where the run says how long it was.
        until: end of the window.
        r0: R0 to hold fixed; None takes the step-0 evaluation as a point, or leaves R0 free.
        level: probability that intervals are to hold.
        prior: beliefs of the joint fit; None for none.
        seed: of the random numbers behind draws.
        shapes: let other shapes than the sigmoid widen forecasts and the interval of A.
        checks: fit the first half of the budget and without the prior as well, to say how far the fit can be trusted.
    """

    method: FitMethod = "joint"
    since: float | None = None
    until: float | None = None
    r0: float | None = None
    level: float = LEVEL
    prior: Prior | None = DEFAULT
    seed: int = 0
    shapes: bool = True
    checks: bool = True

    def __post_init__(self) -> None:
        check_level(self.level)
        if self.method not in FIT_METHODS:
            raise LabError(f"unknown method {self.method!r}: use one of {', '.join(FIT_METHODS)}")
        for name, end in (("--since", self.since), ("--until", self.until)):
            if end is not None and (np.isnan(end) or end < 0):
                raise LabError(f"{name} {end:g} is no compute: give a number from 0 on")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise LabError(f"the window from {self.since:g} to {self.until:g} is empty: --since must be below --until")


@dataclass(frozen=True)
class BackTest:
    """Forecast of the second half of the budget by a fit of the first half, beside the measured points.

    Its evaluations share their forecast, so that most of them are inside or most of them outside their intervals
    together. The statement to judge it by is therefore about their mean: `inside` holds for a share `level` of runs.

    Attributes:
        until: compute at which that fit stopped looking.
        n_fit: points it had.
        n_scored: later points.
        mean_error: mean of forecast minus evaluation.
        mean_abs_error: mean absolute difference.
        covered: share of the later evaluations inside their own intervals.
        level: probability of the intervals.
        forecast: median of the forecast of the later evaluations' mean.
        interval: its interval: curve, drift and sampling noise.
        measured: the mean that came.
        percentile: share of the forecast that lies below the mean that came.
    """

    until: float
    n_fit: int
    n_scored: int
    mean_error: float
    mean_abs_error: float
    covered: float
    level: float
    forecast: float
    interval: Interval
    measured: float
    percentile: float

    @property
    def inside(self) -> bool:
        """True if the measured mean is inside its interval."""
        return self.interval[0] <= self.measured <= self.interval[1]


@dataclass(frozen=True)
class Outlier:
    """One evaluation that falls out of the curve.

    Attributes:
        compute: where.
        pass_rate: what it measured.
        expected: what the curve, and its seed, have there.
        sigmas: its distance in standard deviations of an evaluation.
        seed: name of its seed.
    """

    compute: float
    pass_rate: float
    expected: float
    sigmas: float
    seed: str


def fit_as(item: Curve, options: Options) -> Fit:
    """Fit one curve by the chosen method."""
    window = {"since": options.since, "until": options.until, "r0": options.r0}
    if options.method == "paper":
        return fit_paper(item, **window)
    return fit_curve(item, POWER if options.method == "power" else SIGMOID, prior=options.prior, **window)


def back_test(item: Curve, options: Options) -> BackTest | None:
    """Fit the first half of the budget and score it on the rest; None if that half does not carry a fit."""
    spent = float(min(item.compute_N.max(), np.inf if options.until is None else options.until))
    half = 0.5 * spent
    later = item.select((item.compute_N > half) & (item.compute_N <= spent))
    try:
        fit = fit_as(item, replace(options, until=half))
    except FitError:
        return None
    if not len(later):
        return None
    draws = posterior(fit, fit.prior, 1500, options.seed, quick=True)
    thin = later.select(np.unique(np.linspace(0, len(later) - 1, 200).astype(int)))
    value_MN = draws.value(thin.compute_N)
    error_N = np.median(value_MN, axis=0) - thin.pass_rate_N
    tails = tails_of(options.level)
    low_N, high_N = np.quantile(draws.evaluation(thin.compute_N), tails, axis=0)
    inside_N = (thin.pass_rate_N >= low_N) & (thin.pass_rate_N <= high_N)
    mean_M = np.clip(value_MN.mean(1) + _noise_of_mean(draws, later), 0, 1)
    measured = float(thin.pass_rate_N.mean())
    low, middle, high = np.quantile(mean_M, [tails[0], 0.5, tails[1]])
    return BackTest(
        until=half,
        n_fit=len(fit.curve),
        n_scored=len(later),
        mean_error=float(error_N.mean()),
        mean_abs_error=float(np.abs(error_N).mean()),
        covered=float(inside_N.mean()),
        level=options.level,
        forecast=float(middle),
        interval=(float(low), float(high)),
        measured=measured,
        percentile=float((mean_M < measured).mean()),
    )


DRIFTS_IN_A_HALF = 3
"""Independent stretches of drift that half of a budget is taken to have: lengths are 0.06 to 0.35 of the window."""


def _noise_of_mean(draws: Draws, later: Curve) -> Array:
    """Deviations `[M]` of the mean of later evaluations from the recipe's curve: sampling, drift and seeds."""
    rng = np.random.default_rng(1)
    white_M = np.sqrt(np.maximum(draws.noise_M**2 - draws.drift_M**2, 0))
    deviation_M = np.sqrt(
        white_M**2 / len(later)
        + draws.drift_M**2 / (DRIFTS_IN_A_HALF * len(later.seeds))
        + draws.spread_M**2 / len(later.seeds)
    )
    result: Array = deviation_M * rng.standard_normal(len(draws))
    return result


OUT = 4.5
"""Distance from the curve, in standard deviations of an evaluation, from which it is an outlier."""


def outliers(item: Curve, fit: Fit) -> tuple[Outlier, ...]:
    """Evaluations that fall out of the fitted curve, the farthest first.

    The standard deviation of an evaluation is the fitted noise scale times its standard error.
    """
    low, high = fit.window
    points = item.select((item.compute_N >= low) & (item.compute_N <= high))
    offset_N = np.zeros(len(points))
    if len(fit.curve.seeds) > 1:
        for at, name in enumerate(points.seeds):
            mine = fit.curve.seed_N == fit.curve.seeds.index(name) if name in fit.curve.seeds else None
            if mine is not None and mine.any():
                own_N = points.seed_N == at
                offset_N[own_N] = np.interp(points.compute_N[own_N], fit.curve.compute_N[mine], fit.offset_N[mine])
    expected_N = fit.value(points.compute_N) + offset_N
    relative_N = np.ones(len(points)) if points.stderr_N is None else points.stderr_N
    typical_sigma = fit.evaluation_sigma or float(np.median(fit.sigma_N))
    sigmas_N = (points.pass_rate_N - expected_N) / (typical_sigma * relative_N / np.median(relative_N))
    out = [at for at in np.argsort(-np.abs(sigmas_N)) if abs(sigmas_N[at]) > OUT]
    return tuple(
        Outlier(
            compute=float(points.compute_N[at]),
            pass_rate=float(points.pass_rate_N[at]),
            expected=float(expected_N[at]),
            sigmas=float(sigmas_N[at]),
            seed=points.seeds[points.seed_N[at]],
        )
        for at in out
    )


def fallen_remarks(fallen: Sequence[Outlier]) -> list[str]:
    """Name the evaluations that fall out of the curve, three of them at most."""
    lines = [
        f"the evaluation at {compact(one.compute)} falls out of the curve: {one.pass_rate:.3f} where "
        f"{one.expected:.3f} was due, {abs(one.sigmas):.0f} standard deviations "
        f"{'above' if one.sigmas > 0 else 'below'}"
        for one in fallen[:3]
    ]
    if len(fallen) > 3:
        lines.append(f"{len(fallen) - 3} more evaluations fall out of the curve")
    return lines
