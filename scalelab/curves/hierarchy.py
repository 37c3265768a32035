"""Differences between recipes, from runs that differ by their seeds as well.

What run s of recipe r comes to (its pass rate at some compute, its A, its ln B, …) is taken to be

    y[r, s] = m[r] + p[s] + q[r, s] + e[r, s]

with m the recipe, p what runs of one seed share (their base model and the order of their prompts), q what a run has of
its own, and e the error of the fit, whose size is known. The standard deviations of m about the recipes' mean, of p and
of q are not known; they are averaged over on a grid, with the weight that all runs together give to each. Differences
between recipes that share their seeds are free of p: that is what pairing buys. Drawing all m towards their mean is
what many recipes ask for (Gelman, Hill & Yajima 2012): of eight variants that do nothing, the luckiest is no winner.

Axes: `_X` runs, `_R` recipes, `_S` seeds, `_T` grid cells, `_M` draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from scalelab.curves.estimates import Quantity, RunEstimates
from scalelab.curves.fitting.models import Array

BORROWED = 0.5
"""Weight of what other tasks say about the spread between seeds (a power prior, Ibrahim & Chen 2000)."""


@dataclass(frozen=True)
class Scales:
    """Beliefs about the sizes of effects, each log-normal as (median, standard deviation of the logarithm).

    Attributes:
        own: of what a run has of its own.
        shared: of what the runs of one seed share.
        recipes: of the recipes about their mean.
        unit: 1 for pass rates; other quantities are divided by it.
    """

    own: tuple[float, float] = (0.016, 0.65)
    shared: tuple[float, float] = (0.015, 1.2)
    recipes: tuple[float, float] = (0.03, 1.3)
    unit: float = 1.0


NOTHING_SHARED = 1 / 3
"""Probability that runs of one seed share nothing."""

NO_EFFECT = 0.1
"""Probability that none of three recipes or more differs from another.

