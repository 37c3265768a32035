"""Intervals of the parameters, from draws of the posterior.

Axes: `_M` draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.posterior import Draws
from scalelab.defaults import LEVEL
from scalelab.errors import LabError

Interval = tuple[float, float]


def intervals(fit: Fit, draws: Draws, level: float = LEVEL) -> dict[str, Interval]:
    """An interval for every parameter; a given R0 has none.

    Args:
        fit: the joint fit.
        draws: of its posterior.
        level: probability that an interval is to hold, in (0, 1).
    """
    check_level(level)
    names = [name for name in fit.model.parameters if not (name == "R0" and fit.fixed_r0 is not None)]
    found = draws.parameters()
    return {name: equal_tailed(found[name], level) for name in names}


def middles(fit: Fit, draws: Draws) -> dict[str, float]:
    """The estimates: the median of every parameter's draws; a given R0 itself."""
    found = {name: float(np.median(drawn_M)) for name, drawn_M in draws.parameters().items()}
    return found if fit.fixed_r0 is None else found | {"R0": fit.fixed_r0}


def check_level(level: float) -> None:
    """Refuse a level that is no probability.

    Raises:
        LabError: it lies outside (0, 1).
    """
    if not 0 < level < 1:
        raise LabError(f"a level of {level:g} is no probability: give one between 0 and 1, such as 0.8")


def equal_tailed(draws_M: Array, level: float) -> Interval:
    """The interval with as much below as above it."""
    low, high = np.quantile(draws_M, tails_of(level))
    return float(low), float(high)


def tails_of(level: float, *between: float) -> list[float]:
    """Shares of draws below the two ends of an interval, and those between that are asked for."""
    return [(1 - level) / 2, *between, (1 + level) / 2]


def quantiles_of_sorted(draws_DM: Array, shares: Sequence[float]) -> Array:
    """Quantiles `[Q, D]` of draws in rising order along the last axis: to the bit those of `numpy.quantile`."""
    last = draws_DM.shape[-1] - 1
    found = []
    for share in shares:
        at = share * last
        low = min(int(at), last)
        below, above, part = draws_DM[..., low], draws_DM[..., min(low + 1, last)], at - low
        step = above - below
        found.append(above - step * (1 - part) if part >= 0.5 else below + step * part)
    return np.array(found)
