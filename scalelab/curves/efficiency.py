"""B at an asymptote that runs have in common, and the straight line of a curve's efficiency (ScaleRL A.5).

Axes: `_M` draws, `_C` points of compute.
"""

from __future__ import annotations

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.analysis import Analysis
from scalelab.curves.fitting.intervals import Interval, equal_tailed
from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.models import SIGMOID, value
from scalelab.curves.fitting.problem import make_problem, minimise


def refit_at(fit: Fit, A: float, rate_MN: Array | None = None) -> Array:
    """Parameter vectors `[M, P]` of the curve refitted with A held, to its own points or to other pass rates."""
    problem, _ = make_problem(fit.curve, SIGMOID, fit.fixed_r0, fit.prior)
    lower_P, upper_P = problem.lower_P.copy(), problem.upper_P.copy()
    lower_P[1] = upper_P[1] = A
    rate_MN = fit.curve.pass_rate_N[None] if rate_MN is None else rate_MN
    sigma_N = fit.sigma_N / np.sqrt(fit.weight_N)
    solution = minimise(
        lambda theta_BP, at_B: problem.residuals(theta_BP, rate_MN[at_B], sigma_N),
        np.repeat(fit.theta_P[None], len(rate_MN), axis=0),
        lower_P,
        upper_P,
        tolerance=1e-4,
    )
    return solution.theta_BP


def at_common_A(item: Analysis, A: float) -> tuple[float, Interval]:
    """B with A held, and its interval: draws of the curve, seen at the points, are refitted with that A."""
    fit = item.fit
    draws = item.draws().sigmoid
    chosen_M = np.linspace(0, len(draws) - 1, min(len(draws), 60)).astype(int)
    u_N = make_problem(fit.curve, SIGMOID, fit.fixed_r0, fit.prior)[0].u_N
    rate_MN = value(SIGMOID, draws.theta_MP[chosen_M], u_N)
    B_M = np.exp(refit_at(fit, A, rate_MN)[:, 2])
    return float(np.median(B_M)), equal_tailed(B_M, item.level)


def efficiency(fit: Fit, A: float | None = None) -> tuple[Array, Array, Array]:
    """The linearised curve F(R) = C_mid^B / ((A − R0)/(R − R0) − 1) = C^B (ScaleRL A.5).

    Against compute, both logarithmic, it is a straight line of slope B.

    Args:
        fit: a sigmoid fit.
        A: common asymptote to refit at; None keeps the fit's own.

    Returns:
        Compute and F of the points that lie between R0 and A, and the fitted line C^B at those points.
    """
    theta_P = fit.theta_P if A is None else refit_at(fit, A)[0]
    R0, asymptote, B, C_mid = SIGMOID.readable(theta_P, fit.log_reference)
    rate_N, compute_N = fit.curve.pass_rate_N, fit.curve.compute_N
    share_N = (rate_N - R0) / (asymptote - R0)
    inside_N = (share_N > 0) & (share_N < 1) & (compute_N > 0)
    F_N = C_mid**B / (1 / share_N[inside_N] - 1)
    return compute_N[inside_N], F_N, compute_N[inside_N] ** B
