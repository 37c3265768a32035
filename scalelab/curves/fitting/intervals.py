"""Intervals of the parameters: from draws (posterior or bootstrap), or by profile likelihood."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from scalelab.curves.fitting.bootstrap import bootstrap
from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.models import Array
from scalelab.curves.fitting.posterior import Draws, mean_covariance, posterior
from scalelab.curves.fitting.problem import make_problem
from scalelab.curves.fitting.solver import minimise
from scalelab.errors import LabError

Method = Literal["posterior", "profile", "block", "parametric"]
METHODS: tuple[Method, ...] = get_args(Method)

Interval = tuple[float, float]


def draw(fit: Fit, method: Method = "posterior", size: int | None = None, seed: int = 0) -> Draws:
    """Curves that the points leave possible, by the chosen method (the profile has none of its own: posterior)."""
    if method in ("posterior", "profile"):
        return posterior(fit, fit.prior, size or 4000, seed)
    if method not in METHODS:
        raise LabError(f"unknown kind of interval {method!r}: use one of {', '.join(METHODS)}")
    return bootstrap(fit, "block" if method == "block" else "parametric", size or 1000, seed)


def intervals(fit: Fit, draws: Draws, level: float = 0.8, method: Method = "posterior") -> dict[str, Interval]:
    """An interval for every parameter; a given R0 has none.

    Args:
        fit: the joint fit.
        draws: what `draw` gave for it; not used by the profile.
        level: probability that an interval is to hold, in (0, 1).
        method: kind of interval.
    """
    check_level(level)
    names = [name for name in fit.model.parameters if not (name == "R0" and fit.fixed_r0 is not None)]
    if method == "profile":
        return profile_intervals(fit, level)
    found = draws.parameters()
    return {name: around(found[name], fit.parameters[name], level) for name in names}


def check_level(level: float) -> None:
    """Refuse a level that is no probability.

    Raises:
        LabError: it lies outside (0, 1).
    """
    if not 0 < level < 1:
        raise LabError(f"a level of {level:g} is no probability: give one between 0 and 1, such as 0.8")


def equal_tailed(draws_M: Array, level: float) -> Interval:
    """The interval with as much below as above it."""
    low, high = np.quantile(draws_M, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def around(draws_M: Array, estimate: float, level: float) -> Interval:
    """The equal-tailed interval, slid just far enough to hold the estimate where that sits on a bound."""
    low, high = equal_tailed(draws_M, level)
    if estimate > high:
        below = float((draws_M <= estimate).mean())
        return float(np.quantile(draws_M, max(below - level, 0.0))), estimate
    if estimate < low:
        below = float((draws_M < estimate).mean())
        return estimate, float(np.quantile(draws_M, min(below + level, 1.0)))
    return low, high


def profile_intervals(fit: Fit, level: float = 0.8) -> dict[str, Interval]:
    """Profile-likelihood intervals: values that the rest of the parameters can still make fit the points.

    Points count with their mean covariance under the hypotheses about noise and drift; the deviance allowed is that of
    Student's t for the points left over. An interval reaches as far as the estimate, which took noise for independent.
    """
    from scipy.special import stdtrit

    spare = max(len(fit.curve) - len(fit.theta_P) + (fit.fixed_r0 is not None), 1)
    allowed = float(stdtrit(spare, 0.5 + level / 2)) ** 2
    whiten_NN = _whitening(fit)
    names = [*fit.model.linear, "B", "C_mid"][: len(fit.theta_P)]
    found: dict[str, Interval] = {}
    for index, name in enumerate(names):
        if (name == "R0" and fit.fixed_r0 is not None) or name == "D":
            continue
        low, high = _profile(fit, index, allowed, whiten_NN)
        low, high = min(low, float(fit.theta_P[index])), max(high, float(fit.theta_P[index]))
        if index >= 2:
            ends_2P = np.repeat(fit.theta_P[None], 2, axis=0)
            ends_2P[:, index] = low, high
            low, high = fit.model.readable(ends_2P, fit.log_reference)[:, fit.model.parameters.index(name)]
        found[name] = (float(low), float(high))
    return found


def correlation_factor(fit: Fit) -> float:
    """By how much neighbours' correlation inflates a variance: (1 + r)/(1 − r), at least 1 and at most 9."""
    z_N = fit.residual_N / fit.sigma_N * np.sqrt(fit.weight_N)
    r = float((z_N[1:] * z_N[:-1]).sum() / max((z_N**2).sum(), 1e-300))
    r = min(max(r, 0.0), 0.8)
    return (1 + r) / (1 - r)


def _whitening(fit: Fit) -> Array:
    """Matrix `[N, N]` that makes deviations from the true curve independent, of unit variance."""
    return np.linalg.inv(np.linalg.cholesky(mean_covariance(fit, fit.sigma_N / np.sqrt(fit.weight_N))))


def _profile(fit: Fit, index: int, allowed: float, whiten_NN: Array) -> Interval:
    """Interval ends where the deviance of one coordinate crosses its limit, interpolated between refits."""
    problem, _ = make_problem(fit.curve, fit.model, fit.fixed_r0, fit.prior)
    low, high = float(problem.lower_P[index]), float(problem.upper_P[index])
    at = float(fit.theta_P[index])
    deviation = float(np.sqrt(fit.covariance_PP[index, index])) or (min(high, 10.0) - low) / 50
    step = np.sinh(np.linspace(0, np.arcsinh(200), 40))[1:] * deviation / 5
    values_B = np.concatenate([np.clip(at - step[::-1], low, high), [at], np.clip(at + step, low, high)])
    along_P = fit.covariance_PP[:, index] / max(float(fit.covariance_PP[index, index]), 1e-300)
    count = len(fit.curve)
    rate_1N, unit_N = fit.curve.pass_rate_N[None], np.ones(count)

    def residuals(theta_BP: Array, _: np.ndarray) -> tuple[Array, Array]:
        residual_BN, jacobian_BNP = problem.residuals(theta_BP, rate_1N, unit_N)
        residual_BN[:, :count] = residual_BN[:, :count] @ whiten_NN.T
        jacobian_BNP[:, :count] = whiten_NN @ jacobian_BNP[:, :count]
        return residual_BN, jacobian_BNP

    costs = []
    for tilt_P in (along_P, 0 * along_P):
        start_BP = fit.theta_P + (values_B - at)[:, None] * tilt_P
        start_BP[:, index] = values_B
        lower_BP = np.repeat(problem.lower_P[None], len(values_B), axis=0)
        upper_BP = np.repeat(problem.upper_P[None], len(values_B), axis=0)
        lower_BP[:, index] = upper_BP[:, index] = values_B
        costs.append(minimise(residuals, start_BP, lower_BP, upper_BP).cost_B)
    cost_B = np.minimum(*costs)
    root_B = np.sqrt(np.maximum(2 * (cost_B - cost_B.min()), 0))
    best = int(cost_B.argmin())
    return (
        _crossing(values_B[best::-1], root_B[best::-1], np.sqrt(allowed)),
        _crossing(values_B[best:], root_B[best:], np.sqrt(allowed)),
    )


def _crossing(values_B: Array, root_B: Array, allowed: float) -> float:
    """First value, going outwards, where the signed root of the deviance passes what is allowed; else the last."""
    beyond = np.flatnonzero(root_B > allowed)
    if not beyond.size:
        return float(values_B[-1])
    out = int(beyond[0])
    share = (allowed - root_B[out - 1]) / (root_B[out] - root_B[out - 1])
    return float(values_B[out - 1] + share * (values_B[out] - values_B[out - 1]))
