"""Read curves: run folders, CSV and JSONL here, other people's logs in `logs`."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.curves.data import Curve, same_unit
from scalelab.curves.reading import logs
from scalelab.curves.reading.axes import config_axes
from scalelab.curves.reading.table import COLUMNS, Row, Table, blank, listed, table_curves
from scalelab.errors import LabError
from scalelab.jsonl import read_objects

SEED_FOLDER = re.compile(r"seed[_-]?\d+")
"""Name of the folder of one seed; `scalelab run` calls them `seed_0`, `seed_1`, …"""


@dataclass(frozen=True)
class RunPaths:
    """Paths of one run's points.

    Attributes:
        path: its folder or file.
        seeds: the run folder of each seed; `path` itself where the run has no seeds below it.
    """

    path: Path
    seeds: tuple[Path, ...]


def runs_in(path: Path) -> list[RunPaths]:
    """The runs of a source: itself, or those of a folder of runs, in the order of their names.

    Folders of runs may hold others; runs without an evaluation yet are left out.
    """
    below = [] if (path / "evals.jsonl").is_file() or not path.is_dir() else _evaluated_runs(path)
    if not below:
        return [RunPaths(path, (path,))]
    runs: dict[Path, list[Path]] = {}
    for folder in below:
        runs.setdefault(folder.parent if SEED_FOLDER.fullmatch(folder.name) else folder, []).append(folder)
    return [RunPaths(run, tuple(seeds)) for run, seeds in runs.items()]


def run_names(runs: Sequence[RunPaths]) -> list[str | None]:
    """Names for the runs that would otherwise share one: the folder's name is put before it."""
    stems = [run.path.resolve().name if run.path.is_dir() else run.path.stem for run in runs]
    count = Counter(stems)
    return [f"{run.path.resolve().parent.name}/{stem}" if count[stem] > 1 else None for run, stem in zip(runs, stems)]


def _evaluated_runs(path: Path) -> list[Path]:
    """Run folders below a folder, at most three deep (family, member, seed), that have an evaluation."""
    found = {file.parent for depth in ("*", "*/*", "*/*/*") for file in path.glob(f"{depth}/evals.jsonl")}
    return sorted(folder for folder in found if (folder / "evals.jsonl").stat().st_size)


def read_sources(
    sources: Sequence[str | Path],
    columns: Mapping[str, str] | None = None,
    *,
    compute_scale: float = 1.0,
    unit: str | None = None,
    rate_range: tuple[float, float] = (0.0, 1.0),
) -> list[Curve]:
    """The curves of several sources, each a run of its own, and a folder of runs as many as it holds.

    Args:
        sources: run folders, folders of runs, or CSV, JSONL, Parquet files; TensorBoard event files or folders; W&B
            exports (CSV).
        columns: our name of a column → the file's name for it.
        compute_scale: factor from the file's compute to hours, such as hours per step.
        unit: unit of compute after scaling; None takes the file's word for it.
        rate_range: what the file calls a pass rate of 0 and one of 1, such as 0 and 100, or −1 and 1 for a reward.

    Raises:
        LabError: a source is missing, unreadable or holds a value that cannot be; one line naming the place.
    """
    if not (compute_scale > 0 and np.isfinite(compute_scale)):
        raise LabError(f"a compute scale of {compute_scale:g} makes no sense: give a positive factor")
    if not rate_range[0] < rate_range[1] or not np.isfinite(rate_range).all():
        raise LabError(f"a rate range from {rate_range[0]:g} to {rate_range[1]:g} makes no sense: give the lower first")
    paths = [Path(source) for source in sources]
    found = [run for path in paths for run in runs_in(path)]
    curves = [
        item for run, name in zip(found, run_names(found)) for item in _read_run(run, columns or {}, name, rate_range)
    ]
    if compute_scale != 1 or unit is not None:
        curves = [_rescale(item, compute_scale, unit) for item in curves]
    return curves


def read_source(
    path: Path, columns: Mapping[str, str], run: str | None = None, rate_range: tuple[float, float] = (0.0, 1.0)
) -> list[Curve]:
    """The curves of one source, sorted by run and task.

    Args:
        path: the source.
        columns: our name of a column → the file's name for it.
        run: name of the run where no column says it; None takes the file's or folder's.
        rate_range: what the file calls a pass rate of 0 and one of 1.
    """
    unknown = sorted(set(columns) - set(COLUMNS))
    if unknown:
        raise LabError(f"--column {unknown[0]}=…: no such column; the columns are {', '.join(COLUMNS)}")
    table, columns = read_table(path, columns)
    table = replace(table, facts={**table.facts, "rate_range": rate_range})
    return table_curves(replace(table, run=run) if run else table, columns)


