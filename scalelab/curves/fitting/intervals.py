"""Intervals of the parameters, from draws of the posterior.

Axes: `_M` draws.
"""

from __future__ import annotations

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.posterior import Draws
from scalelab.errors import LabError

Interval = tuple[float, float]


def intervals(fit: Fit, draws: Draws, level: float = 0.8) -> dict[str, Interval]:
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
    low, high = np.quantile(draws_M, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
