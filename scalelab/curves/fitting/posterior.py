"""What the points leave possible: draws from the posterior of a curve, its noise averaged over.

Given its shape and the kind of noise, a curve is linear in two coefficients with Gaussian errors, so they integrate out
exactly. What is left, two shape parameters times a grid of noise hypotheses and scales, is small enough to be covered:
a coarse grid finds where the mass is, two finer ones close in on it, and points drawn from the last are weighed
exactly. No chain has to converge; the same data give the same draws; it takes tens of milliseconds.

Axes: `_M` draws, `_G` shapes, `_H` noise hypotheses, `_K` noise scales, `_N` points, `_S` shape parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.models import SIGMOID, Array, Model, log_compute, value
from scalelab.curves.fitting.noise import Noise, covariance, hypotheses, typical
from scalelab.curves.fitting.prior import Prior

LOG_SCALES_K = np.linspace(-0.9, 1.2, 11)
"""Noise scales considered, relative to the fitted one."""

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
        origin: `posterior`, `block bootstrap` or `parametric bootstrap`.
    """

    model: Model
    log_reference: float
    theta_MP: Array
    noise_M: Array
    spread_M: Array
    origin: str

    def __len__(self) -> int:
        return len(self.theta_MP)

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
        """What evaluations at some compute would measure, `[M, len(compute)]`.

        Each draw errs alike at every compute, so that quantiles rise as smoothly as the curves do.
        """
        u = log_compute(compute, np.exp(self.log_reference))
        rise = self.model.features(self.theta_MP[:, 2:], u)[..., 1] if self.model is SIGMOID else 1.0
        rng = np.random.default_rng(0)
        noise_M1 = (self.noise_M * rng.standard_normal(len(self)))[:, None]
        spread_M1 = (self.spread_M * rng.standard_normal(len(self)))[:, None]
        return np.clip(self.value(compute) + noise_M1 + spread_M1 * rise, 0, 1)


