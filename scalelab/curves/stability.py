"""Falls of a run: evaluations far below the best that the run had reached before, beyond what sampling explains.

Axes: `_N` evaluations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.intervals import Interval
from scalelab.numbers import compact
from scalelab.reading.data import Curve

DEPTH = 0.05
"""Fall below the run's best so far, in pass rate, from which a run is called unstable."""

CHANCE = 0.01
"""Probability that sampling alone makes a run of this many evaluations fall so far."""


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
        rate: share of seeds with a fall.
        interval: of that share in other runs, with the level of the fit (Jeffreys' prior; Brown, Cai & DasGupta 2001).
    """

    seeds: int
    falls: tuple[Fall, ...]
    rate: float
    interval: Interval

    @property
    def unstable(self) -> bool:
        """True if any seed fell."""
        return bool(self.falls)

    def text(self) -> str:
        """The falls in a sentence; empty without any."""
        if not self.falls:
            return ""
        deepest = self.falls[0]
        low, high = self.interval
        whose = f" (seed {deepest.seed})" if deepest.seed else ""
        return (
            f"{len(self.falls)} of {self.seeds} seed{'s' * (self.seeds > 1)} fell by {DEPTH:g} or more below the best "
            f"before, the deepest by {deepest.depth:.3f} at {compact(deepest.compute)}{whose}; rate of such runs "
            f"{self.rate:.0%} [{low:.0%}, {high:.0%}]"
        )


def stability(item: Curve, level: float = 0.8) -> Stability:
    """The falls of a curve's seeds."""
    from scipy.special import betaincinv

    falls = []
    for index, name in enumerate(item.seeds):
        fall = _fall(item.select(item.seed_N == index), name)
        if fall is not None:
            falls.append(fall)
    falls.sort(key=lambda fall: -fall.depth)
    seeds, fallen = len(item.seeds), len(falls)
    low, high = (float(betaincinv(fallen + 0.5, seeds - fallen + 0.5, p)) for p in ((1 - level) / 2, (1 + level) / 2))
    return Stability(seeds, tuple(falls), fallen / seeds, (low, high))


def _fall(item: Curve, name: str) -> Fall | None:
    """The deepest fall of one seed, if it is beyond chance."""
    from scipy.special import ndtri

    if len(item) < 3:
        return None
    stderr_N = item.stderr_N if item.stderr_N is not None else np.full(len(item), _scatter(item.pass_rate_N))
    best_N = np.maximum.accumulate(item.pass_rate_N)
    at_N = np.maximum.accumulate(np.where(item.pass_rate_N >= best_N, np.arange(len(item)), 0))
    depth_N = best_N - item.pass_rate_N
    pairs = len(item) * (len(item) - 1) / 2
    beyond_N = -float(ndtri(CHANCE / pairs)) * np.hypot(stderr_N, stderr_N[at_N])
    out = np.flatnonzero((depth_N > DEPTH) & (depth_N > beyond_N))
    if not out.size:
        return None
    lowest = int(out[depth_N[out].argmax()])
    return Fall(name, float(item.compute_N[lowest]), float(depth_N[lowest]))


def _scatter(rate_N: Array) -> float:
    """Standard deviation of an evaluation by how neighbours differ, not led by the few that fell."""
    return float(np.median(np.abs(np.diff(rate_N, 2))) / 0.6745 / np.sqrt(6)) if len(rate_N) > 3 else 0.0
