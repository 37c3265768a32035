"""Prior beliefs: the scatter of evaluations about their curve, and the parameters of the curve.

A policy wanders, so neighbouring evaluations err together, and a fit that takes their errors for independent states
too small an uncertainty (three runs of one recipe ended ±0.015 apart, ScaleRL §2.1, though each was measured to
±0.003). So a point's deviation is taken to be the sum of

- sampling noise, proportional to its standard error,
- drift: a Matérn-3/2 Gaussian process along compute, its size relative to the sampling noise, its length relative to
  the window, or a random walk that has that size at the window's end; independent between seeds,
- with several seeds, an offset of each seed's A, and perhaps of its R0 (seeds may start from different base models).

Sizes and lengths are not fitted but averaged over, on a grid, with the weight that the data give to each. All sizes
are counted in units of the noise scale (`scale` × the stated standard errors), so that one decomposition of the
covariance serves every scale; what is believed of the spread between seeds is believed of it as a pass rate.

Axes: `_N` points, `_R` eigenvectors, `_D` sizes of drift, `_L` lengths of drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.models import Model

DRIFTS = (0.6, 1.4, 3.5)
"""Sizes of drift considered, relative to the sampling noise."""

WALK = float("inf")
"""Stands for the length of a random walk, which never comes back."""

LENGTHS = (0.06, 0.15, 0.35, WALK)
"""Correlation lengths of drift considered, as shares of the window."""

MIDDLE = 1
"""Index of the length that stands for all where drift is looked at more coarsely."""

THIN = [0, *range(1 + MIDDLE, 1 + len(DRIFTS) * len(LENGTHS), len(LENGTHS))]
"""Indices of the kinds of drift of that length, and of none, in the order of `drifts`."""

NO_DRIFT = 0.65
"""Prior probability that evaluations scatter independently.

Of 0.5 and 0.65, the one with which intervals of simulated sigmoids with and without drift hold more nearly as often as
they say (`python tools/bench/curves.py --only coverage`).
"""

SPREADS = tuple(np.geomspace(0.001, 0.2, 11).tolist())
"""Standard deviations of A between seeds considered, in pass rate when the noise scale is the fitted one."""

START_SPREADS = (0.0, 0.05)
"""Standard deviations of R0 between seeds considered: seeds share their base model, or have one each."""

SPREAD_PRIOR = (0.03, 3.0)
"""Belief about the spread of A between seeds: scale and degrees of freedom of a half-t (Gelman 2006).