def read_table(path: Path, columns: Mapping[str, str]) -> tuple[Table, Mapping[str, str]]:
    """The rows of a source, whatever its format, and what of the column mapping is still to be applied to them."""
    if not path.exists():
        raise LabError(f"{path}: no such file or folder")
    if path.is_dir() and (path / "evals.jsonl").exists():
        return _read_run_folder(path), columns
    if logs.is_tensorboard(path):
        return logs.read_tensorboard(path, columns), {}
    if path.is_dir():
        raise LabError(
            f"{path}: neither evals.jsonl nor runs that have one nor TensorBoard events in it; give a run folder or a "
            "table of points"
        )
    if path.suffix in (".csv", ".tsv"):
        table = _read_csv(path)
        wide = logs.is_wandb(table.columns) or "*" in columns.get("pass_rate", "")  # one column for each task
        return (logs.from_wandb(table, columns), {}) if wide else (table, columns)
    if path.suffix in (".jsonl", ".ndjson"):
        rows, notes = read_json_lines(path)
        return Table(path, _all_columns(rows), rows, path.stem, notes=notes), columns
    if path.suffix == ".json":
        rows = _read_json(path)
        return Table(path, _all_columns(rows), rows, path.stem), columns
    if path.suffix == ".parquet":
        return logs.read_parquet(path), columns
    raise LabError(
        f"{path}: unknown kind of file; give a run folder, .csv, .tsv, .json, .jsonl, .parquet or TensorBoard events"
    )


def pool(curves: Sequence[Curve], run: str) -> list[Curve]:
    """Several runs as the seeds of one: for every task, one curve whose seeds are the runs.

    Raises:
        LabError: the runs count compute in different units.
    """
    unit = same_unit(curves)
    pooled = []
    for task in dict.fromkeys(item.task for item in curves):
        members = [item for item in curves if item.task == task]
        seeds = [seed for item in members for seed in item.seeds]
        if not all(seeds) or len(set(seeds)) < len(seeds):
            seeds = [f"{item.run} {seed}".strip() for item in members for seed in item.seeds]
        offsets = np.cumsum([0, *(len(item.seeds) for item in members)])
        known = all(item.stderr_N is not None for item in members)
        ends = [item.epoch_end for item in members if item.epoch_end is not None]
        compute_N = np.concatenate([item.compute_N for item in members])
        whole = Curve(
            source=", ".join(dict.fromkeys(item.source for item in members)),
            run=run,
            task=task,
            compute_N=compute_N,
            pass_rate_N=np.concatenate([item.pass_rate_N for item in members]),
            stderr_N=np.concatenate([item.stderr_N for item in members if item.stderr_N is not None])
            if known
            else None,
            seed_N=np.concatenate([item.seed_N + offset for item, offset in zip(members, offsets)]),
            seeds=tuple(seeds),
            unit=unit,
            epoch_end=max(ends) if ends else None,
            fit_window=members[0].fit_window if len({item.fit_window for item in members}) == 1 else (None, None),
            notes=tuple(dict.fromkeys(note for item in members for note in item.notes)),
            recipe=members[0].recipe if len({item.recipe for item in members}) == 1 else "",
            clock=members[0].clock if len({item.clock for item in members}) == 1 else "",
            places=dict(set.intersection(*(set(item.places.items()) for item in members))),
        )
        pooled.append(whole.select(np.lexsort((whole.seed_N, compute_N))))
    return pooled


def pool_seeds(curves: Sequence[Curve]) -> tuple[list[Curve], list[str]]:
    """Pool runs that differ in their seed alone, and say so of each.

    Runs are known to do so by their configurations, so only run folders are pooled.
    """
    groups: dict[str, list[Curve]] = {}
    for item in curves:
        groups.setdefault(item.recipe or f"{item.source}\0{item.run}", []).append(item)
    pooled, notes = [], []
    for members in groups.values():
        runs = list(dict.fromkeys(item.run for item in members))
        if len(runs) == 1:
            pooled += members
            continue
        name = runs[0]
        pooled += pool(members, name)
        notes.append(f"{', '.join(runs)} differ in their seed alone and were pooled as {name}")
    return pooled, notes


def _read_run(
    run: RunPaths, columns: Mapping[str, str], name: str | None, rate_range: tuple[float, float]
) -> list[Curve]:
    """The curves of one run, its seeds pooled."""
    if run.seeds == (run.path,):
        return read_source(run.path, columns, name, rate_range)
    return pool(
        [item for path in run.seeds for item in read_source(path, columns, None, rate_range)],
        name or run.path.resolve().name,
    )


def _rescale(item: Curve, scale: float, unit: str | None) -> Curve:
    epoch_end, since, until = (None if end is None else end * scale for end in (item.epoch_end, *item.fit_window))
    return replace(
        item,
        compute_N=item.compute_N * scale,
        unit=unit or item.unit,
        epoch_end=epoch_end,
        fit_window=(since, until),
    )


