"""Order of recipes by their asymptotes (ScaleRL §3.2, A.5), and whether it can be told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from scalelab.curves.analysis import Analysis
from scalelab.curves.comparison import ComparedRun, PlaceByA
from scalelab.curves.efficiency import at_common_A
from scalelab.defaults import MARGIN

TieRule = Literal["margin", "overlap"]

SEEN = 0.9
"""Share of the gain that must have been seen for the order of the asymptotes to be told."""


def order_by_A(groups: Sequence[Sequence[Analysis]]) -> dict[str, PlaceByA]:
    """Order by A and, within a tie, by B at the mean of its asymptotes, by run."""
    found: dict[str, PlaceByA] = {}
    for group in groups:
        common = float(np.mean([item.params["A"] for item in group]))
        refits = [at_common_A(item, common) for item in group]
        for position in sorted(range(len(group)), key=lambda index: -refits[index][0]):
            ties = tuple(item.fit.curve.run for item in group if item is not group[position])
            found[group[position].fit.curve.run] = PlaceByA(len(found) + 1, ties, common, *refits[position])
    return found


def tie_groups(analyses: Sequence[Analysis], tie: TieRule = "margin", margin: float = MARGIN) -> list[list[Analysis]]:
    """Runs in falling order of A; a run joins the group above it if its A ties with the best of that group.

    A floor ties with none: B says how soon an asymptote is reached, and a floor is better not reached.
    """
    groups: list[list[Analysis]] = []
    for item in sorted(analyses, key=lambda item: -item.params["A"]):
        if groups and _ties(groups[-1][0], item, tie, margin):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def _ties(best: Analysis, other: Analysis, tie: TieRule, margin: float) -> bool:
    if best.falls or other.falls:
        return False
    if tie == "margin":
        return best.params["A"] - other.params["A"] <= margin
    return other.intervals["A"][1] >= best.intervals["A"][0]


def asymptotes_told(entries: Sequence[ComparedRun]) -> bool:
    """True if all runs have shown most of their gain or fall, and no other shape goes beyond their A."""
    return all(entry.analysis.stands and entry.analysis.seen >= SEEN for entry in entries)


def asymptotes_note(entries: Sequence[ComparedRun]) -> str:
    """The order of the asymptotes in a sentence, or that it cannot be told."""
    seen = [entry.analysis.seen for entry in entries]
    way = "way" if any(entry.analysis.falls for entry in entries) else "gain"
    ends = dict.fromkeys(f"{one:.0%}" for one in (min(seen), max(seen)))
    share = f"{' to '.join(ends)} of the {way} was seen"
    apart = [entry for entry in entries if not entry.analysis.stands]
    shapes = "no other shape goes beyond"
    if any(len(entry.analysis.draws().names) == 1 for entry in entries):
        shapes = "no other shape was looked at"
    if asymptotes_told(entries):
        order = sorted(entries, key=lambda entry: entry.by_A.rank)
        joins = [" = " if one.run in two.by_A.tied_with else ", " for one, two in pairwise(order)]
        told = "".join(join + entry.run for join, entry in zip(["", *joins], order))
        ties = "; = joins those whose A tie, in the order of their B" if " = " in joins else ""
        return f"by A, given sigmoids ({share}, and {shapes}{ties}): {told}"
    more = ", and other shapes than the sigmoid may go beyond its A" if apart else ""
    return f"the order of the asymptotes cannot be told: {share}{more}"
