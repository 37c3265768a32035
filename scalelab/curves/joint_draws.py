"""Joint draws of the curves of several recipes: what runs of one recipe differ by is learnt from all of them.

The spread between seeds, τ, is believed to be the same for the recipes of one task. Every recipe with several seeds has
a posterior of τ among its own draws. Freed of the prior it is that recipe's evidence on τ; the evidence of all recipes
together with the prior, once, gives the posterior of the family (two stages: Lunn, Barrett, Sweeting & Thompson 2013).
A joint draw is a τ and, for every recipe, one of its draws made with such a τ, or with a smaller one t and an offset of
A with the variance (τ² − t²) / S that the mean of S seeds lacks; the curve of a recipe with a single seed is that of
its run and an offset of A that is normal with deviation τ.

Axes: `_M` joint draws, `_T` cells of τ, `_C` points of compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.analysis import Analysis
from scalelab.curves.draws import CurveDraws
from scalelab.curves.fitting.intervals import Interval
from scalelab.curves.fitting.noise import SPREADS, log_spread_prior
from scalelab.curves.fitting.posterior import Draws, systematic
from scalelab.errors import LabError

SIZE = 4000
"""Joint draws."""

STEP = float(np.log(SPREADS[1] / SPREADS[0]))
"""Width of a cell of ln τ: the step of the grid of the fits, so that every cell holds one value of theirs."""

EDGES_T = np.log(SPREADS[0]) + STEP * (np.arange(len(SPREADS) + 3) - 1.5)
"""Edges of the cells."""

MANY, FEW = 100, 10
"""Draws of a recipe that a cell must have to stand for larger τ, too, and for its own."""

BORROWED = 0.5
"""Weight of what other tasks and pilots say about the spread between seeds (a power prior, Ibrahim & Chen 2000)."""


@dataclass(frozen=True)
class RecipeDraws:
    """One recipe's share of the joint draws: draw `m` of all members goes with the same τ.

    Attributes:
        curves: its curves over all shapes, one for each joint draw in the order of `order_M`.
        order_M: place of each joint draw among the curves.
        sigmoid: its curves given a sigmoid, in the order of the joint draws.
    """

    curves: CurveDraws
    order_M: np.ndarray
    sigmoid: Draws

    def value(self, compute: Sequence[float] | Array) -> Array:
        """Pass rate of the recipe's curve at some compute, `[M, C]`."""
        result: Array = self.curves.value(compute)[self.order_M]
        return result

    def risen(self, rate: float) -> Array:
        """Compute at which the recipe's curve is first at or above a pass rate, `[M]`; see `CurveDraws.reached`.

        A curve that falls is there from the start or never.
        """
        risen_M = self.curves.reached(rate)
        if self.curves.falls:
            risen_M = np.where(self.curves.value([0.0])[:, 0] >= rate, 0.0, np.inf)
        result: Array = risen_M[self.order_M]
        return result


@dataclass(frozen=True)
class JointDraws:
    """Joint draws of the recipes of one task.

    Attributes:
        recipes: draws of each, by name of the run.
        spread_M: standard deviation of A between seeds that goes with each draw.
        measured: whether any recipe has several seeds, or the spread was given.
    """

    recipes: Mapping[str, RecipeDraws]
    spread_M: Array
    measured: bool

    def value(self, compute: float) -> dict[str, Array]:
        """Pass rate of every recipe at some compute, `[M]` each."""
        return {run: member.value([compute])[:, 0] for run, member in self.recipes.items()}


