"""Fit one curve: the window, the default `joint` fit, its standard errors, and refusals.

The joint fit moves all parameters at once. Its starts come from a grid over the curve's shape on which the linear
coefficients are solved exactly; the best few are refined together by Levenberg–Marquardt with the analytic Jacobian.
The measured R0 is nothing but one more point, at zero compute with its own standard error.

Axes: `_N` points, `_P` parameters, `_B` problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.models import POWER, SIGMOID, Model, log_compute, mirrored, value
from scalelab.curves.fitting.noise import DEFAULT, Prior, typical
from scalelab.curves.fitting.problem import Problem, make_problem
from scalelab.curves.fitting.seeds import evaluation_scatter, solve_seeds
from scalelab.errors import LabError
from scalelab.numbers import compact, counted, percent, quantity
from scalelab.reading.curve import Curve, merge_neighbours

MOST_POINTS = 160
"""More evaluations than these are averaged with their neighbours before the fit."""


class FitError(LabError):
    """The points do not carry a curve (flat, up and down, too few); the message is the reason."""


@dataclass(frozen=True)
class Fit:
    """A fitted curve.

    Attributes:
        curve: the points used, step 0 among them.
        model: sigmoid or power law.
        method: `joint` or `paper`.
        theta_P: the model's parameter vector, at compute in units of the reference.
        log_reference: logarithm of the reference compute.
        fixed_r0: R0 where it was given instead of fitted.
        sigma_N: standard deviation of each point: its standard error times the noise scale.
        weight_N: influence of each point, below 1 for outliers.
        offset_N: by how much each point's seed lies above the curve there; zero for a single seed.
        scale: noise scale: spread of the residuals relative to the stated standard errors.
        window: compute of the first and last point used, step 0 apart.
        prior: the beliefs that entered.
        window_rule: how the window was chosen.
        warnings: what to be wary of.
        evaluation_sigma: sampling noise of one evaluation, where evaluations were merged before the fit.
    """

    curve: Curve
    model: Model
    method: str
    theta_P: Array
    log_reference: float
    fixed_r0: float | None
    sigma_N: Array
    weight_N: Array
    offset_N: Array
    scale: float
    window: tuple[float, float]
    prior: Prior | None
    window_rule: str
    warnings: tuple[str, ...] = ()
    evaluation_sigma: float | None = None

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.parameters.items())
        return f"<Fit of {self.curve.name}: {values}>"

    @property
    def falls(self) -> bool:
        """True if the task forgets: its curve falls from R0 to a floor A below it."""
        return self.model is SIGMOID and bool(self.theta_P[1] < self.theta_P[0])

    def mirrored(self) -> Fit:
        """The fit of 1 − pass rate, which rises where this one falls."""
        return replace(
            self,
            curve=replace(self.curve, pass_rate_N=1 - self.curve.pass_rate_N),
            theta_P=mirrored(self.theta_P),
            fixed_r0=None if self.fixed_r0 is None else 1 - self.fixed_r0,
            offset_N=-self.offset_N,
        )

    @property
    def parameters(self) -> dict[str, float]:
        """Parameters by name, in the compute unit of the data."""
        return dict(zip(self.model.parameters, self.model.readable(self.theta_P, self.log_reference).tolist()))

    @property
    def relative(self) -> float:
        """The typical stated standard error; a mere unit where none is known."""
        return typical(self.sigma_N) / self.scale

    @property
    def residual_N(self) -> Array:
        """Observed minus fitted pass rates."""
        return self.curve.pass_rate_N - self.value(self.curve.compute_N)

    @property
    def scatter_N(self) -> Array:
        """Residuals within each seed: observed minus the curve of the point's seed."""
        return self.residual_N - self.offset_N

    @property
    def rss(self) -> float:
        """Plain sum of squared residuals over the window, step 0 left out: comparable between methods."""
        return float((self.residual_N[self.curve.compute_N > 0] ** 2).sum())

    def as_json(self) -> dict[str, object]:
        """The fit as `scalelab fit --json` prints it."""
        return {
            "source": self.curve.source,
            "run": self.curve.run,
            "task": self.curve.task,
            "model": self.model.name,
            "method": self.method,
            **self.parameters,
            "compute_unit": self.curve.unit,
            "window": list(self.window),
            "window_rule": self.window_rule,
            "n_points": len(self.curve),
            "rss": self.rss,
            "forgets": self.falls,
            "warnings": list(self.warnings),
        }

    def value(self, compute: Array | Sequence[float] | float) -> Array:
        """The fitted pass rate at some compute."""
        u = log_compute(np.atleast_1d(np.asarray(compute, float)), np.exp(self.log_reference))
        return value(self.model, self.theta_P, u)


