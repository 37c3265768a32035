"""Other people's logs as tables: TensorBoard event files, W&B exports (CSV), Parquet.

What a log calls pass rate and compute differs, so both can be mapped: `pass_rate=eval/*/accuracy` takes every matching
tag for a task named by the star; `compute=perf/gpu_hours` names a tag or column, `compute=step` the step itself (to be
scaled to hours by `--compute-scale`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from scalelab.curves.reading.table import Row, Table, blank, listed
from scalelab.errors import LabError

COMPUTE_NAMES = ("compute", "gpu_hours", "core_hours")
STEP_NAMES = ("step", "_step", "Step", "global_step", "train/global_step", "trainer/global_step")
DEFAULT_PASS_RATE = "*pass_rate"
EXTRAS = ("n", "n_prompts", "k", "stderr", "epoch")
"""Columns that a log may have beside compute and pass rate, where `columns` says under which names."""


def read_parquet(path: Path) -> Table:
    """A Parquet file; its rows count from 1."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise LabError(
            f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or convert the file to CSV"
        ) from None
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise LabError(f"{path}: not a Parquet file ({str(error).splitlines()[0]})") from None
    rows = [Row(number, values) for number, values in enumerate(table.to_pylist(), 1)]
    return Table(path, table.column_names, rows, path.stem)


def is_tensorboard(path: Path) -> bool:
    """True for an event file, or a folder with event files in it."""
    return "tfevents" in path.name if path.is_file() else any(path.glob("*tfevents*"))


def read_tensorboard(path: Path, columns: Mapping[str, str]) -> Table:
    """Scalars of TensorBoard event files, one row per evaluation and task.

    Compute is a scalar of its own; each evaluation takes the last value at or before its step.
    """
    scalars = _load_scalars(path)
    rates = _matching(scalars, columns.get("pass_rate", DEFAULT_PASS_RATE))
    if not rates:
        wanted = columns.get("pass_rate", DEFAULT_PASS_RATE)
        raise LabError(
            f"{path}: no scalar {wanted!r}; it has {listed(sorted(scalars))}; map one: --column pass_rate=TAG"
        )
    compute_tag, unit = _compute_name(list(scalars), columns, path)
    spent = None if compute_tag in STEP_NAMES and compute_tag not in scalars else sorted(scalars[compute_tag])
    rates.pop(compute_tag, None)  # a lone star matches it as well
    extras = _extras(scalars, columns, path, list(rates.values()))
    rows: list[Row] = []
    for tag, task in rates.items():
        for step, rate in sorted(scalars[tag]):
            compute = float(step) if spent is None else _latest_before(spent, step)
            if compute is None:
                raise LabError(
                    f"{path}: scalar {compute_tag} has no value at or before step {step}, where {tag} has one"
                )
            values = {"step": step, "compute": compute, "pass_rate": rate, "task": task}
            values |= {name: dict(scalars[of[task]]).get(step) for name, of in extras.items()}
            called = {"pass_rate": tag, "compute": compute_tag} | {name: of[task] for name, of in extras.items()}
            at_step = {name: f"{theirs} (step {step})" for name, theirs in called.items()}
            rows.append(Row(len(rows) + 1, values, at_step))
    run = path.resolve().name if path.is_dir() else path.resolve().parent.name
    return Table(path, ("step", "compute", "pass_rate", "task", *extras), rows, run, {"unit": unit})


