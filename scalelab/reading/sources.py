"""Read sources: run folders, folders of runs, tables, and other people's logs, all as curves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.arrays import Array
from scalelab.errors import LabError
from scalelab.reading import tensorboard
from scalelab.reading.branches import copies, counted_once, with_trunks_told
from scalelab.reading.cells import numbers
from scalelab.reading.columns import recognise
from scalelab.reading.curve import Curve, check_numbers, same_unit
from scalelab.reading.formats import read_file
from scalelab.reading.kept import RunContent, kept_reading
from scalelab.reading.means import with_mean
from scalelab.reading.points import CurveReader
from scalelab.reading.run_folder import read_run_folder
from scalelab.reading.settings import COLUMNS, Reading
from scalelab.reading.table import Table, dozen
from scalelab.reading.throughput import slow_stretch
from scalelab.store.manifest import EVALS, MANIFEST

SEED_FOLDER = re.compile(r"seed[_-]?\d+")
"""Name of the folder of one seed; `scalelab run` calls them `seed_0`, `seed_1`, …"""


LATE = 0.8
"""Share of the compute of the last evaluation that the first may have; more is no curve from the start of RL."""


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
    begun = [one for one in run_folders(path, links=True) if (one / EVALS).is_file()]
    below = [one for one in begun if (one / EVALS).stat().st_size]
    if not below:
        return [RunPaths(path, (path,))]
    runs: dict[Path, list[Path]] = {}
    for folder in below:
        runs.setdefault(folder.parent if SEED_FOLDER.fullmatch(folder.name) else folder, []).append(folder)
    return [RunPaths(run, tuple(seeds)) for run, seeds in runs.items()]


def run_names(runs: Sequence[RunPaths]) -> list[str | None]:
    """Names for the runs whose files or folders share one; None for the others."""
    names = distinct_names([run.path for run in runs])
    return [None if name == _stem(run.path) else name for run, name in zip(runs, names)]


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Names of runs by their files or folders: the folder above is put before those that would share one."""
    stems = [_stem(path) for path in paths]
    count = Counter(stems)
    names = [f"{path.resolve().parent.name}/{stem}" if count[stem] > 1 else stem for path, stem in zip(paths, stems)]
    again = Counter(names)
    return [name if again[name] == 1 else f"{name} ({names[: at + 1].count(name)})" for at, name in enumerate(names)]


def _stem(path: Path) -> str:
    return path.stem if path.is_file() else path.resolve().name


def is_run(path: Path) -> bool:
    """True for a run folder, with or without an evaluation."""
    return (path / EVALS).is_file() or (path / MANIFEST).is_file()


def run_folders(path: Path, links: bool = False) -> list[Path]:
    """Run folders below a folder of runs, at most three deep (family, member, seed), in the order of their names.

    What lies in a run's folder belongs to it. One with a manifest alone is a run only if there is none below it.

    Args:
        path: the folder of runs; a run itself has none.
        links: whether links that lead out of it are followed.
    """
    if (path / EVALS).is_file() or not path.is_dir():
        return []
    root = path.resolve()
    evaluated, named = (
        {file.parent for depth in ("*", "*/*", "*/*/*") for file in path.glob(f"{depth}/{name}")}
        for name in (EVALS, MANIFEST)
    )
    found = evaluated | {folder for folder in named if not any(folder in one.parents for one in evaluated)}
    found = {folder for folder in found if links or folder.resolve().is_relative_to(root)}
    return sorted(folder for folder in found if not any(parent in found for parent in folder.parents))


