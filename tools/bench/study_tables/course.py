"""The course of a run: entropy, ratios, staleness and lengths over its compute, in a few lines."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

COURSE = "course.csv"
"""File of a run with the means of its metrics over equal parts of its compute."""

PARTS = 20
"""Parts of a run's compute."""

COLUMNS = (
    *("compute", "steps", "entropy", "kl", "clipped", "largest_ratio", "gap", "staleness", "in_loss", "length"),
    *("same_version_gap", "truncated", "interrupted", "refused"),
    "effective_sample",
)
"""`compute` is the end of each part in device-hours, `steps` the number of its steps. Shares: `in_loss` of
the prompts, `truncated` and `interrupted` of the completions, `refused` of all draws so far, because the prompt was
retired. The gaps are |log π_train − log π_gen| in nats, the second where both had the same weights. `effective_sample`
is a share of the tokens; earlier runs did not keep it."""


def course_of(metrics: Path) -> list[dict[str, float]]:
    """Means of a run's metrics over equal parts of its compute, a row for each part that has steps.

    Args:
        metrics: its `metrics.jsonl`, a line for each step.
    """
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    values = np.array([_values(line) for line in lines], float)
    ends = np.linspace(0.0, values[-1, 0], PARTS + 1)[1:]
    part_S = np.minimum(np.searchsorted(ends, values[:, 0] - 1e-9), PARTS - 1)
    of_parts = [(end, values[part_S == part, 1:]) for part, end in enumerate(ends)]
    return [
        dict(zip(COLUMNS, (float(end), float(len(mine)), *_means(mine)), strict=True))
        for end, mine in of_parts
        if len(mine)
    ]


def write_course(metrics: Path, to: Path) -> None:
    """Write the course of a run as a CSV file with `COLUMNS`."""
    with to.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in course_of(metrics):
            writer.writerow([f"{value:.4g}" for value in row.values()])


def _values(line: dict[str, Any]) -> list[float]:
    """The compute at the end of a step, and what `COLUMNS` names; a step without sequences has no ratios."""
    stale = {int(late): count for late, count in line["staleness"].items()}
    tasks = line["tasks"].values()
    completions = sum(one["completions"] for one in tasks)
    drawn, skipped = (sum(_of(line["sampler"], kind)) for kind in ("drawn", "skipped"))
    shares = [
        sum(one["completions"] * one[name] for one in tasks) / max(1, completions)
        for name in ("mean_length", "truncated", "interrupted")
    ]
    return [
        line["compute"],
        *(_number(line.get(name)) for name in ("entropy", "kl", "ratio_clipped", "ratio_max", "gap_mean")),
        sum(late * count for late, count in stale.items()) / max(1, sum(stale.values())),
        line["prompts_in_loss"] / max(1, line["prompts"]),
        shares[0],
        _number(line.get("same_version_gap_mean")),
        *shares[1:],
        skipped / max(1, drawn + skipped),
        _number(line.get("effective_sample")),
    ]


def _of(counts: dict[str, float], kind: str) -> list[float]:
    """The counts of one kind, of all tasks."""
    return [count for name, count in counts.items() if name.startswith(f"{kind}/")]


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _means(values: np.ndarray) -> list[float]:
    """Mean of every column, steps without a value left out; nan where none has one."""
    return [
        float(np.mean(column[~np.isnan(column)])) if not np.isnan(column).all() else float("nan") for column in values.T
    ]


def read_course(path: Path) -> list[dict[str, float]]:
    """Read what `write_course` wrote, a row for each part."""
    with path.open(newline="") as file:
        return [{name: float(text) for name, text in row.items()} for row in csv.DictReader(file)]
