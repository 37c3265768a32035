"""The evaluations of a run as points, with every x-axis that the run's files can give."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from scalelab.curves import Curve
from scalelab.curves.data import binomial_stderr
from scalelab.view.files import number
from scalelab.view.judge import Reading

Record = Mapping[str, Any]

AXES = ("compute", "step", "completions", "tokens", "flops", "hours")
"""The x-axes, in the order of the page's menu; `hours` is wall time."""


def run_points(
    evals: Sequence[Record],
    metrics: Sequence[Record],
    reading: Reading,
    per_step: int | None = None,
    started: float | None = None,
) -> list[dict[str, Any]]:
    """The points of each task of one run folder.

    A point that is repeated by a resumed run replaces the earlier one. What lines of before do not hold is derived
    where it can be: completions from the batch size, tokens from the steps' own counts, wall time from the clock.

    Args:
        evals: lines of `evals.jsonl`.
        metrics: lines of `metrics.jsonl`.
        reading: which columns hold compute and pass rate, and the unit of compute.
        per_step: completions that a step trains on, where the configuration says so.
        started: when the run was started, in seconds of Unix time.

    Returns:
        `{"task", "x": {axis: [values or None]}, "y", "stderr", "truncated", "length", "errors"}`.
    """
    tokens_by_step = _tokens(metrics)
    tasks: dict[str, dict[Any, Record]] = {}
    for line, record in enumerate(evals):
        task = str(record.get("task") or "")
        if not reading.tasks or task in reading.tasks:
            tasks.setdefault(task, {})[number(record.get("step")) or -line] = record
    found = []
    for task, by_step in tasks.items():
        records = [record for record in by_step.values() if _rate(record, reading) is not None]
        rows = [_x(record, reading, tokens_by_step, per_step, started) for record in records]
        order = sorted(range(len(rows)), key=lambda index: (rows[index]["compute"] is None, rows[index]["compute"]))
        rows, records = [rows[index] for index in order], [records[index] for index in order]
        found.append(
            {
                "task": task,
                "x": {axis: [row[axis] for row in rows] for axis in AXES if any(row[axis] is not None for row in rows)},
                "y": [_rate(record, reading) for record in records],
                "stderr": [_stderr(record, reading) for record in records],
                "truncated": [number(record.get("truncated")) for record in records],
                "length": [number(record.get("mean_length")) for record in records],
                "errors": [_errors(record) for record in records],
            }
        )
    return found


def table_points(curve: Curve) -> list[dict[str, Any]]:
    """The points of a table's curve, one entry for each of its seeds; compute is the only x-axis."""
    entries = []
    for seed in range(len(curve.seeds)):
        mine = curve.select(np.flatnonzero(curve.seed_N == seed))
        stderr = [None] * len(mine) if mine.stderr_N is None else mine.stderr_N.tolist()
        entries.append(
            {
                "task": curve.task,
                "x": {"compute": mine.compute_N.tolist()},
                "y": mine.pass_rate_N.tolist(),
                "stderr": stderr,
            }
        )
    return entries


def _rate(record: Record, reading: Reading) -> float | None:
    return number(record.get(reading.columns.get("pass_rate", "pass_rate")))


def _stderr(record: Record, reading: Reading) -> float | None:
    given = number(record.get("stderr"))
    if given:
        return given
    rate, prompts, k = _rate(record, reading), number(record.get("n_prompts")), number(record.get("k"))
    return binomial_stderr(rate, prompts * (k or 1)) if rate is not None and prompts and prompts > 0 else None


def _errors(record: Record) -> float:
    outcomes = record.get("outcomes")
    return (number(outcomes.get("error")) or 0.0) if isinstance(outcomes, Mapping) else 0.0


def _x(
    record: Record,
    reading: Reading,
    tokens_by_step: tuple[list[float], list[float]],
    per_step: int | None,
    started: float | None,
) -> dict[str, float | None]:
    step, clock = number(record.get("step")), number(record.get("time"))
    compute = number(record.get(reading.columns.get("compute", "compute")))
    completions = number(record.get("completions"))
    if completions is None and step is not None and per_step is not None:
        completions = step * per_step
    tokens = number(record.get("tokens"))
    steps, totals = tokens_by_step
    if tokens is None and step is not None and steps:
        before = bisect_right(steps, step)
        tokens = totals[before - 1] if before else 0.0
    seconds = number(record.get("wall_seconds"))
    if seconds is None and clock is not None and started is not None:
        seconds = max(clock - started, 0.0)
    return {
        "compute": None if compute is None else compute * reading.compute_scale,
        "step": step,
        "completions": completions,
        "tokens": tokens,
        "flops": number(record.get("flops")),
        "hours": None if seconds is None else seconds / 3600,
    }


def _tokens(metrics: Sequence[Record]) -> tuple[list[float], list[float]]:
    """Steps in order, and the tokens of all steps up to each."""
    by_step = {
        step: tokens
        for record in metrics
        if (step := number(record.get("step"))) is not None and (tokens := number(record.get("tokens"))) is not None
    }
    steps = sorted(by_step)
    return steps, list(accumulate(by_step[step] for step in steps))
