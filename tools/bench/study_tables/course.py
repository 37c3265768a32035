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

COLUMNS = ("compute", "steps", "entropy", "kl", "clipped", "largest_ratio", "gap", "staleness", "in_loss", "length")


def write_course(metrics: Path, to: Path) -> None:
    """Write the means of a run's metrics over equal parts of its compute.

    Args:
        metrics: its `metrics.jsonl`, a line for each step.
        to: the CSV file; `compute` is the end of each part in device-hours, `steps` the number of its steps.
    """
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    values = np.array([_values(line) for line in lines], float)
    ends = np.linspace(0.0, values[-1, 0], PARTS + 1)[1:]
    part_S = np.minimum(np.searchsorted(ends, values[:, 0] - 1e-9), PARTS - 1)
    with to.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for part, end in enumerate(ends):
            mine = values[part_S == part, 1:]
            if len(mine):
                means = [f"{mean:.4g}" for mean in _means(mine)]
                writer.writerow([f"{end:.4g}", len(mine), *means])


def _values(line: dict[str, Any]) -> list[float]:
    """The compute at the end of a step, and what `COLUMNS` names; a step without sequences has no ratios."""
    stale = {int(late): count for late, count in line["staleness"].items()}
    tasks = line["tasks"].values()
    completions = sum(one["completions"] for one in tasks)
    return [
        line["compute"],
        *(_number(line.get(name)) for name in ("entropy", "kl", "ratio_clipped", "ratio_max", "gap_mean")),
        sum(late * count for late, count in stale.items()) / max(1, sum(stale.values())),
        line["prompts_in_loss"] / max(1, line["prompts"]),
        sum(one["completions"] * one["mean_length"] for one in tasks) / max(1, completions),
    ]


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
