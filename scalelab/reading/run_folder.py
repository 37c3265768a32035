"""The lab's own run folders as tables: evaluations, and what manifest and configuration say of the whole run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.errors import LabError
from scalelab.guarded import LONGEST_TEXT, read_below
from scalelab.jsonl import objects_in
from scalelab.kept import Kept, key_of, user_folder
from scalelab.reading.axes import config_axes
from scalelab.reading.cells import numbers
from scalelab.reading.kept import RunContent
from scalelab.reading.table import Table, from_records
from scalelab.store.manifest import EVALS, MANIFEST, METRICS


def read_run_folder(path: Path, wanted: Sequence[str] = (), files: RunContent | None = None) -> Table:
    """The evaluations of a run: for each task its mean reward, and the metrics that the run or the reader names.

    Args:
        path: the run's folder.
        wanted: metrics to read as tasks of their own beside those that the run names, such as "math pass@4".
        files: the folder's files, if some are read already.

    Raises:
        LabError: a file is damaged, too long, or leads out of the folder.
    """
    files = files or RunContent(path)
    records, torn = objects_in(path / EVALS, files.read(EVALS) or b"", LONGEST_TEXT)
    notes = (f"{EVALS}: the last line is torn and was left out",) if torn else ()
    return table_of_run(path, records, wanted, notes, files)


def table_of_run(
    path: Path,
    records: Sequence[tuple[int, dict[str, Any]]],
    wanted: Sequence[str] = (),
    notes: Sequence[str] = (),
    files: RunContent | None = None,
) -> Table:
    """A run's evaluations as a table; arguments and errors as of `read_run_folder`.

    Lines of older versions lack completions and tokens; those are derived from the batch size and the steps.

    Args:
        path: the run's folder.
        records: the lines of its `evals.jsonl`, with their numbers.
        wanted: as of `read_run_folder`.
        notes: what was left out while the file was read.
        files: as of `read_run_folder`.
    """
    files = files or RunContent(path)
    if any(record.get("afterwards") is True for _, record in records):  # in the order in which they were made
        records = sorted(records, key=lambda line: _step(line[1]))
    manifest = _manifest(path, files.read(MANIFEST))
    held_out = manifest.get("held_out")
    tasks = list(held_out) if isinstance(held_out, dict) else []
    facts, unread = _configuration(path, files, tasks, fork_of(manifest))
    table = from_records(
        path,
        "run folder",
        [row for line in records for row in _with_metrics(line, wanted)],
        path.resolve().name,
        counted="line",
        facts=manifest | facts,
        notes=(*notes, *unread),
        folder=True,
    )
    cells, said = dict(table.cells), list(table.notes)
    for name, derived in (("completions", _completions), ("tokens", _tokens)):
        if "step" in cells and name not in cells:
            try:
                found = derived(path, files, facts, cells["step"])
            except LabError as error:
                said.append(f"its {name} are not known: {error}")
            else:
                cells |= {name: found} if found else {}
    if "wall_seconds" not in cells and "time" in cells and manifest.get("clock") != "virtual":
        cells["wall_seconds"] = _since(manifest.get("started"), cells["time"])
    return replace(table, cells=cells, notes=tuple(said))


def _step(record: dict[str, Any]) -> float:
    step = record.get("step")
    return float(step) if isinstance(step, int | float) else 0.0


def _with_metrics(line: tuple[int, dict[str, Any]], wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """A line as a row of its task, and one row for each of its metrics that is to be shown as a task."""
    number, record = line
    metrics, curves = record.get("metrics"), record.get("curves")
    row = {name: value for name, value in record.items() if name not in ("metrics", "curves")}
    yield number, row
    for name, score in metrics.items() if isinstance(metrics, dict) else ():
        task = f"{record.get('task')} {name}"
        shown = (isinstance(curves, list) and name in curves) or task in wanted
        if shown and isinstance(score, dict):
            said = {"pass_rate": score.get("value"), "stderr": score.get("stderr"), "measure": name}
            yield number, {**row, "task": task, **said}


def shown_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run, {} if there is none.

    Raises:
        LabError: it is not a JSON object.
    """
    return _manifest(folder, read_below(folder, MANIFEST))


