"""Posterior density of a curve's shape and noise, with all that is linear integrated out.

Axes: `_G` shapes, `_H` kinds of drift, `_T` spreads between seeds, `_K` noise scales, `_X` combinations of the first
three that have mass, `_N` points, `_S` shape parameters, `_L` linear coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.models import Model, log_compute, logistic
from scalelab.curves.fitting.noise import (
    LENGTHS,
    THIN,
    WALK,
    Prior,
    SeedNoise,
    drifts,
    log_spread_prior,
    spreads,
    typical,
)

LOG_SCALES_K = np.linspace(-0.9, 1.2, 11)
"""Noise scales considered, relative to the fitted one."""

WIDE_SCALES_K = np.linspace(-2.58, 1.2, 19)
"""Noise scales considered where a late change is looked for: the fit without one took the change for noise."""

FAINT = 0.01
"""Inverse variance of R0 and A before the points: finite where a curve does not show one of them at all."""

NEGLIGIBLE = 9.0
"""Cells less likely than the best by this much in the logarithm hold no mass worth a point."""

TINY = 12.0
"""Cells less likely than the best by this much before their bounds are looked at hold no draw."""

INSIDE = 4.5
"""Standard deviations between a coefficient and its bounds from which all of its mass (less 3e-6) is inside."""


CHANGE_SIZE = 0.1
"""Standard deviation of a change's height before the points are seen, in pass rate: as often a fall as a rise."""


WIDE_SIZE = 1.0
"""Its standard deviation while a change is looked for, in units of a noise scale that is not known yet."""


@dataclass(frozen=True)
class Change:
    """A rise or a fall of unknown height late in a run, beside the curve: height × σ(steep · ln(C / at)).

    Attributes:
        u: logarithm of the compute `at` where half of it is made, in units of the fit's reference; `[G, 1]` for a
            change of its own for every shape.
        steep: its exponent, likewise.
    """

    u: float | Array
    steep: float | Array

    def feature(self, u_N: Array) -> Array:
        """Share of the change made, `[N]` or `[G, N]`, in [0, 1]."""
        return logistic(np.clip(self.steep * (u_N - self.u), -500, 500))


def seed_noises(fit: Fit) -> list[SeedNoise]:
    """The kinds of noise for the points of every seed, decomposed: the same for every shape of the curve."""
    sigma_N = fit.sigma_N / np.sqrt(fit.weight_N)
    span, middle = float(fit.curve.compute_N.max()), typical(sigma_N)
    return [SeedNoise(fit.curve.compute_N[at], sigma_N[at], middle, span) for at in _members(fit)]


def _members(fit: Fit) -> list[np.ndarray]:
    """Indices of the points of every seed."""
    return [np.flatnonzero(fit.curve.seed_N == seed) for seed in range(len(fit.curve.seeds))]


@dataclass(frozen=True)
class Cells:
    """Combinations of a shape and a kind of noise that have mass, `_X`.

    Attributes:
        g_X: index of the shape.
        h_X: index of the kind of drift.
        t_X: index of the spread between seeds.
        log_XK: log density at every noise scale; −inf where it is negligible.
        mean_XL: mean of the two linear coefficients.
        cov_XLL: their covariance at unit scale.
        change_XQ: inner products of the change with the two features, the rates and itself; None without a change.
    """

    g_X: np.ndarray
    h_X: np.ndarray
    t_X: np.ndarray
    log_XK: Array
    mean_XL: Array
    cov_XLL: Array
    change_XQ: Array | None = None

    def sum_over(self, index_X: np.ndarray, size: int) -> Array:
        """Log density of every value of an index, `[size]`: all else summed over."""
        top = float(self.log_XK.max())
        with np.errstate(divide="ignore"):
            return np.log(np.bincount(index_X, np.exp(self.log_XK - top).sum(1), size)) + top


