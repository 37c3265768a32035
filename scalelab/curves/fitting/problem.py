"""One curve as a least-squares problem, its robust fit, and the solver for many such problems at once.

Axes: `_N` points, `_P` parameters, `_S` shape parameters, `_L` linear coefficients, `_B` starts or problems.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.models import SIGMOID, Model, jacobian, log_compute, value
from scalelab.curves.fitting.noise import Prior, typical
from scalelab.reading.curve import Curve

STARTS = 6
"""Grid cells refined; the rest are worse by more than a local optimum can make good."""

PARTS = 48
"""Random parts of the points that are fitted to find outliers: enough to miss any three of them with 84 %."""


FOUR_FIFTHS = 1.2815515655446004
"""Four fifths of a standard normal lie within this of zero."""


@dataclass(frozen=True)
class Problem:
    """One curve as a least-squares problem, the prior's beliefs among its residuals.

    Attributes:
        model: sigmoid or power law.
        u_N: logarithm of compute in units of the reference.
        rate_N: pass rates.
        relative_N: standard errors, or ones where none is known.
        known: whether standard errors are known.
        lower_P: lower bounds of the parameters, equal to the upper ones where held fixed.
        upper_P: upper bounds.
        prior: beliefs about shape and noise scale, or None.
        offsets: parameters fitted beside the curve: offsets of the seeds, taken off `rate_N` already.
    """

    model: Model
    u_N: Array
    rate_N: Array
    relative_N: Array
    known: bool
    lower_P: Array
    upper_P: Array
    prior: Prior | None
    offsets: int = 0

    @property
    def spare(self) -> int:
        """Points beyond the fitted parameters."""
        return max(len(self.u_N) - int((self.upper_P > self.lower_P).sum()) - self.offsets, 0)

    def residuals(self, theta_BP: Array, rate_BN: Array, sigma_N: Array) -> tuple[Array, Array]:
        """Residuals and Jacobian in units of `sigma_N`, the prior's beliefs appended as residuals of their own."""
        residual_BN = (value(self.model, theta_BP, self.u_N) - rate_BN) / sigma_N
        jacobian_BNP = jacobian(self.model, theta_BP, self.u_N) / sigma_N[:, None]
        if self.prior is None or self.model is not SIGMOID:
            return residual_BN, jacobian_BNP
        mean_S, deviation_S = self.prior.shape(self.model, float(self.u_N.max()))
        belief_SP = np.diag(1 / deviation_S) @ np.eye(2, 4, k=2)
        belief_BSP = np.broadcast_to(belief_SP, (len(theta_BP), 2, 4))
        surprise_BS = (theta_BP[:, 2:] - mean_S) / deviation_S
        return np.concatenate([residual_BN, surprise_BS], 1), np.concatenate([jacobian_BNP, belief_BSP], 1)

    def minimise(self, start_BP: Array, sigma_N: Array, cutoff: float, tolerance: float = 1e-6) -> Array:
        """The best parameter vector `[P]` reached from any of the starts."""
        solution = minimise(
            lambda theta_BP, _: self.residuals(theta_BP, self.rate_N, sigma_N),
            start_BP,
            self.lower_P,
            self.upper_P,
            cutoff,
            tolerance=tolerance,
        )
        result: Array = solution.theta_BP[solution.cost_B.argmin()]
        return result

    def spread(self, theta_BP: Array) -> Array:
        """Scatter of four fifths of the points about each curve `[B]`, in units of the stated standard errors."""
        z_BN = np.abs(self.rate_N - value(self.model, theta_BP, self.u_N)) / self.relative_N
        four_fifths_B = np.quantile(z_BN, 0.8, axis=-1, method="higher") / FOUR_FIFTHS
        result: Array = four_fifths_B * np.sqrt(len(self.u_N) / max(self.spare, 1))
        return result

    def scale(self, theta_P: Array) -> float:
        """Noise scale: residual spread in units of the stated standard errors, not led by outliers."""
        z_N = (self.rate_N - value(self.model, theta_P, self.u_N)) / self.relative_N
        limit = max(4 * float(self.spread(theta_P)), 1e-12)
        squares = float((np.minimum(np.abs(z_N), limit) ** 2).sum())
        if self.prior is None:
            variance = squares / max(self.spare, 1)
        else:
            variance = self.prior.scale_squared(squares, self.spare, typical(self.relative_N), self.known)
        return float(np.sqrt(max(variance, (1e-7 / typical(self.relative_N)) ** 2)))