def joint_draws(
    analyses: Sequence[Analysis], spread: float | None = None, borrowed: Sequence[Analysis] = (), seed: int = 0
) -> JointDraws:
    """Joint draws of the recipes of one task.

    Args:
        analyses: one for each recipe.
        spread: standard deviation between runs of one recipe, where it is known; None learns it.
        borrowed: recipes of other tasks, or pilots: those with several seeds say something about the spread.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    elsewhere = [item for item in borrowed if several(item)]
    if spread is None:
        probability_T = _pooled([item for item in analyses if several(item)], elsewhere)
        cell_M = rng.permutation(systematic(probability_T, SIZE, rng))
        spread_M = np.exp(EDGES_T[cell_M] + STEP * rng.random(SIZE))
    else:
        spread_M = np.full(SIZE, spread)
    members = {
        item.fit.curve.run: _member(item, spread_M, np.random.default_rng([seed, index]))
        for index, item in enumerate(analyses)
    }
    measured = spread is not None or bool(elsewhere) or any(map(several, analyses))
    return JointDraws(members, spread_M, measured)


def several(item: Analysis) -> bool:
    """True for a recipe with several seeds."""
    return len(item.fit.curve.seeds) > 1


def spread_note(
    single: Sequence[str], recipes: int, spread: tuple[float, Interval], measured: bool, given: float | None
) -> str:
    """Origin of the spread between runs of one recipe, in words.

    Args:
        single: recipes with one seed.
        recipes: how many recipes there are.
        spread: its median, and the interval.
        measured: `JointDraws.measured`.
        given: the spread that was given, if any.
    """
    between = f"{spread[0]:.3f} [{spread[1][0]:.3f}, {spread[1][1]:.3f}]"
    if given is not None:
        return f"a spread of {given:g} between runs of one recipe was given"
    if measured:
        whose = "all seeds" if len(single) < recipes else "other seeds, taken to spread alike"
        return f"spread between runs of one recipe, learnt from {whose}: {between}"
    return (
        f"{', '.join(single)}: one seed each, so the spread between runs of one recipe is not known; it is believed to "
        f"be {between}, and probabilities allow for that. Add seeds, or give --seed-spread or --spread-from"
    )


def check_spread(given: float | None, pilots: Sequence[Analysis]) -> None:
    """Refuse a spread that makes no sense, and pilots that say nothing of it.

    Raises:
        LabError: a spread that is none, or pilots of one seed each.
    """
    if given is not None and not (np.isfinite(given) and 0 <= given < 1):
        raise LabError(f"a seed spread of {given:g} makes no sense: give a standard deviation of pass rates")
    if pilots and not any(map(several, pilots)):
        raise LabError("the runs to learn the spread from have one seed each: name runs with several, or the spread")


def _cell(log_spread: Array) -> np.ndarray:
    return np.clip(np.searchsorted(EDGES_T, log_spread, side="right") - 1, 0, len(EDGES_T) - 2)


def _pooled(own: Sequence[Analysis], elsewhere: Sequence[Analysis]) -> Array:
    """Probability of every cell of τ, `[T]`."""
    centre_T = 0.5 * (EDGES_T[1:] + EDGES_T[:-1])
    log_prior_T = log_spread_prior(np.exp(centre_T))
    log_prior_T = log_prior_T - np.logaddexp.reduce(log_prior_T)
    log_T = log_prior_T.copy()
    for weight, items in ((1.0, own), (BORROWED, elsewhere)):
        for item in items:
            spread_M = item.draws().sigmoid.spread_M
            count_T = np.bincount(_cell(np.log(np.maximum(spread_M, 1e-12))), minlength=len(centre_T))
            log_T += weight * (np.log((count_T + 0.5) / len(spread_M)) - log_prior_T)
    result: Array = np.exp(log_T - np.logaddexp.reduce(log_T))
    return result


def _member(item: Analysis, spread_M: Array, rng: np.random.Generator) -> RecipeDraws:
    """The draws of one recipe that go with the joint draws' τ."""
    curves = item.draws()
    if several(item):
        seeds = len(item.fit.curve.seeds)
        at_M, left_M = _matched(curves.column("spread_M"), spread_M, rng)
        offset_M = np.sqrt(left_M / seeds) * rng.standard_normal(len(spread_M))
        sigmoid_M, left_M = _matched(curves.sigmoid.spread_M, spread_M, rng)
        sigmoid_offset_M = np.sqrt(left_M / seeds) * rng.standard_normal(len(spread_M))
        sigmoid = _shifted(curves.sigmoid.take(sigmoid_M), sigmoid_offset_M)
    else:
        at_M = _cycled(len(curves), len(spread_M), rng)
        offset_M = spread_M * rng.standard_normal(len(spread_M))
        sigmoid = _shifted(curves.sigmoid.take(_cycled(len(curves.sigmoid), len(spread_M), rng)), offset_M)
    order = np.argsort(at_M, kind="stable")
    taken = curves.take(at_M[order])
    parts, first = [], 0
    for part in taken.parts:
        parts.append(_shifted(part, offset_M[order][first : first + len(part)]))
        first += len(part)
    place_M = np.empty(len(order), int)
    place_M[order] = np.arange(len(order))
    return RecipeDraws(replace(taken, parts=tuple(parts)), place_M, sigmoid)


def _shifted(part: Draws, offset_M: Array) -> Draws:
    """Curves with an offset added to A, or taken off a floor; A stays between R0 and 1, a floor between 0 and R0."""
    if part.falls:
        return _shifted(part.mirrored(), offset_M).mirrored()
    at, theta_MP = part.model.linear.index("A"), part.theta_MP.copy()
    low = theta_MP[:, 0] if part.model.linear[0] == "R0" else 0.0
    theta_MP[:, at] = np.clip(theta_MP[:, at] + offset_M, low, 1.0)
    return replace(part, theta_MP=theta_MP)


def _cycled(count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of `count` draws in random order, as evenly as `size` allows."""
    return np.concatenate([rng.permutation(count) for _ in range(-(-size // count))])[:size]


def _matched(own_D: Array, spread_M: Array, rng: np.random.Generator) -> tuple[np.ndarray, Array]:
    """For every joint draw a draw of one recipe, and what its τ² lacks of the joint draw's.

    A recipe's draws have few values of τ, and hardly any that its seeds do not speak for. A joint draw takes one from
    the highest cell with many draws whose τ is no larger. Where all those are larger, it takes one from the cell below
    its own τ or from the one above, with chances that make τ² right on average.
    """
    cell_D = _cell(np.log(np.maximum(own_D, 1e-12)))
    every = [np.flatnonzero(cell_D == cell) for cell in np.unique(cell_D)]
    size_P = np.array([len(pool) for pool in every])
    first = int(np.argmax(size_P >= min(MANY, size_P.max())))  # the lowest with many
    pools = [pool for at, pool in enumerate(every) if len(pool) >= (FEW if at < first else MANY) or at == first]
    square_P = np.array([np.mean(own_D[pool] ** 2) for pool in pools])
    place_M = np.interp(spread_M**2, square_P, np.arange(len(pools)))
    below_M = place_M < [pool is every[first] for pool in pools].index(True)
    pool_M = (place_M + np.where(below_M, rng.random(len(place_M)), 0)).astype(int)
    found_M = np.empty(len(spread_M), int)
    for at in np.unique(pool_M).tolist():
        wanted_M, pool = np.flatnonzero(pool_M == at), pools[at]
        found_M[wanted_M] = pool[_cycled(len(pool), len(wanted_M), rng)]
    return found_M, np.where(below_M, 0, np.maximum(spread_M**2 - square_P[pool_M], 0))
