"""Ingredients of a recipe that had something to do in a run, as its counters say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from study_tables.course import COURSE, course_of, read_course
from study_tables.runs import table

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

    def cell(self, rows: Rows) -> str:
        """The figure, and whether it suffices."""
        found = self.value(rows)
        if np.isnan(found):
            return "not counted"
        return f"{found:.3g} {'yes' if found >= self.least else 'no'}"


def mean(rows: Rows, name: str) -> float:
    """Mean of a column over all steps; nan where no part has a value."""
    steps, values = (np.array([row.get(key, np.nan) for row in rows]) for key in ("steps", name))
    known = ~np.isnan(values)
    return float(np.average(values[known], weights=steps[known])) if known.any() else float("nan")


COUNTERS = (
    Counter("loss", "mean size of the log ratio, nats", lambda rows: mean(rows, "gap"), 0.005),
    Counter("schedule", "mean staleness of the oldest token, steps", lambda rows: mean(rows, "staleness"), 1.0),
    Counter("zero variance", "share of prompts dropped", lambda rows: 1 - mean(rows, "in_loss"), 0.05),
    Counter("curriculum", "share of draws refused by the end", lambda rows: rows[-1].get("refused", np.nan), 0.05),
    Counter("interruption", "share of completions interrupted", lambda rows: mean(rows, "interrupted"), 0.05),
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


def exercised_table(runs: Sequence[Path]) -> str:
    """A line for each run: what its counters say, and how far its engines are apart beside the first run's."""
    header = ["run", *(f"{one.ingredient} ({one.says}; from {one.least:g})" for one in COUNTERS)]
    header += [f"fp32 head (gap at the same weights; from × {HEAD:g} without it)"]
    lines, first = [], None
    for run in runs:
        rows = rows_of(run)
        gap = mean(rows, "same_version_gap")
        first = gap if first is None else first
        cells = [one.cell(rows) for one in COUNTERS]
        cells.append("not counted" if np.isnan(gap) else f"{gap:.2g} × {gap / first:.2f}")
        lines.append([f"{run.parent.name}/{run.name}", *cells])
    return table(header, lines)
