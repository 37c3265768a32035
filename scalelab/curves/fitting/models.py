"""The two curves of ScaleRL behind one small interface: the sigmoid (Eq. 1) and the power law.

Both are linear in two coefficients once their *shape* is fixed, which is what makes fits fast and safe: a grid over the
shape, with the linear part solved exactly, cannot miss the basin that a blind start would.

Curves are evaluated at `u`, the natural logarithm of compute in units of a reference that the caller chooses (so that
a fit does not depend on whether compute was written in hours or in years). Parameter vectors hold the linear
coefficients first, then the shape in logarithms:

    sigmoid   (R0, A, ln B, ln C_mid)     R(C) = R0 + (A − R0) / (1 + (C_mid / C)^B)      ScaleRL §2.1, Eq. 1
    power     (A, D, ln B)                R(C) = A − D / C^B                              ScaleRL A.4

Axes: `_B` problems solved at once, `_N` points, `_P` parameters, `_L` linear coefficients (2), `_S` shape parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from scalelab.arrays import Array

LOG_ZERO = -1e3
"""Stands for ln 0: far enough down that the sigmoid is exactly R0 there, and still finite."""


class Model(Protocol):
    """A curve: what fits, intervals and forecasts need to know of it."""

    name: str
    parameters: tuple[str, ...]
    linear: tuple[str, str]

    def features(self, shape_BS: Array, u_N: Array) -> Array:
        """Factors of the two linear coefficients, `[B, N, 2]`."""
        ...

    def shape_slopes(self, theta_BP: Array, u_N: Array) -> Array:
        """Derivative of the curve by its shape parameters, `[B, N, S]`."""
        ...

    def bounds(self, u_N: Array) -> tuple[Array, Array]:
        """Lower and upper bounds of the parameter vector, `[P]` each."""
        ...

    def inverse(self, theta_BP: Array, rate: float) -> Array:
        """`u` where the curve reaches a pass rate, `[B]`: `LOG_ZERO` if it starts there, infinite if it never does."""
        ...

    def readable(self, theta_BP: Array, log_reference: float) -> Array:
        """Parameters as people read them (`parameters` names them), in the compute unit of the data."""
        ...


def value(model: Model, theta_BP: Array, u_N: Array) -> Array:
    """The curve at `u_N`, `[B, N]`."""
    features_BNL = model.features(theta_BP[..., 2:], u_N)
    result: Array = np.einsum("...nl,...l->...n", features_BNL, theta_BP[..., :2])
    return result


def jacobian(model: Model, theta_BP: Array, u_N: Array) -> Array:
    """Derivative of the curve by every parameter, `[B, N, P]`."""
    return np.concatenate([model.features(theta_BP[..., 2:], u_N), model.shape_slopes(theta_BP, u_N)], axis=-1)


def mirrored(theta_BP: Array) -> Array:
    """Parameters of the curve 1 − R: R0 and A the other way up, the shape the same."""
    return np.concatenate([1 - theta_BP[..., :2], theta_BP[..., 2:]], axis=-1)


def log_compute(compute: Array | Sequence[float] | float, reference: float) -> Array:
    """`u` of some compute: its logarithm in units of `reference`; zero compute becomes `LOG_ZERO`."""
    ratio = np.asarray(compute, float) / reference
    return np.where(ratio > 0, np.log(np.where(ratio > 0, ratio, 1.0)), LOG_ZERO)


class Sigmoid:
    """ScaleRL's sigmoid in log compute, with R0 at zero compute and A at infinity (ScaleRL §2.1, Eq. 1)."""

    name = "sigmoid"
    parameters: tuple[str, ...] = ("R0", "A", "B", "C_mid")
    linear = ("R0", "A")

    def features(self, shape_BS: Array, u_N: Array) -> Array:
        """Weights of R0 and A, which sum to one at every compute."""
        rise_BN = logistic(np.exp(shape_BS[..., :1]) * (u_N - shape_BS[..., 1:]))
        return np.stack([1 - rise_BN, rise_BN], axis=-1)

    def shape_slopes(self, theta_BP: Array, u_N: Array) -> Array:
        """Derivatives by ln B and ln C_mid."""
        B = np.exp(theta_BP[..., 2:3])
        z_BN = B * (u_N - theta_BP[..., 3:4])
        rise_BN = logistic(z_BN)
        slope_BN = (theta_BP[..., 1:2] - theta_BP[..., :1]) * rise_BN * (1 - rise_BN)
        return np.stack([slope_BN * z_BN, -slope_BN * B], axis=-1)

    def bounds(self, u_N: Array) -> tuple[Array, Array]:
        """0 ≤ R0, A ≤ 1 (ScaleRL §2.1); B in 0.2–8; C_mid from a twentieth of the first point to thirty times the last.

        Outside of them one curve can hardly be told from another.
        """
        u_N = u_N[u_N > LOG_ZERO]
        lower = np.array([0.0, 0.0, np.log(0.2), u_N.min() - np.log(20)])
        upper = np.array([1.0, 1.0, np.log(8.0), u_N.max() + np.log(30)])
        return lower, upper

    def inverse(self, theta_BP: Array, rate: float) -> Array:
        """ln C_mid − ln((A − R) / (R − R0)) / B."""
        to_go_B, gained_B = theta_BP[..., 1] - rate, rate - theta_BP[..., 0]
        inside_B = (to_go_B > 0) & (gained_B > 0)
        odds_B = np.where(inside_B, to_go_B, 1.0) / np.where(inside_B, gained_B, 1.0)
        u_B = theta_BP[..., 3] - np.log(odds_B) / np.exp(theta_BP[..., 2])
        return np.where(gained_B <= 0, LOG_ZERO, np.where(to_go_B <= 0, np.inf, u_B))

    def readable(self, theta_BP: Array, log_reference: float) -> Array:
        """(R0, A, B, C_mid)."""
        shape_BS = np.exp(theta_BP[..., 2:] + np.array([0.0, log_reference]))
        return np.concatenate([theta_BP[..., :2], shape_BS], axis=-1)


