"""Ends of the runs of a study: where each member's pass rate ends, and the best that it had."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scalelab.curves import Curve, pool_seeds, read_sources
from study_tables.runs import table

LAST, SMOOTHED = 4, 3
"""Evaluations whose mean is the end of a run, and those in a row whose largest mean is its best."""


def ends_table(folder: Path) -> str:
    """A table of where the runs below a folder end on every task, and of the best that they had: means over seeds."""
    members = [path for path in sorted(folder.iterdir()) if any(path.glob("seed_*/evals.jsonl"))]
    curves = pool_seeds(read_sources(members))[0]
    tasks = sorted({item.task for item in curves})
    rows = []
    for member in dict.fromkeys(item.run for item in curves):
        found = {item.task: _ends(item) for item in curves if item.run == member}
        seeds = max(len(item.seeds) for item in curves if item.run == member)
        rows.append([f"`{member}`", str(seeds), *(cell for task in tasks for cell in found[task])])
    return table(["member", "seeds", *(f"{task}: {what}" for task in tasks for what in ("end", "best"))], rows)


def _ends(item: Curve) -> Sequence[str]:
    """End and best, as means over the seeds."""
    ends, bests = [], []
    for seed in range(len(item.seeds)):
        rate_N = item.pass_rate_N[item.seed_N == seed]
        ends.append(rate_N[-LAST:].mean())
        bests.append(np.convolve(rate_N, np.full(SMOOTHED, 1 / SMOOTHED), "valid").max())
    return f"{np.mean(ends):.3f}", f"{np.mean(bests):.3f}"
