"""Error rates of verdicts: pairs of recipes like the user's are simulated, fitted and compared by `compare` itself.

Axes: `_N` evaluations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.analysis import Analysis, analyse
from scalelab.curves.checks import Options
from scalelab.curves.compare import compare
from scalelab.curves.comparison import Comparison
from scalelab.curves.fitting.joint import FitError
from scalelab.curves.fitting.models import SIGMOID, log_compute, value
from scalelab.curves.fitting.noise import drift_kernel
from scalelab.numbers import percent
from scalelab.reading.data import curve

DRIFT_LENGTH = 0.15
"""Correlation length of a simulated run's drift, as a share of its budget."""


@dataclass(frozen=True)
class SimulatedDesign:
    """A design of two recipes to simulate.

    Attributes:
        compute_N: compute of each evaluation.
        stderr: standard error of an evaluation.
        R0: pass rate before RL.
        A: asymptote of the baseline.
        B: exponent.
        C_mid: midpoint.
        seeds: runs of each recipe.
        spread: standard deviation of A between seeds.
        drift: standard deviation of a run's drift about its curve.
        margin: difference below which recipes count as equal.
        error: probability that a verdict is wrong.
        level: probability of intervals.
    """

    compute_N: tuple[float, ...]
    stderr: float
    R0: float
    A: float
    B: float
    C_mid: float
    seeds: int
    spread: float
    drift: float
    margin: float
    error: float
    level: float = 0.8
    known_spread: float | None = None
    """The spread that comparisons are told; None: they learn it."""


@dataclass(frozen=True)
class WordRates:
    """Shares of the words that are said at one true difference.

    Attributes:
        difference: of the recipes' curves at the end of the budget.
        better: share of the pairs in which the word is said of the second recipe; the other words alike.
        wrong: share in which the word is false: better or worse without a difference of that sign, equal at a
            difference of the margin or more.
        holds: share in which the interval of the difference holds the true one.
        pairs: pairs that carried fits.
        seeds: of each recipe.
        evaluations: of each run.
        spread: standard deviation of A between seeds.
        error: that verdicts were given.
    """

    difference: float
    better: float
    worse: float
    equal: float
    cannot_tell: float
    wrong: float
    holds: float
    pairs: int
    seeds: int
    evaluations: int
    spread: float
    error: float

    def cells(self) -> list[str]:
        """The row as text."""
        shares = (self.better, self.worse, self.equal, self.cannot_tell, self.wrong, self.holds)
        return [f"{self.difference:+.3f}", *map(percent, shares)]


def like(one: Comparison, known_spread: float | None = None) -> SimulatedDesign:
    """The design of a comparison: the baseline's curve, evaluations and seeds, the spread and drift that were found.

    Args:
        one: the comparison.
        known_spread: the spread that it was told.
    """
    item = one.reference.analysis
    points, params = item.fit.curve, item.params
    first = points.select(points.seed_N == 0)
    stderr = item.fit.relative if points.stderr_N is not None else float(np.median(item.fit.sigma_N))
    sigmoid = item.draws().sigmoid
    return SimulatedDesign(
        compute_N=tuple(first.compute_N[first.compute_N <= 1.001 * one.at].tolist()),
        stderr=stderr,
        R0=params["R0"],
        A=params["A"],
        B=params["B"],
        C_mid=params["C_mid"],
        seeds=max(round(np.mean([len(entry.analysis.fit.curve.seeds) for entry in one.entries])), 1),
        spread=one.spread[0],
        drift=float(np.median(sigmoid.drift_M)),
        margin=one.margin,
        error=one.error,
        level=item.level,
        known_spread=known_spread,
    )


def calibrate(
    setting: SimulatedDesign,
    pairs: int,
    differences: Sequence[float] | None = None,
    seed: int = 0,
    spread_from: Sequence[Analysis] = (),
) -> list[WordRates]:
    """Simulate pairs of recipes, compare them, and count the words.

    Args:
        setting: the design.
        pairs: how many for each difference.
        differences: true differences at the end of the budget; None takes 0, half of the margin, and the margin.
        seed: of the random numbers.
        spread_from: other runs that comparisons learn the spread from, too.
    """
    chosen = (0.0, 0.5 * setting.margin, setting.margin) if differences is None else differences
    return [_rates(setting, pairs, difference, seed, spread_from) for difference in chosen]


