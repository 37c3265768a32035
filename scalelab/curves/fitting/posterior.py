"""Draws from the posterior of a curve, averaged over its noise.

Given its shape and the kind of noise, a curve is linear in two coefficients with Gaussian errors, so they integrate out
exactly. What is left, two shape parameters times a grid of noise hypotheses and scales, is covered: a coarse grid finds
the mass, two finer ones close in on it, and points drawn from the last are weighed exactly. No chain has to converge.

Axes: `_M` draws, `_G` shapes, `_H` kinds of drift, `_T` spreads between seeds, `_K` noise scales, `_N` points, `_S`
shape parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.models import Array, Model, log_compute, value
from scalelab.curves.fitting.noise import (
    Prior,
    SeedNoise,
    drifts,
    log_spread_prior,
    spreads,
    typical,
)

LOG_SCALES_K = np.linspace(-0.9, 1.2, 11)
"""Noise scales considered, relative to the fitted one."""

FAINT = 0.01
"""Inverse variance of R0 and A before the points: finite where a curve does not show one of them at all."""

ROUNDS = ((16, 28), (16, 16), (16, 16))
"""Cells of the ever finer grids over steepness and midpoint."""

QUICK_ROUNDS = ((12, 22), (12, 12))
"""The same where curves count with a small weight, or are drawn often."""

BEST_CELLS = 32
"""Cells by which kinds of noise without mass are found and left out."""

NEGLIGIBLE = 9.0
"""Cells less likely than the best by this much in the logarithm hold no mass worth a point."""


@dataclass(frozen=True)
class Draws:
    """Equally likely curves.

    Attributes:
        model: sigmoid or power law.
        log_reference: logarithm of the compute that `theta_MP` is relative to.
        theta_MP: parameter vectors.
        noise_M: standard deviation of one later evaluation about its curve, sampling and drift together.
        spread_M: standard deviation of A between seeds.
        drift_M: part of `noise_M` that is drift.
        origin: `posterior`, `block bootstrap` or `parametric bootstrap`.
        log_evidence: logarithm of the probability of the points under the model, up to a constant of the points.
    """

    model: Model
    log_reference: float
    theta_MP: Array
    noise_M: Array
    spread_M: Array
    origin: str
    drift_M: Array
    log_evidence: float = 0.0

    def __len__(self) -> int:
        return len(self.theta_MP)

    def __repr__(self) -> str:
        return f"Draws({len(self)} of the {self.model.name} curve, {self.origin})"

    def head(self, size: int) -> Draws:
        """The first draws; they come in no order, so these are as good as any."""
        cut = {name: getattr(self, name)[:size] for name in ("theta_MP", "noise_M", "spread_M", "drift_M")}
        return replace(self, **cut)

    def parameters(self) -> dict[str, Array]:
        """Draws of every parameter, `[M]` each, in the compute unit of the data."""
        parameters_MP = self.model.readable(self.theta_MP, self.log_reference)
        return dict(zip(self.model.parameters, parameters_MP.T))

    def covariance(self) -> dict[str, dict[str, float]]:
        """Covariance of the parameters, by their names."""
        names = self.model.parameters
        covariance_PP = np.cov(self.model.readable(self.theta_MP, self.log_reference), rowvar=False)
        return {name: dict(zip(names, row)) for name, row in zip(names, covariance_PP.tolist())}

    def value(self, compute: Array | Sequence[float]) -> Array:
        """The curves at some compute, `[M, len(compute)]`."""
        return value(self.model, self.theta_MP, log_compute(compute, np.exp(self.log_reference)))

    def evaluation(self, compute: Array | Sequence[float]) -> Array:
        """Predicted evaluations at some compute, `[M, len(compute)]`.

        Each draw errs alike at every compute, so that quantiles rise as smoothly as the curves do.
        """
        u = log_compute(compute, np.exp(self.log_reference))
        rise = self.model.features(self.theta_MP[:, 2:], u)[..., 1] if "R0" in self.model.linear else 1.0
        rng = np.random.default_rng(0)
        noise_M1 = (self.noise_M * rng.standard_normal(len(self)))[:, None]
        spread_M1 = (self.spread_M * rng.standard_normal(len(self)))[:, None]
        return np.clip(self.value(compute) + noise_M1 + spread_M1 * rise, 0, 1)


def posterior(
    fit: Fit,
    prior: Prior | None,
    size: int = 4000,
    seed: int = 0,
    model: Model | None = None,
    quick: bool = False,
    noises: Sequence[SeedNoise] | None = None,
) -> Draws:
    """Draws from the posterior of a fitted curve.

    Args:
        fit: the joint fit; its points, outlier weights and noise scale are taken over.
        prior: beliefs about shape and scale; None for flat ones.
        size: how many to draw.
        seed: of the random numbers.
        model: the curve; None for that of the fit.
        quick: cover shapes and spreads more coarsely, for curves that count with a small weight.
        noises: what `seed_noises` gives for the fit, where it is at hand.
    """
    rng = np.random.default_rng(seed)
    density = Density(fit, prior, model, coarse=quick, noises=noises)
    cells_GS, log_G, width_S = close_in(density, QUICK_ROUNDS if quick else ROUNDS)
    density.focus(_best(cells_GS, log_G))
    count = 200 if quick else 900 if len(fit.curve.seeds) == 1 else 450
    shapes_GS, log_chance_G = _scatter(cells_GS, log_G, width_S, count, rng)
    log_weight, mean, cov = density.evaluate(shapes_GS)
    log_weight = log_weight - log_chance_G[:, None, None, None]
    total = float(np.logaddexp.reduce(log_weight, axis=None))
    g_M, h_M, t_M, k_M = _resample(np.exp(log_weight - total), size, rng)
    scale_M = np.exp(LOG_SCALES_K[k_M])
    linear_ML = _linear(density, mean[g_M, h_M, t_M], cov[g_M, h_M, t_M] * scale_M[:, None, None] ** 2, rng)
    white_M = scale_M * typical(fit.sigma_N)
    drift_M = white_M * density.drift_H[h_M]
    if fit.evaluation_sigma is not None:
        white_M = np.full(size, fit.evaluation_sigma)
    return Draws(
        model=density.model,
        log_reference=fit.log_reference,
        theta_MP=np.concatenate([linear_ML, shapes_GS[g_M]], axis=1),
        noise_M=np.hypot(white_M, drift_M),
        spread_M=scale_M * density.spread_T[t_M],
        origin="posterior",
        drift_M=drift_M,
        log_evidence=total + float(np.log(width_S).sum()) - float(np.log(len(shapes_GS))),
    )


def seed_noises(fit: Fit) -> list[SeedNoise]:
    """The kinds of noise for the points of every seed, decomposed: the same for every shape of the curve."""
    sigma_N = fit.sigma_N / np.sqrt(fit.weight_N)
    span, middle = float(fit.curve.compute_N.max()), typical(sigma_N)
    return [SeedNoise(fit.curve.compute_N[at], sigma_N[at], middle, span) for at in _members(fit)]


def _members(fit: Fit) -> list[np.ndarray]:
    """Indices of the points of every seed."""
    return [np.flatnonzero(fit.curve.seed_N == seed) for seed in range(len(fit.curve.seeds))]


class Density:
    """The posterior of the shape and the noise, with the linear coefficients and the seeds' offsets integrated out.

    All points enter through inner products of the curve's two features and the pass rates, seed by seed and for every
    kind of drift. The offsets of a seed, of R0 and of A, are normal about zero, so they integrate out of its products
    in closed form (Rasmussen & Williams 2006, §2.7), for every spread between seeds on the grid.
    """

    def __init__(
        self,
        fit: Fit,
        prior: Prior | None,
        model: Model | None = None,
        coarse: bool = False,
        noises: Sequence[SeedNoise] | None = None,
    ) -> None:
        self.fit, self.prior, self.model = fit, prior, model or fit.model
        points = fit.curve
        self.u_N = log_compute(points.compute_N, np.exp(fit.log_reference))
        self.asymptote = self.model.linear.index("A")
        self.upper_L = self.model.bounds(self.u_N)[1][:2]
        self.members = _members(fit)
        self.noises = seed_noises(fit) if noises is None else noises
        self.drift_H = np.array([size for size, _, _ in drifts()])
        rises = "R0" in self.model.linear
        pairs = spreads(len(points.seeds) > 1, fit.fixed_r0 is not None or not rises)
        self.spread_T, self.start_T = np.array(pairs).T
        self.thin_T = np.isin(self.spread_T, np.unique(self.spread_T)[::2])
        if coarse:
            few_T = np.isin(self.spread_T, np.unique(self.spread_T)[2::2][:4]) | (self.spread_T == 0)
            self.spread_T, self.start_T = self.spread_T[few_T], self.start_T[few_T]
            self.thin_T = np.ones(len(self.spread_T), bool)
        self.log_fixed_H = np.array([weight for _, _, weight in drifts()])
        self.log_fixed_H = self.log_fixed_H - np.sum([noise.log_determinant_H for noise in self.noises], axis=0)
        log_scale_K = LOG_SCALES_K + np.log(fit.scale)
        known = points.stderr_N is not None
        self.log_prior_TK = log_spread_prior(self.spread_T[:, None] * np.exp(LOG_SCALES_K))
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
        log_HT = np.logaddexp.reduce(self.evaluate(shapes_GS)[0], axis=(0, 3))
        held_HT = log_HT > log_HT.max() - (2 * NEGLIGIBLE if spreads_only else NEGLIGIBLE)
        kept_H, kept_T = held_HT.any(1) | spreads_only, held_HT.any(0)
        self.kept_H, self.drift_H, self.log_fixed_H = (
            each[kept_H] for each in (self.kept_H, self.drift_H, self.log_fixed_H)
        )
        self.spread_T, self.start_T, self.log_prior_TK, self.thin_T = (
            each[kept_T] for each in (self.spread_T, self.start_T, self.log_prior_TK, self.thin_T)
        )

    def evaluate(self, shapes_GS: Array) -> tuple[Array, Array, Array]:
        """Log density `[G, H, T, K]`; mean `[G, H, T, 2]`, unit-scale covariance `[G, H, T, 2, 2]` of R0 and A."""
        return self._evaluate(shapes_GS, self.spread_T, self.start_T, LOG_SCALES_K, self.log_prior_TK)

    def shape(self, shapes_GS: Array) -> Array:
        """Log density of the shape alone, `[G]`: spreads and scales summed over more coarsely than in `evaluate`."""
        thin_T = self.thin_T
        log_GHTK = self._evaluate(
            shapes_GS, self.spread_T[thin_T], self.start_T[thin_T], LOG_SCALES_K[::2], self.log_prior_TK[thin_T, ::2]
        )[0]
        return np.logaddexp.reduce(log_GHTK.reshape(len(shapes_GS), -1), axis=1)

    def _evaluate(
        self, shapes_GS: Array, spread_T: Array, start_T: Array, log_scale_K: Array, log_prior_TK: Array
    ) -> tuple[Array, Array, Array]:
        features_GNL = self.model.features(shapes_GS, self.u_N)
        gram = [np.zeros((len(shapes_GS), len(self.drift_H), len(spread_T))) for _ in range(6)]
        log_volume = np.zeros_like(gram[0])
        for at, noise in zip(self.members, self.noises):
            first, second = features_GNL[:, at, 0], features_GNL[:, at, 1]
            rate = self.fit.curve.pass_rate_N[at]
            pairs = [(first, first), (first, second), (second, second), (first, rate), (second, rate), (rate, rate)]
            own = [item[..., self.kept_H, None] for item in noise.products(pairs)]
            own, log_half_determinant = _without_offsets(own, start_T**2, spread_T**2)
            log_volume -= log_half_determinant
            for total, item in zip(gram, own):
                total += item
        mean, cov, squares, log_left, free = self._linear_part(gram)
        log_density = (log_volume + log_left + self.log_fixed_H[:, None])[..., None] + log_prior_TK
        log_density = log_density - (len(self.u_N) - free) * log_scale_K
        log_density -= 0.5 * squares[..., None] * np.exp(-2 * log_scale_K)
        if self.shape_prior is not None:
            mean_S, deviation_S = self.shape_prior
            log_density -= 0.5 * (((shapes_GS - mean_S) / deviation_S) ** 2).sum(-1)[:, None, None, None]
        kept = np.nonzero(log_density > log_density.max() - 2 * NEGLIGIBLE)
        log_mass = self._log_mass_of_bounds(mean[kept[:3]], cov[kept[:3]], np.exp(log_scale_K[kept[3]]))
        bounded = np.full_like(log_density, -np.inf)
        bounded[kept] = log_density[kept] + log_mass
        return bounded, mean, cov

    def _linear_part(self, gram: list[Array]) -> tuple[Array, Array, Array, Array, int]:
        """Mean, covariance, residual squares and half log volume of the coefficients, and how many are free."""
        a, b, d, m, n, y = gram
        a, d = a + FAINT, d + FAINT
        cov = np.zeros((*a.shape, 2, 2))
        if self.fit.fixed_r0 is not None:
            R0 = self.fit.fixed_r0
            A = (n - R0 * b) / d
            squares = y - 2 * R0 * m + R0**2 * a - d * A**2
            cov[..., 1, 1] = 1 / d
            return np.stack([np.full_like(A, R0), A], -1), cov, np.maximum(squares, 0), -0.5 * np.log(d), 1
        determinant = np.maximum(a * d - b**2, 1e-10 * a * d)
        first, second = (d * m - b * n) / determinant, (a * n - b * m) / determinant
        squares = y - first * (2 * m - a * first - b * second) - second * (2 * n - b * first - d * second)
        cov[..., 0, 0], cov[..., 1, 1] = d / determinant, a / determinant
        cov[..., 0, 1] = cov[..., 1, 0] = -b / determinant
        return np.stack([first, second], -1), cov, np.maximum(squares, 0), -0.5 * np.log(determinant), 2

    def _log_mass_of_bounds(self, mean_XL: Array, cov_XLL: Array, scale_X: Array) -> Array:
        """Logarithm of the probability that the coefficients keep their bounds, each for itself, `[X]`."""
        from scipy.special import log_ndtr  # SciPy takes longer to import than a fit to run

        total_X = np.zeros(len(mean_XL))
        for at, upper in enumerate(self.upper_L):
            deviation_X = np.sqrt(cov_XLL[:, at, at]) * scale_X
            if not deviation_X.any():  # a given R0
                continue
            to_upper_X, to_zero_X = (upper - mean_XL[:, at]) / deviation_X, mean_XL[:, at] / deviation_X
            near = np.flatnonzero(np.minimum(to_upper_X, to_zero_X) < 6)  # elsewhere, all of the mass is inside
            log_below_upper = log_ndtr(to_upper_X[near])
            log_below_zero = log_ndtr(-to_zero_X[near])
            total_X[near] += log_below_upper + np.log(-np.expm1(np.minimum(log_below_zero - log_below_upper, -1e-12)))
        return total_X


def _without_offsets(own: list[Array], start_T: Array, spread_T: Array) -> tuple[list[Array], Array]:
    """Inner products of a seed with its offsets integrated out, and half the log determinant that this adds.

    For offsets of covariance T = diag(start, spread) and products G (2 × 2), m (2) and y (1) of features and rates:
    G ← G (I + TG)⁻¹, m ← (I + GT)⁻¹ m, y ← y − mᵀT(I + GT)⁻¹m; determinant |I + TG|.

    Args:
        own: a, b, d, m, n, y with G = [[a, b], [b, d]] and m = (m, n), `[G, H, 1]` each; y is `[H, 1]`.
        start_T: variances of R0 between seeds.
        spread_T: variances of A between seeds.
    """
    a, b, d, m, n, y = own
    if not start_T.any() and not spread_T.any():
        return own, np.zeros_like(a)
    gap = a * d - b**2
    determinant = 1 + start_T * a + spread_T * d + start_T * spread_T * gap
    found = [
        (a + spread_T * gap) / determinant,
        b / determinant,
        (d + start_T * gap) / determinant,
        (m + spread_T * (d * m - b * n)) / determinant,
        (n + start_T * (a * n - b * m)) / determinant,
    ]
    y = y - start_T * m * found[3] - spread_T * n * found[4]
    return [*found, y], 0.5 * np.log(determinant)


def _best(cells_GS: Array, log_G: Array) -> Array:
    """The most probable cells."""
    return cells_GS[np.argsort(-log_G)[:BEST_CELLS]]


def close_in(density: Density, rounds: Sequence[tuple[int, int]] = ROUNDS) -> tuple[Array, Array, Array]:
    """Grid cells that hold the mass, after three ever finer grids: centres `[G, S]`, log density `[G]`, width `[S]`."""
    low_S, high_S = (bound[2:] for bound in density.model.bounds(density.u_N))
    for sizes in rounds if len(low_S) == 2 else ((60,),) * 3:
        width_S = (high_S - low_S) / np.array(sizes)
        centres = [low + width * (np.arange(size) + 0.5) for low, width, size in zip(low_S, width_S, sizes)]
        cells_GS = np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1).reshape(-1, len(low_S))
        log_G = density.shape(cells_GS)
        if len(density.spread_T) > 1:
            density.focus(_best(cells_GS, log_G), spreads_only=True)
        massive_GS = cells_GS[log_G > log_G.max() - NEGLIGIBLE]
        low_S = np.maximum(low_S, massive_GS.min(0) - 1.5 * width_S)
        high_S = np.minimum(high_S, massive_GS.max(0) + 1.5 * width_S)
    return cells_GS, log_G, width_S


def _scatter(cells_GS: Array, log_G: Array, width_S: Array, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Shapes to weigh exactly, drawn around the cells, and the logarithm of the chance that each had to be drawn."""
    chance_G = np.exp(0.7 * (log_G - log_G.max()))
    chance_G = np.maximum(chance_G, 1e-3) * (log_G > log_G.max() - 2 * NEGLIGIBLE)
    chance_G /= chance_G.sum()
    drawn_G = _systematic(chance_G, size, rng)
    shapes_GS = cells_GS[drawn_G] + width_S * (rng.random((len(drawn_G), len(width_S))) - 0.5)
    return shapes_GS, np.log(chance_G[drawn_G])


