"""Simulated runs of many kinds, with the truth about each: what `tools/bench/curves.py` measures coverage on.

Compute is in units of a run's budget. None of the generators uses the fit's own curve or noise code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from curve_tables.common import sigmoid
from scalelab.curves import Curve, curve
from scalelab.reading.curve import binomial_stderr

Shape = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Simulated:
    """A simulated run.

    Attributes:
        item: its evaluations.
        truth: the mean curve.
        A: its asymptote; None for a curve without one, or none that its points can show.
        chance: probability that one more evaluation at twice the budget (of a new seed, where there are several)
            falls into an interval: binomial about that seed's rate there, drift included.
    """

    item: Curve
    truth: Shape
    A: float | None
    chance: Callable[[float, float], float]


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def ends(rng: np.random.Generator) -> tuple[float, float]:
    """R0 and A."""
    R0 = rng.uniform(0.02, 0.5)
    return R0, rng.uniform(R0 + 0.12, 0.95)


def sigmoid_shape(rng: np.random.Generator) -> tuple[Shape, float]:
    """A sigmoid whose budget is 1.3 to 12 C_mid."""
    (R0, A), B, C_mid = ends(rng), log_uniform(rng, 0.9, 2.6), 1 / log_uniform(rng, 1.3, 12)
    return lambda compute: sigmoid(compute, R0, A, B, C_mid), A


def gompertz_shape(rng: np.random.Generator) -> tuple[Shape, float]:
    """Gompertz's curve in compute: A is approached exponentially, much sooner than by a sigmoid."""
    (R0, A), b = ends(rng), rng.uniform(2, 6)
    rate = np.log(b / np.log(2)) * log_uniform(rng, 1.3, 12)  # half of the gain is made at 1.3 to 12 of the budget
    return lambda compute: R0 + (A - R0) * (np.exp(-b * np.exp(-rate * compute)) - np.exp(-b)) / (1 - np.exp(-b)), A


