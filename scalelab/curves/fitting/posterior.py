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

from scalelab.curves.fitting.density import LOG_SCALES_K, NEGLIGIBLE, Density
from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.models import Array, Model, log_compute, value
from scalelab.curves.fitting.noise import Prior, SeedNoise, typical

ROUNDS = ((16, 28), (16, 16), (16, 16))
"""Cells of the ever finer grids over steepness and midpoint."""

QUICK_ROUNDS = ((12, 22), (12, 12))
"""Fewer such cells, for curves with a small weight and for draws that are made often."""

FEW_SPREADS = 8
"""Up to so many pairs of spreads between seeds are not thinned out on the way: that takes as long as to keep them."""

BEST_CELLS = 32
"""Cells by which kinds of noise without mass are found and left out."""


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
    single = len(fit.curve.seeds) == 1  # several seeds: the grid of spreads makes up for fewer shapes
    if single or not quick:  # else looking for kinds of noise without mass takes as long as weighing them
        density.focus(_best(cells_GS, log_G))
    count = (200 if quick else 900) if single else (130 if quick else 260)
    shapes_GS, log_chance_G = _scatter(cells_GS, log_G, width_S, count, rng)
    cells = density.evaluate(shapes_GS)
    log_XK = cells.log_XK - log_chance_G[cells.g_X, None]
    weight_XK = np.exp(log_XK - log_XK.max())
    total = float(np.log(weight_XK.sum()) + log_XK.max())
    x_M, k_M = _resample(weight_XK, size, rng)
    g_M, h_M, t_M = cells.g_X[x_M], cells.h_X[x_M], cells.t_X[x_M]
    scale_M = np.exp(LOG_SCALES_K[k_M])
    linear_ML = _linear(density, cells.mean_XL[x_M], cells.cov_XLL[x_M] * scale_M[:, None, None] ** 2, rng)
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


def _best(cells_GS: Array, log_G: Array) -> Array:
    """The most probable cells."""
    return cells_GS[np.argsort(-log_G)[:BEST_CELLS]]


def close_in(density: Density, rounds: Sequence[tuple[int, int]] = ROUNDS) -> tuple[Array, Array, Array]:
    """Grid cells that hold the mass, after three ever finer grids: centres `[G, S]`, log density `[G]`, width `[S]`."""
    low_S, high_S = (bound[2:] for bound in density.model.bounds(density.u_N))
    grids: Sequence[tuple[int, ...]] = rounds if len(low_S) == 2 else ((60,),) * 3
    for left, sizes in zip(reversed(range(len(grids))), grids):
        width_S = (high_S - low_S) / np.array(sizes)
        centres = [low + width * (np.arange(size) + 0.5) for low, width, size in zip(low_S, width_S, sizes)]
        cells_GS = np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1).reshape(-1, len(low_S))
        log_G = density.shape(cells_GS)
        if left and len(density.spread_T) > FEW_SPREADS:  # after the last grid, the caller leaves out more
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


def _resample(weight_XK: Array, size: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Indices `[M]` along both axes of the weights, drawn in proportion to them."""
    drawn_M = rng.permutation(_systematic(weight_XK, size, rng))
    return np.unravel_index(drawn_M, weight_XK.shape)


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
