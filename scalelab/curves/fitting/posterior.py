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

from scalelab.arrays import Array
from scalelab.curves.fitting.density import CHANGE_SIZE, NEGLIGIBLE, Cells, Change, Density
from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.models import Model, log_compute, mirrored, value
from scalelab.curves.fitting.noise import Prior, typical

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
        log_evidence: logarithm of the probability of the points under the model, up to a constant of the points.
        change: a late rise or fall beside the curve; None without one.
        height_M: its height, in pass rate.
        walk_M: True where the drift is a random walk, whose size grows with the square root of compute.
        end: compute of the last point, where a random walk has the size `drift_M`.
        falls: True for curves that fall from R0 to a floor A.
    """

    model: Model
    log_reference: float
    theta_MP: Array
    noise_M: Array
    spread_M: Array
    drift_M: Array
    log_evidence: float = 0.0
    change: Change | None = None
    height_M: Array | None = None
    walk_M: Array | None = None
    end: float = float("nan")
    falls: bool = False

    def __len__(self) -> int:
        return len(self.theta_MP)

    def __repr__(self) -> str:
        return f"Draws({len(self)} of the {self.model.name} curve)"

    def take(self, index_M: np.ndarray) -> Draws:
        """Some of the draws, by index."""
        return replace(
            self,
            theta_MP=self.theta_MP[index_M],
            noise_M=self.noise_M[index_M],
            spread_M=self.spread_M[index_M],
            drift_M=self.drift_M[index_M],
            height_M=None if self.height_M is None else self.height_M[index_M],
            walk_M=None if self.walk_M is None else self.walk_M[index_M],
        )

    def mirrored(self) -> Draws:
        """The curves of 1 − pass rate: the one place where falling curves become rising ones, and back."""
        height_M = None if self.height_M is None else -self.height_M
        return replace(self, theta_MP=mirrored(self.theta_MP), height_M=height_M, falls=not self.falls)

    def head(self, size: int) -> Draws:
        """The first draws; they come in no order, so these are as good as any."""
        return self.take(np.arange(min(size, len(self))))

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
        """The curves at some compute, `[M, len(compute)]`, kept in [0, 1]."""
        u = log_compute(compute, np.exp(self.log_reference))
        value_MC = value(self.model, self.theta_MP, u)
        if self.change is not None and self.height_M is not None:
            value_MC = value_MC + self.height_M[:, None] * self.change.feature(u)
        return np.clip(value_MC, 0, 1)

    def rise(self, compute: Array | Sequence[float]) -> Array:
        """Share of the way to A made at some compute, `[M, len(compute)]`: how much of an offset of A shows there."""
        u = log_compute(compute, np.exp(self.log_reference))
        if "R0" not in self.model.linear:
            return np.ones((len(self), len(u)))
        return np.minimum(self.model.features(self.theta_MP[:, 2:], u)[..., 1], 1.0)

    def evaluation(self, compute: Array | Sequence[float]) -> Array:
        """Predicted evaluations at some compute, `[M, len(compute)]`.

        Each draw errs alike at every compute, so that quantiles rise as smoothly as the curves do.
        """
        rng = np.random.default_rng(0)
        noise_M1, seed_M1 = rng.standard_normal((2, len(self), 1))
        spread_MC = self.spread_M[:, None] * self.rise(compute)
        result: Array = np.clip(self.value(compute) + self.noise(compute) * noise_M1 + spread_MC * seed_M1, 0, 1)
        return result

    def noise(self, compute: Array | Sequence[float]) -> Array:
        """Standard deviation of an evaluation about its run's curve, `[M, len(compute)]`: sampling and drift."""
        if self.walk_M is None:
            return np.repeat(self.noise_M[:, None], len(np.atleast_1d(compute)), axis=1)
        further_C = np.asarray(compute, float) / self.end
        growth_MC = np.where(self.walk_M[:, None], np.sqrt(further_C), 1.0)
        white_M1 = np.sqrt(np.maximum(self.noise_M**2 - self.drift_M**2, 0))[:, None]
        result: Array = np.hypot(white_M1, self.drift_M[:, None] * growth_MC)
        return result


@dataclass(frozen=True)
class Mass:
    """The mass of a density, by the last of ever finer grids.

    Attributes:
        density: what was looked at.
        cells_GS: centres of the grid's cells.
        log_G: log density of each, kinds of noise summed over coarsely.
        width_S: width of a cell.
        quick: shapes and spreads are covered more coarsely.
    """

    density: Density
    cells_GS: Array
    log_G: Array
    width_S: Array
    quick: bool

    @property
    def log_evidence(self) -> float:
        """Logarithm of the probability of the points, coarsely."""
        return float(np.logaddexp.reduce(self.log_G) + np.log(self.width_S).sum())

    def weigh(self, rng: np.random.Generator) -> Weighed:
        """Shapes drawn from the mass, weighed exactly with every kind of noise that has any."""
        density = self.density
        single = len(density.fit.curve.seeds) == 1  # several seeds: the grid of spreads makes up for fewer shapes
        if single or not self.quick:  # else looking for kinds of noise without mass takes as long as weighing them
            density.focus(_best(self.cells_GS, self.log_G))
        count = (200 if self.quick else 900) if single else (130 if self.quick else 260)
        shapes_GS, log_chance_G = _scatter(self.cells_GS, self.log_G, self.width_S, count, rng)
        cells = density.evaluate(shapes_GS)
        log_XK = cells.log_XK - log_chance_G[cells.g_X, None]
        top = float(log_XK.max())
        weight_XK = np.exp(log_XK - top)
        per_shape = float(np.log(self.width_S).sum()) - float(np.log(len(shapes_GS)))
        return Weighed(density, shapes_GS, cells, weight_XK, float(np.log(weight_XK.sum())) + top + per_shape)