class Density:
    """The posterior of the shape and the noise, with the linear coefficients and the seeds' offsets integrated out.

    All points enter through inner products of the curve's two features and the pass rates, seed by seed and for every
    kind of drift. The offsets of a seed, of R0 and of A, are normal about zero, and so is the height of a change: they
    integrate out of the products in closed form (Rasmussen & Williams 2006, §2.7), for every spread between seeds on
    the grid.
    """

    def __init__(
        self,
        fit: Fit,
        prior: Prior | None,
        model: Model | None = None,
        coarse: bool = False,
        noises: Sequence[SeedNoise] | None = None,
        change: Change | None = None,
        search: bool = False,
    ) -> None:
        self.falls = fit.falls
        fit = fit.mirrored() if fit.falls else fit  # every curve below rises: R0 ≤ A
        self.fit, self.prior, self.model, self.change = fit, prior, model or fit.model, change
        self.change_size = WIDE_SIZE if search else CHANGE_SIZE
        points = fit.curve
        self.u_N = log_compute(points.compute_N, np.exp(fit.log_reference))
        self.asymptote = self.model.linear.index("A")
        self.upper_L = self.model.bounds(self.u_N)[1][:2]
        self.members = _members(fit)
        self.noises = seed_noises(fit) if noises is None else noises
        self.drift_H = np.array([size for size, _, _ in drifts()])
        self.walk_H = np.array([length == WALK for _, length, _ in drifts()])
        rises = "R0" in self.model.linear
        pairs = spreads(len(points.seeds) > 1, fit.fixed_r0 is not None or not rises)
        self.spread_T, self.start_T = np.array(pairs).T
        self.thin_T = np.isin(self.spread_T, np.unique(self.spread_T)[::2])
        if coarse:
            few_T = np.isin(self.spread_T, np.unique(self.spread_T)[2::2][:4]) | (self.spread_T == 0)
            self.spread_T, self.start_T = self.spread_T[few_T], self.start_T[few_T]
            self.thin_T = np.isin(self.spread_T, np.unique(self.spread_T)[-1::-2])
        self.log_fixed_H = np.array([weight for _, _, weight in drifts()])
        self.log_fixed_H = self.log_fixed_H - np.sum([noise.log_determinant_H for noise in self.noises], axis=0)
        self.log_thin_H = self.log_fixed_H[THIN] + np.where(np.array(THIN) > 0, np.log(len(LENGTHS)), 0.0)
        self.log_scales_K = WIDE_SCALES_K if search else LOG_SCALES_K
        log_scale_K = self.log_scales_K + np.log(fit.scale)
        known = points.stderr_N is not None
        self.log_prior_TK = log_spread_prior(self.spread_T[:, None] * np.exp(self.log_scales_K))
        self.log_prior_TK = self.log_prior_TK - np.logaddexp.reduce(self.log_prior_TK, axis=0)
        if prior is not None:
            self.log_prior_TK = self.log_prior_TK + prior.log_scale(log_scale_K, fit.relative, known)
        self.shape_prior = prior.shape(self.model, float(self.u_N.max())) if prior is not None else None
        self.kept_H = np.arange(len(self.drift_H))

    def focus(self, shapes_GS: Array, spreads_only: bool = False) -> None:
        """Leave out the kinds of drift and the spreads between seeds that have no mass at any of these shapes.

        Args:
            shapes_GS: the shapes.
            spreads_only: keep every kind of drift, and twice as improbable spreads: the shapes are far from right yet.
        """
        cells, size = self._evaluate(shapes_GS, scales=2), (len(self.drift_H), len(self.spread_T))
        log_HT = cells.sum_over(np.ravel_multi_index((cells.h_X, cells.t_X), size), size[0] * size[1]).reshape(size)
        held_HT = log_HT > log_HT.max() - (2 * NEGLIGIBLE if spreads_only else NEGLIGIBLE)
        kept_H, kept_T = held_HT.any(1) | spreads_only, held_HT.any(0)
        self.kept_H, self.drift_H, self.walk_H, self.log_fixed_H = (
            each[kept_H] for each in (self.kept_H, self.drift_H, self.walk_H, self.log_fixed_H)
        )
        self.spread_T, self.start_T, self.log_prior_TK, self.thin_T = (
            each[kept_T] for each in (self.spread_T, self.start_T, self.log_prior_TK, self.thin_T)
        )

    def evaluate(self, shapes_GS: Array) -> Cells:
        """Every combination of a shape and a kind of noise that has mass, weighed exactly."""
        return self._evaluate(shapes_GS)

    def found(self, shapes_GS: Array, groups: int = 1) -> tuple[Array, Array]:
        """Log evidence of every group of shapes `[groups]`, and the logarithm of the noise scale that it asks for.

        Args:
            shapes_GS: the shapes, group after group.
            groups: how many, all of one size.
        """
        cells = self._evaluate(shapes_GS, thin=True, scales=2)
        group_X = cells.g_X // (len(shapes_GS) // groups)
        weight_XK = np.exp(cells.log_XK - cells.log_XK.max())
        scale_X = weight_XK @ self.log_scales_K[::2]
        total = np.bincount(group_X, weight_XK.sum(1), groups)
        mean = np.bincount(group_X, scale_X, groups) / np.maximum(total, 1e-300)
        return cells.sum_over(group_X, groups), mean

    def shape(self, shapes_GS: Array) -> Array:
        """Log density of the shape alone, `[G]`: kinds of noise are summed over more coarsely than in `evaluate`."""
        cells = self._evaluate(shapes_GS, thin=True, scales=2)
        return cells.sum_over(cells.g_X, len(shapes_GS))

    def _evaluate(self, shapes_GS: Array, thin: bool = False, scales: int = 1) -> Cells:
        """Weigh shapes: with fewer drifts and spreads if `thin`, and every so many of the noise scales."""
        every_T, every_K = self.thin_T if thin else slice(None), slice(None, None, scales)
        log_scale_K, log_prior_TK = self.log_scales_K[every_K], self.log_prior_TK[every_T][:, every_K]
        gram, log_volume_GHT = self._products(shapes_GS, self.start_T[every_T], self.spread_T[every_T], thin)
        before = gram
        if self.change is not None:
            gram, log_half = _without(gram, "h", np.array(self.change_size**2))
            log_volume_GHT = log_volume_GHT + log_half
        squares, log_left, free = self._residuals(gram)
        log_GHT = log_volume_GHT + log_left + (self.log_thin_H if thin else self.log_fixed_H)[:, None]
        if self.shape_prior is not None:
            mean_S, deviation_S = self.shape_prior
            log_GHT -= 0.5 * (((shapes_GS - mean_S) / deviation_S) ** 2).sum(-1)[:, None, None]
        spare = len(self.u_N) - free
        peak = np.clip(0.5 * np.log(np.maximum(squares / spare, 1e-300)), log_scale_K[0], log_scale_K[-1])
        most_GHT = log_GHT + log_prior_TK.max(1) - spare * peak - 0.5 * squares * np.exp(-2 * peak)  # over all scales
        at_X = np.nonzero(most_GHT > self._level(log_GHT, squares, spare, most_GHT, log_scale_K, log_prior_TK))
        log_XK = log_GHT[at_X][:, None] + log_prior_TK[at_X[2]] - spare * log_scale_K
        log_XK -= 0.5 * squares[at_X][:, None] * np.exp(-2 * log_scale_K)
        log_XK[log_XK <= log_XK.max() - TINY] = -np.inf
        mean_XL, cov_XLL = self._linear_part({pair: item[at_X] for pair, item in gram.items() if "h" not in pair})
        log_XK += self._log_mass_of_bounds(mean_XL, cov_XLL, np.exp(log_scale_K), np.isfinite(log_XK))
        change_XQ = None
        if self.change is not None:
            pairs = [np.broadcast_to(before[pair], log_GHT.shape)[at_X] for pair in ("fh", "gh", "hr", "hh")]
            change_XQ = np.stack(pairs, axis=-1)
        g_X, h_X, t_X = at_X
        return Cells(g_X, h_X, t_X, log_XK, mean_XL, cov_XLL, change_XQ)

    def _products(self, shapes_GS: Array, start_T: Array, spread_T: Array, thin: bool) -> tuple[Gram, Array]:
        """Inner products over all seeds, and minus half the log determinant of their offsets.

        Shapes are next to each other in memory: there are more of them than of anything else.
        """
        rise_GN = self.model.features(shapes_GS, self.u_N)[..., 1]
        step_N = None if self.change is None else self.change.feature(self.u_N)
        kept = slice(None) if thin else self.kept_H
        start_T11, spread_T11 = start_T[:, None, None], spread_T[:, None, None]
        total: Gram = {}
        log_volume: Array = np.zeros(1)
        for at, noise in zip(self.members, self.noises):
            found = self._of_seed(rise_GN[:, at], None if step_N is None else step_N[..., at], at, noise, thin)
            own = {pair: np.ascontiguousarray(item[:, kept].T) for pair, item in found.items()}
            own, log_half = _without_offsets(own, start_T11**2, spread_T11**2)
            total = {pair: total[pair] + item if total else item for pair, item in own.items()}
            log_volume = log_volume + log_half
        total |= {"ff": total["ff"] + FAINT, "gg": total["gg"] + FAINT}
        return {pair: item.T for pair, item in total.items()}, log_volume.T

    def _of_seed(
        self, rise_GN: Array, step_N: Array | None, at_N: np.ndarray, noise: SeedNoise, thin: bool
    ) -> dict[str, Array]:
        """Inner products of a seed's points, `[G, H]`, or `[1, H]` where no shape is in them.

        The weight of R0 is 1 less that of A (of the power law: 1), so its products follow from those of a constant.
        """
        vectors = {"1": np.ones(len(at_N)), "g": rise_GN, "r": self.fit.curve.pass_rate_N[at_N]}
        if step_N is not None:
            vectors["h"] = step_N
        pairs = [first + second for first in vectors for second in vectors if first <= second]
        found = dict(zip(pairs, noise.products([(vectors[pair[0]], vectors[pair[1]]) for pair in pairs], thin)))
        less = 1.0 if "R0" in self.model.linear else 0.0
        own = {pair: item for pair, item in found.items() if "1" not in pair}
        for other in [letter for letter in vectors if letter != "1"]:
            own["f" + other] = found["1" + other] - less * found["".join(sorted("g" + other))]
        own["ff"] = found["11"] - less * (found["1g"] + own["fg"])
        return {pair: np.atleast_2d(item) for pair, item in own.items()}

    def _level(
        self, log_GHT: Array, squares: Array, spare: int, most_GHT: Array, log_scale_K: Array, log_prior_TK: Array
    ) -> float:
        """Log density below which no cell is looked at: far below that of the most promising cell."""
        g, h, t = np.unravel_index(int(most_GHT.argmax()), most_GHT.shape)
        log_K = log_GHT[g, h, t] + log_prior_TK[t] - spare * log_scale_K
        log_K -= 0.5 * squares[g, h, t] * np.exp(-2 * log_scale_K)
        return float(log_K.max()) - TINY

    def _residuals(self, gram: Gram) -> tuple[Array, Array, int]:
        """Residual squares and half the log volume of the coefficients `[G, H, T]`, and how many are free."""
        a, b, d, m, n, y = (gram[pair] for pair in ("ff", "fg", "gg", "fr", "gr", "rr"))
        if self.fit.fixed_r0 is not None:
            R0 = self.fit.fixed_r0
            A = (n - R0 * b) / d
            squares = y - 2 * R0 * m + R0**2 * a - d * A**2
            return np.maximum(squares, 0), -0.5 * np.log(d), 1
        determinant = np.maximum(a * d - b**2, 1e-10 * a * d)
        first, second = (d * m - b * n) / determinant, (a * n - b * m) / determinant
        squares = y - first * (2 * m - a * first - b * second) - second * (2 * n - b * first - d * second)
        return np.maximum(squares, 0), -0.5 * np.log(determinant), 2

    def _linear_part(self, gram: Gram) -> tuple[Array, Array]:
        """Mean `[X, 2]` and unit-scale covariance `[X, 2, 2]` of the coefficients."""
        a, b, d, m, n = (gram[pair] for pair in ("ff", "fg", "gg", "fr", "gr"))
        cov_XLL = np.zeros((len(a), 2, 2))
        if self.fit.fixed_r0 is not None:
            R0 = self.fit.fixed_r0
            cov_XLL[:, 1, 1] = 1 / d
            return np.stack([np.full_like(d, R0), (n - R0 * b) / d], -1), cov_XLL
        determinant = np.maximum(a * d - b**2, 1e-10 * a * d)
        cov_XLL[:, 0, 0], cov_XLL[:, 1, 1] = d / determinant, a / determinant
        cov_XLL[:, 0, 1] = cov_XLL[:, 1, 0] = -b / determinant
        return np.stack([(d * m - b * n) / determinant, (a * n - b * m) / determinant], -1), cov_XLL

    def _log_mass_of_bounds(self, mean_XL: Array, cov_XLL: Array, scale_K: Array, wanted_XK: np.ndarray) -> Array:
        """Logarithm of the probability that the coefficients keep their bounds, each for itself, `[X, K]`."""
        from scipy.special import log_ndtr, ndtr  # SciPy takes longer to import than a fit to run

        total_XK = np.zeros(wanted_XK.shape)
        for at, upper in enumerate(self.upper_L):
            deviation_X = np.sqrt(cov_XLL[:, at, at])
            if not deviation_X.any():  # a given R0
                continue
            inside_X = np.minimum(upper - mean_XL[:, at], mean_XL[:, at])
            rows = np.flatnonzero(inside_X < INSIDE * (deviation_X * scale_K.max()))  # few: look at no more
            deviation_RK = deviation_X[rows, None] * scale_K
            row, k = np.nonzero(wanted_XK[rows] & (inside_X[rows, None] < INSIDE * deviation_RK))
            near, deviation = (rows[row], k), deviation_RK[row, k]
            mean = mean_XL[near[0], at]
            to_upper, to_zero = (upper - mean) / deviation, mean / deviation
            mass = ndtr(to_upper) - ndtr(-to_zero)
            log_mass = np.log(np.maximum(mass, 1e-300))
            far = np.flatnonzero(mass < 1e-6)  # too close to zero for a difference of probabilities
            above, below = log_ndtr(to_upper[far]), log_ndtr(-to_zero[far])
            log_mass[far] = above + np.log(-np.expm1(np.minimum(below - above, -1e-12)))
            total_XK[near] += log_mass
        return total_XK


