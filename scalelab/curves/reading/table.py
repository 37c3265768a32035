"""Tables of evaluations, and how their rows become checked curves.

A row knows its place in its file, so that a bad value is always reported with file, row and column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scalelab.curves.data import UNITS, Curve, binomial_stderr, check_number, curve
from scalelab.errors import LabError

COLUMNS = (
    "compute", "pass_rate", "task", "run", "seed", "n", "n_prompts", "k", "stderr", "epoch", "step", "compute_unit",
)  # fmt: skip
"""Columns with a meaning; any other is ignored. `gpu_hours` and `core_hours` are `compute` with its unit."""


AXES = {"completions": "completions", "tokens": "tokens", "flops": "FLOPs", "step": "steps", "wall_seconds": "seconds"}
"""Quantities beside compute that curves can be drawn against, and their units."""


@dataclass(frozen=True)
class Row:
    """One record and where it stands in its file.

    Attributes:
        number: its row; the header of a CSV is row 1.
        values: its cells by column.
        called: column → what its file calls it, where a reader gave it another name.
    """

    number: int
    values: Mapping[str, Any]
    called: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """The rows of one file.

    Attributes:
        path: the file.
        columns: columns of the file; a row may lack some.
        rows: its records.
        run: name of the run where no column says it.
        facts: what is known of the whole file: `fit_window`, `unit`, `seed`.
        notes: remarks for the reader of the fit.
    """

    path: Path
    columns: Sequence[str]
    rows: Sequence[Row]
    run: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def table_curves(table: Table, columns: Mapping[str, str]) -> list[Curve]:
    """One checked curve for every run and task of a table."""
    names = _resolve_columns(table, columns)
    groups: dict[tuple[str, str], list[Row]] = {}
    gaps = "pass_rate" in columns  # a column that was mapped belongs to a wide table, where others have rows of theirs
    for row in table.rows:
        if gaps and blank(row.values.get(names["pass_rate"])):
            continue
        run = str(_get(row, names, "run") or table.run)
        task = str(_get(row, names, "task") or "")
        groups.setdefault((run, task), []).append(row)
    if not groups:
        raise LabError(f"{table.path}: no evaluations in it yet")
    return [_curve(table, names, run, task, rows) for (run, task), rows in sorted(groups.items())]


def _curve(table: Table, names: Mapping[str, str], run: str, task: str, rows: Sequence[Row]) -> Curve:
    rows, repeated = _last_steps(rows, names)
    compute = [_number(table, row, names, "compute") for row in rows]
    pass_rate = [_number(table, row, names, "pass_rate") for row in rows]
    seeds = [str(_get(row, names, "seed") or table.facts.get("seed", "")) for row in rows]
    stderr = [_stderr(table, row, names) for row in rows]
    known = [value for value in stderr if value is not None]
    notes = list(table.notes)
    if repeated:
        notes.append(f"left out: {repeated} at the same compute as a later step")
    if known and len(known) < len(rows):
        notes.append("some points lack a standard error, so none was used")
    _refuse_duplicates(table, names, rows, list(zip(seeds, compute)))
    for earlier, later in zip(range(len(rows)), range(1, len(rows))):
        if seeds[earlier] == seeds[later] and compute[later] < compute[earlier]:
            notes.append(f"unsorted: row {rows[later].number}, column {names['compute']}, goes back; sorted here")
            break
    item = curve(
        compute,
        pass_rate,
        known if len(known) == len(rows) else None,
        seed=seeds,
        source=str(table.path),
        run=run,
        task=task,
        unit=_unit(table, names, rows),
        epoch_end=_epoch_end(table, names, rows, compute),
        fit_window=tuple(table.facts.get("fit_window") or (None, None)),
        notes=notes,
    )
    return replace(
        item,
        recipe=str(table.facts.get("recipe", "")),
        clock=_clock(table.facts),
        places={**table.facts.get("places", {}), **_constant_numbers(table, names, rows)},
    )


def _constant_numbers(table: Table, names: Mapping[str, str], rows: Sequence[Row]) -> dict[str, float]:
    """Numbers in columns without a meaning of their own that are the same in all rows of a run."""
    found = {}
    for column in set(table.columns) - {*COLUMNS, *AXES, *UNITS, *names.values()}:
        first = rows[0].values.get(column)
        try:
            number = float(first)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            continue
        if math.isfinite(number) and all(row.values.get(column) == first for row in rows):
            found[column] = number
    return found


def _clock(facts: Mapping[str, Any]) -> str:
    """`virtual` or `wall`, where a run's manifest says by which clock its compute was counted."""
    found = facts.get("clock", "")
    found = found.get("kind", found.get("name", "")) if isinstance(found, Mapping) else found
    return str(found)


def _last_steps(rows: Sequence[Row], names: Mapping[str, str]) -> tuple[list[Row], int]:
    """Drop evaluations at the same compute as one of a later step, such as those of steps that trained on nothing.

    Returns:
        The rows that are left, and how many were dropped. Rows without a step, or with one step twice, all stay.
    """
    newest: dict[tuple[str, str], int] = {}
    places = [(str(_get(row, names, "seed")), str(_get(row, names, "compute"))) for row in rows]
    steps = [row.values.get("step") for row in rows]
    for place, step in zip(places, steps):
        if isinstance(step, int):
            newest[place] = max(step, newest.get(place, step))
    kept = [row for row, place, step in zip(rows, places, steps) if not isinstance(step, int) or step == newest[place]]
    return kept, len(rows) - len(kept)


