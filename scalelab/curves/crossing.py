"""Crossings of recipes' curves, by their joint draws.

Axes: `_M` joint draws, `_C` points of compute.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.comparison import ComparisonSettings, Crossing
from scalelab.curves.fitting.intervals import equal_tailed
from scalelab.curves.joint_draws import JointDraws


def crossings(family: JointDraws, names: Sequence[str], asked: ComparisonSettings) -> tuple[Crossing, ...]:
    """The crossings of every pair between their first evaluation and the compute of the comparison."""
    start = max(member.curves.start for member in family.recipes.values())
    if len(names) < 2 or start >= asked.at:
        return ()
    compute_C = np.geomspace(start, asked.at, 48)
    drawn = {run: np.ascontiguousarray(family.recipes[run].value(compute_C).T) for run in names}
    return tuple(
        _crossing((one, other), compute_C, drawn[one] > drawn[other], asked)
        for index, one in enumerate(names)
        for other in names[index + 1 :]
    )


def _crossing(runs: tuple[str, str], compute_C: Array, ahead_CM: np.ndarray, asked: ComparisonSettings) -> Crossing:
    """A crossing of two curves: one must lead surely somewhere, and the other at the compute of the comparison."""
    lead_C = np.count_nonzero(ahead_CM, axis=1) / ahead_CM.shape[1]
    first_after = lead_C[-1] > 0.5
    before = int(lead_C.argmin() if first_after else lead_C.argmax())
    leader = runs[1] if first_after else runs[0]
    crossed_M = (ahead_CM[before] != first_after) & (ahead_CM[-1] == first_after)
    probability = float(crossed_M.mean())
    sure = 1 - asked.error / 2
    lead_before = 1 - lead_C[before] if first_after else lead_C[before]
    lead_after = lead_C[-1] if first_after else 1 - lead_C[-1]
    if min(lead_before, lead_after) < sure or not crossed_M.any():
        return Crossing(*runs, probability=probability, compute=None, interval=None, leader_before=leader)
    between_MC = ahead_CM[before:, crossed_M].T
    last_M = between_MC.shape[1] - 2 - np.argmax((between_MC[:, 1:] != between_MC[:, :-1])[:, ::-1], axis=1)
    at_M = np.sqrt(compute_C[before + last_M] * compute_C[before + last_M + 1])
    return Crossing(
        *runs,
        probability=probability,
        compute=float(np.median(at_M)),
        interval=equal_tailed(at_M, asked.level),
        leader_before=leader,
    )