def _rates(
    setting: SimulatedDesign, pairs: int, difference: float, seed: int, spread_from: Sequence[Analysis]
) -> WordRates:
    words: Counter[str] = Counter()
    held, wrong = 0, 0
    for pair in range(pairs):
        found = _one(setting, difference, np.random.default_rng([seed, pair, round(1e4 * difference)]), spread_from)
        if found is None:
            continue
        word, (low, high) = found
        words[word] += 1
        held += low <= difference <= high
        wrong += _is_wrong(word, difference, setting.margin)
    done = max(words.total(), 1)
    return WordRates(
        difference=difference,
        better=words["better"] / done,
        worse=words["worse"] / done,
        equal=words["equal"] / done,
        cannot_tell=(words["cannot tell"] + words["unstable"]) / done,
        wrong=wrong / done,
        holds=held / done,
        pairs=words.total(),
        seeds=setting.seeds,
        evaluations=len(setting.compute_N),
        spread=setting.spread,
        error=setting.error,
    )


def _is_wrong(word: str, difference: float, margin: float) -> bool:
    if word == "equal":
        return abs(difference) >= margin * (1 - 1e-9)
    return (word == "better" and difference <= 0) or (word == "worse" and difference >= 0)


def _one(
    setting: SimulatedDesign, difference: float, rng: np.random.Generator, spread_from: Sequence[Analysis]
) -> tuple[str, tuple[float, float]] | None:
    """The verdict on one simulated pair and the interval of its difference; None where a recipe carries no fit."""
    compute_N = np.array(setting.compute_N)
    end = float(compute_N[-1])
    share = float(_curve(setting, 1.0, 0.0, np.array([end]))[0])
    try:
        fits = [
            _fitted(setting, name, compute_N, setting.A + gain / share, rng)
            for name, gain in (("baseline", 0.0), ("other", difference))
        ]
    except FitError:
        return None
    [one] = compare(
        fits,
        margin=setting.margin,
        error=setting.error,
        run_spread=setting.known_spread,
        spread_from=spread_from,
    )
    found = next(entry for entry in one.entries if entry.run == "other").differences["baseline"]
    return one.verdicts["other"], found.interval


def _curve(setting: SimulatedDesign, A: float, R0: float, compute_N: Array) -> Array:
    theta_P = np.array([R0, A, np.log(setting.B), np.log(setting.C_mid)])
    return value(SIGMOID, theta_P, log_compute(compute_N, 1.0))


def _fitted(setting: SimulatedDesign, run: str, compute_N: Array, A: float, rng: np.random.Generator) -> Analysis:
    """Simulated seeds of one recipe, fitted: sigmoids with drift, whose A differ between seeds."""
    kernel_NN = drift_kernel(compute_N, DRIFT_LENGTH, float(compute_N[-1]))
    root_NN = setting.drift * np.linalg.cholesky(kernel_NN + 1e-10 * np.eye(len(compute_N)))
    rates = []
    for _ in range(setting.seeds):
        clean_N = _curve(setting, min(A + setting.spread * rng.standard_normal(), 1.0), setting.R0, compute_N)
        noise_N = root_NN @ rng.standard_normal(len(compute_N)) + setting.stderr * rng.standard_normal(len(compute_N))
        rates.append(np.clip(clean_N + noise_N, 0, 1))
    count = len(compute_N)
    points = curve(
        np.tile(compute_N, setting.seeds),
        np.concatenate(rates),
        np.full(count * setting.seeds, setting.stderr),
        seed=[f"{run} {seed}" for seed in range(setting.seeds) for _ in range(count)],
        run=run,
    )
    return analyse(points, Options(checks=False, level=setting.level))
