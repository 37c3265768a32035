"""Fits of a run's curves while it goes on, for its trackers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalelab.curves import Curve, FitError, analyse, curve, extend_or_stop
from scalelab.errors import LabError
from scalelab.jsonl import read_objects
from scalelab.reading.columns import axis_of
from scalelab.reading.data import binomial_stderr


class TrackedFits:
    """The fits of a run's tasks, made anew after each evaluation."""

    def __init__(self, folder: Path) -> None:
        """Begin with the evaluations that lie in the run's folder already."""
        self._records: list[Mapping[str, Any]] = []
        file = folder / "evals.jsonl"
        if file.is_file():
            self._records = [record for _, record in read_objects(file)[0]]  # a torn line is not written whole yet

    def after(self, record: Mapping[str, Any]) -> dict[str, float]:
        """Fit the task of this evaluation, if it has enough of them; names are such as `fit/math/A`."""
        task, new = str(record["task"]), (record["step"], record["task"])
        self._records = [one for one in self._records if (one["step"], one["task"]) != new] + [record]
        try:
            analysis = analyse(self._curve(task))
        except (FitError, LabError):  # too few evaluations yet
            return {}
        values = {f"fit/{task}/{name}": value for name, value in analysis.params.items()}
        for name, (low, high) in analysis.intervals.items():
            values |= {f"fit/{task}/{name}_low": low, f"fit/{task}/{name}_high": high}
        values[f"fit/{task}/gain_if_doubled"] = extend_or_stop(analysis).gain_if_doubled
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def go_back(self, step: int) -> None:
        """Forget the evaluations of later steps."""
        self._records = [one for one in self._records if one["step"] <= step]

    def _curve(self, task: str) -> Curve:
        mine = [one for one in self._records if one["task"] == task]
        errors = [one["stderr"] for one in mine] if all(one["stderr"] > 0 for one in mine) else None
        samples = {one.get("k") for one in mine}
        if len(samples) > 1 and None not in samples:  # as `scalelab fit` reads them: samples weigh the points
            errors = [binomial_stderr(one["pass_rate"], one["n_prompts"] * one["k"]) for one in mine]
        axis = axis_of(mine[0], mine[0].keys())
        return curve(
            [one[axis] for one in mine],
            [one["pass_rate"] for one in mine],
            errors,
            task=task,
            unit=mine[0]["compute_unit"] if axis == "compute" else axis,
        )
