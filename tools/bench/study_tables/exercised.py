"""Ingredients of a recipe that had something to do in a run, as its counters say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from study_tables.course import COURSE, course_of, read_course
from study_tables.falls import mean_of
from study_tables.runs import CENTRES, table

Rows = Sequence[dict[str, float]]


@dataclass(frozen=True)
class Counter:
    """A figure of a run that says whether an ingredient was exercised.

    Attributes:
        ingredient: what is asked for.
        says: what the figure is.
        value: takes it from the rows of the run's course.
        least: the figure from which the ingredient counts as exercised.
    """

    ingredient: str
    says: str
    value: Callable[[Rows], float]
    least: float

    def cell(self, runs: Sequence[Rows]) -> str:
        """The figure, the mean of several runs, and whether it suffices."""
        found = self.mean(runs)
        return "not counted" if np.isnan(found) else f"{found:.3g} {'yes' if found >= self.least else 'no'}"

    def mean(self, runs: Sequence[Rows]) -> float:
        """The figure, as the mean of several runs."""
        return float(np.mean([self.value(rows) for rows in runs]))


COUNTERS = (
    Counter("loss", "mean size of the log ratio, nats", lambda rows: mean_of(rows, "gap"), 0.005),
    Counter("schedule", "mean staleness of the oldest token, steps", lambda rows: mean_of(rows, "staleness"), 1.0),
    Counter("zero variance", "share of prompts dropped", lambda rows: 1 - mean_of(rows, "in_loss"), 0.05),
    Counter("curriculum", "share of draws refused by the end", lambda rows: rows[-1].get("refused", np.nan), 0.05),
    Counter("interruption", "share of completions interrupted", lambda rows: mean_of(rows, "interrupted"), 0.05),
    Counter(
        "truncation",
        "largest share cut off, of twentieths of the run",
        lambda rows: max(row.get("truncated", np.nan) for row in rows),
        0.1,
    ),
)
"""Counters of single runs. Aggregation and the norm of advantages work in every step."""

HEAD = 1.5
"""Least factor by which engines without an fp32 head must be further apart at the same weights."""


def rows_of(run: Path) -> list[dict[str, float]]:
    """The course of a run: as it was taken into the study, or from the metrics of one that is not there yet."""
    return read_course(run / COURSE) if (run / COURSE).exists() else course_of(run / "metrics.jsonl")


def exercised_table(named: Mapping[str, Sequence[Rows]]) -> str:
    """A line for each name: what the counters of its runs say, and how far engines are apart beside the first name's.

    Args:
        named: courses of the runs of each name.
    """
    header = ["run", *(f"{one.ingredient} ({one.says}; from {one.least:g})" for one in COUNTERS)]
    header += [f"fp32 head (gap at the same weights; from × {HEAD:g} without it)"]
    lines, first = [], None
    for name, runs in named.items():
        gap = head_gap(runs)
        first = gap if first is None else first
        cells = [one.cell(runs) for one in COUNTERS]
        cells.append("not counted" if np.isnan(gap) else f"{gap:.2g} × {gap / first:.2f}")
        lines.append([name, *cells])
    return table(header, lines)


def head_gap(runs: Sequence[Rows]) -> float:
    """|log π_train − log π_gen| in nats where both have the same weights: mean over the steps of some runs."""
    return float(np.mean([mean_of(rows, "same_version_gap") for rows in runs]))


def of_member(folder: Path, member: str) -> list[Rows]:
    """Courses of the runs of a member below the folder of a study."""
    return [rows_of(path) for path in sorted((folder / member).glob("seed_*"))]


def exercises(folder: Path, baseline: str) -> dict[str, bool]:
    """Ingredients that had something to do in the runs of a baseline, by name."""
    beginning = next(key for key, centre in CENTRES.items() if centre == baseline)
    runs, bare = of_member(folder, baseline), of_member(folder, f"{beginning}without_fp32_head")
    found = {one.ingredient: bool(one.mean(runs) >= one.least) for one in COUNTERS}
    return found | {"fp32 head": bool(bare) and head_gap(bare) >= HEAD * head_gap(runs)}
