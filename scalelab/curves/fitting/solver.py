"""Levenberg–Marquardt with bounds for many small problems at once.

A bootstrap is a thousand fits of four parameters. One at a time, Python's overhead is nearly all of the cost; here
every step is taken by all problems together, in NumPy, and the finished ones drop out.

Axes: `_B` problems, `_N` residuals, `_P` parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scalelab.curves.fitting.models import Array

Residuals = Callable[[Array, Array], tuple[Array, Array]]
"""(parameters `[B, P]`, which problems they belong to `[B]`) → (residuals `[B, N]`, Jacobian `[B, N, P]`)."""


@dataclass(frozen=True)
class Solution:
    """The solver's result for each problem.

    Attributes:
        theta_BP: parameters.
        cost_B: half the sum of losses.
        converged_B: whether the last step was negligible.
    """

    theta_BP: Array
    cost_B: Array
    converged_B: np.ndarray


def influence(residuals: Array, cutoff: float) -> Array:
    """Weight of each residual: 1 up to the cut-off, then falling as 1/z², so that one broken evaluation cannot lead.

    The loss behind it is quadratic up to the cut-off and grows with the logarithm beyond; weighted so, an outlier
    counts as much as a point exactly at the cut-off, however far out it lies.
    """
    size = np.abs(residuals)
    return np.where(size > cutoff, (cutoff / np.maximum(size, cutoff)) ** 2, 1.0)


def _loss(residuals_BN: Array, cutoff: float) -> Array:
    size_BN = np.abs(residuals_BN)
    inside_BN = np.minimum(size_BN, cutoff)
    beyond_BN = np.log(np.maximum(size_BN / cutoff, 1.0)) if np.isfinite(cutoff) else 0.0
    tail_BN = 2 * cutoff**2 * beyond_BN if np.isfinite(cutoff) else 0.0
    return 0.5 * (inside_BN**2 + tail_BN).sum(axis=-1)


def minimise(
    residuals: Residuals,
    start_BP: Array,
    lower_BP: Array,
    upper_BP: Array,
    cutoff: float = np.inf,
    max_steps: int = 100,
    tolerance: float = 1e-7,
) -> Solution:
    """Minimise half the sum of (robust) squares of every problem within the bounds.

    Args:
        residuals: the problems; called with those that are not finished yet.
        start_BP: where each problem starts; clipped into the bounds.
        lower_BP: lower bounds, for each problem or `[P]` for all; equal to the upper ones for a parameter held fixed.
        upper_BP: upper bounds.
        cutoff: residuals beyond it lose influence (see `influence`); infinite for plain least squares.
        max_steps: steps after which a problem is left where it is.
        tolerance: a problem is finished when its step is smaller than this in every parameter, relative to the
            parameter's size plus one.
    """
    lower_BP, upper_BP = np.broadcast_to(lower_BP, start_BP.shape), np.broadcast_to(upper_BP, start_BP.shape)
    theta_BP = np.clip(start_BP, lower_BP, upper_BP)
    live_B = np.arange(len(theta_BP))
    residual_BN, jacobian_BNP = residuals(theta_BP, live_B)
    cost_B = _loss(residual_BN, cutoff)
    converged_B = np.zeros(len(theta_BP), bool)
    damping_B = np.full(len(theta_BP), 1e-3)
    for _ in range(max_steps):
        here_BP, low_BP, high_BP = theta_BP[live_B], lower_BP[live_B], upper_BP[live_B]
        step_BP = _step(here_BP, residual_BN, jacobian_BNP, damping_B[live_B], low_BP, high_BP, cutoff)
        trial_BP = np.clip(here_BP + step_BP, low_BP, high_BP)
        moved_BP = np.abs(trial_BP - here_BP)
        trial_residual_BN, trial_jacobian_BNP = residuals(trial_BP, live_B)
        trial_cost_B = _loss(trial_residual_BN, cutoff)
        better_B = trial_cost_B <= cost_B[live_B]
        small_B = (moved_BP <= tolerance * (1 + np.abs(trial_BP))).all(axis=-1)

        won = live_B[better_B]
        theta_BP[won], cost_B[won] = trial_BP[better_B], trial_cost_B[better_B]
        residual_BN[better_B], jacobian_BNP[better_B] = trial_residual_BN[better_B], trial_jacobian_BNP[better_B]
        damping_B[live_B] = np.clip(damping_B[live_B] * np.where(better_B, 0.2, 5.0), 1e-12, 1e12)
        converged_B[live_B] = small_B
        if small_B.any():
            on_B = ~small_B
            live_B, residual_BN, jacobian_BNP = live_B[on_B], residual_BN[on_B], jacobian_BNP[on_B]
        if not live_B.size:
            break
    return Solution(theta_BP, cost_B, converged_B)


def _step(
    theta_BP: Array,
    residual_BN: Array,
    jacobian_BNP: Array,
    damping_B: Array,
    lower_BP: Array,
    upper_BP: Array,
    cutoff: float,
) -> Array:
    """The damped Gauss–Newton step of each problem; parameters pressed against a bound stay there."""
    weight_BN = influence(residual_BN, cutoff) if np.isfinite(cutoff) else np.ones_like(residual_BN)
    weighted_BPN = np.swapaxes(jacobian_BNP * weight_BN[..., None], -1, -2)
    gradient_BP = (weighted_BPN @ residual_BN[..., None])[..., 0]
    hessian_BPP = weighted_BPN @ jacobian_BNP
    held_BP = ((theta_BP <= lower_BP) & (gradient_BP >= 0)) | ((theta_BP >= upper_BP) & (gradient_BP <= 0))
    gradient_BP = np.where(held_BP, 0.0, gradient_BP)
    free_BP = ~held_BP
    hessian_BPP = hessian_BPP * (free_BP[:, :, None] & free_BP[:, None, :])
    diagonal_BP = np.einsum("bpp->bp", hessian_BPP)
    ridge_BP = damping_B[:, None] * diagonal_BP + np.where(held_BP, 1.0, 1e-12 * diagonal_BP.max(-1, keepdims=True))
    ridge_BP = np.maximum(ridge_BP, 1e-300)
    index = np.arange(theta_BP.shape[-1])
    hessian_BPP[:, index, index] += ridge_BP
    return -np.linalg.solve(hessian_BPP, gradient_BP[..., None])[..., 0]