def log_gompertz_shape(rng: np.random.Generator) -> tuple[Shape, float]:
    """Gompertz's curve in log compute: a sharp start and a long way to A."""
    (R0, A), B, C_mid = ends(rng), log_uniform(rng, 0.9, 2.0), 1 / log_uniform(rng, 1.3, 12)

    def shape(compute: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", over="ignore"):
            return R0 + (A - R0) * np.exp(-np.log(2) * (C_mid / compute) ** B)

    return shape, A


def double_shape(rng: np.random.Generator) -> tuple[Shape, float]:
    """Two rises, the second 3 to 15 times as late as the first."""
    (R0, A), share = ends(rng), rng.uniform(0.35, 0.65)
    first = 1 / log_uniform(rng, 3, 30)
    second, B1, B2 = first * log_uniform(rng, 3, 15), log_uniform(rng, 1.3, 3), log_uniform(rng, 1.3, 3)

    def shape(compute: np.ndarray) -> np.ndarray:
        rise = share * sigmoid(compute, 0, 1, B1, first) + (1 - share) * sigmoid(compute, 0, 1, B2, second)
        return R0 + (A - R0) * rise

    return shape, A


def power_shape(rng: np.random.Generator) -> tuple[Shape, float]:
    """A shifted power law."""
    (R0, A), b, shift = ends(rng), rng.uniform(0.4, 1.5), log_uniform(rng, 0.05, 0.5)
    return lambda compute: A - (A - R0) * (1 + compute / shift) ** -b, A


def log_tail_shape(rng: np.random.Generator) -> tuple[Shape, None]:
    """A sigmoid that goes on with the logarithm of compute, held below 1."""
    R0, A = rng.uniform(0.02, 0.4), rng.uniform(0.5, 0.75)
    B, C_mid, slope = log_uniform(rng, 1.2, 2.6), 1 / log_uniform(rng, 3, 15), rng.uniform(0.01, 0.04)

    def shape(compute: np.ndarray) -> np.ndarray:
        return np.minimum(sigmoid(compute, R0, A, B, C_mid) + slope * np.log1p(compute / C_mid), 1)

    return shape, None


def late_rise_shape(rng: np.random.Generator) -> tuple[Shape, float]:
    """A plateau, then a breakthrough: a steep sigmoid, B 3 to 6, whose budget is 1.2 to 4 C_mid."""
    (R0, A), B, C_mid = ends(rng), rng.uniform(3, 6), 1 / log_uniform(rng, 1.2, 4)
    return lambda compute: sigmoid(compute, R0, A, B, C_mid), A


def second_rise_shape(rng: np.random.Generator) -> tuple[Shape, float]:
    """A sigmoid and, about the end of the budget, a second one of 0.04 to 0.2."""
    shape, A = sigmoid_shape(rng)
    later, more = rng.uniform(0.65, 1.5), rng.uniform(0.04, min(0.2, 0.98 - A) if A < 0.93 else 0.05)
    return lambda compute: shape(compute) + more * sigmoid(compute, 0, 1, 5.0, later), A + more


def endless_shape(rng: np.random.Generator) -> tuple[Shape, None]:
    """Growth with the logarithm of compute and no end but 1."""
    (R0, end), soon = ends(rng), log_uniform(rng, 0.02, 0.2)
    slope = (end - R0) / np.log1p(1 / soon)
    return lambda compute: np.minimum(R0 + slope * np.log1p(compute / soon), 0.99), None


def collapse_shape(rng: np.random.Generator) -> tuple[Shape, None]:
    """A sigmoid that falls by 0.05 to 0.25 within the last half of the budget, and stays down."""
    shape, _ = sigmoid_shape(rng)
    at, depth, width = rng.uniform(0.5, 0.9), rng.uniform(0.05, 0.25), rng.uniform(0.02, 0.06)
    return lambda compute: np.clip(shape(compute) - depth / (1 + np.exp((at - compute) / width)), 0, 1), None


Noise = Callable[[np.random.Generator, np.ndarray], np.ndarray]
"""(random numbers, compute `[N]`) → deviations `[N]` of one run's evaluations, sampling noise apart."""


def ar1_noise(rng: np.random.Generator, compute: np.ndarray) -> np.ndarray:
    """AR(1) from one evaluation to the next."""
    rho, sd = rng.uniform(0.3, 0.8), rng.uniform(0.003, 0.012)
    found = np.empty(len(compute))
    found[0] = rng.normal(0, sd)
    for at in range(1, len(compute)):
        found[at] = rho * found[at - 1] + rng.normal(0, sd * np.sqrt(1 - rho**2))
    return found


def ou_noise(rng: np.random.Generator, compute: np.ndarray) -> np.ndarray:
    """Ornstein–Uhlenbeck along compute, its length a twentieth to a third of the budget."""
    length, sd = rng.uniform(0.05, 0.33), rng.uniform(0.002, 0.010)
    kernel = np.exp(-np.abs(compute[:, None] - compute) / length)
    return sd * np.linalg.cholesky(kernel + 1e-10 * np.eye(len(compute))) @ rng.standard_normal(len(compute))


def t_noise(rng: np.random.Generator, compute: np.ndarray) -> np.ndarray:
    """Student's t with 2.2 degrees of freedom: now and then a broken evaluation."""
    return rng.uniform(0.002, 0.008) * rng.standard_t(2.2, len(compute))


def walk_noise(rng: np.random.Generator, compute: np.ndarray) -> np.ndarray:
    """A random walk that has gone 0.01 to 0.03 at the end of the budget."""
    steps = np.sqrt(np.diff(compute, prepend=0.0)) * rng.standard_normal(len(compute))
    return rng.uniform(0.01, 0.03) * np.cumsum(steps)


def no_noise(rng: np.random.Generator, compute: np.ndarray) -> np.ndarray:
    return np.zeros(len(compute))


def any_noise(rng: np.random.Generator, compute: np.ndarray) -> np.ndarray:
    return (ar1_noise, ou_noise, t_noise, no_noise)[rng.integers(4)](rng, compute)


@dataclass(frozen=True)
class Family:
    """A kind of run.

    Attributes:
        shape: draws the mean curve.
        noise: draws deviations.
        seeds: runs of the recipe.
        spread: standard deviation of A between them.
        points: evaluations of each, drawn between these.
        samples: behind each evaluation, log-uniform between these.
    """

    shape: Callable[[np.random.Generator], tuple[Shape, float | None]]
    noise: Noise = any_noise
    seeds: int = 1
    spread: float = 0.0
    points: tuple[int, int] = (12, 49)
    samples: tuple[int, int] = (300, 8000)


def seeds_family(seeds: int, spread: float) -> Family:
    return Family(sigmoid_shape, seeds=seeds, spread=spread, points=(15, 30), samples=(1000, 8000))


FAMILIES = {
    "sigmoid, binomial": Family(sigmoid_shape, no_noise),
    "sigmoid, 960 samples": Family(sigmoid_shape, no_noise, samples=(960, 961)),
    "sigmoid, random walk": Family(sigmoid_shape, walk_noise),
    "second rise": Family(second_rise_shape, ar1_noise),
    "growth without end": Family(endless_shape, ar1_noise),
    "collapse": Family(collapse_shape, ar1_noise),
    "sigmoid, AR(1)": Family(sigmoid_shape, ar1_noise),
    "sigmoid, OU": Family(sigmoid_shape, ou_noise),
    "sigmoid, t": Family(sigmoid_shape, t_noise),
    **{
        f"{seeds} seeds, spread {spread:g}": seeds_family(seeds, spread)
        for spread in (0.0125, 0.03)
        for seeds in (2, 3, 4)
    },
    "1,000 evaluations": Family(sigmoid_shape, points=(1000, 1000), samples=(100, 400)),
    "20,000 evaluations": Family(sigmoid_shape, no_noise, points=(20_000, 20_000), samples=(20, 100)),
    "Gompertz": Family(gompertz_shape),
    "Gompertz in log compute": Family(log_gompertz_shape),
    "double sigmoid": Family(double_shape),
    "power law": Family(power_shape),
    "log tail": Family(log_tail_shape),
    "late rise": Family(late_rise_shape),
}


def simulate(family: Family, rng: np.random.Generator) -> Simulated:
    """Draw a run, and what a later evaluation of it would say."""
    truth, A = family.shape(rng)
    points, samples = int(rng.integers(*family.points, endpoint=True)), int(log_uniform(rng, *family.samples))
    compute = np.concatenate([np.arange(points + 1) / points, [2.0]])
    clean = truth(compute)
    gain = (clean - clean[0]) / ((A if A is not None else clean[-1]) - clean[0])
    rates, seeds, later = [], [], 0.0
    for seed in range(family.seeds + 1):  # one more: the new seed of a later evaluation, where seeds differ
        offset = family.spread * rng.standard_normal() * gain
        rate = np.clip(clean + offset + family.noise(rng, compute), 0, 1)
        measured = rng.binomial(samples, rate) / samples
        if seed < family.seeds:
            rates.append(measured[:-1])
            seeds += [seed] * (points + 1)
        if seed == (family.seeds if family.seeds > 1 else 0):
            later = float(rate[-1])

    def chance(low: float, high: float) -> float:
        fewest, most = np.ceil(low * samples - 1e-9), np.floor(high * samples + 1e-9)
        return float(binom.cdf(most, samples, later) - binom.cdf(fewest - 1, samples, later))

    observed = np.concatenate(rates)
    item = curve(
        np.tile(compute[:-1], family.seeds), observed, [binomial_stderr(p, samples) for p in observed], seed=seeds
    )
    return Simulated(item, truth, A, chance)