The paper's three runs differ by 0.0125 (±0.015, ScaleRL §2.1), the seeds of docs/study by 0.008 to 0.017; 80 % of the
belief lie in 0.004–0.05. The scale is the smallest of 0.02, 0.025, 0.03 with which two recipes are falsely called
better or worse in about 10 % (measured: 5 to 11), from two seeds each on, whatever their spread up to 0.03. A belief
closer to what was seen finds more and errs in 16 % where seeds spread by 0.03 (the smaller scales were measured with
draws of the nearest spread of the grid; see `joint_draws`).
"""


def drifts() -> list[tuple[float, float, float]]:
    """Size, length and logarithm of the prior probability of every kind of drift; the first is none."""
    kinds = list(product(DRIFTS, LENGTHS))
    log_share = float(np.log((1 - NO_DRIFT) / len(kinds)))
    return [(0.0, 1.0, float(np.log(NO_DRIFT))), *((size, length, log_share) for size, length in kinds)]


def spreads(several_seeds: bool, r0_given: bool = False) -> list[tuple[float, float]]:
    """Spread of A and of R0 between seeds: every pair considered; none for a single seed."""
    if not several_seeds:
        return [(0.0, 0.0)]
    return list(product(SPREADS, START_SPREADS[:1] if r0_given else START_SPREADS))


def log_spread_prior(spread: Array) -> Array:
    """Logarithm of the density of the spread's logarithm, up to a constant; 0 where there is none.

    Args:
        spread: standard deviation of A between seeds, as a pass rate.
    """
    size, degrees = SPREAD_PRIOR
    with np.errstate(divide="ignore"):
        log_density = np.log(spread) - 0.5 * (degrees + 1) * np.log1p((spread / size) ** 2 / degrees)
    return np.where(spread > 0, log_density, 0.0)


def drift_kernel(compute_N: Array, length: float, span: float) -> Array:
    """Correlation `[N, N]` of the drift between points: Matérn-3/2, or that of a random walk of unit size at the end.

    Source: Rasmussen & Williams 2006, Eq. 4.17 and, for the walk (a Wiener process), §4.2.3.

    Args:
        compute_N: compute of each point.
        length: correlation length as a share of `span`; `WALK` for a random walk.
        span: compute of the last point.
    """
    if length == WALK:
        return np.minimum(compute_N[:, None], compute_N[None, :]) / span
    distance_NN = np.sqrt(3) * np.abs(compute_N[:, None] - compute_N[None, :]) / (length * span)
    result: Array = (1 + distance_NN) * np.exp(-distance_NN)
    return result


def typical(sigma_N: Array) -> float:
    """The typical sampling noise: the median, which broken or boundary points do not move."""
    return float(np.median(sigma_N))


class SeedNoise:
    """Inner products under every kind of drift, for the points of one seed.

    For points scaled to unit sampling noise, the covariance is I + d²K for a drift of size d. With K = UΛUᵀ its inverse
    is I + U diag(1/(1 + d²λ) − 1) Uᵀ, so all sizes of drift share the products with U, and modes with d²λ ≪ 1 drop out.
    """

    def __init__(self, compute_N: Array, sigma_N: Array, typical_sigma: float, span: float) -> None:
        self.inverse_N = 1 / sigma_N
        modes: list[Array] = []
        log_determinant_DL = np.zeros((len(DRIFTS), len(LENGTHS)))
        less: list[Array] = []
        ratio_N = typical_sigma * self.inverse_N
        squares_D = np.square(DRIFTS)
        for at, length in enumerate(LENGTHS):
            kernel_NN = drift_kernel(compute_N, length, span) * np.outer(ratio_N, ratio_N)
            lambda_N, vectors_NN = np.linalg.eigh(kernel_NN)
            kept_N = squares_D.max() * lambda_N > 1e-4
            gain_DR = 1 + squares_D[:, None] * lambda_N[kept_N]
            modes.append(self.inverse_N[:, None] * vectors_NN[:, kept_N])
            less.append((1 / gain_DR - 1).T)
            log_determinant_DL[:, at] = 0.5 * np.log(gain_DR).sum(1)
        self.log_determinant_H = np.concatenate([[0.0], log_determinant_DL.ravel()]) + np.log(sigma_N).sum()
        self.modes_NR = np.concatenate(modes, axis=1)
        self.less_RH = np.zeros((self.modes_NR.shape[1], len(self.log_determinant_H)))
        ends = np.cumsum([0, *map(len, less)]).tolist()
        for at, less_RD in enumerate(less):
            self.less_RH[ends[at] : ends[at + 1], 1 + at :: len(LENGTHS)] = less_RD
        middle = slice(ends[MIDDLE], ends[MIDDLE + 1])
        self.thin = self.modes_NR[:, middle].copy(), self.less_RH[middle][:, THIN]

    def products(self, pairs: Sequence[tuple[Array, Array]], thin: bool = False) -> list[Array]:
        """xᵀ Σ⁻¹ y of every pair `([.., N], [.., N])` under every kind of drift `[.., H]`, in the order of `drifts`.

        With a single vector y, Σ⁻¹y is the same for all x, and found once.

        Args:
            pairs: x and y.
            thin: only under the kinds that `THIN` names.
        """
        modes_NR, less_RH = self.thin if thin else (self.modes_NR, self.less_RH)
        square_N = self.inverse_N**2
        along = {id(item): item @ modes_NR for pair in pairs for item in pair}
        found: list[Array] = []
        for x, y in pairs:
            many, one = (x, y) if y.ndim == 1 else (y, x)
            if one.ndim == 1:
                solved_NH = (one * square_N)[:, None] + modes_NR @ (along[id(one)][:, None] * less_RH)
                found.append(many @ solved_NH)
            else:
                plain = np.einsum("...n,...n,n->...", x, y, square_N)
                found.append(plain[..., None] + (along[id(x)] * along[id(y)]) @ less_RH)
        return found


@dataclass(frozen=True)
class Prior:
    """Log-normal beliefs as (median, standard deviation of the logarithm): weak, free of scale, possible to switch off.

    Early points cannot tell a curve that bends soon from one that goes on rising, and least squares then picks an
    asymptote almost at random. A is anything from R0 to 1, all equally likely; 80 % of B lie in 0.9–2.8 (the fits that
    ScaleRL reports, Table 1 and text, in 1.09–2.44), 80 % of C_mid in 0.09–1.9 of the compute spent so far, relative to
    the data so that a fit does not depend on the unit of compute. Evaluations scatter 0.3–1.7 times as much as their
    standard error says (80 %): they share their prompts, so what the choice of prompts adds to a standard error does
    not scatter from one to the next. Without a standard error, the scatter is about 0.008 within a factor of 4.7.
    Switched off, A, ln B, ln C_mid and the logarithm of the scatter are flat within their bounds.

    Attributes:
        B: of the sigmoid's exponent.
        C_mid_share: of C_mid as a share of the last point's compute.
        scale: of the scatter in units of the stated standard errors.
        scatter: of the scatter itself where no standard errors are stated.
    """

    B: tuple[float, float] = (1.6, 0.45)
    C_mid_share: tuple[float, float] = (0.4, 1.2)
    scale: tuple[float, float] = (0.7, 0.7)
    scatter: tuple[float, float] = (0.008, 1.2)

    def scale_squared(self, squares: float, spare: int, relative: float, known: bool) -> float:
        """Squared noise scale: mean square of the residuals, shrunk towards what is believed when few are left over.

        Args:
            squares: sum of squared residuals, in units of the stated standard errors.
            spare: points beyond the fitted parameters.
            relative: typical stated standard error; a mere unit where none is known.
            known: whether standard errors are known.
        """
        median = self.scale[0] if known else self.scatter[0] / relative
        count = self.equivalent_points(known)
        return (count * median**2 + squares) / (count + spare)

    def equivalent_points(self, known: bool) -> float:
        """Number of squared residuals that would tell the noise scale as well as the prior does."""
        return float(0.5 / (self.scale if known else self.scatter)[1] ** 2)

    def chance(self, explained: float, more: int, left: float, spare: int) -> float:
        """Probability that a constant's scatter lets a curve explain so much, by the noise scales that are believed.

        χ² with `more` degrees of freedom, averaged over the scale's density given the residuals.

        Args:
            explained: by how much the curve's sum of squares is below the constant's, in stated variances.
            more: parameters beyond the constant.
            left: the curve's sum of squares, alike.
            spare: points beyond its parameters.
        """
        from scipy.special import chdtrc

        log_scale_S = np.log(self.scale[0]) + self.scale[1] * np.linspace(-5, 5, 201)
        squared_S = np.exp(2 * log_scale_S)
        log_weight_S = self.log_scale(log_scale_S, 1.0, known=True) - spare * log_scale_S - left / (2 * squared_S)
        weight_S = np.exp(log_weight_S - log_weight_S.max())
        return float(weight_S @ chdtrc(more, explained / squared_S) / weight_S.sum())

    def log_scale(self, log_scale: Array, relative: float, known: bool) -> Array:
        """Logarithm of the density of the noise scale's logarithm; arguments as above."""
        median, deviation = self.scale if known else (self.scatter[0] / relative, self.scatter[1])
        result: Array = -0.5 * ((log_scale - np.log(median)) / deviation) ** 2
        return result

    def shape(self, model: Model, u_end: float) -> tuple[Array, Array]:
        """Mean and standard deviation of the shape parameters `[S]`; infinite deviation where nothing is believed.

        Args:
            model: the curve; the power law has no beliefs.
            u_end: logarithm of the last point's compute in units of the fit's reference.
        """
        if "R0" not in model.linear:
            size = len(model.parameters) - 2
            return np.zeros(size), np.full(size, np.inf)
        mean = np.array([np.log(self.B[0]), u_end + np.log(self.C_mid_share[0])])
        return mean, np.array([self.B[1], self.C_mid_share[1]])


DEFAULT = Prior()
"""The prior of every fit that does not say otherwise."""
