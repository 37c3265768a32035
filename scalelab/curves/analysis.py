"""Everything there is to say of one curve: fit, draws, intervals, back-test, and what the prior did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from scalelab.curves.data import Curve, curve
from scalelab.curves.fitting.intervals import Interval, Method, check_level, draw, intervals
from scalelab.curves.fitting.joint import Fit, FitError, fit_curve
from scalelab.curves.fitting.models import POWER, SIGMOID, Array
from scalelab.curves.fitting.paper import fit_paper
from scalelab.curves.fitting.posterior import Draws, posterior
from scalelab.curves.fitting.prior import DEFAULT, Prior
from scalelab.curves.fitting.shapes import Shapes, other_shapes, widen
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
    """Settings of a fit.

    Attributes:
        method: `joint` (sigmoid, all parameters at once), `paper` (its grid), `power` (power law, all at once).
        since: start of the window; None leaves out the first epoch where the run says how long it was.
        until: end of the window.
        r0: R0 to hold fixed; None takes the step-0 evaluation as a point, or leaves R0 free.
        level: probability that intervals are to hold.
        interval: kind of interval.
        prior: beliefs of the joint fit; None for none.
        seed: of the random numbers behind draws.
        shapes: let other shapes than the sigmoid widen forecasts and the interval of A.
    """

    method: FitMethod = "joint"
    since: float | None = None
    until: float | None = None
    r0: float | None = None
    level: float = 0.8
    interval: Method = "posterior"
    prior: Prior | None = DEFAULT
    seed: int = 0
    shapes: bool = True

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

    @property
    def stretch(self) -> float:
        """Factor that a forecast by this run deserves: how far out the mean came beyond what one run in ten does.

        The normal score of its percentile over 1.645, at least 1 and at most 3.
        """
        return float(np.clip(abs(_normal_score(self.percentile)) / 1.645, 1, 3))


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


@dataclass(frozen=True)
class Analysis:
    """A fitted curve and what follows from it.

    Attributes:
        fit: the fitted curve.
        draws: sigmoids (or power laws) that the points leave possible; None for the paper's method, which has no
            uncertainty.
        intervals: of the parameters.
        level: their probability.
        backtest: None where half of the points do not carry a fit.
        without_prior: intervals with the prior switched off, where a prior was used.
        warnings: of the fit, of the prior where it drives the answer, of another shape where the points favour it.
        shapes: what other shapes make of the points; None where they were not asked for.
        outliers: evaluations that fall out of the curve.
        intervals_by: how the intervals were found.
    """

    fit: Fit
    draws: Draws | None
    intervals: dict[str, Interval]
    level: float
    backtest: BackTest | None = None
    without_prior: dict[str, Interval] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    shapes: Shapes | None = None
    outliers: tuple[Outlier, ...] = ()
    intervals_by: str | None = None

    def __repr__(self) -> str:
        ends = {name: f" [{low:.4g}, {high:.4g}]" for name, (low, high) in self.intervals.items()}
        values = (f"{name} {value:.4g}{ends.get(name, '')}" for name, value in self.fit.parameters.items())
        return f"<Analysis of {self.fit.curve.name}: {', '.join(values)}>"

    @property
    def params(self) -> dict[str, float]:
        """Parameters by name: R0, A, B, C_mid of the sigmoid; A, B, D of the power law."""
        return self.fit.parameters

    def conf_int(self) -> dict[str, Interval]:
        """Interval of every parameter, of the probability `level`."""
        return dict(self.intervals)

    def predict(self, compute: Sequence[float] | float) -> list[dict[str, float]]:
        """Pass rate at some compute: `compute`, `value`, and the `low` and `high` ends for an evaluation there."""
        at = np.atleast_1d(np.asarray(compute, float))
        if not (np.isfinite(at).all() and (at > 0).all()):
            raise LabError("cannot predict at a compute that is not a positive number")
        middle_C = np.median(self.curve_draws().value(at), axis=0)
        rows = zip(at.tolist(), middle_C.tolist(), *(ends.tolist() for ends in self.evaluation_interval(at)))
        return [dict(zip(("compute", "value", "low", "high"), row)) for row in rows]

    def summary(self) -> str:
        """The fit in a few lines of text."""
        lines = [f"{self.fit.curve.name}: {self.fit.model.name}, {len(self.fit.curve)} points"]
        for name, number in self.params.items():
            low, high = self.intervals.get(name, (np.nan, np.nan))
            lines.append(f"  {name:6s} {number:10.4g}   {self.level:.0%} [{low:.4g}, {high:.4g}]")
        return "\n".join([*lines, *(f"  ! {warning}" for warning in self.warnings)])

    def to_frame(self) -> Any:
        """A pandas table of the parameters: `value`, `low`, `high`.

        Raises:
            LabError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise LabError("tables need pandas: pip install pandas") from None
        rows = {name: [number, *self.intervals.get(name, (np.nan, np.nan))] for name, number in self.params.items()}
        return pandas.DataFrame.from_dict(rows, orient="index", columns=["value", "low", "high"])

    def as_json(self) -> dict[str, Any]:
        """The entry of `scalelab fit --json`."""
        shapes = dict(zip(self.shapes.names, self.shapes.probability)) if self.shapes else None
        return self.fit.as_json() | {
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "level": self.level,
            "intervals_by": self.intervals_by,
            "covariance": self.draws.covariance() if self.draws else None,
            "without_prior": {name: list(interval) for name, interval in self.without_prior.items()},
            "warnings": list(self.warnings),
            "backtest": vars(self.backtest) | {"inside": self.backtest.inside} if self.backtest else None,
            "shapes": shapes,
            "outliers": [vars(item).copy() for item in self.outliers],
            "seeds": len(self.fit.curve.seeds),
            "clock": self.fit.curve.clock,
        }

    def curve_draws(self) -> Draws:
        """The draws.

        Raises:
            LabError: the method has none.
        """
        if self.draws is None:
            raise LabError("the paper's method has no uncertainty: use --method joint")
        return self.draws

    def sigmoid_draws(self) -> Draws:
        """Sigmoids to draw instead of the curves of all shapes, which they meet at the window's end and at twice it."""
        end = self.fit.window[1]
        return self.curve_draws() if self.shapes is None else self.shapes.as_sigmoids(end, 2 * end)

    def value_interval(self, compute: Sequence[float] | Array, level: float | None = None) -> tuple[Array, Array]:
        """Lower and upper ends of where the curve lies at some compute, other shapes allowed for, `[C]` each."""
        return self._interval("value", compute, level)

    def evaluation_interval(self, compute: Sequence[float] | Array, level: float | None = None) -> tuple[Array, Array]:
        """Lower and upper ends of where an evaluation at some compute falls, `[C]` each."""
        return self._interval("evaluation", compute, level)

    def _interval(self, kind: str, compute: Sequence[float] | Array, level: float | None) -> tuple[Array, Array]:
        level = self.level if level is None else level
        own_MC = getattr(self.curve_draws(), kind)(compute)
        if self.shapes is None:
            low_C, high_C = np.quantile(own_MC, [(1 - level) / 2, (1 + level) / 2], axis=0)
            return low_C, high_C
        beyond_C = np.log(np.maximum(np.asarray(compute, float) / self.fit.window[1], 1)) / np.log(2)
        stretch_C = 1 + (self.shapes.stretch - 1) * np.minimum(beyond_C, 1)  # in full from twice the compute on
        low_C, high_C = widen(own_MC, getattr(self.shapes, kind)(compute), level, stretch_C)
        end = [self.fit.window[1]]
        low, _ = widen(getattr(self.curve_draws(), kind)(end), getattr(self.shapes, kind)(end), level)
        low_C = np.where(beyond_C > 0, np.maximum(low_C, low), low_C)  # curves rise, however far they are stretched
        return np.clip(low_C, 0, 1), np.clip(high_C, 0, 1)


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
    fallen = outliers(item, fit)
    if options.method == "paper":
        return Analysis(fit, None, {}, options.level, warnings=fit.warnings, outliers=fallen)
    draws = draw(fit, options.interval, seed=options.seed)
    found = intervals(fit, draws, options.level, options.interval)
    without, remarks = _without_prior(item, options, found)
    backtest = back_test(item, options)
    shapes = None
    if options.shapes and options.method == "joint" and options.interval == "posterior":
        shapes = other_shapes(fit, options.prior, draws, seed=options.seed)
        shapes = replace(shapes, stretch=backtest.stretch if backtest else 1.0)
        found["A"] = _widened(draws.theta_MP[:, 1], shapes, fit.parameters["A"], options.level)
        remarks += _shape_remarks(shapes)
    return Analysis(
        fit=fit,
        draws=draws,
        intervals=found,
        level=options.level,
        backtest=backtest,
        without_prior=without,
        warnings=(*fit.warnings, *_fallen_remarks(fallen), *remarks),
        shapes=shapes,
        outliers=fallen,
        intervals_by="profile" if options.interval == "profile" else draws.origin,
    )