def select_window(item: Curve, since: float | None, until: float | None) -> tuple[Curve, str]:
    """The points to fit, and the rule that chose them. Step 0 always stays: it measures R0.

    An end that is not given is that of the run's own fit window. Where neither says where to begin, the first epoch is
    left out if the run says how long it was (ScaleRL A.4 leaves it out).
    """
    given = since is not None or until is not None
    since, until = (own if end is None else end for end, own in zip((since, until), item.fit_window))
    if not given and item.fit_window != (None, None):
        rule = "the fit window of the run's experiment"
    elif since is None and item.epoch_end is not None:
        since, rule = item.epoch_end, f"after the first epoch, which ended at {compact(item.epoch_end)} {item.unit}"
    elif since is None and until is None:
        rule = "all evaluations, as the files do not say where the first epoch ends"
    else:
        rule = "as given"
    keep_N = item.compute_N == 0
    keep_N |= (item.compute_N >= (since or 0.0)) & (item.compute_N <= (np.inf if until is None else until))
    return item.select(keep_N), rule


def fit_curve(
    item: Curve,
    model: Model = SIGMOID,
    *,
    since: float | None = None,
    until: float | None = None,
    r0: float | None = None,
    prior: Prior | None = DEFAULT,
) -> Fit:
    """The joint fit: every parameter at once, weighted by the standard errors, robust to outliers.

    Args:
        item: the evaluations of one task.
        model: sigmoid or power law.
        since: start of the fit window; None leaves out the first epoch where it is known.
        until: end of the fit window.
        r0: R0 to hold fixed; None takes the step-0 evaluation as a point like the others, or leaves R0 free if
            there is none.
        prior: beliefs that keep early fits sane; None fits the points alone.

    Raises:
        FitError: too few points, or points that neither rise nor fall as a curve does.
    """
    points, rule = select_window(item, since, until)
    remarks = []
    if model is POWER or r0 is not None:
        points = points.select(points.compute_N > 0)
    single, merged_N = points, None
    if (points.compute_N > 0).sum() > MOST_POINTS:
        points, merged_N = merge_neighbours(points, MOST_POINTS)
        remarks.append(f"{len(single)} evaluations were merged with their neighbours into {len(points)} points")
    if r0 is not None and not 0 <= r0 <= 1:
        raise LabError(f"R0 of {r0:g} lies outside [0, 1]")
    refuse_unfit(points, model, r0)
    problem, reference = make_problem(points, model, r0, prior)
    theta_P, scale, weight_N, offset_N = solve_seeds(problem, points)
    sigma_N = scale * problem.relative_N
    fit = Fit(
        curve=points,
        model=model,
        method="joint",
        theta_P=theta_P,
        log_reference=float(np.log(reference)),
        fixed_r0=r0 if "R0" in model.linear else None,
        sigma_N=sigma_N,
        weight_N=weight_N,
        offset_N=offset_N,
        scale=scale,
        window=(float(points.compute_N[points.compute_N > 0].min()), float(points.compute_N.max())),
        prior=prior,
        window_rule=rule,
        evaluation_sigma=None if merged_N is None else evaluation_scatter(single, merged_N),
    )
    refuse_flat(fit)
    return replace(fit, warnings=(*item.notes, *remarks, *_warnings(fit, problem)))