def _systematic(weight: Array, size: int, rng: np.random.Generator) -> np.ndarray:
    """Indices drawn in proportion to the weights, with as little chance in it as possible."""
    cumulative = np.cumsum(weight.ravel())
    at = (np.arange(size) + rng.random()) / size * cumulative[-1]
    return np.minimum(np.searchsorted(cumulative, at), weight.size - 1)


def _resample(weight_GHTK: Array, size: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Indices `[M]` along every axis of the weights, drawn in proportion to them."""
    drawn_M = rng.permutation(_systematic(weight_GHTK, size, rng))
    return np.unravel_index(drawn_M, weight_GHTK.shape)


def _linear(density: Density, mean_ML: Array, cov_MLL: Array, rng: np.random.Generator) -> Array:
    """Coefficients drawn from their normals: A cut to [0, 1], then R0 to [0, A] or D to what is positive."""
    at = density.asymptote
    other = 1 - at
    deviation_M = np.sqrt(cov_MLL[:, at, at])
    A_M = _cut_normal(mean_ML[:, at], deviation_M, 1.0, rng)
    slope_M = cov_MLL[:, 0, 1] / deviation_M**2
    rest_M = np.sqrt(np.maximum(cov_MLL[:, other, other] - slope_M * cov_MLL[:, 0, 1], 0))
    mean_M = mean_ML[:, other] + slope_M * (A_M - mean_ML[:, at])
    upper = A_M if "R0" in density.model.linear else np.inf
    other_M = mean_M if density.fit.fixed_r0 is not None else _cut_normal(mean_M, rest_M, upper, rng)
    return np.stack([other_M, A_M] if at == 1 else [A_M, other_M], axis=-1)


def _cut_normal(mean_M: Array, deviation_M: Array, upper: Array | float, rng: np.random.Generator) -> Array:
    """Draws from normals cut to [0, upper], evenly over their quantiles."""
    from scipy.special import ndtr, ndtri

    size = len(mean_M)
    deviation_M = np.maximum(deviation_M, 1e-12)
    low_M, high_M = ndtr(-mean_M / deviation_M), ndtr((upper - mean_M) / deviation_M)
    uniform_M = rng.permutation((np.arange(size) + rng.random(size)) / size)
    quantile_M = np.clip(low_M + uniform_M * (high_M - low_M), 1e-15, 1 - 1e-15)
    return np.clip(mean_M + deviation_M * ndtri(quantile_M), 0, upper)
