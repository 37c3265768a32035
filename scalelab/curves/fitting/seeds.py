"""Seeds of one curve: by how much each lies off it, and how merged evaluations scatter about each other.

Axes: `_N` points, `_P` parameters, `_L` linear coefficients, `_S` seeds, `_G` merged points.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.models import SIGMOID, value
from scalelab.curves.fitting.noise import typical
from scalelab.curves.fitting.problem import FOUR_FIFTHS, Problem, least_squares, solve
from scalelab.reading.curve import Curve


def solve_seeds(problem: Problem, points: Curve) -> tuple[Array, float, Array, Array]:
    """Parameters, noise scale, influence and seed offset of each point.

    Each seed may lie off the mean curve by an offset of R0 and one of A. They are fitted in turns with the curve, so
    that the noise scale is that of the evaluations of one seed, whatever the seeds differ by; the mean of the offsets
    is zero, so that the curve is that of the mean seed, however many points each has.
    """
    offset_N = np.zeros(len(points))
    if len(points.seeds) == 1:
        return *solve(problem), offset_N
    _, least_P = least_squares(replace(problem, prior=None))
    theta_P, scale, weight_N = solve(problem, near=(least_P, problem.scale(least_P)))
    for turn in range(4):
        sigma_N = scale * problem.relative_N / np.sqrt(weight_N)
        before_N, offset_N = offset_N, seed_offsets(problem, theta_P, sigma_N, points.seed_N, len(points.seeds))
        inside = replace(problem, rate_N=points.pass_rate_N - offset_N, offsets=2 * (len(points.seeds) - 1))
        theta_P, scale, weight_N = solve(inside, near=(theta_P, scale) if turn else None)
        if np.abs(offset_N - before_N).max() < 0.1 * typical(scale * problem.relative_N):
            break
    return theta_P, scale, weight_N, offset_N


OFFSETS = 0.1
"""Standard deviation that holds a seed's offsets back where its points say little of them, in pass rate."""


def seed_offsets(problem: Problem, theta_P: Array, sigma_N: Array, seed_N: np.ndarray, seeds: int) -> Array:
    """Offset of each point's seed `[N]`: an offset of R0 and one of A per seed by ridge regression, their mean zero."""
    u_N, model = problem.u_N, problem.model
    features_NL = model.features(theta_P[2:], u_N)
    left_N = problem.rate_N - value(model, theta_P, u_N)
    if model is not SIGMOID or problem.lower_P[0] == problem.upper_P[0]:
        features_NL = features_NL[:, [model.linear.index("A")]]
    count = features_NL.shape[1]
    offset_SL = np.empty((seeds, count))
    for seed in range(seeds):
        mine_N = seed_N == seed
        scaled_NL = features_NL[mine_N] / sigma_N[mine_N, None]
        gram_LL = scaled_NL.T @ scaled_NL + np.eye(count) / OFFSETS**2
        offset_SL[seed] = np.linalg.solve(gram_LL, scaled_NL.T @ (left_N[mine_N] / sigma_N[mine_N]))
    offset_SL -= offset_SL.mean(0)
    result: Array = (features_NL * offset_SL[seed_N]).sum(-1)
    return result


def evaluation_scatter(points: Curve, merged_N: np.ndarray) -> float:
    """Sampling noise of one evaluation, by how evaluations that were merged scatter about each other.

    It is the standard deviation of the normal that four fifths of them agree with, so that a few broken ones do not
    widen it; what each mean takes of its members' scatter is made up for.

    Args:
        points: the evaluations before they were merged.
        merged_N: which merged point each went into.
    """
    relative_N = np.ones(len(points)) if points.stderr_N is None else points.stderr_N
    members_G = np.bincount(merged_N)
    mean_G = np.bincount(merged_N, points.pass_rate_N) / np.maximum(members_G, 1)
    apart_N = points.pass_rate_N - mean_G[merged_N]
    several_N = members_G[merged_N] > 1
    z_N = apart_N / relative_N * np.sqrt(members_G / np.maximum(members_G - 1, 1))[merged_N]
    return float(np.quantile(np.abs(z_N[several_N]), 0.8) / FOUR_FIFTHS * typical(relative_N))