def _manifest(folder: Path, content: bytes | None) -> dict[str, Any]:
    if not content:
        return {}
    try:
        found = json.loads(content[:LONGEST_TEXT].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise LabError(f"{folder / MANIFEST}: not JSON; mend or remove it") from None
    if not isinstance(found, dict):
        raise LabError(f"{folder / MANIFEST}: not a JSON object; mend or remove it")
    return found


def fork_of(manifest: Mapping[str, Any]) -> Any:
    """The step from which a branch went on, as its manifest has it; None for a run that is none."""
    fork = manifest.get("from")
    return fork.get("step") if isinstance(fork, Mapping) else None


def _configuration(
    path: Path, files: RunContent, tasks: Sequence[str], fork: Any
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Facts of a run's `config.gin`, "recipe", "places" and "batch", and a note if it cannot be read."""
    content = files.read("config.gin", LONGEST_TEXT)
    if content is None:
        return {"recipe": "", "places": {}}, ()
    kept = Kept(user_folder())  # a sweep has hundreds of configurations, which take longer to read than all else
    try:
        begun = files.read("start.gin", LONGEST_TEXT) if fork is not None else None
        key = key_of("config", content, tasks) if begun is None else key_of("config", content, tasks, begun, str(fork))
        return kept.get(key, lambda: _facts_of(content, path, tasks, begun, fork)), ()
    except LabError as error:
        return {"recipe": "", "places": {}}, (f"its configuration gives no axes: {error}",)


def _facts_of(content: bytes, path: Path, tasks: Sequence[str], begun: bytes | None, fork: Any) -> dict[str, Any]:
    from scalelab.experiment import recipe_digest, settings_in  # gin, which fits of tables do without

    settings, before = (
        None if text is None else settings_in(text.decode("utf-8", "replace"), str(path / name))
        for name, text in (("config.gin", content), ("start.gin", begun))
    )
    assert settings is not None
    return {"recipe": recipe_digest(settings, before, fork), "places": config_axes(settings, tasks)}


def _completions(_: Path, __: RunContent, facts: dict[str, Any], steps: Sequence[Any]) -> list[float] | None:
    """Completions trained on at each evaluation, where the configuration says how many a step takes."""
    batch = facts.get("places", {}).get("batch")
    return (numbers(steps).value_N * batch).tolist() if batch else None


def _tokens(path: Path, files: RunContent, facts: dict[str, Any], steps: Sequence[Any]) -> list[float] | None:
    """Tokens trained on at each evaluation, by the counts of the steps."""
    content = files.read(METRICS)
    if not content:
        return None
    counted: dict[float, float] = {}
    for _, record in objects_in(path / METRICS, content)[0]:
        step, tokens = numbers([record.get("step")]), numbers([record.get("tokens")])
        if not (step.blank_N[0] or tokens.blank_N[0] or step.wrong or tokens.wrong):
            counted[float(step.value_N[0])] = float(tokens.value_N[0])
    if not counted:
        return None
    ordered = sorted(counted)
    totals_N = np.array([0.0, *accumulate(counted[step] for step in ordered)])
    result: list[float] | None = totals_N[np.searchsorted(ordered, numbers(steps).value_N, side="right")].tolist()
    return result


def _since(started: Any, times: Sequence[Any]) -> list[float | None]:
    """Seconds from the start of the run to each evaluation, where the manifest says when it started."""
    begun = numbers([started])
    if begun.blank_N[0] or begun.wrong:
        return [None] * len(times)
    result: list[float | None] = np.maximum(numbers(times).value_N - begun.value_N[0], 0.0).tolist()
    return result