def refuse_unfit(points: Curve, model: Model, r0: float | None) -> None:
    """Refuse points that do not carry a curve.

    Raises:
        FitError: fewer points than free parameters, or all at one pass rate.
    """
    free = len(model.parameters) - (r0 is not None and "R0" in model.linear)
    trained = int((points.compute_N > 0).sum())
    if len(points) < free or trained < 3:
        short, needed, where = len(points), max(free, 3), "in the window"
        if trained < 3:  # the rest are step-0 evaluations, which say nothing of the rise
            short, needed, where = trained, 3, "after step 0 in the window"
        raise FitError(
            f"{points.name}: {counted(short, 'point')} {where}; the {model.name} curve needs at least {needed}"
        )
    rate_N = points.pass_rate_N
    if np.ptp(rate_N) == 0 and r0 in (None, rate_N[0]):
        raise FitError(f"{points.name}: the pass rate is constant at {rate_N[0]:g}; there is no curve to fit")


def refuse_flat(fit: Fit) -> None:
    """Refuse a fit whose points do not go its way, or that explains them no better than a constant does (at 5 %).

    A fall is accepted by the tests of a rise, the other way up; only the joint sigmoid is fitted to one.

    Raises:
        FitError: with what the points do instead.
    """
    points = fit.curve
    weight_N = fit.weight_N / fit.sigma_N**2
    thirds = np.array_split(np.arange(len(points)), 3)  # weighted, so that one broken evaluation is not a fall
    first, middle, last = (float(np.average(points.pass_rate_N[part], weights=weight_N[part])) for part in thirds)
    ends, turn = f"from {first:.3f} to {last:.3f}", _turn(points) or _turn(points, trough=True)
    falls = fit.falls and fit.method == "joint" and min(middle, last) <= first
    rises = fit.theta_P[1] > (fit.theta_P[0] if fit.model is SIGMOID else 0) and max(middle, last) >= first
    if turn is not None and not rises:
        raise FitError(turn)
    if falls and (apart := _seeds_apart(fit)):
        raise FitError(f"{points.name}: {apart}")
    no_curve = f", which no curve from an R0 of {fit.theta_P[0]:.3f} does"
    if not rises and not falls:
        fitted = ", which the joint sigmoid alone is fitted to" if fit.model is POWER or fit.method == "paper" else ""
        if not fitted and fit.fixed_r0 is not None:
            fitted = no_curve
        word = f"falls, {ends}{fitted}" if last < first - 0.01 else f"does not rise, {ends}"
        if last > first + 0.01:
            word = f"rises, {ends}{no_curve}"
        raise FitError(f"{points.name}: the pass rate {word}")
    spare = len(points) - len(fit.theta_P) + (fit.fixed_r0 is not None)
    if spare <= 0 and points.stderr_N is None:
        raise FitError(
            f"{points.name}: {len(points)} evaluations without standard errors lie on a curve whatever they are; "
            "evaluate more, or give stderr or n"
        )
    chance = _chance_of_constant(fit, weight_N, spare)
    if chance > 0.05 and turn is not None:
        raise FitError(turn)
    way = "fall" if falls else "rise"
    gone = [(first - other) * (1 if falls else -1) for other in (last, first if fit.fixed_r0 is None else fit.fixed_r0)]
    if chance > 0.05 and min(gone) > 0.01:  # it goes away from where it is said to start
        raise FitError(f"{points.name}: the pass rate {way}s, {ends}{no_curve}")
    if chance > 0.05:
        found = f"{len(points)} evaluations do not tell a {way} {ends} from scatter"
        if chance > 0.9:
            found = f"the pass rate neither rises nor falls, {ends}"
        raise FitError(
            f"{points.name}: {found} (a constant looks so in {percent(chance)} of cases); evaluate more, or more often"
        )