def make_problem(points: Curve, model: Model, r0: float | None, prior: Prior | None) -> tuple[Problem, float]:
    """The points in the solver's coordinates, and the reference compute: their geometric mean."""
    reference = float(np.exp(np.log(points.compute_N[points.compute_N > 0]).mean()))
    u_N = log_compute(points.compute_N, reference)
    lower_P, upper_P = model.bounds(u_N)
    if r0 is not None and "R0" in model.linear:
        lower_P[0] = upper_P[0] = r0
    known = points.stderr_N is not None
    relative_N = points.stderr_N if points.stderr_N is not None else np.ones(len(points))
    return Problem(model, u_N, points.pass_rate_N, relative_N, known, lower_P, upper_P, prior), reference


def solve(problem: Problem, near: tuple[Array, float] | None = None) -> tuple[Array, float, Array]:
    """Parameters, noise scale and influence of each point.

    Least squares first. An outlier on the steep part of a curve can draw it along and so hide; therefore the points
    are also fitted in many random parts, and the noise scale starts from the curve that passes closest to four fifths
    of all points (the idea of least trimmed squares). With that scale, all points are fitted with the robust loss.

    Args:
        problem: the curve.
        near: parameters and noise scale of nearly the same problem, to start from instead.
    """
    cutoff = 3 + 12 / max(problem.spare, 1)
    plain, relative_N = replace(problem, prior=None), problem.relative_N
    if near is None:
        start_BP, least_P = least_squares(plain)
        candidate_BP = np.concatenate([least_P[None], _fits_of_parts(plain, least_P)])
        best_P = candidate_BP[plain.spread(candidate_BP).argmin()]
        start_BP = np.concatenate([least_P[None], best_P[None], start_BP])
        scale = problem.scale(best_P)
    else:
        start_BP, scale = near[0][None], near[1]
    for _ in range(3):
        theta_P = problem.minimise(start_BP, scale * relative_N, cutoff)
        before, scale = scale, problem.scale(theta_P)
        if abs(scale / before - 1) < 0.05:
            break
    residual_BN, _ = plain.residuals(theta_P[None], problem.rate_N, scale * relative_N)
    return theta_P, scale, influence(residual_BN[0], cutoff)


def least_squares(problem: Problem) -> tuple[Array, Array]:
    """Parameter vectors to start from `[STARTS, P]`, and the one of the least squares."""
    relative_N = problem.relative_N
    start_BP = starts(problem.model, problem.u_N, problem.rate_N, relative_N, problem.lower_P, problem.upper_P)
    return start_BP, problem.minimise(start_BP, relative_N, np.inf, tolerance=1e-3)  # where a robust fit begins


def _fits_of_parts(problem: Problem, start_P: Array) -> Array:
    """Least-squares fits `[PARTS, P]` of random two thirds of the points; none if those are fewer than parameters."""
    size = round(len(problem.u_N) * 2 / 3)
    if size <= len(start_P):
        return start_P[None]
    order_BN = np.random.default_rng(0).permuted(np.tile(np.arange(len(problem.u_N)), (PARTS, 1)), axis=1)
    kept_BN = np.where(order_BN < size, 1.0, 0.0)

    def residuals(theta_BP: Array, at_B: np.ndarray) -> tuple[Array, Array]:
        residual_BN, jacobian_BNP = problem.residuals(theta_BP, problem.rate_N, problem.relative_N)
        return residual_BN * kept_BN[at_B], jacobian_BNP * kept_BN[at_B][..., None]

    start_BP = np.repeat(start_P[None], PARTS, axis=0)
    return minimise(residuals, start_BP, problem.lower_P, problem.upper_P, max_steps=12, tolerance=1e-3).theta_BP


