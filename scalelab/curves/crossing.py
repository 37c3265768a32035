"""Crossings of recipes' curves, by their joint draws.

Axes: `_M` joint draws, `_C` points of compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from typing import overload

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.comparison import ComparisonSettings, ComparisonVerdict, Crossing, Crossings, Difference
from scalelab.curves.fitting.intervals import equal_tailed
from scalelab.curves.joint_draws import JointDraws

SURE: tuple[ComparisonVerdict, ...] = ("better", "worse")
"""Words of a pair of which one leads surely."""


class PairCrossings(Crossings):
    """The crossings of every pair between their first evaluation and the compute of the comparison.

    Args:
        family: joint draws of the recipes.
        names: their runs.
        asked: settings of the comparison.
        differences: of each run to the others, whose verdicts say which leads behind a crossing; a word of the table
            goes before them (`worded`).
    """

    def __init__(
        self,
        family: JointDraws,
        names: Sequence[str],
        asked: ComparisonSettings,
        differences: Mapping[str, Mapping[str, Difference]],
    ) -> None:
        self._family, self._asked, self._differences = family, asked, differences
        self._start = max(member.curves.start for member in family.recipes.values())
        self._pairs = list(combinations(names, 2)) if self._start < asked.at else []
        self._words: dict[frozenset[str], ComparisonVerdict] = {}
        self._found: dict[str, Array] = {}

    @overload
    def __getitem__(self, index: int) -> Crossing: ...
    @overload
    def __getitem__(self, index: slice) -> list[Crossing]: ...
    def __getitem__(self, index: int | slice) -> Crossing | list[Crossing]:
        """The crossing of a pair, or of some."""
        pairs = self._pairs[index]
        return [self._of(pair) for pair in pairs] if isinstance(pairs, list) else self._of(pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def told(self, run: str | None = None) -> tuple[Crossing, ...]:
        """The crossings whose compute is named; a pair of which none surely leads at the end has none."""
        found = []
        for one, other in self._pairs:
            told = self._words.get(frozenset((one, other))) in (None, *SURE)  # else no curve has to be drawn
            if told and run in (None, one, other):
                lead = np.count_nonzero(self._drawn(one)[-1] > self._drawn(other)[-1]) / len(self._drawn(one)[-1])
                if max(lead, 1 - lead) >= self._asked.sure:
                    found.append(self._of((one, other)))
        return tuple(one for one in found if one.compute is not None)

    def worded(self, baseline: str, words: Mapping[str, ComparisonVerdict]) -> PairCrossings:
        """The crossings, where every run has this word against the baseline."""
        found = copy(self)
        found._words = {frozenset((baseline, run)): word for run, word in words.items()}
        return found

    def _of(self, pair: tuple[str, str]) -> Crossing:
        one, other = pair
        word = self._words.get(frozenset(pair)) or self._differences[one][other].verdict
        found = crossing_of(pair, self._compute_C, self._drawn(one) - self._drawn(other), self._asked)
        if found.compute is None or word in SURE:
            return found
        return replace(found, compute=None, interval=None)

    @cached_property
    def _compute_C(self) -> Array:
        return np.geomspace(self._start, self._asked.at, 48)

    def _drawn(self, run: str) -> Array:
        """Pass rate of a recipe's curves, `[C, M]`."""
        if run not in self._found:
            self._found[run] = np.ascontiguousarray(self._family.recipes[run].value(self._compute_C).T)
        return self._found[run]


def crossing_of(runs: tuple[str, str], compute_C: Array, ahead_CM: Array, asked: ComparisonSettings) -> Crossing:
    """A crossing of two curves: one must lead surely somewhere, and the other at the compute of the comparison.

    Between the last two points with different leaders, curves are taken as straight over the logarithm of compute.

    Args:
        runs: the two.
        compute_C: points of compute, the last that of the comparison.
        ahead_CM: how far each curve of the first lies above that of the second.
        asked: how they are compared.
    """
    leads_CM = ahead_CM > 0
    lead_C = np.count_nonzero(leads_CM, axis=1) / leads_CM.shape[1]
    first_after = lead_C[-1] > 0.5
    before = int(lead_C.argmin() if first_after else lead_C.argmax())
    leader = runs[1] if first_after else runs[0]
    crossed_M = (leads_CM[before] != first_after) & (leads_CM[-1] == first_after)
    probability = float(crossed_M.mean())
    lead_before = 1 - lead_C[before] if first_after else lead_C[before]
    lead_after = lead_C[-1] if first_after else 1 - lead_C[-1]
    if min(lead_before, lead_after) < asked.sure or not crossed_M.any():
        return Crossing(*runs, probability=probability, compute=None, interval=None, leader_before=leader)
    between_MC, log_C = ahead_CM[before:, crossed_M].T, np.log(compute_C[before:])
    changes_MC = (between_MC[:, 1:] > 0) != (between_MC[:, :-1] > 0)
    last_M, every_M = between_MC.shape[1] - 2 - np.argmax(changes_MC[:, ::-1], axis=1), np.arange(len(between_MC))
    here_M, next_M = between_MC[every_M, last_M], between_MC[every_M, last_M + 1]
    at_M = np.exp(log_C[last_M] + (log_C[last_M + 1] - log_C[last_M]) * here_M / (here_M - next_M))
    return Crossing(
        *runs,
        probability=probability,
        compute=float(np.median(at_M)),
        interval=equal_tailed(at_M, asked.level),
        leader_before=leader,
    )
