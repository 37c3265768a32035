"""Evaluations as points: every log, the lab's own and anybody else's, becomes curves here and nowhere else.

Axes: `_R` rows of the log, `_N` points of one curve.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scalelab.arrays import Array
from scalelab.errors import LabError
from scalelab.numbers import counted
from scalelab.reading.cells import Numbers, blank, hours_since_first, numbers
from scalelab.reading.columns import Part, Recognised
from scalelab.reading.curve import Curve, FitWindow, binomial_stderr, check_numbers, checked_curve
from scalelab.reading.run_folder import fork_of
from scalelab.reading.settings import COLUMNS, Reading
from scalelab.reading.stitch import average, stitch
from scalelab.reading.table import Table
from scalelab.reading.units import convert_units

AXES = {
    "completions": "completions",
    "tokens": "tokens",
    "flops": "FLOPs",
    "step": "steps",
    "wall_seconds": "seconds",
    "processor_hours": "processor-hours",
}
"""Quantities beside compute that the lab's own runs count, and their units: curves can be drawn against each."""

BESIDE = ("truncated", "mean_length", "outcomes/error", "time")
"""Other numbers of an evaluation that the lab's own runs hold."""

MOST_CURVES = 5_000
"""Curves of one log; a log with more has a column that is no task."""


class CurveReader:
    """Curves of one log.

    Args:
        table: the log.
        recognised: its columns.
        reading: how they are read.
    """

    def __init__(self, table: Table, recognised: Recognised, reading: Reading) -> None:
        self._table, self._recognised, self._reading = table, recognised, reading
        self._columns: dict[str, Numbers] = {}
        table.refuse_repeated([name for part in recognised.parts for name in (*part.names.values(), *part.only)])
        self._compute_R, self._notes = self._compute()

    def curves(self) -> list[Curve]:
        """One checked curve for every run and task, by run and task.

        Raises:
            LabError: a cell cannot be what its column says, evaluations contradict each other, or there are none.
        """
        found = [item for part in self._recognised.parts for item in self._of_part(part)]
        if not found:
            raise LabError(f"{self._table.path}: no evaluations in it yet")
        return sorted(found, key=lambda item: (item.run, item.task))

    def _column(self, name: str) -> Numbers:
        if name not in self._columns:
            self._columns[name] = numbers(self._table.cells[name], self._table.facts.get("comma", ""))
        return self._columns[name]

    def _compute(self) -> tuple[Array, list[str]]:
        """Compute of every row in the log's unit, NaN where it is empty; and how it was converted."""
        name = self._recognised.parts[0].names["compute"]
        if self._recognised.times == "times":
            hours, began = hours_since_first(self._table.cells[name], f"{self._table.path}, column {name}")
            note = f"{name}: times, read as hours since the first evaluation at {began}, which counts as the start"
            return np.array([math.nan if one is None else one for one in hours]), [note]
        column = self._column(name)
        notes = [f"{name}: {count} {how} converted" for how, count in column.converted.items()]
        if self._recognised.times == "seconds":
            return column.value_N / 3600, [*notes, f"{name}: seconds, read as hours"]
        return column.value_N, notes

    def _of_part(self, part: Part) -> list[Curve]:
        rates = self._column(part.names["pass_rate"])
        notes = [*self._table.notes, *self._recognised.notes, *self._notes]
        wanted_R = ~rates.blank_N
        for name, texts in part.only.items():
            wanted_R &= np.array([str(cell) in texts for cell in self._table.cells[name]], bool)
        kept_R = np.flatnonzero(wanted_R)
        compute_R = self._filled(kept_R)
        empty = int(rates.blank_N.sum())
        if empty and len(self._recognised.parts) == 1 and not self._logs_more():
            notes.append(f"{part.names['pass_rate']}: {empty} rows without a value left out")
        curves = []
        for (run, task), rows_R in self._groups(part, kept_R).items():
            curves.append(self._curve(part, run, task, rows_R, compute_R, notes))
            if len(curves) > MOST_CURVES:
                raise LabError(
                    f"{self._table.path}: more than {MOST_CURVES:,} runs and tasks; map fewer: --column task=…"
                )
        return curves

    def _logs_more(self) -> bool:
        """True for a log of everything a trainer says, in which most rows have nothing to do with evaluations."""
        return self._table.kind not in ("table (CSV)", "Parquet") or len(self._table.columns) > 2 * len(COLUMNS)

    def _filled(self, kept_R: np.ndarray) -> Array:
        """Compute of every row; where it was logged in rows of its own, the last value before an evaluation."""
        missing_R = np.isnan(self._compute_R)
        if not missing_R[kept_R].any():
            return self._compute_R
        others_R = np.ones(len(missing_R), bool)
        others_R[kept_R] = False
        if not (others_R & ~missing_R).any():
            return self._compute_R
        last_R = np.maximum.accumulate(np.where(missing_R, -1, np.arange(len(missing_R))))
        filled_R = np.where(last_R < 0, np.nan, self._compute_R[last_R])
        steps = self._recognised.parts[0].names.get("step")
        if steps is not None:  # before anything was logged at step 0, nothing was spent
            filled_R[(last_R < 0) & (self._column(steps).value_N == 0)] = 0.0
        return filled_R

    def _groups(self, part: Part, kept_R: np.ndarray) -> dict[tuple[str, str], np.ndarray]:
        """Run and task → their rows."""
        runs, run_N = self._labels(None if part.run else part.names.get("run"), kept_R, part.run or self._table.run)
        tasks, task_N = self._labels(part.names.get("task"), kept_R, part.task or "")
        if part.task and "task" in part.names:
            tasks = [task if task == part.task else f"{task} {part.task}" for task in tasks]
        key_N = run_N * len(tasks) + task_N
        order_N = np.argsort(key_N, kind="stable")
        keys, start_M = np.unique(key_N[order_N], return_index=True)
        rows = np.split(kept_R[order_N], start_M[1:]) if len(keys) else []
        return {(runs[key // len(tasks)], tasks[key % len(tasks)]): mine for key, mine in zip(keys.tolist(), rows)}

    def _labels(self, column: str | None, kept_R: np.ndarray, otherwise: str) -> tuple[list[str], np.ndarray]:
        """The texts of a column, and for every row which of them it has."""
        if column is None:
            return [otherwise], np.zeros(len(kept_R), int)
        texts = list(map(str, map(self._table.cells[column].__getitem__, kept_R.tolist())))
        found = {text: otherwise if blank(text) else text for text in dict.fromkeys(texts)}  # few, of many rows
        place = {label: at for at, label in enumerate(dict.fromkeys(found.values()))}
        index_N = np.fromiter(map({text: place[label] for text, label in found.items()}.__getitem__, texts), int)
        return list(place), index_N

    def _curve(
        self, part: Part, run: str, task: str, rows_R: np.ndarray, compute_R: Array, notes: Sequence[str]
    ) -> Curve:
        table, names = self._table, part.names
        compute_N = self._checked("compute", names["compute"], rows_R, compute_R[rows_R])
        rate_N, about_rates = self._rates(part, rows_R)
        unit, factor_N, about_units = self._units(part, run, rows_R)
        compute_N = compute_N * factor_N
        keep, said = [], Counter[str]()
        labels, seed_N = self._labels(names.get("seed"), rows_R, str(table.facts.get("seed", "")))
        for seed in range(len(labels)):
            mine_N = np.flatnonzero(seed_N == seed)
            chosen = self._stitched(part, rows_R[mine_N], compute_N[mine_N], rate_N[mine_N], unit)
            keep.append(mine_N[chosen.keep_M])
            said.update(chosen.notes)
            if chosen.back is not None:
                place = f"{table.counted} {table.rows[rows_R[mine_N[chosen.back]]]}, column {names['compute']}"
                said[f"unsorted: {place}, goes back; sorted here"] += 1
        keep_N = np.concatenate(keep)
        rows_R, compute_N, rate_N = rows_R[keep_N], compute_N[keep_N], rate_N[keep_N]
        stderr_N, about_errors = self._stderr(part, rows_R, rate_N)
        item = checked_curve(
            Curve(
                source=str(table.path),
                run=run,
                task=task,
                compute_N=compute_N,
                pass_rate_N=rate_N,
                stderr_N=stderr_N,
                seed_N=np.zeros(0, int),
                unit=unit,
                epoch_end=self._epoch_end(part, rows_R, compute_N),
                fit_window=self._window(part, rows_R, compute_N),
                notes=(*notes, *about_rates, *about_units, *said, *about_errors),
                recipe=str(table.facts.get("recipe", "")),
                clock=_clock(table.facts),
                places={**table.facts.get("places", {}), **self._constants(part, rows_R)},
                bases=_bases(table.facts),
                fork=_fork(table.facts),
                measure=self._measure(rows_R),
                other_N=self._beside(rows_R),
            ),
            labels,
            seed_N[keep_N],
        )
        return item if self._reading.repeats != "mean" else _averaged(item)

    def _window(self, part: Part, rows_R: np.ndarray, compute_N: Array) -> FitWindow:
        """The window that a manifest gives in compute, on the axis of the curve; open at both ends where it is none."""
        found = self._table.facts.get("fit_window")
        ends = numbers(found if isinstance(found, list | tuple) and len(found) == 2 else [None, None])
        known = [None if ends.blank_N[at] or at in ends.wrong else float(ends.value_N[at]) for at in (0, 1)]
        if part.names["compute"] != "compute" and "compute" in self._table.cells and len(rows_R):
            spent_N = self._column("compute").value_N[rows_R]
            order_N = np.argsort(spent_N)
            known = [
                None if end is None else float(np.interp(end, spent_N[order_N], compute_N[order_N])) for end in known
            ]
        return known[0], known[1]

    def _measure(self, rows_R: np.ndarray) -> str:
        """Name of what the rows of a run folder measure: a mean reward if some of them say so."""
        said = self._table.cells.get("measure", ()) if self._table.folder else ()
        names = dict.fromkeys(str(said[row]) for row in rows_R if said and not blank(said[row]))
        return "mean reward" if "mean reward" in names else next(iter(names), "pass rate")

    def _stitched(self, part: Part, rows_R: np.ndarray, compute_N: Array, rate_N: Array, unit: str) -> Any:
        table, name = self._table, part.names["compute"]
        step_N = None
        if "step" in part.names:
            steps = self._column(part.names["step"])
            if np.isfinite(steps.value_N[rows_R]).all():
                step_N = steps.value_N[rows_R]
        found = stitch(compute_N, rate_N, step_N, self._reading.repeats, table.folder, unit)
        if found.again is not None:
            at = rows_R[found.again]
            raise LabError(
                f"{table.place(int(at), name)}: the log starts again at {compute_N[found.again]:,g}; tell two runs "
                "apart by a run or seed column, or give --repeats later if the first was broken off"
            )
        if found.double is not None:
            first, second = found.double
            raise LabError(
                f"{table.place(int(rows_R[second]), name)}: {compute_N[second]:g} is in {table.counted} "
                f"{table.rows[rows_R[first]]} too; keep one, tell the runs apart by a run or seed column, or give "
                "--repeats later or mean"
            )
        return found

    def _checked(self, ours: str, theirs: str, rows_R: np.ndarray, value_N: Array) -> Array:
        """Numbers of a column, checked; the message of an error names row and column."""
        column = self._columns.get(theirs)
        cells = self._table.cells[theirs]
        if column is not None:
            for row in rows_R if column.wrong else ():
                if row in column.wrong:
                    place = self._table.place(int(row), theirs)
                    raise LabError(f"{place}: {cells[row]!r:.60} is not a number; {column.wrong[row]}")
        missing_N = np.isnan(value_N)
        if missing_N.any():
            row = int(rows_R[np.argmax(missing_N)])
            what = "empty" if blank(cells[row]) and str(cells[row]).strip().lower() != "nan" else "nan is not a number"
            raise LabError(f"{self._table.place(row, theirs)}: {what}; remove the row or fill it in")
        check_numbers(value_N, ours, lambda index: self._table.place(int(rows_R[index]), theirs))
        return value_N

    def _rates(self, part: Part, rows_R: np.ndarray) -> tuple[Array, list[str]]:
        """Pass rates in [0, 1], and how they were converted."""
        name = part.names["pass_rate"]
        column = self._column(name)
        rate_N = column.value_N[rows_R]
        notes = [f"{name}: {count} {how} converted" for how, count in column.converted.items()]
        if part.counts:
            total_N = self._checked("n", part.names["n"], rows_R, self._column(part.names["n"]).value_N[rows_R])
            notes.append(f"pass rate: {name} divided by {part.names['n']}")
            rate_N = rate_N / total_N
        low, high = (0.0, 1.0) if column.percent or part.counts else self._reading.rate_range
        return self._checked("pass_rate", name, rows_R, (rate_N - low) / (high - low)), notes

    def _stderr(self, part: Part, rows_R: np.ndarray, rate_N: Array) -> tuple[Array | None, list[str]]:
        """Standard errors: those given, or the binomial ones of the samples; None if any is unknown.

        A given zero says only that all samples passed or all failed, so the samples decide where they are known. They
        decide on all points where prompts have more samples in some evaluations than in others: given errors count
        prompts as drawn anew, and so hide how much more many samples tell of a curve on the same prompts.
        """
        names = part.names
        samples_N, grown = np.full(len(rows_R), np.nan), False
        for ours in ("n", "n_prompts"):
            if ours in names and not np.isfinite(samples_N).all():
                samples_N = np.where(np.isfinite(samples_N), samples_N, self._optional(ours, names[ours], rows_R))
                if ours == "n_prompts" and "k" in names:
                    k_N = self._optional("k", names["k"], rows_R)
                    samples_N = samples_N * np.where(np.isfinite(k_N), k_N, 1.0)
                    grown = np.isfinite(samples_N).all() and len(np.unique(k_N)) > 1
        given_N = np.full(len(rows_R), np.nan)
        if "stderr" in names and not grown:
            column = self._column(names["stderr"])
            given_N = column.value_N[rows_R].copy()
            given_N[(given_N == 0) & np.isfinite(samples_N)] = np.nan
            known_N = np.isfinite(given_N)
            if known_N.any() and self._column(names["pass_rate"]).percent and not column.percent:
                raise LabError(
                    f"{self._table.path}: {names['pass_rate']} has percent signs and {names['stderr']} has none: write "
                    "both alike"
                )
            low, high = (0.0, 1.0) if column.percent else self._reading.rate_range
            self._checked("stderr", names["stderr"], rows_R[known_N], given_N[known_N] / (high - low))
            given_N = given_N / (high - low)
        with np.errstate(invalid="ignore"):
            stderr_N = np.where(np.isfinite(given_N), given_N, binomial_stderr(rate_N, samples_N))
        known = int(np.isfinite(stderr_N).sum())
        if known == len(stderr_N):
            return stderr_N, []
        return None, ["some points lack a standard error, so none was used"] if known else []

    def _optional(self, ours: str, theirs: str, rows_R: np.ndarray) -> Array:
        """Numbers of a column that may have gaps."""
        column = self._column(theirs)
        there_N = ~column.blank_N[rows_R]
        self._checked(ours, theirs, rows_R[there_N], column.value_N[rows_R[there_N]])
        return np.where(there_N, column.value_N[rows_R], np.nan)

    def _units(self, part: Part, run: str, rows_R: np.ndarray) -> tuple[str, Array, list[str]]:
        """Unit of compute, the factor of every row to it, and remarks if hours were converted."""
        table, named = self._table, self._recognised.unit
        column = part.names.get("compute_unit")
        if column is not None and (not named or named.endswith("-hours")):
            cells = table.cells[column]
            units = [named or "compute" if blank(cells[row]) else str(cells[row]) for row in rows_R]
            return convert_units(units, run, self._reading, lambda row: table.place(int(rows_R[row]), column))
        own = named or AXES.get(part.names["compute"]) or table.facts.get("unit") or table.facts.get("compute_unit")
        hours = self._reading if not own or str(own).endswith("-hours") else replace(self._reading, hours_of=None)
        return convert_units([str(own or "compute")], run, hours, lambda _: str(table.path))

    def _epoch_end(self, part: Part, rows_R: np.ndarray, compute_N: Array) -> float | None:
        """Compute of the first evaluation after the first epoch; None where no column says it."""
        if "epoch" not in part.names:
            return None
        column = self._column(part.names["epoch"])
        if column.wrong or column.blank_N[rows_R].any():
            return None
        after_N = compute_N[column.value_N[rows_R] >= 1]
        return float(after_N.min()) if len(after_N) else None

    def _constants(self, part: Part, rows_R: np.ndarray) -> dict[str, float]:
        """Numbers in columns without a meaning of their own that are the same in all rows of a curve."""
        rates = {one.names["pass_rate"] for one in self._recognised.parts}
        found = {}
        for name, cells in self._table.cells.items():
            if name in COLUMNS or name in AXES or name in rates or name in part.names.values():
                continue
            if self._table.folder and "/" in name:  # counts by role and outcome
                continue
            first = cells[rows_R[0]]
            try:
                number = float(first)
            except (TypeError, ValueError, OverflowError):
                continue
            if math.isfinite(number) and cells[rows_R[-1]] == first and all(cells[row] == first for row in rows_R):
                found[name] = number
        return found

    def _beside(self, rows_R: np.ndarray) -> dict[str, Array]:
        """Other numbers of the evaluations, where the log has them under the lab's own names; NaN for gaps."""
        names = [name for name in (*AXES, *BESIDE) if name in self._table.cells]
        names += [name for name in self._table.columns if "_by_role/" in name]
        found = {name: self._column(name).value_N[rows_R] for name in names}
        return {name: value_N for name, value_N in found.items() if np.isfinite(value_N).any()}


def _fork(facts: Mapping[str, Any]) -> float | None:
    """The step at which a branch went on from its parent, by its manifest."""
    step = numbers([fork_of(facts)])
    return None if step.blank_N[0] or step.wrong else float(step.value_N[0])


def _averaged(item: Curve) -> Curve:
    """The curve with the mean of all points of one seed at one compute; their errors count as independent."""
    place_N = item.seed_N * 1e-9 + np.unique(item.compute_N, return_inverse=True)[1]
    count_M = np.bincount(np.unique(place_N, return_inverse=True)[1])
    if (count_M == 1).all():
        return item
    errors_N = item.stderr_N
    averaged = replace(
        item,
        compute_N=average(place_N, item.compute_N),
        pass_rate_N=average(place_N, item.pass_rate_N),
        stderr_N=None if errors_N is None else np.sqrt(average(place_N, errors_N**2) / count_M),
        seed_N=np.rint(average(place_N, item.seed_N.astype(float))).astype(int),
        other_N={name: average(place_N, value_N) for name, value_N in item.other_N.items()},
        notes=(
            *item.notes,
            f"averaged: {counted(len(item) - len(count_M), 'evaluation')} at the same compute as another",
        ),
    )
    return averaged


def _bases(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """The digest of the base model, where a run's manifest has it."""
    found = facts.get("base_model")
    return (found,) if isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found) else ()


def _clock(facts: Mapping[str, Any]) -> str:
    """`virtual` or `wall`, where a run's manifest says by which clock its compute was counted."""
    found = facts.get("clock", "")
    found = found.get("kind", found.get("name", "")) if isinstance(found, Mapping) else found
    return str(found)
