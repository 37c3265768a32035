"""Ends of the runs of a study: where each member's pass rate ends, the best that it had, and how many seeds fell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from scalelab.curves import Curve, pool_seeds, read_sources
from study_tables.falls import LAST, SMOOTHED, courses, mean_of, of_seed
from study_tables.runs import StudyRuns, table

WHEN = {"after a quarter": 0.25, "at the end": 1.0}
"""Shares of a run's compute at which its course is shown."""


def ends(item: Curve) -> list[float]:
    """The end of every seed."""
    return [float(item.pass_rate_N[item.seed_N == seed][-LAST:].mean()) for seed in range(len(item.seeds))]


def bests(item: Curve) -> list[float]:
    """The best of every seed: its largest mean of some evaluations in a row."""
    window = np.full(SMOOTHED, 1 / SMOOTHED)
    rates = [item.pass_rate_N[item.seed_N == seed] for seed in range(len(item.seeds))]
    return [float(np.convolve(rate_N, window, "valid").max()) for rate_N in rates]


def ends_table(runs: StudyRuns) -> str:
    """A table of where runs end on every task, of the best that they had, and of their course: means over seeds."""
    header, rows = (
        ["member", "seeds", "KL", *(f"{what} {when}" for what in ("refused", "cut off") for when in WHEN)],
        [],
    )
    told = courses(runs)
    for task in runs.tasks():
        header += [f"{task}: end", "best", "fell", "gain seen"]
    seen = {(item.fit.curve.run, item.fit.curve.task): item.seen for item in runs.analyses if not item.falls}
    for member in runs.members():
        mine = [of_run for (name, _), of_run in told.items() if name == member]
        cells = [f"`{member}`", str(runs.seeds(member)), f"{np.mean([mean_of(one, 'kl') for one in mine]):.2g}"]
        for name in ("refused", "truncated"):
            cells += [f"{np.mean([_at(one, share).get(name, np.nan) for one in mine]):.0%}" for share in WHEN.values()]
        for task in runs.tasks():
            item = runs.curve(member, task)
            cells += ["–"] * 4 if item is None else _cells(item, seen.get((member, task)))
        rows.append(cells)
    return table(header, rows)


def _at(rows: Sequence[Mapping[str, float]], share: float) -> Mapping[str, float]:
    """The part of a run's course that ends at some share of its compute."""
    return [row for row in rows if row["compute"] <= share * rows[-1]["compute"] * 1.001][-1]


def _cells(item: Curve, seen: float | None) -> list[str]:
    fallen = sum(of_seed(item, at).unstable for at in range(len(item.seeds)))
    share = "–" if seen is None else f"{seen:.0%}"
    return [f"{np.mean(ends(item)):.3f}", f"{np.mean(bests(item)):.3f}", f"{fallen} of {len(item.seeds)}", share]


def benchmark_table(member: Path) -> str:
    """The tasks of a member's runs beside each other: start, best and end, and how each follows the first.

    *follows*: Spearman's rank correlation of the evaluations of one seed with those of the first task at the same
    steps, after the first evaluation; means over seeds.
    """
    curves = pool_seeds(read_sources([member]))[0] if any(member.glob("seed_*")) else []
    tasks = sorted(curves, key=lambda item: item.task != "math")
    rows = []
    for item in tasks:
        seeds = range(len(item.seeds))
        rate_SN = [item.pass_rate_N[item.seed_N == seed] for seed in seeds]
        held_SN = [tasks[0].pass_rate_N[tasks[0].seed_N == seed] for seed in seeds]
        ranks = [spearmanr(mine_N[1:], other_N[1:]).statistic for mine_N, other_N in zip(rate_SN, held_SN, strict=True)]
        start = np.mean([rate_N[0] for rate_N in rate_SN])
        cells = [f"{start:.3f}", f"{np.mean(bests(item)):.3f}", f"{np.mean(ends(item)):.3f}", f"{np.mean(ranks):.2f}"]
        rows.append([item.task, str(len(item.seeds)), *cells])
    return table(["task", "seeds", "start", "best", "end", f"follows {tasks[0].task}" if tasks else "follows"], rows)
