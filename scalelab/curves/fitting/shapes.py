"""Other shapes than the sigmoid, and how far they would move a forecast.

Few runs show which curve they follow before they have flattened out, and curves that agree on the points disagree
beyond them. So every fit is repeated with other rises from R0 to A. Each is a function g(z) of z = B ln(C / C_mid) with
g(0) = 1/2 and, for a single rise, g'(0) = 1/4 as for the sigmoid: B and C_mid mean the same for all, so all have the
same prior, and the probability of a shape is its share of the evidence (the probability of the points, all parameters
and kinds of noise integrated out; MacKay 2003, ch. 28).

Axes: `_M` draws, `_B` problems, `_N` points, `_C` points of compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalelab.curves.fitting.density import seed_noises
from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.models import LOG_ZERO, SIGMOID, Array, Sigmoid, logistic
from scalelab.curves.fitting.noise import Prior
from scalelab.curves.fitting.posterior import Draws, posterior

SIGMOID_ODDS = 0.4
"""Probability of the sigmoid before the points are seen; `OTHER_ODDS` has the kinds that share the rest."""

OTHER_ODDS = {"fast": 0.4, "Gompertz": 0.2, "slow": 0.2, "two rises": 0.2}
"""Shares of the other kinds in the rest. With these, intervals of simulated runs that do follow a sigmoid hold some
points more often than they say, and those of other shapes in seven of ten or more (docs/curves.md)."""

INNER = 0.65
"""Share of the level whose interval of the sigmoid is always inside the interval reported."""

GRID_Z = np.linspace(-40, 40, 4001)
"""Points at which a rise is tabled to invert it."""


class Rise(Sigmoid):
    """A rise from R0 to A of another shape than the sigmoid.

    Args:
        name: what it is called.
        kind: shapes of one kind share their probability.
        growth: g(z), from 0 to 1.
    """

    def __init__(self, name: str, kind: str, growth: Callable[[Array], Array]) -> None:
        self.name, self.kind, self._growth = name, kind, growth

    def features(self, shape_BS: Array, u_N: Array) -> Array:
        """Weights of R0 and A, which sum to one at every compute."""
        z_BN = np.exp(shape_BS[..., :1]) * (u_N - shape_BS[..., 1:])
        rise_BN = self._growth(np.clip(z_BN, -500, 500))
        return np.stack([1 - rise_BN, rise_BN], axis=-1)

    def inverse(self, theta_BP: Array, rate: float) -> Array:
        """`u` where the curve reaches a pass rate, by interpolation."""
        share_B = (rate - theta_BP[..., 0]) / np.maximum(theta_BP[..., 1] - theta_BP[..., 0], 1e-12)
        z_B = np.interp(share_B, self._growth(GRID_Z), GRID_Z)
        u_B = theta_BP[..., 3] + z_B / np.exp(theta_BP[..., 2])
        return np.where(share_B <= 0, LOG_ZERO, np.where(share_B >= 1, np.inf, u_B))


def burr(tail: float) -> Callable[[Array], Array]:
    """Burr XII: 1 − (1 + x)^−q. Above q = 1, the sigmoid, A is approached sooner, below it later (Burr 1942)."""
    start = 2 ** (1 / tail) - 1
    steep = 0.5 / (tail * (1 - 2 ** (-1 / tail)))
    return lambda z: -np.expm1(-tail * np.log1p(start * np.exp(np.minimum(steep * z, 300))))


def weibull(z: Array) -> Array:
    """Weibull: 1 − 2^−x, an exponential approach to A, as of Gompertz's curve in compute."""
    return -np.expm1(-np.log(2) * np.exp(np.minimum(z / (2 * np.log(2)), 50)))


def gompertz(z: Array) -> Array:
    """Gompertz's curve in log compute: 2^(−1/x), a sharp start and a long way to A."""
    return np.exp(-np.log(2) * np.exp(np.minimum(-z / (2 * np.log(2)), 50)))


def two_rises(share: float, apart: float) -> Callable[[Array], Array]:
    """Two sigmoids one after the other, the first of which makes `share` of the gain, `apart` in units of z."""
    return lambda z: share * logistic(z + apart / 2) + (1 - share) * logistic(z - apart / 2)


OTHERS = (
    Rise("exponential approach", "fast", weibull),
    Rise("Gompertz in log compute", "Gompertz", gompertz),
    Rise("fast approach", "fast", burr(3.0)),
    Rise("slow tail", "slow", burr(0.4)),
    Rise("very slow tail", "slow", burr(0.2)),
    Rise("two rises", "two rises", two_rises(0.5, 3.0)),
    Rise("two rises, the first larger", "two rises", two_rises(0.65, 5.0)),
    Rise("two rises, the second larger", "two rises", two_rises(0.35, 5.0)),
)