@dataclass(frozen=True)
class ReadLog:
    """One file or run folder as it was read.

    Attributes:
        path: the file or folder.
        kind: what it was recognised as.
        columns: our name of a column → the names in the log that were taken for it.
        left: columns that were not taken.
        rows: rows, lines or steps of the log.
        curves: its curves.
    """

    path: Path
    kind: str
    columns: Mapping[str, tuple[str, ...]]
    left: tuple[str, ...]
    rows: int
    curves: tuple[Curve, ...]


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
        sources: run folders, folders of runs, or files: tables, other trainers' logs, TensorBoard events, W&B exports.
        columns: our name of a column → the file's name for it.
        compute_scale: factor from the file's compute to hours, such as hours per step.
        unit: unit of compute after scaling; None takes the file's word for it.
        rate_range: what the file calls a pass rate of 0 and one of 1, such as 0 and 100, or −1 and 1 for a reward.

    Raises:
        LabError: a source is missing, unreadable or holds a value that cannot be; one line naming the place.
    """
    return read_with(sources, Reading(columns or {}, compute_scale, unit, rate_range))


def read_with(
    sources: Sequence[str | Path], reading: Reading, change: Callable[[list[Curve]], list[Curve]] | None = None
) -> list[Curve]:
    """The curves of several sources by these settings, as `read_sources` gives them.

    Args:
        sources: as for `read_sources`.
        reading: the settings.
        change: applied to the curves of every log, before seeds are pooled.

    Raises:
        LabError: a source is missing, unreadable or holds a value that cannot be; one line naming the place.
    """
    found = [run for source in sources for run in runs_in(Path(source))]
    read = [_read_run(run, reading, name, change) for run, name in zip(found, run_names(found))]
    return with_trunks_told(distinct_runs(list(zip(distinct_names([run.path for run in found]), read))))


def distinct_runs(logs: Sequence[tuple[str, Sequence[Curve]]]) -> list[Curve]:
    """The curves of several logs: seeds of one run are joined, and other runs of one name have their logs' before it.

    Args:
        logs: name of each log, which no other has, and its curves.
    """
    homes: dict[tuple[str, str], dict[str, Curve]] = {}
    for name, curves in logs:
        for item in curves:
            homes.setdefault((item.run, item.task), {})[name] = item
    shared = {key: list(items.values()) for key, items in homes.items() if len(items) > 1}
    parted = {run for (run, _), items in shared.items() if not _are_seeds(items)}
    found: list[Curve] = []
    for name, curves in logs:
        for item in curves:
            items = shared.get((item.run, item.task), [item])
            if item.run in parted:
                found.append(replace(item, run=f"{name}/{item.run}") if item.run != name else item)
            elif item is items[0]:
                found += _joined_seeds(items) if len(items) > 1 else items
    return found


def _joined_seeds(curves: Sequence[Curve]) -> list[Curve]:
    """The curves of one run and task in several logs as one, with a note that they were taken for its seeds."""
    run = curves[0].run
    note = f"{', '.join(item.source for item in curves)} name seeds of {run}, and were joined"
    return [replace(item, notes=(*item.notes, note)) for item in pool(curves, run)]


def _are_seeds(curves: Sequence[Curve]) -> bool:
    """True if curves of logs name their seeds, each of which is of one alone; a run folder is known by its settings."""
    seeds = [seed for item in curves for seed in item.seeds]
    return all(seeds) and len(set(seeds)) == len(seeds) and not any(item.recipe for item in curves)


def open_sources(sources: Sequence[str | Path], reading: Reading) -> list[ReadLog]:
    """Several sources with the curves that `read_with` gives, seeds of one run not pooled.

    Raises:
        LabError: a source is missing, unreadable or holds a value that cannot be; one line naming the place.
    """
    found = [run for source in sources for run in runs_in(Path(source))]
    return [
        open_source(seed, reading, name if run.seeds == (run.path,) else None)
        for run, name in zip(found, run_names(found))
        for seed in run.seeds
    ]


def open_source(path: Path, reading: Reading, run: str | None = None) -> ReadLog:
    """Read one file or run folder.

    Args:
        path: the source.
        reading: how it is read.
        run: name of the run where no column says it; None takes the file's or folder's.

    Raises:
        LabError: it is missing, unreadable or holds a value that cannot be; one line naming the place.
    """
    if not _has_evaluations(path):
        return open_table(read_table(path), path, reading, run)

    def read(files: RunContent) -> tuple[Any, ...]:
        table = read_run_folder(path, (*reading.tasks, *reading.metrics, *reading.mean), files)
        log = open_table(table, path, reading, run)
        return log.kind, log.columns, log.left, log.rows, log.curves

    return ReadLog(path, *kept_reading(path, (reading, run), read))


def open_table(table: Table, path: Path, reading: Reading, run: str | None = None) -> ReadLog:
    """Read a table that is in memory already; arguments and errors as of `open_source`."""
    recognised = recognise(table, reading)
    curves = CurveReader(replace(table, run=run) if run else table, recognised, reading).curves()
    curves = [item for item in with_mean(curves, reading) if not reading.tasks or item.task in reading.tasks]
    names = [part.names for part in recognised.parts]
    columns = {
        ours: tuple(dict.fromkeys(one[ours] for one in names if ours in one))
        for ours in COLUMNS
        if any(ours in one for one in names)
    }
    taken = {name for several in columns.values() for name in several}
    left = tuple(name for name in table.columns if name not in taken)
    if table.folder:
        curves = [replace(item, notes=(*item.notes, *filter(None, [slow_stretch(item)]))) for item in curves]
    scaled = tuple(_rescale(item, reading) for item in curves)
    return ReadLog(path, table.kind, columns, left, len(table.rows), scaled)


def _has_evaluations(path: Path) -> bool:
    return path.is_dir() and (path / EVALS).exists()


def read_table(path: Path) -> Table:
    """The cells of a source, whatever its format."""
    if not path.exists():
        raise LabError(f"{path}: no such file or folder")
    if _has_evaluations(path):
        return read_run_folder(path)
    if tensorboard.is_tensorboard(path):
        return tensorboard.read_tensorboard(path)
    if path.is_dir() and (path / "trainer_state.json").exists():
        return read_file(path / "trainer_state.json")
    if path.is_dir():
        raise LabError(
            f"{path}: neither {EVALS} nor runs that have one nor TensorBoard events in it; give a run folder or a "
            "table of points"
        )
    return read_file(path)


def pool(curves: Sequence[Curve], run: str) -> list[Curve]:
    """Several runs as the seeds of one: for every task, one curve whose seeds are the runs.

    Raises:
        LabError: the runs count compute in different units.
    """
    unit = same_unit(curves)
    pooled = []
    for task in dict.fromkeys(item.task for item in curves):
        given = [item for item in curves if item.task == task]
        members, copied = counted_once(given), copies(given)
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
            notes=(
                *dict.fromkeys(note for item in members for note in item.notes),
                *(
                    f"{given[one].source} is a copy of {given[of].source}, and counts once"
                    for one, of in copied.items()
                ),
            ),
            recipe=members[0].recipe if len({item.recipe for item in members}) == 1 else "",
            clock=members[0].clock if len({item.clock for item in members}) == 1 else "",
            places=dict(set.intersection(*(set(item.places.items()) for item in members))),
            measure=members[0].measure if len({item.measure for item in members}) == 1 else "pass rate",
            bases=tuple(sorted({base for item in members for base in item.bases})),
            fork=members[0].fork if len({item.fork for item in members}) == 1 else None,
            other_N=_joined([item.other_N for item in members], [len(item) for item in members]),
        )
        pooled.append(whole.select(np.lexsort((whole.seed_N, compute_N))))
    return pooled


def _joined(parts: Sequence[Mapping[str, Array]], lengths: Sequence[int]) -> dict[str, Array]:
    """Other numbers of several curves, one after the other; NaN where a curve has none of a name."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: np.concatenate([part.get(name, np.full(length, np.nan)) for part, length in zip(parts, lengths)])
        for name in names
    }


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
        copied = copies(members)
        own = dict.fromkeys(item.run for index, item in enumerate(members) if index not in copied)
        name = next(iter(own))
        pooled += pool(members, name)
        if len(own) > 1:
            notes.append(f"{', '.join(own)} differ in their seed alone and were pooled as {name}")
    return pooled, notes