Gram = dict[str, Array]
"""Inner products `[G, H, T]` by pair: `f`, `g` the features of R0 and A, `r` the rates, `h` the change."""


def _without_offsets(own: Gram, start_T11: Array, spread_T11: Array) -> tuple[Gram, Array]:
    """Inner products of a seed with its offsets integrated out, and minus half the log determinant that this adds.

    With offsets of R0 and A of variances D = diag(s, t), the products G of the two features become G (I + D G)⁻¹, and
    what they explain of the rates goes out of all else (Woodbury's identity, for two vectors at once).

    Args:
        own: inner products, `[H, G]` each, or `[H, 1]` where no shape is in them.
        start_T11: variances of R0 between seeds.
        spread_T11: variances of A between seeds.

    Returns:
        Both `[T, H, G]`.
    """
    if not start_T11.any() and not spread_T11.any():
        shape = 1, *own["ff"].shape
        return {pair: np.broadcast_to(item, shape) for pair, item in own.items()}, np.zeros(shape)
    a, b, d = own["ff"], own["fg"], own["gg"]
    volume = a * d - b**2
    both_T11 = start_T11 * spread_T11
    share = 1 / (1 + start_T11 * a + spread_T11 * d + both_T11 * volume)
    found = {"ff": (a + spread_T11 * volume) * share, "fg": b * share, "gg": (d + start_T11 * volume) * share}
    others = [letter for letter in "hr" if letter + letter in own]
    for at, one in enumerate(others):
        m, n = own["f" + one], own["g" + one]
        found["f" + one] = (m + spread_T11 * (d * m - b * n)) * share
        found["g" + one] = (n + start_T11 * (a * n - b * m)) * share
        for other in others[at:]:
            k, q = own["f" + other], own["g" + other]
            mixed = d * m * k - b * (m * q + n * k) + a * n * q
            lost = start_T11 * (m * k) + spread_T11 * (n * q) + both_T11 * mixed
            found[one + other] = own[one + other] - lost * share
    return found, 0.5 * np.log(share)


def _without(gram: Gram, at: str, variance_T: Array) -> tuple[Gram, Array]:
    """Inner products with a normal multiple of one vector integrated out, and minus half the log determinant.

    With Σ ← Σ + τ v vᵀ, the products become ⟨x, y⟩ − τ ⟨x, v⟩⟨v, y⟩ / (1 + τ ⟨v, v⟩) (Sherman & Morrison 1950).

    Args:
        gram: inner products.
        at: the vector's letter.
        variance_T: τ.
    """
    share = 1 / (1 + variance_T * gram[at + at])
    to = {pair.replace(at, "", 1): item for pair, item in gram.items() if at in pair}
    found = {
        pair: item * share if at in pair else item - variance_T * share * to[pair[:1]] * to[pair[1:]]
        for pair, item in gram.items()
    }
    return found, 0.5 * np.log(share)
