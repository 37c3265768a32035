"""Everything there is to say of one curve: fit, draws, intervals, back-test, and what the prior did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from scalelab.curves.data import Curve
from scalelab.curves.fitting.intervals import Interval, Method, check_level, draw, intervals
from scalelab.curves.fitting.joint import Fit, FitError, fit_curve
from scalelab.curves.fitting.models import POWER, SIGMOID
from scalelab.curves.fitting.paper import fit_paper
from scalelab.curves.fitting.posterior import Draws, posterior
from scalelab.curves.fitting.prior import DEFAULT, Prior
from scalelab.errors import LabError

FitMethod = Literal["joint", "paper", "power"]
FIT_METHODS: tuple[FitMethod, ...] = get_args(FitMethod)


MARGIN = 0.02
"""Two asymptotes closer than this are the same (ScaleRL §3.2)."""

DRIVES = 0.25
"""The prior is said to drive the answer if switching it off moves an end of A's interval by this share of its width,
or of `MARGIN` where the interval is narrower than that."""


@dataclass(frozen=True)
class Options:
    """How to fit.

    Attributes:
        method: `joint` (sigmoid, all parameters at once), `paper` (its grid), `power` (power law, all at once).
        since: start of the window; None leaves out the first epoch where the run says how long it was.
        until: end of the window.
        r0: R0 to hold fixed; None takes the step-0 evaluation as a point, or leaves R0 free.
        level: probability that intervals are to hold.
        interval: kind of interval.
        prior: beliefs of the joint fit; None for none.
        seed: of the random numbers behind draws.
    """

    method: FitMethod = "joint"
    since: float | None = None
    until: float | None = None
    r0: float | None = None
    level: float = 0.8
    interval: Method = "posterior"
    prior: Prior | None = DEFAULT
    seed: int = 0

    def __post_init__(self) -> None:
        check_level(self.level)
        if self.method not in FIT_METHODS:
            raise LabError(f"unknown method {self.method!r}: use one of {', '.join(FIT_METHODS)}")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise LabError(f"the window from {self.since:g} to {self.until:g} is empty: --since must be below --until")


@dataclass(frozen=True)
class BackTest:
    """How a fit on the first half of the budget foretold the rest.

    Attributes:
        until: compute at which that fit stopped looking.
        n_fit: points it had.
        n_scored: later points.
        mean_error: mean of forecast minus evaluation.
        mean_abs_error: mean absolute difference.
        covered: share of the later evaluations inside their predictive intervals.
        level: share that should be.
    """

    until: float
    n_fit: int
    n_scored: int
    mean_error: float
    mean_abs_error: float
    covered: float
    level: float


@dataclass(frozen=True)
class Analysis:
    """A fit and what follows from it.

    Attributes:
        fit: the fitted curve.
        draws: curves that the points leave possible; None for the paper's method, which has no uncertainty.
        intervals: of the parameters.
        level: their probability.
        backtest: None where half of the points do not carry a fit.
        without_prior: intervals with the prior switched off, where a prior was used.
        warnings: of the fit, and of the prior where it drives the answer.
    """

    fit: Fit
    draws: Draws | None
    intervals: dict[str, Interval]
    level: float
    backtest: BackTest | None = None
    without_prior: dict[str, Interval] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        ends = {name: f" [{low:.4g}, {high:.4g}]" for name, (low, high) in self.intervals.items()}
        values = (f"{name} {value:.4g}{ends.get(name, '')}" for name, value in self.fit.parameters.items())
        return f"<Analysis of {self.fit.curve.name}: {', '.join(values)}>"

    def summary(self) -> dict[str, Any]:
        """The entry of `scalelab fit --json`."""
        return self.fit.summary() | {
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "level": self.level,
            "intervals_by": self.draws.origin if self.draws else None,
            "covariance": self.draws.covariance() if self.draws else None,
            "without_prior": {name: list(interval) for name, interval in self.without_prior.items()},
            "warnings": list(self.warnings),
            "backtest": vars(self.backtest).copy() if self.backtest else None,
        }


def fit_as(item: Curve, options: Options) -> Fit:
    """Fit one curve by the chosen method."""
    window = {"since": options.since, "until": options.until, "r0": options.r0}
    if options.method == "paper":
        return fit_paper(item, **window)
    return fit_curve(item, POWER if options.method == "power" else SIGMOID, prior=options.prior, **window)


def analyse(item: Curve, options: Options | None = None) -> Analysis:
    """Fit one curve and say how sure that is.

    Raises:
        FitError: the points do not carry a curve.
    """
    options = options or Options()
    fit = fit_as(item, options)
    if options.method == "paper":
        return Analysis(fit, None, {}, options.level, warnings=fit.warnings)
    draws = draw(fit, options.interval, seed=options.seed)
    found = intervals(fit, draws, options.level, options.interval)
    without, remarks = _without_prior(item, options, found)
    return Analysis(
        fit=fit,
        draws=draws,
        intervals=found,
        level=options.level,
        backtest=back_test(item, options),
        without_prior=without,
        warnings=(*fit.warnings, *remarks),
    )


def analyse_all(curves: Sequence[Curve], options: Options | None = None) -> tuple[list[Analysis], list[dict[str, str]]]:
    """Analyse every curve; those that carry no fit are listed with the reason instead of stopping the rest."""
    analyses, refused = [], []
    for item in curves:
        try:
            analyses.append(analyse(item, options))
        except FitError as reason:
            refused.append({"source": item.source, "run": item.run, "task": item.task, "reason": str(reason)})
    return analyses, refused


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
    draws = draw(fit, options.interval, size=1500, seed=options.seed)
    error_N = np.median(draws.value(later.compute_N), axis=0) - later.pass_rate_N
    tails = [(1 - options.level) / 2, (1 + options.level) / 2]
    low_N, high_N = np.quantile(draws.evaluation(later.compute_N), tails, axis=0)
    inside_N = (later.pass_rate_N >= low_N) & (later.pass_rate_N <= high_N)
    return BackTest(
        until=half,
        n_fit=len(fit.curve),
        n_scored=len(later),
        mean_error=float(error_N.mean()),
        mean_abs_error=float(np.abs(error_N).mean()),
        covered=float(inside_N.mean()),
        level=options.level,
    )


def _without_prior(item: Curve, options: Options, found: dict[str, Interval]) -> tuple[dict[str, Interval], list[str]]:
    """Intervals with flat beliefs instead, and a warning if an end of A's moves much."""
    if options.prior is None or options.method != "joint":
        return {}, []
    fit = fit_as(item, replace(options, prior=None))
    flat = intervals(fit, posterior(fit, None, size=2000, seed=options.seed), options.level)
    (low, high), (flat_low, flat_high) = found["A"], flat["A"]
    moved = max(abs(flat_low - low), abs(flat_high - high)) / max(high - low, MARGIN)
    if moved > DRIVES:
        return flat, [f"the prior drives the answer: without it A would be in {flat_low:.3f}–{flat_high:.3f}"]
    return flat, []
