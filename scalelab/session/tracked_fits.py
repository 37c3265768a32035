"""Fits of a run's curves while it goes on, for its trackers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalelab.curves import FitError, analyse, extend_or_stop
from scalelab.errors import LabError
from scalelab.jsonl import read_objects
from scalelab.reading.run_folder import table_of_run
from scalelab.reading.settings import Reading
from scalelab.reading.sources import open_table


class TrackedFits:
    """The fits of a run's tasks, made anew after each evaluation."""

    def __init__(self, folder: Path) -> None:
        """Begin with the evaluations that lie in the run's folder already."""
        self._folder, file = folder, folder / "evals.jsonl"
        self._records: list[dict[str, Any]] = []
        if file.is_file():
            self._records = [record for _, record in read_objects(file)[0]]  # a torn line is not written whole yet

    def after(self, record: Mapping[str, Any]) -> dict[str, float]:
        """Fit the task of this evaluation, if it has enough of them; names are such as `fit/math/A`."""
        task = str(record["task"])
        self._records.append(dict(record))
        table = table_of_run(self._folder, [*enumerate(self._records, 1)])
        try:
            [item] = [one for one in open_table(table, self._folder, Reading()).curves if one.task == task]
            analysis = analyse(item)
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
