"""Falls of a study's runs, by what foretells them: staleness, learning rate, loss, and counters of the course."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.stats import spearmanr

from scalelab.curves import Curve
from scalelab.curves.stability import Stability, stability
from study_tables.course import COURSE, read_course
from study_tables.runs import StudyRuns, table

BORDERS = (0.0, 0.001, 0.003, 0.006, np.inf)
"""Bins of the mean divergence of generator and trainer in nats."""

SIGNS = {
    "kl": "KL of generator and trainer",
    "gap": "size of the log ratio",
    "largest_ratio": "largest importance ratio",
    "clipped": "share of ratios clipped",
    "effective_sample": "effective sample, share of tokens",
    "staleness": "staleness",
    "entropy": "entropy",
    "truncated": "share cut off",
    "refused": "share of draws refused",
    "in_loss": "share of prompts in the loss",
}
"""Columns of a run's course that may foretell a fall."""

LAST, SMOOTHED = 4, 3
"""Evaluations whose mean is the end of a run, and those in a row whose largest mean is its best."""

EARLY = 0.25
"""Share of a run's compute from whose course its fall is foretold."""


@dataclass(frozen=True)
class Cell:
    """A place of the grid of staleness, learning rate and loss.

    Attributes:
        k: most steps that a rollout is old.
        rate: learning rate.
        loss: name of the loss.
        member: the member that ran there.
    """

    k: int
    rate: str
    loss: str
    member: str


GRID = tuple(
    Cell(k, rate, loss, {"k8_slow_cispo": "scalerl", "k8_slow_dapo": "without_loss"}.get(name, name))
    for rate, speed in (("1e-4", "slow"), ("2e-4", "fast"))
    for loss in ("cispo", "dapo")
    for k in (1, 8, 32)
    for name in [f"k{k}_{speed}_{loss}"]
)


def courses(runs: StudyRuns) -> dict[tuple[str, str], list[dict[str, float]]]:
    """The course of every run by member and seed."""
    found = sorted(runs.folder.glob(f"*/seed_*/{COURSE}"))
    return {(path.parent.parent.name, path.parent.name.removeprefix("seed_")): read_course(path) for path in found}


def mean_of(rows: Sequence[Mapping[str, float]], name: str, until: float = 1.0) -> float:
    """Mean of a column over all steps up to some share of the compute; nan where no part has a value."""
    mine = [row for row in rows if row["compute"] <= until * rows[-1]["compute"] * 1.001]
    steps, values = (np.array([row.get(key, np.nan) for row in mine]) for key in ("steps", name))
    known = ~np.isnan(values)
    return float(np.average(values[known], weights=steps[known])) if known.any() else float("nan")


def of_seed(item: Curve, at: int) -> Stability:
    """The fall of one seed of a curve, if it has one."""
    return stability(item.select(item.seed_N == at))


def depth(item: Curve, at: int) -> float:
    """Distance of the last evaluations of a seed below the best in a row that it had."""
    rate_N = item.pass_rate_N[item.seed_N == at]
    return float(np.convolve(rate_N, np.full(SMOOTHED, 1 / SMOOTHED), "valid").max() - rate_N[-LAST:].mean())


def falls_table(runs: StudyRuns) -> str:
    """Runs by their mean divergence: how many there are, and on each task how many fell and how far."""
    kl = {key: mean_of(rows, "kl") for key, rows in courses(runs).items()}
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


def grid_table(runs: StudyRuns) -> str:
    """Ends and falls by staleness, learning rate and loss."""
    header = ["learning rate", "loss", "steps old", "member", "seeds", "KL", "refused by the end", "cut off at the end"]
    for task in runs.tasks():
        header += [f"{task}: end", "best less end", "fell"]
    told, rows = courses(runs), []
    for cell in GRID:
        mine = [of_run for (member, _), of_run in told.items() if member == cell.member]
        if not mine:
            continue
        line = [cell.rate, cell.loss, str(cell.k), f"`{cell.member}`", str(len(mine))]
        line.append(f"{np.mean([mean_of(one, 'kl') for one in mine]):.2g}")
        line += [f"{np.mean([one[-1].get(name, np.nan) for one in mine]):.0%}" for name in ("refused", "truncated")]
        for task in runs.tasks():
            item = runs.curve(cell.member, task)
            line += ["–"] * 3 if item is None else _grid_cells(item)
        rows.append(line)
    return table(header, rows)


def _grid_cells(item: Curve) -> list[str]:
    seeds = range(len(item.seeds))
    end = np.mean([item.pass_rate_N[item.seed_N == at][-LAST:].mean() for at in seeds])
    fallen = sum(of_seed(item, at).unstable for at in seeds)
    return [f"{end:.3f}", f"{np.mean([depth(item, at) for at in seeds]):.3f}", f"{fallen} of {len(seeds)}"]


def signs_table(runs: StudyRuns) -> str:
    """Rank correlation of what is counted in a run with how far the run ends below its best.

    Spearman's ρ over all runs: of the mean over the first quarter of the compute, which foretells, and of the mean over
    all of it, which goes with the fall. What not all runs kept says how many did.
    """
    told, rows = courses(runs), []
    header = ["counted", *(f"{task}: {when}" for task in runs.tasks() for when in ("first quarter", "whole run"))]
    for name, title in SIGNS.items():
        kept = sum(not np.isnan(mean_of(of_run, name)) for of_run in told.values())
        line = [title if kept == len(told) else f"{title} ({kept} of {len(told)} runs)"]
        for task in runs.tasks():
            fallen = {
                (item.run, seed): depth(item, at)
                for item in runs.curves
                if item.task == task
                for at, seed in enumerate(item.seeds)
            }
            for share in (EARLY, 1.0):
                pairs = [(mean_of(rows_, name, share), fallen[key]) for key, rows_ in told.items() if key in fallen]
                known = np.array([pair for pair in pairs if not np.isnan(pair[0])])
                line.append(_rank_correlation(known))
        rows.append(line)
    return table(header, rows)


def _rank_correlation(pairs_N2: np.ndarray) -> str:
    if len(pairs_N2) < 4 or np.ptp(pairs_N2[:, 0]) == 0:
        return "–"
    found = spearmanr(pairs_N2[:, 0], pairs_N2[:, 1])
    chance = f"{found.pvalue:.0e}" if found.pvalue < 0.001 else f"{found.pvalue:.3f}"
    return f"{found.statistic:+.2f} (p {chance})"


def _fallen(items: Sequence[Curve], inside: set[tuple[str, str]]) -> list[str]:
    found = [
        of_seed(item, at) for item in items for at, seed in enumerate(item.seeds) if (item.run, str(seed)) in inside
    ]
    depths = [one.falls[0].depth for one in found if one.falls]
    return [f"{len(depths)} of {len(found)}", f"{max(depths):.3f}" if depths else "–"]