def posterior(fit: Fit, prior: Prior | None, size: int = 4000, seed: int = 0) -> Draws:
    """Draws from the posterior of a fitted curve.

    Args:
        fit: the joint fit; its points, outlier weights and noise scale are taken over.
        prior: beliefs about shape and scale; None for flat ones.
        size: how many to draw.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    density = _Density(fit, prior)
    cells_GS, width_S = _close_in(density)
    shapes_GS, log_chance_G = _scatter(density, cells_GS, width_S, rng)
    log_weight_GHK, mean_GHL, cov_GHLL = density.evaluate(shapes_GS)
    weight = np.exp(log_weight_GHK - log_chance_G[:, None, None] - (log_weight_GHK - log_chance_G[:, None, None]).max())
    g_M, h_M, k_M = _resample(weight, size, rng)
    scale_M = np.exp(LOG_SCALES_K[k_M])
    linear_ML = _linear(density, mean_GHL[g_M, h_M], cov_GHLL[g_M, h_M] * scale_M[:, None, None] ** 2, rng)
    sigma = typical(fit.sigma_N)
    drift_H = np.array([noise.drift for noise in density.noises])
    spread_H = np.array([noise.spread for noise in density.noises])
    return Draws(
        model=fit.model,
        log_reference=fit.log_reference,
        theta_MP=np.concatenate([linear_ML, shapes_GS[g_M]], axis=1),
        noise_M=scale_M * sigma * np.hypot(1.0, drift_H[h_M]),
        spread_M=scale_M * spread_H[h_M],
        origin="posterior",
    )


def noise_of(fit: Fit) -> tuple[list[Noise], Array, Array]:
    """What the points say of the noise: hypotheses, weight of each at each scale `[H, K]`; share of the gain `[N]`.

    The weights sum to one; the scales are `exp(LOG_SCALES_K)` times the fit's. All curves that the points leave
    possible are summed over: about the fitted one alone, noise looks smaller and shorter, for the fit has followed it.
    """
    density = _Density(fit, fit.prior)
    log_HK = np.logaddexp.reduce(density.evaluate(_close_in(density)[0])[0], axis=0)
    weight_HK = np.exp(log_HK - log_HK.max())
    return density.noises, weight_HK / weight_HK.sum(), density.rise_N


def mean_covariance(fit: Fit, sigma_N: Array) -> Array:
    """Covariance of the points `[N, N]`, given their sampling noise: the mean over the hypotheses by their weight."""
    noises, weight_HK, rise_N = noise_of(fit)
    variance_H = weight_HK @ np.exp(2 * LOG_SCALES_K)
    total_NN = np.zeros((len(sigma_N), len(sigma_N)))
    for noise, variance in zip(noises, variance_H):
        total_NN += variance * covariance(noise, fit.curve.compute_N, sigma_N, fit.curve.seed_N, rise_N)
    return total_NN


class _Density:
    """The posterior of the shape and the noise, linear coefficients integrated out."""

    def __init__(self, fit: Fit, prior: Prior | None) -> None:
        self.fit, self.prior = fit, prior
        points = fit.curve
        self.u_N = log_compute(points.compute_N, np.exp(fit.log_reference))
        self.rate_N = points.pass_rate_N
        self.asymptote = fit.model.linear.index("A")
        self.upper_L = fit.model.bounds(self.u_N)[1][:2]
        self.noises: list[Noise] = list(hypotheses(len(points.seeds) > 1))
        self.rise_N = (
            fit.model.features(fit.theta_P[2:], self.u_N)[..., 1] if fit.model is SIGMOID else np.ones(len(points))
        )
        sigma_N = fit.sigma_N / np.sqrt(fit.weight_N)
        self.whiten_HNN, self.log_determinant_H = [], []
        for noise in self.noises:
            cholesky = np.linalg.cholesky(covariance(noise, points.compute_N, sigma_N, points.seed_N, self.rise_N))
            self.whiten_HNN.append(np.linalg.inv(cholesky))
            self.log_determinant_H.append(float(np.log(np.diag(cholesky)).sum()))
        self.log_scale_prior_K = np.zeros(len(LOG_SCALES_K))
        if prior is not None:
            self.log_scale_prior_K = prior.log_scale(
                LOG_SCALES_K + np.log(fit.scale), fit.relative, known=points.stderr_N is not None
            )
        u_end = float(self.u_N.max())
        self.shape_prior = prior.shape(fit.model, u_end) if prior is not None else None

    def evaluate(self, shapes_GS: Array) -> tuple[Array, Array, Array]:
        """Log density `[G, H, K]`; mean `[G, H, 2]` and unit-scale covariance `[G, H, 2, 2]` of the coefficients."""
        count, n = len(shapes_GS), len(self.u_N)
        features_NGL = np.swapaxes(self.fit.model.features(shapes_GS, self.u_N), 0, 1)
        log_GHK = np.empty((count, len(self.noises), len(LOG_SCALES_K)))
        mean_GHL = np.empty((count, len(self.noises), 2))
        cov_GHLL = np.zeros((count, len(self.noises), 2, 2))
        for h, (noise, whiten_NN, log_det) in enumerate(zip(self.noises, self.whiten_HNN, self.log_determinant_H)):
            white_NGL = (whiten_NN @ features_NGL.reshape(n, -1)).reshape(n, count, 2)
            mean_GHL[:, h], cov_GHLL[:, h], squares_G, log_volume_G, free = self._linear_part(
                white_NGL, whiten_NN @ self.rate_N
            )
            log_GHK[:, h] = (
                (log_volume_G + noise.log_weight - log_det)[:, None]
                - (n - free) * LOG_SCALES_K
                - 0.5 * squares_G[:, None] * np.exp(-2 * LOG_SCALES_K)
                + self._log_mass_of_bounds(mean_GHL[:, h], cov_GHLL[:, h])
            )
        log_GHK += self.log_scale_prior_K
        if self.shape_prior is not None:
            mean_S, deviation_S = self.shape_prior
            log_GHK -= 0.5 * (((shapes_GS - mean_S) / deviation_S) ** 2).sum(-1)[:, None, None]
        return log_GHK, mean_GHL, cov_GHLL

    def _linear_part(self, white_NGL: Array, target_N: Array) -> tuple[Array, Array, Array, Array, int]:
        """Mean, covariance, residual squares and half log volume of the coefficients, and how many are free."""
        first_NG, second_NG = white_NGL[..., 0], white_NGL[..., 1]
        count = first_NG.shape[1]
        cov_GLL = np.zeros((count, 2, 2))
        if self.fit.fixed_r0 is not None:
            target_NG = target_N[:, None] - self.fit.fixed_r0 * first_NG
            gram_G = np.maximum((second_NG**2).sum(0), 1e-300)
            mean_G = (second_NG * target_NG).sum(0) / gram_G
            squares_G = ((target_NG - mean_G * second_NG) ** 2).sum(0)
            cov_GLL[:, 1, 1] = 1 / gram_G
            mean_GL = np.stack([np.full(count, self.fit.fixed_r0), mean_G], -1)
            return mean_GL, cov_GLL, squares_G, -0.5 * np.log(gram_G), 1
        a_G, b_G, d_G = (first_NG**2).sum(0), (first_NG * second_NG).sum(0), (second_NG**2).sum(0)
        m_G, n_G = target_N @ first_NG, target_N @ second_NG
        determinant_G = np.maximum(a_G * d_G - b_G**2, 1e-10 * a_G * d_G + 1e-300)
        mean_GL = np.stack([d_G * m_G - b_G * n_G, a_G * n_G - b_G * m_G], -1) / determinant_G[:, None]
        residual_NG = target_N[:, None] - mean_GL[:, 0] * first_NG - mean_GL[:, 1] * second_NG
        cov_GLL[:, 0, 0], cov_GLL[:, 1, 1] = d_G / determinant_G, a_G / determinant_G
        cov_GLL[:, 0, 1] = cov_GLL[:, 1, 0] = -b_G / determinant_G
        return mean_GL, cov_GLL, (residual_NG**2).sum(0), -0.5 * np.log(determinant_G), 2

    def _log_mass_of_bounds(self, mean_GL: Array, cov_GLL: Array) -> Array:
        """Logarithm of the probability that the coefficients keep their bounds, each for itself, `[G, K]`."""
        from scipy.special import log_ndtr  # SciPy takes longer to import than a fit to run

        total_GK = np.zeros((len(mean_GL), len(LOG_SCALES_K)))
        for at, upper in enumerate(self.upper_L):
            deviation_G = np.sqrt(cov_GLL[:, at, at])
            if not deviation_G.any():  # a given R0
                continue
            deviation_GK = deviation_G[:, None] * np.exp(LOG_SCALES_K)
            log_below_upper = log_ndtr((upper - mean_GL[:, at, None]) / deviation_GK)
            log_below_zero = log_ndtr(-mean_GL[:, at, None] / deviation_GK)
            total_GK += log_below_upper + np.log(-np.expm1(np.minimum(log_below_zero - log_below_upper, -1e-12)))
        return total_GK


def _close_in(density: _Density) -> tuple[Array, Array]:
    """Centres `[G, S]` and width `[S]` of the grid cells that hold the mass, after three ever finer grids."""
    low_S, high_S = (bound[2:] for bound in density.fit.model.bounds(density.u_N))
    rounds: Sequence[tuple[int, ...]] = ((16, 28), (16, 16), (16, 16)) if len(low_S) == 2 else ((60,),) * 3
    for sizes in rounds:
        width_S = (high_S - low_S) / np.array(sizes)
        centres = [low + width * (np.arange(size) + 0.5) for low, width, size in zip(low_S, width_S, sizes)]
        cells_GS = np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1).reshape(-1, len(low_S))
        log_G = np.logaddexp.reduce(density.evaluate(cells_GS)[0], axis=(1, 2))
        massive_GS = cells_GS[log_G > log_G.max() - NEGLIGIBLE]
        low_S = np.maximum(low_S, massive_GS.min(0) - 1.5 * width_S)
        high_S = np.minimum(high_S, massive_GS.max(0) + 1.5 * width_S)
    return cells_GS, width_S


def _scatter(density: _Density, cells_GS: Array, width_S: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Shapes to weigh exactly, drawn around the cells, and the logarithm of the chance that each had to be drawn."""
    log_G = np.logaddexp.reduce(density.evaluate(cells_GS)[0], axis=(1, 2))
    chance_G = np.exp(0.7 * (log_G - log_G.max()))
    chance_G = np.maximum(chance_G, 1e-3) * (log_G > log_G.max() - 2 * NEGLIGIBLE)
    chance_G /= chance_G.sum()
    drawn_G = _systematic(chance_G, 900, rng)
    shapes_GS = cells_GS[drawn_G] + width_S * (rng.random((len(drawn_G), len(width_S))) - 0.5)
    return shapes_GS, np.log(chance_G[drawn_G])


