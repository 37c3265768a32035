"""Other curves than the sigmoid: rises of another shape, growth without end, and late changes.

Few runs show which curve they follow before they have flattened out, and curves that agree on the points disagree
beyond them. Each shape is a function g(z) of z = B ln(C / C_mid) with g(0) = 1/2 and, for a single rise, g'(0) = 1/4 as
for the sigmoid: B and C_mid mean the same for all, so all have the same prior, and the probability of a shape is its
share of the evidence (the probability of the points, all parameters and kinds of noise integrated out; MacKay 2003,
ch. 28) times its odds beforehand.

Axes: `_M` draws, `_B` problems, `_N` points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.models import LOG_ZERO, Sigmoid, logistic

GRID_Z = np.linspace(-40, 40, 4001)
"""Points at which a rise is tabled to invert it."""


class Rise(Sigmoid):
    """A rise of another shape than the sigmoid.

    Args:
        name: what it is called.
        odds: probability before the points are seen, relative to the other shapes.
        growth: g(z), from 0 upwards.
        ends: whether g tends to 1, so that A is an asymptote; else A is the pass rate where g is 1.
    """

    def __init__(self, name: str, odds: float, growth: Callable[[Array], Array], ends: bool = True) -> None:
        self.name, self.odds, self._growth, self.ends = name, odds, growth, ends

    @cached_property
    def _rise_Z(self) -> Array:
        """The rise at `GRID_Z`."""
        return self._growth(GRID_Z)

    def features(self, shape_BS: Array, u_N: Array) -> Array:
        """Weights of R0 and A, which sum to one at every compute."""
        z_BN = np.exp(shape_BS[..., :1]) * (u_N - shape_BS[..., 1:])
        rise_BN = self._growth(np.clip(z_BN, -500, 500))
        return np.stack([1 - rise_BN, rise_BN], axis=-1)

    def inverse(self, theta_BP: Array, rate: float) -> Array:
        """`u` where the curve reaches a pass rate, by interpolation."""
        share_B = (rate - theta_BP[..., 0]) / np.maximum(theta_BP[..., 1] - theta_BP[..., 0], 1e-12)
        u_B = theta_BP[..., 3] + np.interp(share_B, self._rise_Z, GRID_Z) / np.exp(theta_BP[..., 2])
        never_B = share_B >= (1.0 if self.ends else self._rise_Z[-1])
        return np.where(share_B <= 0, LOG_ZERO, np.where(never_B, np.inf, u_B))


def burr(tail: float) -> Callable[[Array], Array]:
    """Burr XII: 1 − (1 + x)^−q. Above q = 1, the sigmoid, A is approached sooner, below it later (Burr 1942)."""
    start = 2 ** (1 / tail) - 1
    steep = 0.5 / (tail * (1 - 2 ** (-1 / tail)))
    return lambda z: -np.expm1(-tail * np.log1p(start * np.exp(np.minimum(steep * z, 300))))


def endless(power: float) -> Callable[[Array], Array]:
    """Growth without end: c ((1 + x)^p − 1) / p, in the limit p = 0 a straight line in log compute, c ln(1 + x).

    It continues Burr's family to tails of −p; x = x₀ eᶻ with x₀ and c such that g(0) = 1/2 and g'(0) = 1/4.
    """
    start, factor = _endless_start(power)
    return lambda z: factor * _grown(power, np.minimum(start + z, 300))


def _grown(power: float, log_x: Array) -> Array:
    log_one = np.logaddexp(0, log_x)
    return np.expm1(power * log_one) / power if power else log_one


def _endless_start(power: float) -> tuple[float, float]:
    """ln x₀ and c, by bisection: x₀ is the only one with g = 2 g'."""
    low, high = -5.0, 60.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        slope = np.exp(middle + (power - 1) * np.logaddexp(0, middle))
        low, high = (middle, high) if _grown(power, np.array(middle)) < 2 * slope else (low, middle)
    return low, float(0.5 / _grown(power, np.array(low)))


def weibull(z: Array) -> Array:
    """Weibull: 1 − 2^−x, an exponential approach to A, as of Gompertz's curve in compute."""
    result: Array = -np.expm1(-np.log(2) * np.exp(np.minimum(z / (2 * np.log(2)), 50)))
    return result


def gompertz(z: Array) -> Array:
    """Gompertz's curve in log compute: 2^(−1/x), a sharp start and a long way to A."""
    result: Array = np.exp(-np.log(2) * np.exp(np.minimum(-z / (2 * np.log(2)), 50)))
    return result


def two_rises(share: float, apart: float) -> Callable[[Array], Array]:
    """Two sigmoids one after the other, the first of which makes `share` of the gain, `apart` in units of z."""
    return lambda z: share * logistic(z + apart / 2) + (1 - share) * logistic(z - apart / 2)


SIGMOID_ODDS = 0.5
"""Probability of the sigmoid before the points are seen, relative to the odds below.

All odds are learnt from the 138 committed runs of docs/study: those that make the points of each of its two tasks most
probable (whole runs and first halves; EM), averaged over the tasks (`tools/bench/curve_tables/odds.py`), rounded.
"""

OTHERS = (
    Rise("exponential approach", 0.035, weibull),
    Rise("Gompertz in log compute", 0.04, gompertz),
    Rise("fast approach", 0.04, burr(3.0)),
    Rise("slow tail", 0.04, burr(0.4)),
    Rise("line in log compute", 0.12, endless(0.0), ends=False),
    Rise("power of compute", 0.03, endless(0.25), ends=False),
    Rise("two rises", 0.11, two_rises(0.5, 3.0)),
)


@dataclass(frozen=True)
class ChangeKind:
    """A place and steepness of a late change: a second rise or a fall beside the sigmoid.

    Attributes:
        share: compute where half of it is made, as a share of the window's end.
        steep: exponent.
        odds: probability beforehand, relative to the shapes'.
    """

    share: float
    steep: float
    odds: float

    @property
    def name(self) -> str:
        """Name of the change."""
        return f"a change at {self.share:g} of the window{', sudden' if self.steep > 10 else ''}"


CHANGES = tuple(
    ChangeKind(share, steep, 0.005) for steep in (5.0, 16.0) for share in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15)
)
"""Late changes that are looked for; a change behind the window cannot be seen and has no place here."""
