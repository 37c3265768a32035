"""Ends of the runs of a study: where each member's pass rate ends, the best that it had, and how many seeds fell."""

from __future__ import annotations

import numpy as np

from scalelab.curves import Curve
from study_tables.falls import of_seed
from study_tables.runs import StudyRuns, table

LAST, SMOOTHED = 4, 3
"""Evaluations whose mean is the end of a run, and those in a row whose largest mean is its best."""


def ends(item: Curve) -> list[float]:
    """The end of every seed."""
    return [float(item.pass_rate_N[item.seed_N == seed][-LAST:].mean()) for seed in range(len(item.seeds))]


def bests(item: Curve) -> list[float]:
    """The best of every seed: its largest mean of some evaluations in a row."""
    window = np.full(SMOOTHED, 1 / SMOOTHED)
    rates = [item.pass_rate_N[item.seed_N == seed] for seed in range(len(item.seeds))]
    return [float(np.convolve(rate_N, window, "valid").max()) for rate_N in rates]


def ends_table(runs: StudyRuns) -> str:
    """A table of where runs end on every task, and of the best that they had: means over seeds."""
    header, rows = ["member", "seeds"], []
    for task in runs.tasks():
        header += [f"{task}: end", "best", "fell", "gain seen"]
    seen = {(item.fit.curve.run, item.fit.curve.task): item.seen for item in runs.analyses if not item.falls}
    for member in runs.members():
        cells = [f"`{member}`", str(runs.seeds(member))]
        for task in runs.tasks():
            item = runs.curve(member, task)
            cells += ["–"] * 4 if item is None else _cells(item, seen.get((member, task)))
        rows.append(cells)
    return table(header, rows)


def _cells(item: Curve, seen: float | None) -> list[str]:
    fallen = sum(of_seed(item, at).unstable for at in range(len(item.seeds)))
    share = "–" if seen is None else f"{seen:.0%}"
    return [f"{np.mean(ends(item)):.3f}", f"{np.mean(bests(item)):.3f}", f"{fallen} of {len(item.seeds)}", share]
