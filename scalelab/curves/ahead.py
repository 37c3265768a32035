"""Table of a curve along compute and by target, for a page that cannot ask again: all of it from the curve's own draws.

Axes: `_M` draws, `_C` points of compute, `_T` targets.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scalelab.curves.analysis import Analysis
from scalelab.curves.fitting.intervals import tails_of
from scalelab.curves.forecast import EXTEND, STOP, target_of
from scalelab.defaults import WORTHWHILE

INSIDE, DOUBLINGS, EACH = 40, 7, 4
"""Points of compute up to the window's end, doublings beyond it, and points for each of these."""

TARGETS = np.arange(1, 100) / 100
"""Pass rates for which the compute is told."""


def table(analysis: Analysis) -> dict[str, Any]:
    """The numbers of `forecast`, `compute_for` and `extend_or_stop` for any budget and target.

    Returns:
        `compute` (0, then evenly spaced in the logarithm, the window's end, its double and fourfold among them) and, at
        each of these, `low`, `middle` and `high` of the curve, `measured_low` and `measured_high` of an evaluation,
        `gain`, `gain_low` and `gain_high` over the window's end, and `worthwhile`, the probability that the gain is;
        `advice`: probabilities from which on "stop" and "extend" are said; `targets`: `compute`, `low`, `high` and
        `reading` for every hundredth of a pass rate, with None for never.
    """
    draws, spent = analysis.draws(), analysis.fit.window[1]
    before = np.geomspace(draws.start / 10, spent, INSIDE)[:-1]
    compute_C = np.concatenate([[0.0], before, spent * 2 ** (np.arange(DOUBLINGS * EACH + 1) / EACH)])
    value_MC = draws.value(compute_C)
    gain_MC = value_MC - value_MC[:, [len(before) + 1]]
    tails = tails_of(analysis.level, 0.5)
    low_C, middle_C, high_C = np.quantile(value_MC, tails, axis=0)
    gain_low_C, gain_C, gain_high_C = np.quantile(gain_MC, tails, axis=0)
    measured_low_C, measured_high_C = analysis.evaluation_interval(compute_C)
    columns = {
        "compute": compute_C,
        "low": low_C,
        "middle": middle_C,
        "high": high_C,
        "measured_low": measured_low_C,
        "measured_high": measured_high_C,
        "gain": gain_C,
        "gain_low": gain_low_C,
        "gain_high": gain_high_C,
        "worthwhile": (gain_MC >= WORTHWHILE).mean(axis=0),
    }
    rounded: dict[str, Any] = {name: [float(f"{value:.6g}") for value in column] for name, column in columns.items()}
    return rounded | {"advice": [STOP, EXTEND], "targets": _targets(analysis)}


def _targets(analysis: Analysis) -> dict[str, list[Any]]:
    reached_MT = analysis.draws().reached_each(TARGETS)
    found = [target_of(analysis, float(rate), reached_M) for rate, reached_M in zip(TARGETS, reached_MT.T)]
    return {
        "compute": [one.compute for one in found],
        "low": [one.interval[0] for one in found],
        "high": [one.interval[1] for one in found],
        "reading": [one.reading for one in found],
    }