@dataclass(frozen=True)
class Shapes:
    """The sigmoid, and other shapes through the same points.

    The sigmoid stays the centre: the value of a forecast is its own, and intervals are those of all shapes by their
    probability, extended to hold the middle of the sigmoid's. (Averages of shapes forecast no better than the sigmoid
    alone on real runs; intervals that allow for other shapes hold more often.)

    Attributes:
        names: of the shapes, the sigmoid first.
        probability: of each, given the points.
        draws: curves of each shape in proportion to its probability; a shape with next to none has no draws.
        stretch: factor by which intervals are stretched about the sigmoid's median beyond the points, because the
            run's own half-budget forecast missed by more than it should have.
    """

    names: tuple[str, ...]
    probability: tuple[float, ...]
    draws: tuple[Draws, ...]
    stretch: float = 1.0

    def __repr__(self) -> str:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in zip(self.names, self.probability) if share > 0.005)
        return f"Shapes({shares})"

    def value(self, compute: Sequence[float] | Array) -> Array:
        """Curves of all shapes at some compute, `[M, C]`."""
        return np.concatenate([draws.value(compute) for draws in self.draws])

    def evaluation(self, compute: Sequence[float] | Array) -> Array:
        """Predicted evaluations at some compute, `[M, C]`."""
        return np.concatenate([draws.evaluation(compute) for draws in self.draws])

    def asymptote(self) -> Array:
        """A of every curve, `[M]`."""
        return np.concatenate([draws.theta_MP[:, 1] for draws in self.draws])

    def reached(self, rate: float) -> Array:
        """Logarithm of the compute, relative to the reference, at which each curve reaches a pass rate, `[M]`."""
        return np.concatenate([draws.model.inverse(draws.theta_MP, rate) for draws in self.draws])

    def as_sigmoids(self, first: float, second: float) -> Draws:
        """Sigmoids with the R0 and A of the curves of all shapes, and with their pass rates at two computes.

        They stand for the curves where only sigmoids can be drawn, from the first compute on.
        """
        parts = []
        for draws in self.draws:
            theta_MP = draws.theta_MP.copy()
            if draws.model is not SIGMOID:
                R0_M, gain_M = theta_MP[:, 0], np.maximum(theta_MP[:, 1] - theta_MP[:, 0], 1e-9)
                share_M2 = (draws.value([first, second]) - R0_M[:, None]) / gain_M[:, None]
                share_M2 = np.clip(share_M2, 1e-9, 1 - 1e-9)
                logit_M2 = np.log(share_M2 / (1 - share_M2))
                B_M = np.maximum((logit_M2[:, 1] - logit_M2[:, 0]) / np.log(second / first), 0.02)
                theta_MP[:, 2] = np.log(B_M)
                theta_MP[:, 3] = np.log(first) - draws.log_reference - logit_M2[:, 0] / B_M
            parts.append(replace(draws, model=SIGMOID, theta_MP=theta_MP))
        arrays = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("theta_MP", "noise_M", "spread_M", "drift_M")
        }
        order_M = np.random.default_rng(0).permutation(len(arrays["noise_M"]))
        return replace(parts[0], **{name: values[order_M] for name, values in arrays.items()})

    def favoured(self) -> tuple[str, float] | None:
        """The other shape that explains the points best where the sigmoid is improbable, and how improbable that is."""
        best = int(np.argmax(self.probability[1:])) + 1
        if self.probability[0] > IMPROBABLE:
            return None
        return self.names[best], self.probability[0]


IMPROBABLE = 0.1
"""Probability below which the reader is told that the points favour another shape than the sigmoid.

With the odds above, the points then speak against it six to one."""


def widen(own: Array, all_shapes: Array, level: float, stretch: float | Array = 1.0) -> tuple[Array, Array]:
    """Lower and upper ends of intervals that allow for other shapes and always hold the middle of the sigmoid's.

    Args:
        own: the sigmoid's draws, `[M, C]`.
        all_shapes: draws of all shapes by their probability, `[M, C]`.
        level: probability of the interval.
        stretch: factor on the distance of the ends from the sigmoid's median.
    """
    inner = INNER * level
    low_C, middle_C, high_C = np.quantile(own, [(1 - inner) / 2, 0.5, (1 + inner) / 2], axis=0)
    other_low_C, other_high_C = np.quantile(all_shapes, [(1 - level) / 2, (1 + level) / 2], axis=0)
    low_C, high_C = np.minimum(low_C, other_low_C), np.maximum(high_C, other_high_C)
    return middle_C - stretch * (middle_C - low_C), middle_C + stretch * (high_C - middle_C)


def other_shapes(fit: Fit, prior: Prior | None, draws: Draws, size: int = 4000, seed: int = 0) -> Shapes:
    """The posterior of every shape, and draws in proportion to its evidence.

    Args:
        fit: a joint sigmoid fit.
        prior: beliefs about steepness, midpoint and scale, the same for all shapes.
        draws: the sigmoid's posterior.
        size: how many curves to draw in all.
        seed: of the random numbers.
    """
    noises = seed_noises(fit)
    found = [draws, *(posterior(fit, prior, size // 2, seed, model, quick=True, noises=noises) for model in OTHERS)]
    kinds = [model.kind for model in OTHERS]
    shares = [(1 - SIGMOID_ODDS) * OTHER_ODDS[kind] / kinds.count(kind) for kind in kinds]
    prior_F = np.array([SIGMOID_ODDS, *shares])
    log_F = np.log(prior_F) + np.array([each.log_evidence for each in found])
    probability_F = np.exp(log_F - np.logaddexp.reduce(log_F))
    count_F = np.minimum(np.rint(probability_F * size).astype(int), [len(each) for each in found])
    count_F[0] = max(count_F[0], 1)  # the sigmoid's draws are the centre, whatever their weight
    return Shapes(
        names=(SIGMOID.name, *(model.name for model in OTHERS)),
        probability=tuple(probability_F.tolist()),
        draws=tuple(each.head(int(count)) for each, count in zip(found, count_F) if count),
    )
