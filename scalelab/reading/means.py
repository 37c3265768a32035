"""Weighted means of the tasks of a run, as curves of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scalelab.errors import LabError
from scalelab.numbers import counted
from scalelab.reading.curve import Curve
from scalelab.reading.settings import Reading


def with_mean(curves: Sequence[Curve], reading: Reading) -> list[Curve]:
    """The curves, and for every run the weighted mean of its tasks where `Reading.mean` names their weights.

    A mean has a point where all of its tasks have one. Its error takes those of the tasks as independent.

    Raises:
        LabError: a run lacks one of the tasks, or its tasks have no evaluation in common.
    """
    found = list(curves)
    for run in dict.fromkeys(item.run for item in curves) if reading.mean else ():
        of_task = {item.task: item for item in curves if item.run == run}
        missing = [task for task in reading.mean if task not in of_task]
        if missing:
            raise LabError(f"{run}: no task {missing[0]!r} for the mean; there are: {', '.join(of_task) or 'none'}")
        found.append(_mean([(of_task[task], weight) for task, weight in reading.mean.items()]))
    return found


def _mean(members: Sequence[tuple[Curve, float]]) -> Curve:
    """The weighted mean of several tasks of one run at the evaluations that all of them have."""
    first = members[0][0]
    places = [list(zip((item.seeds[seed] for seed in item.seed_N), item.compute_N.tolist())) for item, _ in members]
    common = set(places[0]).intersection(*places[1:])
    if not common:
        raise LabError(f"{first.run}: its tasks have no evaluation at the same compute, so there is no mean of them")
    total = sum(weight for _, weight in members)
    parts = [
        (item.select(np.flatnonzero([place in common for place in at])), weight / total)
        for (item, weight), at in zip(members, places)
    ]
    errors = [(item.stderr_N, share) for item, share in parts]
    known = all(stderr_N is not None for stderr_N, _ in errors)
    squares_N = [(share * stderr_N) ** 2 for stderr_N, share in errors if stderr_N is not None]
    left = sum(len(item) for item, _ in members) - sum(len(item) for item, _ in parts)
    notes = [f"mean of {', '.join(f'{item.task} ({share:.0%})' for item, share in parts)}"]
    if left:
        notes.append(f"left out: {counted(left, 'evaluation')} of single tasks, where others have none")
    return replace(
        parts[0][0],
        task="mean",
        pass_rate_N=np.sum([share * item.pass_rate_N for item, share in parts], axis=0),
        stderr_N=np.sqrt(sum(squares_N)) if known else None,
        notes=(*dict.fromkeys(note for item, _ in members for note in item.notes), *notes),
    )
