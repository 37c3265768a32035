"""Refits of resampled points: blocks of residuals, or noise drawn from the hypotheses about it.

Both answer "what else could this estimator have said?". Blocks are too sure of it: they carry no drift longer than
themselves, and that is what moves an asymptote. Drawn noise does. Neither knows what the points cannot show: early in a
run the estimator itself is biased by its prior, or wild without it (`docs/curves.md` has the coverage of each).

Axes: `_M` refits, `_N` points, `_P` parameters.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.models import Array, jacobian, log_compute
from scalelab.curves.fitting.noise import covariance, typical
from scalelab.curves.fitting.posterior import LOG_SCALES_K, Draws, mean_covariance, noise_of
from scalelab.curves.fitting.problem import make_problem
from scalelab.curves.fitting.solver import minimise

Kind = Literal["block", "parametric"]


def bootstrap(fit: Fit, kind: Kind = "block", size: int = 1000, seed: int = 0) -> Draws:
    """Refit resampled points, all refits at once.

    Args:
        fit: the joint fit.
        kind: `block` puts blocks of neighbouring residuals elsewhere on the fitted curve; `parametric` draws noise
            and drift by the weight that the residuals give to each hypothesis about them.
        size: number of refits.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    if kind == "block":
        deviation_MN, noise_M = _blocks(fit, size, rng), np.full(size, typical(fit.sigma_N))
    else:
        deviation_MN, noise_M = _simulated(fit, size, rng)
    return Draws(
        model=fit.model,
        log_reference=fit.log_reference,
        theta_MP=refit(fit, fit.value(fit.curve.compute_N) + deviation_MN),
        noise_M=noise_M,
        spread_M=np.zeros(size),
        origin=f"{kind} bootstrap",
        drift_M=np.zeros(size),
    )


def refit(fit: Fit, rate_MN: Array) -> Array:
    """Parameter vectors `[M, P]` of the fit's problem with other pass rates, started from the fit."""
    problem, _ = make_problem(fit.curve, fit.model, fit.fixed_r0, fit.prior)
    cutoff = 3 + 12 / max(problem.spare, 1)
    solution = minimise(
        lambda theta_BP, at_B: problem.residuals(theta_BP, rate_MN[at_B], fit.sigma_N),
        np.repeat(fit.theta_P[None], len(rate_MN), axis=0),
        problem.lower_P,
        problem.upper_P,
        cutoff,
        max_steps=40,
        tolerance=1e-5,
    )
    return solution.theta_BP


def block_length(points: int) -> int:
    """Residuals moved together: a sixth of them, since drifts as long as that are what moves an asymptote."""
    return max(1, round(points / 6))


def _blocks(fit: Fit, size: int, rng: np.random.Generator) -> Array:
    """Deviations `[M, N]`: every seed gets circular blocks of a seed's standardised residuals, its own or another's.

    Residuals are less than deviations from the true curve by what the fit absorbed; they are stretched to make up.
    """
    seed_N = fit.curve.seed_N
    standard_N = fit.residual_N / fit.sigma_N * _stretch(fit)
    donors = [standard_N[seed_N == seed] for seed in range(len(fit.curve.seeds))]
    centre = standard_N.mean()
    deviation_MN = np.empty((size, len(seed_N)))
    for seed in range(len(donors)):
        to_N = np.flatnonzero(seed_N == seed)
        length = block_length(len(to_N))
        donor_M = rng.integers(len(donors), size=size)
        for donor, standard_D in enumerate(donors):
            rows_M = np.flatnonzero(donor_M == donor)
            begin_MB = rng.integers(len(standard_D), size=(len(rows_M), -(-len(to_N) // length)))
            at_MN = (begin_MB[:, :, None] + np.arange(length)).reshape(len(rows_M), -1)[:, : len(to_N)]
            deviation_MN[np.ix_(rows_M, to_N)] = standard_D[at_MN % len(standard_D)] - centre
    return deviation_MN * fit.sigma_N


def _stretch(fit: Fit) -> float:
    """By how much deviations from the true curve exceed residuals: √(N / (N − P)) for independent noise, else more.

    Linearised, residuals are the deviations less their projection on the curve's slopes.
    """
    u_N = log_compute(fit.curve.compute_N, np.exp(fit.log_reference))
    slopes_NP = jacobian(fit.model, fit.theta_P[None], u_N)[0] / fit.sigma_N[:, None]
    slopes_NP = slopes_NP[:, int(fit.fixed_r0 is not None) :]
    left_NN = np.eye(len(u_N)) - slopes_NP @ np.linalg.pinv(slopes_NP)
    whole_NN = mean_covariance(fit, fit.sigma_N) / np.outer(fit.sigma_N, fit.sigma_N)
    return float(np.sqrt(np.trace(whole_NN) / max(np.trace(left_NN @ whole_NN @ left_NN), 1e-12)))


def _simulated(fit: Fit, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Deviations `[M, N]` from noise hypotheses drawn by their weight, and what an evaluation scatters under each."""
    noises, weight_HK, rise_N = noise_of(fit)
    points = fit.curve
    h_M, k_M = np.unravel_index(rng.choice(weight_HK.size, size, p=weight_HK.ravel()), weight_HK.shape)
    deviation_MN = np.exp(LOG_SCALES_K[k_M])[:, None] * rng.standard_normal((size, len(points)))
    noise_M = np.exp(LOG_SCALES_K[k_M]) * typical(fit.sigma_N)
    for h in np.unique(h_M):
        of_h = h_M == h
        covariance_NN = covariance(noises[h], points.compute_N, fit.sigma_N, points.seed_N, rise_N)
        deviation_MN[of_h] = deviation_MN[of_h] @ np.linalg.cholesky(covariance_NN).T
        noise_M[of_h] *= np.hypot(1.0, noises[h].drift)
    return deviation_MN, noise_M
