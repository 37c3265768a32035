"""Evaluations in the order of the run: what a resumed run repeats, what is there twice, what goes back.

Axes: `_N` evaluations of one run, task and seed, in the order of their file; `_M` those that are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalelab.curves.fitting.models import Array
from scalelab.curves.reading.settings import Repeats

FEW = 4
"""A resumed log goes back at most once in so many evaluations; one that goes back more often is in no order at all."""


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

    Lines that are there twice count once. Where a log goes back and then repeats places that it had, the run was
    resumed from there, and what followed in the log before was lost: the later lines count. A log that goes back
    without repeating anything is only out of order.

    Args:
        compute_N: compute.
        rate_N: pass rates.
        step_N: steps, where all evaluations have one.
        repeats: which of several values at one place counts where this rule does not tell.
        resumed: the log is known to be written in order, so whatever goes back was resumed.
        unit: unit of compute, for notes.
    """
    place_N = compute_N if step_N is None else step_N
    keep_M, notes, back = np.arange(len(place_N)), [], None
    if (np.diff(place_N) <= 0).any():
        keep_M, alike = _without_copies(place_N, compute_N, rate_N, keep_M)
        if alike:
            notes.append(f"identical lines left out: {alike}")
        repeated = len(np.unique(place_N[keep_M])) < len(keep_M)
        back_M = np.flatnonzero(np.diff(place_N[keep_M]) <= 0) + 1
        if len(back_M) and (repeated or resumed):
            restarts = place_N[keep_M][back_M] <= place_N[keep_M][0]
            tidy = resumed or (FEW * len(back_M) <= len(keep_M) and not restarts.any())
            if not tidy and repeats == "refuse":
                again = int(keep_M[back_M[np.argmax(restarts)]]) if restarts.any() and _runs(back_M, keep_M) else None
                return Stitched(keep_M, tuple(notes), _first_double(place_N, keep_M), again)
            if tidy or repeats == "later":
                lost_M, keep_M = keep_M, _latest(place_N, keep_M)
                lost = len(lost_M) - len(keep_M)
                places = ", ".join(f"{place_N[lost_M[at]]:,.6g}" for at in back_M[:3]) + (
                    ", …" if len(back_M) > 3 else ""
                )
                places = f"{places} {unit}" if step_N is None else f"step {places}"
                notes.append(f"resumed at {places}: {lost} evaluations of the part that was lost left out")
        elif len(back_M):
            back = int(keep_M[back_M[0]])
    keep_M = keep_M[np.argsort(place_N[keep_M], kind="stable")]
    if step_N is not None:
        keep_M, same = _last_at(compute_N, keep_M)
        if same:
            notes.append(f"left out: {same} at the same compute as a later step")
    keep_M = keep_M[np.argsort(compute_N[keep_M], kind="stable")]
    double = None if repeats == "mean" else _first_double(compute_N, keep_M)
    return Stitched(keep_M, tuple(notes), double, back=back)


def _runs(back_M: np.ndarray, keep_M: np.ndarray) -> bool:
    """True if the log consists of a few stretches that each go forward, as several runs in one file do."""
    return FEW * len(back_M) <= len(keep_M)


def _without_copies(place_N: Array, compute_N: Array, rate_N: Array, keep_M: np.ndarray) -> tuple[np.ndarray, int]:
    """Leave out evaluations that repeat an earlier one in every number; also returns how many."""
    rows = np.column_stack([place_N, compute_N, rate_N])
    first_M = np.sort(np.unique(rows, axis=0, return_index=True)[1])
    return keep_M[first_M], len(keep_M) - len(first_M)


def _latest(place_N: Array, keep_M: np.ndarray) -> np.ndarray:
    """Leave out what a later evaluation goes back behind."""
    ahead_M = np.minimum.accumulate(place_N[keep_M][::-1])[::-1]  # the lowest place from here to the end of the log
    later_M = np.append(ahead_M[1:], np.inf)
    return keep_M[place_N[keep_M] < later_M]


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