class PowerLaw:
    """The power law that the sigmoid tends to when C ≫ C_mid (ScaleRL A.4). It has no R0."""

    name = "power"
    parameters: tuple[str, ...] = ("A", "B", "D")
    linear = ("A", "D")

    def features(self, shape_BS: Array, u_N: Array) -> Array:
        """Weights of A and D, the second in units of the reference compute."""
        fall_BN = np.exp(np.clip(-np.exp(shape_BS[..., :1]) * u_N, -500, 500))
        return np.stack([np.ones_like(fall_BN), -fall_BN], axis=-1)

    def shape_slopes(self, theta_BP: Array, u_N: Array) -> Array:
        """Derivative by ln B."""
        exponent_BN = np.exp(theta_BP[..., 2:3]) * u_N
        fall_BN = np.exp(np.clip(-exponent_BN, -500, 500))
        result: Array = (theta_BP[..., 1:2] * exponent_BN * fall_BN)[..., None]
        return result

    def bounds(self, u_N: Array) -> tuple[Array, Array]:
        """0 ≤ A ≤ 1, D > 0, B in 0.01–8."""
        return np.array([0.0, 0.0, np.log(0.01)]), np.array([1.0, np.inf, np.log(8.0)])

    def inverse(self, theta_BP: Array, rate: float) -> Array:
        """ln(D / (A − R)) / B."""
        to_go_B = theta_BP[..., 0] - rate
        ratio_B = np.maximum(theta_BP[..., 1], 1e-300) / np.where(to_go_B > 0, to_go_B, 1.0)
        return np.where(to_go_B > 0, np.log(ratio_B) / np.exp(theta_BP[..., 2]), np.inf)

    def readable(self, theta_BP: Array, log_reference: float) -> Array:
        """(A, B, D), with D in the compute unit of the data."""
        B = np.exp(theta_BP[..., 2])
        return np.stack([theta_BP[..., 0], B, theta_BP[..., 1] * np.exp(B * log_reference)], axis=-1)


SIGMOID = Sigmoid()
POWER = PowerLaw()


def logistic(z: Array) -> Array:
    """1 / (1 + e^−z), without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * z))
