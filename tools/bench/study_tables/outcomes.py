"""Outcomes of every held-out prompt, a digit each: what pass@k and comparisons prompt by prompt need."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

from pyarrow import parquet

OUTCOMES = "outcomes.csv"
"""File of a run with a line for each evaluation and task."""


def write_outcomes(rollouts: Path, to: Path) -> None:
    """Write how many of every prompt's completions passed, at every evaluation.

    Args:
        rollouts: folder of `step_STEP.parquet`.
        to: the CSV file; `passed` has a digit for each prompt, in the order of their ids.

    Raises:
        ValueError: a prompt has more completions than a digit counts.
    """
    with to.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("step", "task", "passed"))
        for path in sorted(rollouts.glob("step_*.parquet")):
            passed: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
            rows = parquet.read_table(path, columns=["task", "prompt_id", "outcome"])
            for row in rows.to_pylist():
                passed[row["task"]][row["prompt_id"]].append(row["outcome"] == "passed")
            for task, of_prompts in sorted(passed.items()):
                counts = [sum(of_prompts[name]) for name in sorted(of_prompts)]
                if max(counts) > 9:
                    raise ValueError(f"{path}: a prompt of {task} has {max(counts)} completions that passed")
                writer.writerow((int(path.stem.split("_")[1]), task, "".join(map(str, counts))))


def read_outcomes(path: Path) -> dict[tuple[int, str], list[int]]:
    """Completions of every prompt that passed, by step and task."""
    with path.open(newline="") as file:
        return {(int(row["step"]), row["task"]): [*map(int, row["passed"])] for row in csv.DictReader(file)}
