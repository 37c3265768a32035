"""Evaluations in the order of the run: what a resumed run repeats, what is there twice, what goes back.

Axes: `_N` evaluations of one run, task and seed, in the order of their file; `_M` those that are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalelab.arrays import Array
from scalelab.numbers import counted
from scalelab.reading.settings import Repeats

FEW = 4
"""A resumed log goes back at most once in so many evaluations; one that goes back more often is in no order at all."""

MOST_LOST = 0.75
"""Share of the evaluations before that a resumed run repeats at most; one that repeats more may be another run."""


@dataclass(frozen=True)
class Stitched:
    """Evaluations of one run, task and seed that count.

    Attributes:
        keep_M: their indices, by compute.
        notes: what was left out, and why.
        double: indices of two that contradict each other at one compute; None if there are none.
        again: index at which the log starts again from its beginning with other values; None if it does not.
        back: index of the first evaluation that goes back in a log that is only out of order; None if there is none.
    """

    keep_M: np.ndarray
    notes: tuple[str, ...] = ()
    double: tuple[int, int] | None = None
    again: int | None = None
    back: int | None = None


def stitch(
    compute_N: Array, rate_N: Array, step_N: Array | None, repeats: Repeats, resumed: bool, unit: str
) -> Stitched:
    """Choose the evaluations that count.

    Lines that are there twice count once. Where a log goes back and then repeats places that it had, or goes forward
    from there behind where it was, the run was resumed, and what followed in the log before was lost: the later lines
    count. A log in which single evaluations come late is only out of order.

    Args:
        compute_N: compute.
        rate_N: pass rates.
        step_N: steps, where all evaluations have one.
        repeats: which of several values at one place counts where this rule does not tell.
        resumed: the log is known to be written in order, so whatever goes back was resumed.
        unit: unit of compute, for notes.
    """
    place_N = compute_N if step_N is None else step_N
    rows_N = np.column_stack([place_N, compute_N, rate_N])
    new_N = np.ones(len(rows_N), bool)  # False for a line that is there twice running
    new_N[1:] = (np.diff(rows_N, axis=0) != 0).any(1)
    keep_M, notes, back = np.flatnonzero(new_N), [], None
    back_M = _backward(place_N, keep_M)
    alike = len(rows_N) - len(keep_M)
    if len(back_M) and (resumed or _was_resumed(place_N[keep_M], back_M)):
        if not resumed and repeats == "refuse" and (again := _mostly(place_N, keep_M, back_M)) is not None:
            return Stitched(keep_M, again=again)
        lost_M, keep_M = keep_M, _latest(place_N, keep_M)
        notes.append(_resumption(place_N[lost_M[back_M]], len(lost_M) - len(keep_M), unit if step_N is None else ""))
    elif len(back_M):
        keep_M = _without_copies(rows_N, keep_M)
        alike = len(rows_N) - len(keep_M)
        back_M, double = _backward(place_N, keep_M), _first_double(place_N, keep_M)
        again = _restart(place_N, keep_M, back_M)
        if double is not None and repeats == "refuse":
            return Stitched(keep_M, double=double, again=again)
        if double is not None and repeats == "later":
            before = len(keep_M)
            keep_M = _last_of_each(place_N, keep_M) if again is None else _latest(place_N, keep_M)
            notes.append(f"earlier evaluations at repeated places left out: {before - len(keep_M)}")
        elif len(back_M):
            back = int(keep_M[back_M[0]])
    if alike:
        notes.append(f"identical lines left out: {alike}")
    keep_M = keep_M[np.argsort(place_N[keep_M], kind="stable")]
    if step_N is not None:
        keep_M, same = _last_at(compute_N, keep_M)
        if same:
            notes.append(f"left out: {same} at the same compute as a later step")
    keep_M = keep_M[np.argsort(compute_N[keep_M], kind="stable")]
    double = None if repeats == "mean" else _first_double(compute_N, keep_M)
    return Stitched(keep_M, tuple(notes), double, back=back)


def _was_resumed(place_M: Array, back_M: np.ndarray) -> bool:
    """True if a log goes back a few times, never to its beginning, and goes through a part of its way again."""
    if FEW * len(back_M) > len(place_M) or (place_M[back_M] <= place_M[0]).any():
        return False
    furthest_M = np.maximum.accumulate(place_M)
    follows_M = np.minimum(back_M + 1, len(place_M) - 1)  # a resumed run's second evaluation from there
    again_M = (follows_M > back_M) & (place_M[follows_M] <= furthest_M[back_M - 1])
    return len(np.unique(place_M)) < len(place_M) or bool(again_M.all())


def _mostly(place_N: Array, keep_M: np.ndarray, back_M: np.ndarray) -> int | None:
    """Index at which a log goes back behind most of what it has: perhaps another run; None if it does not."""
    for back in back_M.tolist():
        before_M = place_N[keep_M[:back]]
        if (before_M >= place_N[keep_M[back]]).mean() > MOST_LOST:
            return int(keep_M[back])
    return None


def _last_of_each(place_N: Array, keep_M: np.ndarray) -> np.ndarray:
    """Keep of every place what stands last in the log."""
    _, last_M = np.unique(place_N[keep_M][::-1], return_index=True)
    return np.sort(keep_M[::-1][last_M])


def _backward(place_N: Array, keep_M: np.ndarray) -> np.ndarray:
    """Positions in `keep_M` of evaluations that are not ahead of the one before."""
    return np.flatnonzero(np.diff(place_N[keep_M]) <= 0) + 1


def _resumption(places: Array, lost: int, unit: str) -> str:
    """The note on a run that was resumed, at these compute or, without a unit, at these steps."""
    listing = ", ".join(f"{place:,.6g}" for place in places[:3]) + (", …" if len(places) > 3 else "")
    at = f"{listing} {unit}" if unit else f"step {listing}"
    return f"resumed at {at}: {counted(lost, 'evaluation')} of the part that was lost left out"


def _restart(place_N: Array, keep_M: np.ndarray, back_M: np.ndarray) -> int | None:
    """Index at which a log of a few stretches, each of which goes forward, starts again from its beginning."""
    again_M = back_M[place_N[keep_M][back_M] <= place_N[keep_M][0]]
    return int(keep_M[again_M[0]]) if len(again_M) and FEW * len(back_M) <= len(keep_M) else None


def _without_copies(rows_N: Array, keep_M: np.ndarray) -> np.ndarray:
    """Leave out evaluations that repeat an earlier one in every number."""
    return keep_M[np.sort(np.unique(rows_N[keep_M], axis=0, return_index=True)[1])]


def _latest(place_N: Array, keep_M: np.ndarray) -> np.ndarray:
    """Leave out what a later evaluation goes back behind."""
    ahead_M = np.minimum.accumulate(place_N[keep_M][::-1])[::-1]  # the lowest place from here to the end of the log
    later_M = np.append(ahead_M[1:], np.inf)
    result: Array = keep_M[place_N[keep_M] < later_M]
    return result


def _last_at(compute_N: Array, keep_M: np.ndarray) -> tuple[np.ndarray, int]:
    """Keep the last step's of evaluations at one compute: the others are of steps that trained on nothing."""
    last_M = np.append(compute_N[keep_M][1:] != compute_N[keep_M][:-1], True) if len(keep_M) else np.zeros(0, bool)
    return keep_M[last_M], int((~last_M).sum())


def _first_double(place_N: Array, keep_M: np.ndarray) -> tuple[int, int] | None:
    """Indices of the first two evaluations at one place; None if there are none."""
    order_M = keep_M[np.argsort(place_N[keep_M], kind="stable")]
    same_M = np.flatnonzero(np.diff(place_N[order_M]) == 0)
    if not len(same_M):
        return None
    at = min(same_M, key=lambda one: order_M[one + 1])
    return int(order_M[at]), int(order_M[at + 1])


def average(place_M: Array, values_M: Array) -> Array:
    """The mean of values at equal places, for each of the places in order."""
    _, index_M = np.unique(place_M, return_inverse=True)
    return np.bincount(index_M, values_M) / np.bincount(index_M)
