"""How evaluations scatter about their curve: sampling noise, smooth drift, and differences between seeds.

Held-out pass rates do not scatter independently: a policy wanders, so neighbours err together, and a fit that takes
them for independent is too sure of itself (three runs of one recipe ended ±0.015 apart, ScaleRL §2.1, though each was
measured to ±0.003). So a point's deviation is taken to be the sum of

- sampling noise, proportional to its standard error,
- drift: a Matérn-3/2 Gaussian process along compute, its size relative to the sampling noise, its length relative to
  the window, independent between seeds,
- with several seeds, an offset of each seed that grows with the curve and at infinity is an offset of A.

Sizes and lengths are not fitted but averaged over, on a small grid, with the weight that the data give to each.

Axes: `_N` points.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from scalelab.curves.fitting.models import Array

DRIFTS = (0.5, 1.0, 2.0)
"""Sizes of drift considered, relative to the sampling noise."""

LENGTHS = (0.06, 0.15, 0.35)
"""Correlation lengths of drift considered, as shares of the window."""

NO_DRIFT = 0.5
"""Prior probability that evaluations scatter independently: even odds, so that only the points decide."""


@dataclass(frozen=True)
class Noise:
    """One hypothesis about the scatter.

    Attributes:
        drift: standard deviation of the drift, relative to the typical sampling noise.
        length: its correlation length as a share of the window's compute.
        spread: standard deviation of A between seeds, as a pass rate.
        log_weight: logarithm of its prior probability.
    """

    drift: float
    length: float
    spread: float
    log_weight: float


def hypotheses(several_seeds: bool) -> Iterator[Noise]:
    """The grid: no drift, or one of nine kinds; for several seeds, times three sizes of spread.

    The spreads stand for "smaller than evaluations can show", the paper's ±0.015, and twice that.
    """
    kinds = list(product(DRIFTS, LENGTHS))
    drifts = [(0.0, 1.0, NO_DRIFT), *((size, length, (1 - NO_DRIFT) / len(kinds)) for size, length in kinds)]
    spreads = [(0.004, 0.3), (0.0125, 0.45), (0.03, 0.25)] if several_seeds else [(0.0, 1.0)]
    for (size, length, weight), (spread, share) in product(drifts, spreads):
        yield Noise(size, length, spread, float(np.log(weight * share)))


def covariance(noise: Noise, compute_N: Array, sigma_N: Array, seed_N: np.ndarray, rise_N: Array) -> Array:
    """Covariance of the points `[N, N]` in units of the squared noise scale, the spread between seeds apart.

    Args:
        noise: the hypothesis.
        compute_N: compute of each point.
        sigma_N: sampling noise of each point.
        seed_N: seed of each point.
        rise_N: share of the gain made at each point, in [0, 1]: how much of a seed's offset shows there.
    """
    same_NN = seed_N[:, None] == seed_N[None, :]
    total_NN = np.diag(sigma_N**2)
    if noise.drift:
        distance_NN = np.abs(compute_N[:, None] - compute_N[None, :]) / (noise.length * compute_N.max())
        kernel_NN = (1 + np.sqrt(3) * distance_NN) * np.exp(-np.sqrt(3) * distance_NN)
        total_NN = total_NN + (noise.drift * typical(sigma_N)) ** 2 * kernel_NN * same_NN
    if noise.spread:
        total_NN = total_NN + noise.spread**2 * np.outer(rise_N, rise_N) * same_NN
    return total_NN


def typical(sigma_N: Array) -> float:
    """The typical sampling noise: the median, which broken or boundary points do not move."""
    return float(np.median(sigma_N))
