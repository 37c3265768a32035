"""Falls of the study's runs, by what foretells them: staleness, loss, and how far generator and trainer are apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from scalelab.curves import Curve
from scalelab.curves.stability import Stability, stability
from study_tables.course import COURSE, read_course
from study_tables.runs import StudyRuns, table

BORDERS = (0.0, 0.001, 0.003, 0.006, np.inf)
"""Bins of the mean divergence of generator and trainer in nats."""


def divergences(runs: StudyRuns) -> dict[tuple[str, str], float]:
    """Mean KL(generator ‖ trainer) in nats a token over all steps of a run, by member and seed."""
    found = {}
    for path in runs.folder.glob(f"*/seed_*/{COURSE}"):
        rows = read_course(path)
        steps = np.array([row["steps"] for row in rows])
        kl = np.array([row["kl"] for row in rows])
        known = ~np.isnan(kl)
        if known.any():
            key = path.parent.parent.name, path.parent.name.removeprefix("seed_")
            found[key] = float(np.average(kl[known], weights=steps[known]))
    return found


def of_seed(item: Curve, at: int) -> Stability:
    """The fall of one seed of a curve, if it has one."""
    return stability(item.select(item.seed_N == at))


def falls_table(runs: StudyRuns) -> str:
    """Runs by their mean divergence: how many there are, and on each task how many fell and how far."""
    kl = divergences(runs)
    header, rows = ["mean KL of generator and trainer, nats", "runs"], []
    for task in runs.tasks():
        header += [f"fell on {task}", "deepest"]
    for low, high in pairwise(BORDERS):
        inside = {key for key, value in kl.items() if low <= value < high}
        line = [f"{low:g} to {high:g}" if np.isfinite(high) else f"from {low:g}", str(len(inside))]
        for task in runs.tasks():
            line += _fallen([item for item in runs.curves if item.task == task], inside)
        rows.append(line)
    return table(header, rows)


def _fallen(items: Sequence[Curve], inside: set[tuple[str, str]]) -> list[str]:
    found = [
        of_seed(item, at) for item in items for at, seed in enumerate(item.seeds) if (item.run, str(seed)) in inside
    ]
    depths = [one.falls[0].depth for one in found if one.falls]
    return [f"{len(depths)} of {len(found)}", f"{max(depths):.3f}" if depths else "–"]