def _refuse_duplicates(table: Table, names: Mapping[str, str], rows: Sequence[Row], keys: Sequence[Any]) -> None:
    first: dict[Any, int] = {}
    for row, key in zip(rows, keys):
        if key in first:
            raise LabError(
                f"{table.path}, row {row.number}, column {names['compute']}: {key[1]:g} is in row {first[key]} too; "
                "keep one, or tell the runs apart by a run or seed column"
            )
        first[key] = row.number


def _resolve_columns(table: Table, columns: Mapping[str, str]) -> dict[str, str]:
    """Our names → the file's names, for those it has."""
    present = set(table.columns)
    for ours, theirs in columns.items():
        if theirs not in present:
            raise LabError(f"{table.path}: no column {theirs!r} for {ours}; it has {listed(table.columns)}")
    names = {name: name for name in COLUMNS if name in present}
    hours = [name for name in UNITS if name in present]
    if "compute" not in names and "compute" not in columns and hours:
        if len(hours) > 1:
            raise LabError(f"{table.path}: mixed units, both {hours[0]} and {hours[1]}; choose: --column compute=…")
        names["compute"] = hours[0]
    names |= columns
    for needed in ("compute", "pass_rate"):
        if needed not in names:
            raise LabError(
                f"{table.path}: no column {needed}; it has {listed(table.columns)}; map one: --column {needed}=NAME"
            )
    return names


def listed(columns: Sequence[str]) -> str:
    """The first dozen names, for a message."""
    return ", ".join(list(columns)[:12]) + (", …" if len(columns) > 12 else "") if columns else "no columns"


def blank(cell: Any) -> bool:
    """True if a cell is empty, or holds the text or number NaN."""
    return cell is None or str(cell).strip().lower() in ("", "nan", "null", "none")


def _get(row: Row, names: Mapping[str, str], name: str) -> Any:
    value = row.values.get(names[name]) if name in names else None
    return None if value == "" else value


def _number(table: Table, row: Row, names: Mapping[str, str], name: str) -> float:
    value = _get(row, names, name)
    where, column = f"{table.path}, row {row.number}", row.called.get(names[name], names[name])
    if value is None:
        raise LabError(f"{where}, column {column}: empty; remove the row or fill it in")
    try:
        number = float(value)
    except (TypeError, ValueError):
        remedy = "write decimals with a point" if "," in str(value) else "mend it or remove the row"
        raise LabError(f"{where}, column {column}: {value!r:.60} is not a number; {remedy}") from None
    low, high = table.facts.get("rate_range", (0.0, 1.0))
    if name == "pass_rate":
        number = (number - low) / (high - low)
    elif name == "stderr":
        number /= high - low
    try:
        check_number(number, name, where)
    except LabError as error:
        raise LabError(str(error).replace(f"column {name}", f"column {column}")) from None
    return number


def _stderr(table: Table, row: Row, names: Mapping[str, str]) -> float | None:
    """The standard error of a row: the one given, or the binomial one of its samples.

    A given zero says only that all samples passed or all failed, so the samples decide where they are known.
    """
    samples = _samples(table, row, names)
    given = _get(row, names, "stderr")
    if given is not None and not (samples and given in (0, "0", "0.0")):
        return _number(table, row, names, "stderr")
    return None if samples is None else binomial_stderr(_number(table, row, names, "pass_rate"), samples)


def _samples(table: Table, row: Row, names: Mapping[str, str]) -> float | None:
    if _get(row, names, "n") is not None:
        return _number(table, row, names, "n")
    if _get(row, names, "n_prompts") is None:
        return None
    k = _number(table, row, names, "k") if _get(row, names, "k") is not None else 1.0
    return _number(table, row, names, "n_prompts") * k


def _unit(table: Table, names: Mapping[str, str], rows: Sequence[Row]) -> str:
    if names["compute"] in UNITS:
        return UNITS[names["compute"]]
    if names["compute"] in AXES:
        return AXES[names["compute"]]
    units = {str(_get(row, names, "compute_unit") or table.facts.get("unit", "compute")): row for row in rows}
    if len(units) > 1:
        (first, _), (second, row) = list(units.items())[:2]
        raise LabError(
            f"{table.path}, row {row.number}, column {names['compute_unit']}: mixed units, {second} after {first}; "
            "convert one"
        )
    return next(iter(units))


def _epoch_end(table: Table, names: Mapping[str, str], rows: Sequence[Row], compute: Sequence[float]) -> float | None:
    """Compute of the first evaluation after the first epoch, by an `epoch` column; None where no column says."""
    if "epoch" not in names:
        return None
    outside = [spent for row, spent in zip(rows, compute) if _number(table, row, names, "epoch") >= 1]
    return min(outside, default=None)