def fit(
    compute: Sequence[float] | Array | Curve | Any,
    pass_rate: Sequence[float] | Array | None = None,
    stderr: Sequence[float] | Array | None = None,
    **options: Any,
) -> Analysis:
    """Fit a sigmoid to pass rates against compute.

    Args:
        compute: training compute of each evaluation, 0 for the one before RL; or a `Curve`; or a table (such as a
            pandas DataFrame) with columns `compute` and `pass_rate`, and perhaps `stderr` and `seed`.
        pass_rate: of each evaluation, in [0, 1].
        stderr: its standard error, if known.
        **options: of `Options`, such as `level=0.9` or `method="power"`.

    Raises:
        LabError: the points are no evaluations, or carry no curve.

    Examples:
        >>> from scalelab.curves import fit
        >>> found = fit([0, 1, 2, 4, 8, 16], [0.2, 0.3, 0.41, 0.52, 0.58, 0.6], [0.01] * 6)
        >>> round(found.params["A"], 2)
        0.61
        >>> sorted(found.conf_int())
        ['A', 'B', 'C_mid', 'R0']
        >>> [row["compute"] for row in found.predict([32, 64])]
        [32.0, 64.0]
    """
    if isinstance(compute, Curve):
        return analyse(compute, Options(**options))
    if pass_rate is not None:
        return analyse(curve(compute, pass_rate, stderr), Options(**options))
    table: Any = compute
    try:
        columns = {name: list(table[name]) for name in ("compute", "pass_rate", "stderr", "seed") if name in table}
    except (TypeError, KeyError, IndexError):
        columns = {}
    missing = [name for name in ("compute", "pass_rate") if name not in columns]
    if missing:
        raise LabError(f"no {missing[0]} to fit: give compute and pass_rate, or a table with such columns")
    item = curve(columns["compute"], columns["pass_rate"], columns.get("stderr"), seed=columns.get("seed"))
    return analyse(item, Options(**options))


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
    method: Method = "posterior" if options.interval == "profile" else options.interval
    draws = draw(fit, method, size=1500, seed=options.seed)
    thin = later.select(np.unique(np.linspace(0, len(later) - 1, 200).astype(int)))
    value_MN = draws.value(thin.compute_N)
    error_N = np.median(value_MN, axis=0) - thin.pass_rate_N
    tails = [(1 - options.level) / 2, (1 + options.level) / 2]
    low_N, high_N = np.quantile(draws.evaluation(thin.compute_N), tails, axis=0)
    inside_N = (thin.pass_rate_N >= low_N) & (thin.pass_rate_N <= high_N)
    mean_M = value_MN.mean(1) + _noise_of_mean(draws, later)
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
    return deviation_M * rng.standard_normal(len(draws))