@dataclass(frozen=True)
class Weighed:
    """Shapes and kinds of noise with their weights, to draw from.

    Attributes:
        density: what they are weighed by.
        shapes_GS: the shapes.
        cells: combinations of a shape and a kind of noise.
        weight_XK: weight of each at every noise scale.
        log_evidence: logarithm of the probability of the points, up to a constant of the points.
    """

    density: Density
    shapes_GS: Array
    cells: Cells
    weight_XK: Array
    log_evidence: float

    def draw(self, size: int, rng: np.random.Generator) -> Draws:
        """Equally likely curves."""
        density, cells, fit = self.density, self.cells, self.density.fit
        x_M, k_M = _resample(self.weight_XK, size, rng)
        scale_M = np.exp(density.log_scales_K[k_M])
        linear_ML = _linear(density, cells.mean_XL[x_M], cells.cov_XLL[x_M] * scale_M[:, None, None] ** 2, rng)
        height_M = None if cells.change_XQ is None else _heights(cells.change_XQ[x_M], linear_ML, scale_M, rng)
        white_M = scale_M * typical(fit.sigma_N)
        drift_M = white_M * density.drift_H[cells.h_X[x_M]]
        if fit.evaluation_sigma is not None:
            white_M = np.full(size, fit.evaluation_sigma)
        draws = Draws(
            model=density.model,
            log_reference=fit.log_reference,
            theta_MP=np.concatenate([linear_ML, self.shapes_GS[cells.g_X[x_M]]], axis=1),
            noise_M=np.hypot(white_M, drift_M),
            spread_M=scale_M * density.spread_T[cells.t_X[x_M]],
            drift_M=drift_M,
            log_evidence=self.log_evidence,
            change=density.change,
            height_M=height_M,
            walk_M=density.walk_H[cells.h_X[x_M]],
            end=float(fit.curve.compute_N.max()),
        )
        return draws.mirrored() if density.falls else draws


def find_mass(density: Density, quick: bool) -> Mass:
    """Close in on the mass of a density."""
    return Mass(density, *close_in(density, QUICK_ROUNDS if quick else ROUNDS), quick)


def posterior(fit: Fit, prior: Prior | None, size: int = 4000, seed: int = 0, quick: bool = False) -> Draws:
    """Draws from the posterior of a fitted curve.

    Args:
        fit: the joint fit; its points, outlier weights and noise scale are taken over.
        prior: beliefs about shape and scale; None for flat ones.
        size: how many to draw.
        seed: of the random numbers.
        quick: cover shapes and spreads more coarsely, for curves that count with a small weight.
    """
    rng = np.random.default_rng(seed)
    mass = find_mass(Density(fit, prior, coarse=quick), quick)
    return mass.weigh(rng).draw(size, rng)


def best_cells(density: Density) -> Array:
    """The most probable shapes of a density, `[G, S]`, by a quick search."""
    return _best(*close_in(density, QUICK_ROUNDS)[:2])


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
    drawn_G = systematic(chance_G, size, rng)
    shapes_GS = cells_GS[drawn_G] + width_S * (rng.random((len(drawn_G), len(width_S))) - 0.5)
    return shapes_GS, np.log(chance_G[drawn_G])


def systematic(weight: Array, size: int, rng: np.random.Generator) -> np.ndarray:
    """Indices drawn in proportion to the weights, with as little chance in it as possible."""
    cumulative = np.cumsum(weight.ravel())
    at = (np.arange(size) + rng.random()) / size * cumulative[-1]
    result: Array = np.minimum(np.searchsorted(cumulative, at), weight.size - 1)
    return result


def _resample(weight_XK: Array, size: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Indices `[M]` along both axes of the weights, drawn in proportion to them."""
    drawn_M = rng.permutation(systematic(weight_XK, size, rng))
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


def _heights(change_MQ: Array, linear_ML: Array, scale_M: Array, rng: np.random.Generator) -> Array:
    """Heights of a change `[M]`, given the two linear coefficients: normal, by its inner products with all else."""
    by_first_M, by_second_M, by_rate_M, own_M = change_MQ.T
    precision_M = CHANGE_SIZE**-2 + own_M
    mean_M = (by_rate_M - linear_ML[:, 0] * by_first_M - linear_ML[:, 1] * by_second_M) / precision_M
    result: Array = mean_M + scale_M / np.sqrt(precision_M) * rng.standard_normal(len(mean_M))
    return result


def _cut_normal(mean_M: Array, deviation_M: Array, upper: Array | float, rng: np.random.Generator) -> Array:
    """Draws from normals cut to [0, upper], evenly over their quantiles."""
    from scipy.special import ndtr, ndtri

    size = len(mean_M)
    deviation_M = np.maximum(deviation_M, 1e-12)
    low_M, high_M = ndtr(-mean_M / deviation_M), ndtr((upper - mean_M) / deviation_M)
    uniform_M = rng.permutation((np.arange(size) + rng.random(size)) / size)
    quantile_M = np.clip(low_M + uniform_M * (high_M - low_M), 1e-15, 1 - 1e-15)
    result: Array = np.clip(mean_M + deviation_M * ndtri(quantile_M), 0, upper)
    return result
