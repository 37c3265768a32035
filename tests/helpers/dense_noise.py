"""The noise of a curve's points written out as dense covariances: what the fast posterior is held against."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.noise import drift_kernel, drifts, spreads, typical


@dataclass(frozen=True)
class Noise:
    """One hypothesis about the scatter.

    Attributes:
        drift: standard deviation of the drift, relative to the typical sampling noise.
        length: its correlation length as a share of the window's compute.
        spread: standard deviation of A between seeds, in pass rate at the fitted noise scale.
        start_spread: standard deviation of R0 between seeds, likewise.
        log_weight: logarithm of its prior probability, the belief about `spread` left out.
    """

    drift: float
    length: float
    spread: float
    start_spread: float
    log_weight: float


def hypotheses(several_seeds: bool, r0_given: bool = False) -> list[Noise]:
    """Every combination of drift and spread."""
    pairs = spreads(several_seeds, r0_given)
    starts = len({start for _, start in pairs})
    return [
        Noise(size, length, spread, start, log_share - float(np.log(starts)))
        for (size, length, log_share), (spread, start) in product(drifts(), pairs)
    ]


def covariance(noise: Noise, compute_N: Array, sigma_N: Array, seed_N: np.ndarray, rise_N: Array) -> Array:
    """Covariance of the points `[N, N]` in units of the squared noise scale.

    Args:
        noise: the hypothesis.
        compute_N: compute of each point.
        sigma_N: sampling noise of each point.
        seed_N: seed of each point.
        rise_N: share of the gain made at each point, in [0, 1]: how much of an offset of A shows there.
    """
    same_NN = seed_N[:, None] == seed_N[None, :]
    total_NN = np.diag(sigma_N**2)
    if noise.drift:
        kernel_NN = drift_kernel(compute_N, noise.length, float(compute_N.max()))
        total_NN = total_NN + (noise.drift * typical(sigma_N)) ** 2 * kernel_NN * same_NN
    if noise.spread:
        total_NN = total_NN + noise.spread**2 * np.outer(rise_N, rise_N) * same_NN
    if noise.start_spread:
        total_NN = total_NN + noise.start_spread**2 * np.outer(1 - rise_N, 1 - rise_N) * same_NN
    return total_NN
