"""Branches: runs that went on from others, whose evaluations up to the fork are the parents' own.

Axes: `_N` points of a curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from scalelab.reading.curve import Curve

DISTINCT = 6
"""Different pass rates from which two curves do not agree by chance."""


def trunk_points(item: Curve, others: Sequence[Curve]) -> np.ndarray:
    """bool[N]: the points of a curve that are evaluations of another one, too.

    They are of one task and agree in step, compute and rate to the last bit, one of the runs is a branch, and they lie
    before its fork: behind it, two that cost the same may agree by chance.

    Args:
        item: the curve.
        others: those that it is compared with.
    """
    known = set()
    for other in others:
        forks = [fork for fork in (item.fork, other.fork) if fork is not None]
        if other.task == item.task and forks:
            known |= {point for point in _points(other) if point[0] <= max(forks)}
    return np.array([point in known for point in _points(item)], bool)


def _points(item: Curve) -> list[tuple[float, float, float]]:
    step_N = item.other_N.get("step", np.full(len(item), np.nan))
    return list(zip(step_N.tolist(), item.compute_N.tolist(), item.pass_rate_N.tolist()))


def parents_first(curves: Sequence[Curve]) -> list[int]:
    """Indices of the curves: runs of their own, then branches by the step of their fork."""
    return sorted(range(len(curves)), key=lambda index: (curves[index].fork is not None, curves[index].fork or 0.0))


def counted_once(curves: Sequence[Curve]) -> list[Curve]:
    """The curves, each evaluation in one of them alone: a branch leaves its trunk to its parent, where that is there.

    A curve that has nothing of its own is left out, as a copy of another has. For evidence that is pooled over runs: a
    trunk that counted twice would make its intervals too narrow.
    """
    copied = copies(curves)
    curves = [item for index, item in enumerate(curves) if index not in copied]
    if all(item.fork is None for item in curves):
        return list(curves)
    kept: dict[int, Curve] = {}
    for index in parents_first(curves):
        own_N = ~trunk_points(curves[index], list(kept.values()))
        if own_N.all():
            kept[index] = curves[index]
        elif own_N.any():
            kept[index] = curves[index].select(own_N)
    return [kept[index] for index in sorted(kept)]


def copies(curves: Sequence[Curve]) -> dict[int, int]:
    """Index of each curve of which another has all evaluations → that other's index; of equal ones the first stays.

    A backup of a run, or of a branch, is such a copy. Runs with other settings are none, even if a setting that never
    mattered left all numbers as they were; without settings, the pass rates have to be too many to agree by chance.
    """
    found: dict[int, int] = {}
    longest = sorted(range(len(curves)), key=lambda index: -len(curves[index]))
    for place, index in enumerate(longest):
        mine = curves[index]
        if (mine.recipe and len(mine) > 1) or len(np.unique(mine.pass_rate_N)) >= DISTINCT:
            whole = (other for other in longest[:place] if other not in found and _holds(curves[other], mine))
            found.update((index, other) for other in islice(whole, 1))
    return found


def _holds(whole: Curve, part: Curve) -> bool:
    """True if a curve begins with all evaluations of another."""
    pairs = ((whole.compute_N, part.compute_N), (whole.pass_rate_N, part.pass_rate_N))
    alike = all(getattr(whole, name) == getattr(part, name) for name in ("task", "recipe", "seeds", "fork"))
    return alike and all(np.array_equal(one_N[: len(part)], other_N) for one_N, other_N in pairs)


def with_trunks_told(curves: Sequence[Curve]) -> list[Curve]:
    """The curves, with a note on each that shares evaluations with a run before it among its parents."""
    told = list(curves)
    before: list[Curve] = []
    for index in parents_first(curves):
        item = curves[index]
        for other in before if item.fork is not None else ():
            count = int(trunk_points(item, [other]).sum())
            if count:
                note = (
                    f"evaluations up to step {item.fork:g} are its trunk's; {count} are {other.run}'s, too, and no "
                    "evidence of its own"
                )
                told[index] = replace(item, notes=(*item.notes, note))
                break
        before.append(item)
    return told