OUT = 4.5
"""Distance from the curve, in standard deviations of an evaluation, from which one is called out of it."""


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


def _fallen_remarks(fallen: Sequence[Outlier]) -> list[str]:
    lines = [
        f"the evaluation at {one.compute:.4g} falls out of the curve: {one.pass_rate:.3f} where {one.expected:.3f} was "
        f"due, {abs(one.sigmas):.0f} standard deviations {'above' if one.sigmas > 0 else 'below'}"
        for one in fallen[:3]
    ]
    if len(fallen) > 3:
        lines.append(f"{len(fallen) - 3} more evaluations fall out of the curve")
    return lines


def _widened(own_M: Array, shapes: Shapes, estimate: float, level: float) -> Interval:
    """A's interval, made to hold what other shapes make of it."""
    low, high = widen(own_M[:, None], shapes.asymptote()[:, None], level, shapes.stretch)
    return max(0.0, min(estimate, float(low[0]))), min(1.0, max(estimate, float(high[0])))


def _shape_remarks(shapes: Shapes) -> list[str]:
    remarks = []
    favoured = shapes.favoured()
    if favoured is not None:
        name, probability = favoured
        remarks.append(
            f"the points favour another shape, {name} (probability of the sigmoid {probability:.0%}): the intervals of "
            "A and of forecasts allow for it, B and C_mid are the sigmoid's"
        )
    if shapes.stretch > 1:
        remarks.append(
            f"the half-budget forecast missed, so intervals beyond the points are stretched {shapes.stretch:.1f} times"
        )
    return remarks


def _normal_score(percentile: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(min(max(percentile, 1e-4), 1 - 1e-4)))


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