def _systematic(weight: Array, size: int, rng: np.random.Generator) -> np.ndarray:
    """Indices drawn in proportion to the weights, with as little chance in it as possible."""
    cumulative = np.cumsum(weight.ravel())
    at = (np.arange(size) + rng.random()) / size * cumulative[-1]
    return np.minimum(np.searchsorted(cumulative, at), weight.size - 1)


def _resample(weight_GHK: Array, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    drawn_M = rng.permutation(_systematic(weight_GHK, size, rng))
    g_M, h_M, k_M = np.unravel_index(drawn_M, weight_GHK.shape)
    return g_M, h_M, k_M


def _linear(density: _Density, mean_ML: Array, cov_MLL: Array, rng: np.random.Generator) -> Array:
    """Coefficients drawn from their normals: A cut to [0, 1], then R0 to [0, A] or D to what is positive."""
    at = density.asymptote
    other = 1 - at
    deviation_M = np.sqrt(cov_MLL[:, at, at])
    A_M = _cut_normal(mean_ML[:, at], deviation_M, 1.0, rng)
    slope_M = cov_MLL[:, 0, 1] / deviation_M**2
    rest_M = np.sqrt(np.maximum(cov_MLL[:, other, other] - slope_M * cov_MLL[:, 0, 1], 0))
    mean_M = mean_ML[:, other] + slope_M * (A_M - mean_ML[:, at])
    upper = A_M if density.fit.model is SIGMOID else np.inf
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