For two recipes it is zero: probabilities are then right as often as they say, and without a difference they still pass
90 % in less than a tenth of the comparisons (docs/curves.md)."""

RATE = Scales()
"""Scales of the spread between runs, for pass rates and A."""

LOGARITHM = Scales(unit=8.0)
"""Scales of the spread of ln B and of logarithms of compute: 0.02 in A goes with about 0.16 in ln B, as in the
simulations of docs/curves.md."""


def scales_of(quantity: Quantity) -> Scales:
    """Beliefs about the sizes of effects on one quantity."""
    return RATE if quantity in ("value", "A") else LOGARITHM


@dataclass(frozen=True)
class Effects:
    """Draws of the recipes' effects, given their runs.

    Attributes:
        recipes: names.
        draws_MR: equally likely recipes.
        spread_M: standard deviation between runs of one recipe that goes with each draw, what seeds share left out.
        shared_M: standard deviation of what runs of one seed share.
        spread_grid: values of that spread considered.
        given_spread: probability `[T, R, R]` that one recipe is above another, if the spread is known to be each.
    """

    recipes: tuple[str, ...]
    draws_MR: Array
    spread_M: Array
    shared_M: Array
    spread_grid: Array
    given_spread: Array

    def above(self, first: str, second: str) -> float:
        """Probability that the first recipe is above the second: never 0 or 1, since it is a share of draws."""
        one, other = self.draws_MR[:, self.recipes.index(first)], self.draws_MR[:, self.recipes.index(second)]
        return float((np.count_nonzero(one > other) + 0.5) / (len(one) + 1))

    def difference(self, first: str, second: str) -> Array:
        """Draws of the first recipe less the second."""
        return self.draws_MR[:, self.recipes.index(first)] - self.draws_MR[:, self.recipes.index(second)]

    def best(self) -> dict[str, float]:
        """Probability that each recipe is the best of all."""
        wins = np.bincount(self.draws_MR.argmax(1), minlength=len(self.recipes)) / len(self.draws_MR)
        return dict(zip(self.recipes, wins.tolist()))

    def certain_up_to(self, first: str, second: str, probability: float) -> float | None:
        """Largest spread between seeds at which the verdict on the two has this probability; None if at none.

        The verdict is whichever of them is probably above. Where the spread was given, there is no other to try: None.
        """
        if len(self.spread_grid) == 1:
            return None
        row = self.given_spread[:, self.recipes.index(first), self.recipes.index(second)]
        sure = np.flatnonzero(np.maximum(row, 1 - row) >= probability)
        return float(self.spread_grid[sure[-1]]) if sure.size else None


@dataclass(frozen=True)
class _Grid:
    """Cells of sizes considered: standard deviations of each effect, and log prior weight, `[T]` each."""

    own_T: Array
    shared_T: Array
    recipes_T: Array
    log_prior_T: Array


def recipe_effects(
    runs: RunEstimates,
    scales: Scales = RATE,
    *,
    spread: float | None = None,
    borrowed: Sequence[RunEstimates] = (),
    pooled: bool = True,
    size: int = 4000,
    seed: int = 0,
) -> Effects:
    """Draws of the recipes, by the model above.

    Args:
        runs: one number of every run.
        scales: beliefs about the sizes of effects.
        spread: standard deviation between runs of one recipe, where it is known; None learns it.
        borrowed: runs of other tasks, or of other recipes, whose spread says something about this one.
        pooled: draw the recipes towards their mean; else each stands for itself.
        size: how many to draw.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    runs = runs.scaled(scales.unit)
    grid = _grid(runs, scales, None if spread is None else spread / scales.unit, pooled)
    log_T = grid.log_prior_T.copy()
    mean_TR, cov_TRR, own_log_T = _given_sizes(runs, grid)
    log_T += own_log_T
    if spread is None:
        for other in borrowed:
            log_T += BORROWED * _spread_evidence(other.scaled(scales.unit), grid)
    weight_T = np.exp(log_T - np.logaddexp.reduce(log_T))
    cell_M = rng.choice(len(weight_T), size, p=weight_T)
    root_TRR = np.linalg.cholesky(cov_TRR + 1e-14 * np.eye(cov_TRR.shape[-1]))
    noise_MR = rng.standard_normal((size, len(runs.recipes)))
    draws_MR = mean_TR[cell_M] + np.einsum("mrq,mq->mr", root_TRR[cell_M], noise_MR)
    spreads = np.unique(grid.own_T)
    return Effects(
        recipes=runs.recipes,
        draws_MR=draws_MR * scales.unit,
        spread_M=grid.own_T[cell_M] * scales.unit,
        shared_M=grid.shared_T[cell_M] * scales.unit,
        spread_grid=spreads * scales.unit,
        given_spread=np.stack([_above(mean_TR, cov_TRR, weight_T * (grid.own_T == own)) for own in spreads]),
    )


def _grid(runs: RunEstimates, scales: Scales, spread: float | None, pooled: bool) -> _Grid:
    own = np.geomspace(0.001, 0.2, 12) if spread is None else np.array([max(spread, 1e-9)])
    labels, counts = np.unique(runs.seed_X[runs.seed_X >= 0], return_counts=True)
    paired = len(labels) > 0 and counts.max() > 1
    shared = np.array([0.0, 0.006, 0.0125, 0.025, 0.05, 0.1]) if paired else np.zeros(1)
    recipes = np.geomspace(0.003, 0.3, 8) if pooled and len(runs.recipes) > 1 else np.full(1, 10.0)
    if pooled and len(runs.recipes) > 2:
        recipes = np.array([0.0, *recipes])

    def log_normal(values: Array, belief: tuple[float, float], nothing: float = 0.0) -> Array:
        if len(values) == 1:
            return np.zeros(1)
        log = -0.5 * ((np.log(np.maximum(values, 1e-12)) - np.log(belief[0])) / belief[1]) ** 2
        if nothing:
            log[values == 0] = np.logaddexp.reduce(log[values > 0]) + np.log(nothing / (1 - nothing))
        return log - np.logaddexp.reduce(log)

    parts = [
        log_normal(own, scales.own),
        log_normal(shared, scales.shared, nothing=NOTHING_SHARED),
        log_normal(recipes, scales.recipes, nothing=NO_EFFECT if len(runs.recipes) > 2 else 0.0),
    ]
    own_T, shared_T, recipes_T = np.array(list(product(own, shared, recipes))).T
    log_T = np.array([sum(item) for item in product(*parts)])
    return _Grid(own_T, shared_T, recipes_T, log_T)