def starts(model: Model, u_N: Array, rate_N: Array, sigma_N: Array, lower_P: Array, upper_P: Array) -> Array:
    """Parameter vectors `[STARTS, P]` to start from: the best cells of a shape grid, linear part solved exactly."""
    sizes = (60,) if len(lower_P) == 3 else (10, 24)
    axes = [np.linspace(low, high, size) for low, high, size in zip(lower_P[2:], upper_P[2:], sizes)]
    shapes_BS = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(sizes))
    features_BNL = model.features(shapes_BS, u_N) / sigma_N[:, None]
    gram_BLL = np.swapaxes(features_BNL, -1, -2) @ features_BNL
    moment_BL = (rate_N / sigma_N) @ features_BNL
    linear_BL = solve_box(gram_BLL, moment_BL, lower_P[:2], upper_P[:2])
    misfit_B = ((linear_BL[:, None] @ gram_BLL)[:, 0] * linear_BL).sum(-1) - 2 * (linear_BL * moment_BL).sum(-1)
    best_B = np.argsort(misfit_B)[:STARTS]
    return np.concatenate([linear_BL[best_B], shapes_BS[best_B]], axis=-1)


def solve_box(gram_BLL: Array, moment_BL: Array, lower_L: Array, upper_L: Array) -> Array:
    """Two linear coefficients that minimise cᵀGc/2 − mᵀc inside a box: the free optimum, or the best on an edge."""
    a, b, d = gram_BLL[..., 0, 0], gram_BLL[..., 0, 1], gram_BLL[..., 1, 1]
    m, n = moment_BL[..., 0], moment_BL[..., 1]
    determinant = np.maximum(a * d - b * b, 1e-12 * a * d + 1e-300)
    candidates = [np.stack([(d * m - b * n) / determinant, (a * n - b * m) / determinant], -1)]
    for edge in (lower_L[0], upper_L[0]):
        if np.isfinite(edge):
            candidates.append(np.stack([np.full_like(m, edge), (n - b * edge) / np.maximum(d, 1e-300)], -1))
    for edge in (lower_L[1], upper_L[1]):
        if np.isfinite(edge):
            candidates.append(np.stack([(m - b * edge) / np.maximum(a, 1e-300), np.full_like(m, edge)], -1))
    choices = np.stack(candidates)
    inside = ((choices[0] >= lower_L) & (choices[0] <= upper_L)).all(-1)
    choices = np.clip(choices, lower_L, upper_L)
    cost = 0.5 * np.einsum("kbl,blm,kbm->kb", choices, gram_BLL, choices) - (choices * moment_BL).sum(-1)
    cost[0] = np.where(inside, -np.inf, np.inf)
    result: Array = np.take_along_axis(choices, cost.argmin(0)[None, :, None], axis=0)[0]
    return result


Residuals = Callable[[Array, Array], tuple[Array, Array]]
"""(parameters `[B, P]`, which problems they belong to `[B]`) → (residuals `[B, N]`, Jacobian `[B, N, P]`)."""


@dataclass(frozen=True)
class Solution:
    """The solver's result for each problem.

    Attributes:
        theta_BP: parameters.
        cost_B: half the sum of losses.
    """

    theta_BP: Array
    cost_B: Array


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
    result: Array = 0.5 * (inside_BN**2 + tail_BN).sum(axis=-1)
    return result


def minimise(
    residuals: Residuals,
    start_BP: Array,
    lower_BP: Array,
    upper_BP: Array,
    cutoff: float = np.inf,
    max_steps: int = 100,
    tolerance: float = 1e-7,
) -> Solution:
    """Minimise half the sum of (robust) squares of every problem within the bounds, by Levenberg–Marquardt.

    All problems take every step together, in NumPy, and the finished ones drop out: one at a time, a bootstrap would
    spend nearly all of its time in Python.

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
        if small_B.any():
            on_B = ~small_B
            live_B, residual_BN, jacobian_BNP = live_B[on_B], residual_BN[on_B], jacobian_BNP[on_B]
        if not live_B.size:
            break
    return Solution(theta_BP, cost_B)


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
