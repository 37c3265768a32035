"""Evaluations planned from the question: where on a curve completions tell most of the number that is asked for.

Axes: `_N` evaluations, `_P` parameters.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalelab.curves.design import DRIFT_LENGTH, NUMBER_AT, Plan, Quantity
from scalelab.curves.fitting.models import SIGMOID, jacobian, log_compute, value
from scalelab.curves.fitting.noise import drift_kernel

BELIEFS = (1.0, 1.0, 0.5, 1.0)
"""Standard deviations believed beforehand of R0, A, ln B and ln C_mid: wide, but a curve of a few points needs some."""

FULL_FROM = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)
"""Parts of the budget that are tried."""

MOST = 4
"""Times the samples of the plan that a late evaluation may have."""


def expected_error(plan: Plan, of: Quantity) -> float:
    """Standard error that a run's evaluations leave of one number, in linear approximation.

    With J the derivatives of the curve by its parameters at the evaluations and Σ the covariance of their noise
    (binomial, and the drift's), the parameters' covariance is C = (JᵀΣ⁻¹J + S⁻¹)⁻¹, S that of the beliefs (generalised
    least squares), and that of a number with derivatives g is gᵀCg. `run_error` has the error by simulated runs.

    Args:
        plan: the evaluations and the curve.
        of: pass rate at the end of the budget, A, ln B or ln C_mid.
    """
    u_N = log_compute(plan.compute_N, 1.0)
    rate_N = value(SIGMOID, plan.theta_P, u_N)
    by_NP = jacobian(SIGMOID, plan.theta_P[None], u_N)[0]
    noise_NN = np.diag(rate_N * (1 - rate_N) / plan.completions_N)
    noise_NN = noise_NN + plan.drift**2 * drift_kernel(plan.compute_N, DRIFT_LENGTH, plan.budget)
    precision_PP = by_NP.T @ np.linalg.solve(noise_NN, by_NP) + np.diag(np.array(BELIEFS) ** -2.0)
    asked_P = by_NP[-1] if of == "value" else np.eye(4)[NUMBER_AT[of]]
    return float(np.sqrt(asked_P @ np.linalg.solve(precision_PP, asked_P)))


def sparing(plan: Plan) -> Plan:
    """The plan with the fewest completions that leaves the error of `Plan.of` no larger; prompts and points stay.

    Early evaluations go with few samples, as far as late ones, which may have more, make good for it.
    """
    enough, least = expected_error(plan, plan.of), plan
    for early in range(1, plan.samples + 1):
        for samples in range(early, MOST * plan.samples + 1):
            for full_from in FULL_FROM:
                other = replace(plan, early_samples=early, samples=samples, full_from=full_from)
                if other.completions_N.sum() < least.completions_N.sum() and expected_error(other, plan.of) <= enough:
                    least = other
    return least