def read_json_lines(path: Path) -> tuple[list[Row], tuple[str, ...]]:
    """Rows of a JSONL file, and a note if its last line is torn (a run killed while writing) and was left out."""
    objects, torn = read_objects(path)
    notes = (f"{path.name}: the last line is torn and was left out",) if torn else ()
    return [Row(number, record) for number, record in objects], notes


def _read_json(path: Path) -> list[Row]:
    """Rows of a JSON file: a list of objects, or an object of lists of one length."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise LabError(f"{path}: not JSON; mend it, or give one object per line as .jsonl") from None
    if isinstance(content, dict) and content and all(isinstance(item, list) for item in content.values()):
        if len({len(item) for item in content.values()}) > 1:
            raise LabError(f"{path}: its lists differ in length; every column needs a value for every evaluation")
        content = [dict(zip(content, values)) for values in zip(*content.values())]
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise LabError(f"{path}: neither a list of objects nor an object of lists; every object is one evaluation")
    return [Row(number, record) for number, record in enumerate(content, 1)]


def _all_columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.values))


def _read_csv(path: Path) -> Table:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = error.object[: error.start].count(b"\n") + 1
        raise LabError(
            f"{path}, row {row}: byte {error.object[error.start]:#x} is not UTF-8; save it as that"
        ) from None
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    header = [name.strip() for name in next(reader, [])]
    if not header:
        raise LabError(f"{path}: the file is empty; it needs a header and a row for each evaluation")
    rows = []
    for record in reader:
        if not any(field.strip() for field in record):
            continue
        if len(record) != len(header):
            raise LabError(
                f"{path}, row {reader.line_num}: {len(record)} fields under {len(header)} columns; put fields with "
                f"{delimiter!r} in them into quotes, or mend the row"
            )
        rows.append(Row(reader.line_num, {name: field.strip() for name, field in zip(header, record)}))
    return Table(path, header, rows, path.stem)


def _read_run_folder(path: Path) -> Table:
    evals, manifest = path / "evals.jsonl", path / "manifest.json"
    rows, notes = read_json_lines(evals)
    facts: dict[str, Any] = {}
    if manifest.exists():
        try:
            facts = json.loads(manifest.read_bytes())
        except (ValueError, RecursionError):
            raise LabError(f"{manifest}: not JSON; mend or remove it") from None
        if not isinstance(facts, dict):
            raise LabError(f"{manifest}: not a JSON object; mend or remove it")
    rows = list(_latest(rows))
    held_out = facts.get("held_out")
    tasks = list(held_out) if isinstance(held_out, dict) else []
    found, unread = _configuration(path / "config.gin", tasks)
    return Table(path, _all_columns(rows), rows, path.resolve().name, facts | found, (*notes, *unread))


def _configuration(config: Path, tasks: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Facts of a run's `config.gin`, "recipe" and "places", and a note if it cannot be read."""
    from scalelab.experiment import read_settings, recipe_digest  # gin, which fits of tables do without

    if not config.is_file():
        return {"recipe": "", "places": {}}, ()
    try:
        settings = read_settings(config)
    except LabError as error:
        return {"recipe": "", "places": {}}, (f"its configuration gives no axes: {error}",)
    return {"recipe": recipe_digest(settings), "places": config_axes(settings, tasks)}, ()


def read_places(path: Path) -> dict[str, dict[str, float]]:
    """Places of runs on scaling axes: a table with a column `run`, and one column for every axis.

    Raises:
        LabError: no such column, a run twice, or a value that is no number.
    """
    table, _ = read_table(path, {})
    if "run" not in table.columns:
        raise LabError(f"{path}: no column run; it has {listed(table.columns)}")
    found: dict[str, dict[str, float]] = {}
    for row in table.rows:
        run = str(row.values.get("run"))
        if run in found:
            raise LabError(f"{path}, row {row.number}, column run: {run} is there twice; keep one row for each run")
        found[run] = {}
        for column in table.columns:
            cell = row.values.get(column)
            if column == "run" or blank(cell):
                continue
            try:
                found[run][column] = float(str(cell))
            except (TypeError, ValueError, OverflowError):
                raise LabError(
                    f"{path}, row {row.number}, column {column}: {cell!r} is not a number; mend it or leave it empty"
                ) from None
    return found


def _latest(rows: Sequence[Row]) -> Iterator[Row]:
    """Keep the last row of every step: a resumed run repeats in the same file the steps that it lost."""
    kept: dict[Any, list[Row]] = {}
    for row in rows:
        of_task = kept.setdefault(str(row.values.get("task")), [])
        while of_task and _step(of_task[-1]) >= _step(row):
            of_task.pop()
        of_task.append(row)
    yield from sorted((row for of_task in kept.values() for row in of_task), key=lambda row: row.number)


def _step(row: Row) -> float:
    """The step of a row; its place in the file where it has none that is a number."""
    try:
        return float(str(row.values.get("step")))
    except (ValueError, OverflowError):
        return float(row.number)