def _load_scalars(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag → (step, value), the last value of a step standing."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise LabError(f"{path}: reading TensorBoard events needs tensorboard: pip install tensorboard") from None
    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    found: dict[str, dict[int, float]] = {}
    for tag in events.Tags()["scalars"]:
        found[tag] = {event.step: float(event.value) for event in events.Scalars(tag)}
    for tag in events.Tags()["tensors"]:  # newer writers store scalars as tensors
        values = {}
        for event in events.Tensors(tag):
            if event.tensor_proto.float_val:
                values[event.step] = float(event.tensor_proto.float_val[0])
        if values:
            found[tag] = values
    return {tag: list(values.items()) for tag, values in found.items()}


def _latest_before(spent: Sequence[tuple[int, float]], step: int) -> float | None:
    before = [value for at, value in spent if at <= step]
    return before[-1] if before else (0.0 if step == 0 else None)


def is_wandb(columns: Sequence[str]) -> bool:
    """True if a CSV's header is W&B's: chart exports name columns `RUN - METRIC`, history exports have `_step`."""
    return ("_step" in columns and "pass_rate" not in columns) or any(f"{name}__MIN" in columns for name in columns)


def from_wandb(table: Table, columns: Mapping[str, str]) -> Table:
    """A W&B export, as charts or as a run's history, with empty cells (a step without an evaluation) left out."""
    charts = any(name.endswith("__MIN") for name in table.columns)
    return _from_chart(table, columns) if charts else _from_history(table, columns)


def _from_chart(table: Table, columns: Mapping[str, str]) -> Table:
    """`RUN - METRIC` columns over one x column, the first; a chart has nothing else."""
    _extras((), columns, table.path, (), allowed=())
    metrics = [name for name in table.columns[1:] if " - " in name and not name.endswith(("__MIN", "__MAX"))]
    metrics = [name for name in metrics if not name.rsplit(" - ", 1)[1].startswith("_")]  # W&B's own: _step, _runtime
    split = {name: tuple(part.strip() for part in name.rsplit(" - ", 1)) for name in metrics}
    names = {metric: None for _, metric in split.values()}
    wanted = _matching(names, columns["pass_rate"]) if "pass_rate" in columns else _tasks(names)
    compute, unit = _compute_name(list(table.columns[:1]), columns, table.path, only=table.columns[0])
    rows = [
        Row(
            row.number,
            {"compute": row.values[compute], "pass_rate": row.values[name], "run": run, "task": wanted[metric]},
            {"compute": compute, "pass_rate": name},
        )
        for name, (run, metric) in split.items()
        if metric in wanted
        for row in table.rows
        if not blank(row.values[name])
    ]
    return Table(table.path, ("compute", "pass_rate", "run", "task"), rows, table.run, {"unit": unit})


def _from_history(table: Table, columns: Mapping[str, str]) -> Table:
    """One column per metric, one row per logged step; compute logged apart is the last at or before the evaluation."""
    wanted = _matching(dict.fromkeys(table.columns), columns.get("pass_rate", DEFAULT_PASS_RATE))
    if not wanted:
        raise LabError(
            f"{table.path}: no column for pass_rate; it has {listed(table.columns)}; map one: --column pass_rate=NAME"
        )
    compute, unit = _compute_name(table.columns, columns, table.path)
    wanted.pop(compute, None)  # a lone star matches it as well
    extras = _extras(table.columns, columns, table.path, list(wanted.values()))
    spent: list[Any] = list(accumulate((row.values[compute] for row in table.rows), lambda last, here: here or last))
    rows = [
        Row(
            row.number,
            {"compute": so_far, "pass_rate": row.values[name], "task": task}
            | {ours: row.values[of[task]] for ours, of in extras.items()},
            {"compute": compute, "pass_rate": name} | {ours: of[task] for ours, of in extras.items()},
        )
        for name, task in wanted.items()
        for row, so_far in zip(table.rows, spent)
        if not blank(row.values[name])
    ]
    return Table(table.path, ("compute", "pass_rate", "task", *extras), rows, table.run, {"unit": unit})


def _compute_name(
    present: Sequence[str], columns: Mapping[str, str], path: Path, only: str | None = None
) -> tuple[str, str]:
    """The tag or column that is compute, and its unit."""
    units = {"gpu_hours": "GPU-hours", "core_hours": "core-hours"}
    if "compute" in columns:
        name = columns["compute"]
        if name not in present and name in STEP_NAMES:
            name = next((step for step in STEP_NAMES if step in present), name)
        if name not in present and not (name in STEP_NAMES and only is None):
            raise LabError(f"{path}: no column {name!r} for compute; it has {listed(present)}")
        return name, units.get(name.rsplit("/", 1)[-1], "compute")
    for name in present:
        short = name.rsplit("/", 1)[-1]
        if short in COMPUTE_NAMES:
            return name, units.get(short, "compute")
    raise LabError(
        f"{path}: no column for compute; it has {listed(present)}; map one: --column compute=NAME, or "
        "--column compute=step with --compute-scale HOURS_PER_STEP"
    )


def _extras(
    present: Iterable[str],
    columns: Mapping[str, str],
    path: Path,
    tasks: Sequence[str],
    allowed: Sequence[str] = EXTRAS,
) -> dict[str, dict[str, str]]:
    """Our name → task → its name in the log, of what is mapped beside compute and pass rate.

    A star in the mapping stands for the task, as in that of the pass rate; a name without one serves all tasks.
    """
    other = [name for name in columns if name not in ("compute", "pass_rate", *allowed)]
    if other:
        there = ", ".join(("compute", "pass_rate", *allowed))
        raise LabError(f"{path}: this kind of log has no {other[0]}; it can have {there}")
    found = {}
    for ours in allowed:
        if ours not in columns:
            continue
        named = {task: name for name, task in _matching(dict.fromkeys(present), columns[ours]).items()}
        if named and "*" not in columns[ours]:
            named = dict.fromkeys(tasks, next(iter(named.values())))
        missing = [task for task in tasks if task not in named]
        if missing:
            of_task = f" of {missing[0]}" if missing[0] else ""
            raise LabError(f"{path}: no {columns[ours]!r} for {ours}{of_task}; it has {listed(sorted(present))}")
        found[ours] = named
    return found


def _matching(names: Mapping[str, Any], pattern: str) -> dict[str, str]:
    """Names that a pattern with stars matches → the task that the first star stands for."""
    expression = re.compile("(.*)".join(re.escape(part) for part in pattern.split("*")))
    found = {}
    for name in names:
        match = expression.fullmatch(name)
        if match:
            found[name] = match.group(1).strip("/_- ").rsplit("/", 1)[-1] if match.groups() else ""
    return found


def _tasks(names: Mapping[str, Any]) -> dict[str, str]:
    """Tasks of a chart's metrics: none if there is one metric, else the metrics' names."""
    return {name: "" for name in names} if len(names) == 1 else {name: name for name in names}