def _given_sizes(runs: RunEstimates, grid: _Grid) -> tuple[Array, Array, Array]:
    """Mean `[T, R]`, covariance `[T, R, R]` of the recipes given the sizes; log probability `[T]` of the runs."""
    same_XX = (runs.seed_X[:, None] == runs.seed_X) & (runs.seed_X[:, None] >= 0)
    noise_TXX = (
        np.eye(len(runs.value_X)) * (runs.error_X**2 + grid.own_T[:, None, None] ** 2)
        + same_XX * grid.shared_T[:, None, None] ** 2
    )
    gain_TRX, cov_TRR, inverse_TXX, log_volume_T = _regression(noise_TXX, grid, runs.recipe_X, len(runs.recipes))
    centre = float(np.average(runs.value_X, weights=1 / (runs.error_X**2 + 1e-6)))
    left_X = runs.value_X - centre
    log_T = log_volume_T - 0.5 * np.einsum("x,txy,y->t", left_X, inverse_TXX, left_X)
    return centre + gain_TRX @ left_X, cov_TRR, log_T


def _regression(noise_TXX: Array, grid: _Grid, recipe_X: np.ndarray, recipes: int) -> tuple[Array, Array, Array, Array]:
    """Regression of recipes on runs given the sizes (Rasmussen & Williams 2006, Eq. 2.25–2.26).

    Returns:
        Gain `[T, R, X]` and covariance `[T, R, R]` of the recipes; inverse covariance `[T, X, X]` of the runs, and
        minus half the logarithm of its determinant `[T]`.
    """
    member_XR = (recipe_X[:, None] == np.arange(recipes)).astype(float)
    prior_TRR = np.eye(recipes) * grid.recipes_T[:, None, None] ** 2 + 1.0  # the mean of all is anywhere: 1 in variance
    cross_TRX = prior_TRR @ member_XR.T
    total_TXX = member_XR @ cross_TRX + noise_TXX
    inverse_TXX = np.linalg.inv(total_TXX)
    gain_TRX = cross_TRX @ inverse_TXX
    cov_TRR = prior_TRR - gain_TRX @ np.swapaxes(cross_TRX, -1, -2)
    cov_TRR = 0.5 * (cov_TRR + np.swapaxes(cov_TRR, -1, -2)) + 1e-12 * np.eye(recipes)
    return gain_TRX, cov_TRR, inverse_TXX, -0.5 * np.linalg.slogdet(total_TXX)[1]