def _chance_of_constant(fit: Fit, weight_N: Array, spare: int) -> float:
    """Probability that a constant's scatter looks as much like a curve.

    What is believed of the noise scale beforehand counts beside the points left over: by an F-test, or where standard
    errors are stated by `Prior.chance`.
    """
    from scipy.special import fdtrc

    points = fit.curve
    stated = fit.prior if points.stderr_N is not None else None
    if spare <= 0 and stated is None:  # without beliefs about the noise, nothing tells
        return 0.0
    constant = fit.fixed_r0 if fit.fixed_r0 is not None else float(np.average(points.pass_rate_N, weights=weight_N))
    left = float((weight_N * fit.scatter_N**2).sum())
    explained = float((weight_N * (points.pass_rate_N - constant) ** 2).sum()) - left
    more = len(fit.theta_P) - 1
    if explained <= 0:
        return 1.0
    if stated is not None:
        return stated.chance(explained * fit.scale**2, more, left * fit.scale**2, spare)
    known = spare + (fit.prior.equivalent_points(known=False) if fit.prior else 0)
    return float(fdtrc(more, known, explained / more))


def _turn(points: Curve, trough: bool = False) -> str | None:
    """Reason of a curve that rose and fell, by means of three evaluations; None where scatter may look like that.

    Args:
        points: the evaluations.
        trough: look for a curve that fell and rose.
    """
    if len(points) < 5:
        return None
    order = np.argsort(points.compute_N, kind="stable")
    rate_N = points.pass_rate_N[order]
    mean_N = np.convolve(rate_N, np.full(3, 1 / 3), "valid")
    noise = 1.48 * float(np.median(np.abs(np.diff(rate_N, 2)))) / np.sqrt(6)  # second differences know no slope
    up_N = -mean_N if trough else mean_N
    top = int(up_N.argmax())
    if up_N[top] - max(up_N[0], up_N[-1]) < max(4 * noise / np.sqrt(3), 0.02):
        return None
    there, back, only = ("falls", "rises", "falling") if trough else ("rises", "falls", "rising")
    at = quantity(float(points.compute_N[order][top + 1]), points.unit)
    return (
        f"{points.name}: the pass rate {there} from {mean_N[0]:.3f} to {mean_N[top]:.3f} at {at} and {back} to "
        f"{mean_N[-1]:.3f} (means of three), which no {only} curve does; --until fits the part before"
    )


def _seeds_apart(fit: Fit) -> str:
    """Reason of seeds of which one rises while their mean falls, beyond four standard errors; empty without any."""
    points, error_N = fit.curve, fit.sigma_N / np.sqrt(fit.weight_N)
    for seed, name in enumerate(points.seeds if len(points.seeds) > 1 else ()):
        mine_N = np.flatnonzero(points.seed_N == seed)
        first_N, last_N = np.array_split(mine_N, 3)[0], np.array_split(mine_N, 3)[-1]
        if not len(first_N) or not len(last_N):
            continue
        first, last = (float(points.pass_rate_N[part].mean()) for part in (first_N, last_N))
        error = float(np.sqrt(sum((error_N[part] ** 2).sum() / len(part) ** 2 for part in (first_N, last_N))))
        if last - first > max(4 * error, 0.02):
            rises = f"seed {name} rises from {first:.3f} to {last:.3f} while the mean of the seeds falls"
            return f"{rises}, which is no one curve; fit the seeds one by one"
    return ""


def _warnings(fit: Fit, problem: Problem) -> list[str]:
    warnings = []
    n_points = int((fit.curve.compute_N > 0).sum())
    if n_points < 6:
        warnings.append(f"only {n_points} points after step 0 in the window")
    names = (*fit.model.linear, "B", "C_mid")
    for name, at, lower, upper in zip(names, fit.theta_P, problem.lower_P, problem.upper_P):
        if lower < upper and (at <= lower or at >= upper):
            warnings.append(f"the likeliest curve has {name} at its {'lower' if at <= lower else 'upper'} bound")
    if fit.model is SIGMOID and fit.window[1] < 1.5 * fit.parameters["C_mid"]:
        warnings.append("the window ends before the curve has bent")
    z_N = fit.scatter_N / fit.sigma_N
    if n_points >= 8:
        correlation = float((z_N[1:] * z_N[:-1]).sum() / (z_N**2).sum())
        if correlation > 1.7 / np.sqrt(len(z_N)):
            warnings.append(f"residuals of neighbours are correlated ({correlation:.2f}): drift, or another curve")
    outliers = int((fit.weight_N < 1).sum())
    if outliers:
        warnings.append(f"{counted(outliers, 'outlying point')} down-weighted")
    return warnings