def _read_run(
    run: RunPaths, reading: Reading, name: str | None, change: Callable[[list[Curve]], list[Curve]] | None
) -> list[Curve]:
    """The curves of one run, its seeds pooled."""
    single_seed = run.seeds == (run.path,)
    logs = [list(open_source(path, reading, name if single_seed else None).curves) for path in run.seeds]
    curves = [item for log in logs for item in (log if change is None else change(log))]
    return curves if single_seed else pool(curves, name or run.path.resolve().name)


def _rescale(item: Curve, reading: Reading) -> Curve:
    """The curve with compute from the start of RL on, in the unit of the settings."""
    start, scale = reading.start or 0.0, reading.compute_scale
    compute_N = (item.compute_N - start) * scale
    check_numbers(compute_N, "compute", lambda _: f"{item.source}, compute after --compute-start {start:g}")
    if reading.start is None:
        _refuse_late_start(item)
    epoch_end, since, until = (
        None if end is None else (end - start) * scale for end in (item.epoch_end, *item.fit_window)
    )
    unit = item.unit if scale == 1 or item.unit.endswith("-hours") else "hours"  # what --compute-scale leads to
    return replace(item, compute_N=compute_N, unit=reading.unit or unit, epoch_end=epoch_end, fit_window=(since, until))


def _refuse_late_start(item: Curve) -> None:
    """Refuse compute that does not count from the start of RL: a curve over it would be a flat line.

    Raises:
        LabError: the first of several evaluations has most of the compute of the last.
    """
    first, last = float(item.compute_N.min()), float(item.compute_N.max())
    if len(item) >= 4 and first > LATE * last:
        raise LabError(
            f"{item.source}: compute runs from {first:,g} to {last:,g} {item.unit} only. A curve counts it from the "
            f"start of RL: give what was spent before as --compute-start {first:g}, or 0 if nothing was"
        )


def read_places(path: Path) -> dict[str, dict[str, float]]:
    """Places of runs on scaling axes: a table with a column `run`, and one column for every axis.

    Raises:
        LabError: no such column, a run twice, or a value that is no number.
    """
    table = read_table(path)
    if "run" not in table.columns:
        raise LabError(f"{path}: no column run; it has {dozen(table.columns)}")
    found: dict[str, dict[str, float]] = {}
    columns = {name: numbers(cells) for name, cells in table.cells.items() if name != "run"}
    for row, cell in enumerate(table.cells["run"]):
        run = str(cell)
        if run in found:
            raise LabError(f"{table.place(row, 'run')}: {run} is there twice; keep one row for each run")
        found[run] = {}
        for name, column in columns.items():
            if row in column.wrong:
                value = table.cells[name][row]
                raise LabError(f"{table.place(row, name)}: {value!r:.60} is not a number; mend it or leave it empty")
            if not column.blank_N[row]:
                found[run][name] = float(column.value_N[row])
    return found