class ManyStudies:
    """Verdicts of `recipe_effects` on many studies of one design at once, without draws.

    Every recipe has the same number of seeds, all runs have the same error, and no seeds are shared. A study is then
    known by the means of its recipes and by the squares of its runs about them.

    Args:
        mean_MR: mean of each recipe's runs, one row for each study; recipe 1 is the one that may be better.
        squares_M: squared deviations of the runs from their recipes' means, summed over all recipes.
        seeds: runs of each recipe.
        error: standard error of each run's number.
        spread: standard deviation between runs of one recipe, where it is known; None learns it.
        scales: beliefs about the sizes of effects.
    """

    def __init__(
        self,
        mean_MR: Array,
        squares_M: Array,
        seeds: int,
        error: float,
        spread: float | None = None,
        scales: Scales = RATE,
    ) -> None:
        recipes, self._unit = mean_MR.shape[1], scales.unit
        mean_MR, squares_M, error = mean_MR / scales.unit, squares_M / scales.unit**2, error / scales.unit
        spread = None if spread is None else spread / scales.unit
        alone = RunEstimates(
            np.zeros(1), np.ones(1), np.zeros(1, int), -np.ones(1, int), tuple(map(str, range(recipes)))
        )
        grid = _grid(alone, scales, spread, pooled=True)
        variance_T = grid.own_T**2 + error**2
        noise_TRR = np.eye(recipes) * variance_T[:, None, None] / seeds
        gain_TRR, cov_TRR, inverse_TRR, log_volume_T = _regression(noise_TRR, grid, np.arange(recipes), recipes)
        left_MR = mean_MR - mean_MR.mean(1, keepdims=True)  # where all lie together is anywhere, so it says nothing
        better_R = np.arange(recipes) == 1
        contrast_TR = gain_TRR[:, 1] - gain_TRR[:, 0]
        self._fixed_TM = (grid.log_prior_T + log_volume_T - 0.5 * recipes * (seeds - 1) * np.log(variance_T))[:, None]
        self._fixed_TM = self._fixed_TM - 0.5 * squares_M / variance_T[:, None]
        half_TRM = inverse_TRR @ left_MR.T
        self._fixed_TM -= 0.5 * np.einsum("mr,trm->tm", left_MR, half_TRM)
        self._linear_TM = half_TRM[:, 1]
        self._square_T1 = (inverse_TRR @ better_R)[:, 1, None]
        self._gap_TM, self._shift_T1 = contrast_TR @ left_MR.T, contrast_TR[:, 1, None]
        variance_T = cov_TRR[:, 0, 0] + cov_TRR[:, 1, 1] - 2 * cov_TRR[:, 0, 1]
        self._width_T1 = np.sqrt(np.maximum(variance_T, 1e-18))[:, None]

    def above(self, difference: float) -> Array:
        """Probability `[M]` that recipe 1 is above recipe 0, had its runs all come out higher by `difference`."""
        from scipy.special import ndtr

        difference /= self._unit
        log_TM = self._fixed_TM - difference * self._linear_TM - 0.5 * difference**2 * self._square_T1
        weight_TM = np.exp(log_TM - log_TM.max(0))
        above_TM = ndtr((self._gap_TM + difference * self._shift_T1) / self._width_T1)
        return (weight_TM * above_TM).sum(0) / weight_TM.sum(0)


def _spread_evidence(runs: RunEstimates, grid: _Grid) -> Array:
    """Log probability `[T]` of other runs by the spread between theirs; nothing else of them counts."""
    alone = _grid(runs, RATE, None, pooled=False)
    _, _, log_T = _given_sizes(runs, alone)
    log_T = log_T + alone.log_prior_T
    found = {own: np.logaddexp.reduce(log_T[alone.own_T == own]) for own in np.unique(alone.own_T)}
    own = np.array(list(found))
    log_own = np.array(list(found.values()))
    log_own = log_own - np.logaddexp.reduce(log_own)
    return np.interp(np.log(grid.own_T), np.log(own), log_own)


def _above(mean_TR: Array, cov_TRR: Array, weight_T: Array) -> Array:
    """Probability `[R, R]` that one recipe is above another, over the cells with their weights."""
    from scipy.special import ndtr

    used = weight_T > 1e-12 * max(float(weight_T.max()), 1e-300)
    mean_TR, cov_TRR, weight_T = mean_TR[used], cov_TRR[used], weight_T[used]
    variance_TR = np.diagonal(cov_TRR, axis1=-2, axis2=-1)
    gap_TRR = mean_TR[:, :, None] - mean_TR[:, None, :]
    width_TRR = np.sqrt(np.maximum(variance_TR[:, :, None] + variance_TR[:, None, :] - 2 * cov_TRR, 1e-18))
    return np.average(ndtr(gap_TRR / width_TRR), axis=0, weights=weight_T) if len(weight_T) else gap_TRR.sum(0)
