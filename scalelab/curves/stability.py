"""Falls of a run: evaluations far below the best that the run had reached before, beyond what sampling explains.

Axes: `_N` evaluations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.intervals import Interval, tails_of
from scalelab.defaults import LEVEL
from scalelab.numbers import compact, counted
from scalelab.reading.curve import Curve

DEPTH = 0.05
"""Fall below the run's best so far, in pass rate, from which a run is called unstable."""

CHANCE = 0.01
"""Probability that sampling alone makes a run of this many evaluations fall so far.

Without standard errors it is up to 0.024 on a plateau, as the median of few differences knows their scatter less well
than Student's t takes it to; fewer degrees of freedom would miss a third of the falls of 0.15 that are seen now.
"""

AGAIN = 2.0
"""Standard errors below the best before within which a run counts as back."""


@dataclass(frozen=True)
class Fall:
    """The deepest fall of one seed.

    Attributes:
        seed: name of the seed.
        compute: where it was lowest.
        depth: how far below the best evaluation before, in pass rate.
    """

    seed: str
    compute: float
    depth: float


@dataclass(frozen=True)
class Stability:
    """Falls of the seeds of one recipe on one task.

    Attributes:
        seeds: how many seeds there are.
        falls: the deepest fall of each seed that has one, the deepest first.
        rate: share of other runs with a fall: the median (Jeffreys' prior; Brown, Cai & DasGupta 2001).
        interval: of that share, with the level of the fit.
    """

    seeds: int
    falls: tuple[Fall, ...]
    rate: float
    interval: Interval

    @property
    def unstable(self) -> bool:
        """True if any seed fell."""
        return bool(self.falls)

    def falls_more_than(self, other: Stability) -> bool:
        """True if a seed fell, and more runs are expected to fall than of the other: fewer seeds alone are no sign."""
        return self.unstable and self.rate > other.rate

    def text(self) -> str:
        """The falls in a sentence; empty without any."""
        if not self.falls:
            return ""
        deepest = self.falls[0]
        low, high = self.interval
        whose = f" (seed {deepest.seed})" if deepest.seed else ""
        return (
            f"{len(self.falls)} of {counted(self.seeds, 'seed')} fell by {DEPTH:g} or more below the best "
            f"before, the deepest by {deepest.depth:.3f} at {compact(deepest.compute)}{whose}; rate of such runs "
            f"{self.rate:.0%} [{low:.0%}, {high:.0%}]"
        )


def stability(item: Curve, level: float = LEVEL, forgets: bool = False) -> Stability:
    """The falls of a curve's seeds.

    Args:
        item: the evaluations.
        level: probability of the interval.
        forgets: the task's curve falls, so that its falls are no sign of instability.
    """
    from scipy.special import betaincinv

    falls = []
    for index, name in enumerate(() if forgets else item.seeds):
        fall = _fall(item.select(item.seed_N == index), name)
        if fall is not None:
            falls.append(fall)
    falls.sort(key=lambda fall: -fall.depth)
    seeds, fallen = len(item.seeds), len(falls)
    tails = tails_of(level, 0.5)
    low, middle, high = (float(betaincinv(fallen + 0.5, seeds - fallen + 0.5, p)) for p in tails)
    return Stability(seeds, tuple(falls), middle, (low, high))


@dataclass(frozen=True)
class Episode:
    """A stretch of evaluations far below the best before, by their places.

    Attributes:
        best: the best before.
        first: the first that is beyond chance.
        lowest: the lowest.
        back: the first after it that is back (`AGAIN`); None if none is.
        depth: how far the lowest is below the best, in pass rate.
        stderr: standard error of that difference.
    """

    best: int
    first: int
    lowest: int
    back: int | None
    depth: float
    stderr: float


def episodes(pass_rate_N: Array, stderr_N: Array | None) -> list[Episode]:
    """Falls of one seed's evaluations: `DEPTH` and more below the best before, and beyond chance.

    Chance is that of the largest of all differences between an earlier and a later evaluation (Bonferroni), with
    Student's t where the scatter is estimated from their second differences.

    Args:
        pass_rate_N: in the order of compute.
        stderr_N: of each; None takes how neighbours differ.
    """
    from scipy.special import ndtri, stdtrit

    count = len(pass_rate_N)
    if count < (3 if stderr_N is not None else 4):
        return []
    chance = CHANCE / (count * (count - 1) / 2)
    deviations = -float(stdtrit(count - 2, chance) if stderr_N is None else ndtri(chance))
    stderr_N = stderr_N if stderr_N is not None else np.full(count, _scatter(pass_rate_N))
    highest_N = np.maximum.accumulate(pass_rate_N)
    best_N = np.maximum.accumulate(np.where(pass_rate_N >= highest_N, np.arange(count), 0))
    depth_N, both_N = highest_N - pass_rate_N, np.hypot(stderr_N, stderr_N[best_N])
    beyond_N = deviations * both_N
    found, at = list[Episode](), 0
    for first in np.flatnonzero((depth_N > DEPTH) & (depth_N > beyond_N)).tolist():
        if first < at:
            continue
        again_N = np.flatnonzero(depth_N[first:] <= AGAIN * both_N[first:])
        back = first + int(again_N[0]) if again_N.size else None
        lowest = first + int(depth_N[first:back].argmax())
        found.append(Episode(int(best_N[lowest]), first, lowest, back, float(depth_N[lowest]), float(both_N[lowest])))
        at = count if back is None else back
    return found


def _fall(item: Curve, name: str) -> Fall | None:
    """The deepest fall of one seed."""
    found = max(episodes(item.pass_rate_N, item.stderr_N), key=lambda one: one.depth, default=None)
    return None if found is None else Fall(name, float(item.compute_N[found.lowest]), found.depth)


def _scatter(rate_N: Array) -> float:
    """Standard deviation of an evaluation by how neighbours differ, not led by the few that fell."""
    return float(np.median(np.abs(np.diff(rate_N, 2))) / 0.6745 / np.sqrt(6))
