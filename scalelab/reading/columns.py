"""Columns of a log that are compute, pass rates, tasks, runs: those that a user names, or else by their names.

A name is compared without its case, its spaces and dashes, and the groups before its last slash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scalelab.errors import LabError
from scalelab.reading.cells import blank, numbers
from scalelab.reading.curve import UNITS
from scalelab.reading.settings import COLUMNS, Reading
from scalelab.reading.table import Table, dozen

STEPS = ("step", "_step", "global_step", "steps", "iteration", "iterations", "iter", "update", "updates")
COUNTS = {
    "completions": "completions",
    "tokens": "tokens",
    "num_tokens": "tokens",
    "total_tokens": "tokens",
    "num_input_tokens_seen": "tokens",
    "flops": "FLOPs",
    "total_flos": "FLOPs",
}
WORK = ("tokens", "completions")
"""Axes that a machine's load does not move, the best first: what a recipe spends is what it computes."""

SECONDS = ("wall_seconds", "seconds", "elapsed", "elapsed_seconds", "_runtime", "runtime")
TIMES = ("time", "timestamp", "_timestamp", "datetime", "date", "wall_time", "created_at")
"""Names of columns that can stand for compute where no hours of devices do, the most telling first."""

RATES = re.compile(
    r"pass_?rate|(mean_|eval_|val_|test_)?(accuracy|acc)(_reward)?|(pass|mean|avg|maj|acc|best)@\d+|exact_match|em|"
    r"(success|solve|correct)_?(rate|ness)|(test|eval|val)_score"
)
"""Last parts of names that pass rates have; others have to be mapped."""

HELD_OUT = re.compile(r"(^|[/_ .])(eval|evaluation|val|valid|validation|test|held_?out)([-_/ .]|$)")

NO_RATES = re.compile(
    r"loss|(learning_)?(lr|rate)|kl|entropy|grad|norm|clip|ratio|epoch|step|time|temperature|fraction|frac|mfu|memory|"
    r"length|tokens?|flops|std|stderr|min|max|hours?|seconds?|n|k|seed|reward|return|value|advantage|staleness"
)
"""Words in the names of numbers that may lie between 0 and 1 and are no pass rates."""

PASSES = ("correct", "n_correct", "num_correct", "passed", "n_passed", "num_passed")
"""Names of columns that count passes, beside a column `total`."""

GROUPS = ("train", "training", "trainer", "progress", "global", "state")
"""Groups before the slash in which a step or a count is that of the run; `timing/step` is something else."""

ALIASES = {
    "n": ("n", "n_samples", "num_samples"),
    "n_prompts": ("n_prompts", "num_prompts", "prompts", "n_problems"),
    "k": ("k", "samples_per_prompt"),
    "run": ("run", "run_name", "experiment", "run_id"),
    "task": ("task", "benchmark", "dataset", "eval_name"),
    "seed": ("seed",),
    "stderr": ("stderr", "standard_error", "std_err", "se"),
    "epoch": ("epoch",),
    "compute_unit": ("compute_unit", "unit"),
}
"""Our name of a column → names that it has in other people's logs."""


@dataclass(frozen=True)
class Part:
    """The curves of one column of pass rates.

    Attributes:
        names: our name of a column → the log's name.
        task: the task, where the column's name says it; None where a column of the log does, or nothing.
        run: the run, likewise.
        counts: the column holds how many of `n` passed.
        only: column → texts that a row has to have in it, in a log of one row for each metric.
    """

    names: Mapping[str, str]
    task: str | None = None
    run: str | None = None
    counts: bool = False
    only: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Recognised:
    """Columns of a log and their meaning.

    Attributes:
        parts: one for each column of pass rates.
        unit: unit of compute as the column's name says it.
        times: compute is a point in time, `times`, or a duration in seconds, `seconds`; empty for a number as it is.
        notes: remarks on choices that the log did not settle.
    """

    parts: tuple[Part, ...]
    unit: str
    times: str = ""
    notes: tuple[str, ...] = field(default_factory=tuple)


def short(name: str) -> str:
    """A column's name as it is compared: the last part, in small letters, words joined by underscores."""
    last = name.strip().rsplit("/", 1)[-1]
    return re.sub(r"[\s\-]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last).strip()).lower()


def names_in(table: Table) -> dict[str, str]:
    """Names as they are compared → names in the log; a name that is written so comes before one that is made so."""
    exact = {name: name for name in table.columns if short(name) == name}
    return exact | {name: theirs for theirs in reversed(table.columns) if (name := short(theirs)) not in exact}


def recognise(table: Table, reading: Reading) -> Recognised:
    """Find the columns of a log.

    Args:
        table: the log.
        reading: columns that the user names come first.

    Raises:
        LabError: a column that the user names is not there, or none can be compute or a pass rate.
    """
    charted = _chart(table, reading)
    compute, unit, times = _compute(table, reading, charted is not None)
    others = _others(table, reading, compute)
    notes: tuple[str, ...] = ()
    rates: Mapping[str, tuple[str | None, str | None]]
    if charted is not None:
        rates = charted
    else:
        rates, notes = _rates(table, reading, {compute, *others.values()})
    parts = []
    for theirs, (run, task) in rates.items():
        names = {**others, "compute": compute, "pass_rate": theirs} | _starred(table, reading, task)
        counts = short(theirs) in PASSES and "total" in names_in(table) and "pass_rate" not in reading.columns
        if counts:
            names["n"] = names_in(table)["total"]
        parts.append(Part(names, task, run, counts))
    parts = _long(table, parts) if charted is None and "pass_rate" not in reading.columns else parts
    return Recognised(tuple(parts), unit, times, notes)


def _compute(table: Table, reading: Reading, charted: bool) -> tuple[str, str, str]:
    """The column that is compute, its unit, and whether it is a time."""
    by_short = names_in(table)
    if "compute" in reading.columns:
        wanted = reading.columns["compute"]
        if wanted not in table.cells and short(wanted) in STEPS:
            wanted = next((by_short[step] for step in STEPS if step in by_short), wanted)
        if wanted not in table.cells:
            raise LabError(f"{table.path}: no column {wanted!r} for compute; it has {dozen(table.columns)}")
        return wanted, *_unit_of(short(wanted))
    if table.folder:
        units = table.cells.get("compute_unit", ())
        facts = {**table.facts, **({"compute_unit": units[0]} if units else {})}
        axis = axis_of(facts, [name for name in WORK if _counted(table, name)])
        if axis != "compute":
            return axis, *_unit_of(axis)
    if "compute" in by_short:
        return by_short["compute"], "", ""
    hours = [name for name in by_short if name in UNITS or re.fullmatch(r"[a-z0-9]+_?hours", name)]
    exact = [name for name in hours if name in UNITS]
    if len(exact or hours) > 1:
        first, second = [by_short[name] for name in (exact or hours)[:2]]
        raise LabError(f"{table.path}: mixed units, both {first} and {second}; choose: --column compute=…")
    own = [name for name in table.columns if "/" not in name or name.split("/")[0].lower() in GROUPS]
    counts = {name: theirs for name, theirs in by_short.items() if theirs in own}
    for name in exact or hours or [one for one in (*STEPS, *COUNTS, *SECONDS, *TIMES, "epoch") if one in counts][:1]:
        return by_short[name], *_unit_of(name)
    if charted:
        return table.columns[0], "compute", ""
    if not table.columns:
        raise LabError(f"{table.path}: no evaluations in it yet")
    raise LabError(
        f"{table.path}: no column for compute; it has {dozen(table.columns)}; map one: --column compute=NAME, and "
        "what it counts with --unit"
    )


def axis_of(facts: Mapping[str, Any], counted: Iterable[str]) -> str:
    """The axis of a run's curves: compute, or what load does not move where that is hours of cores on a wall clock.

    An hour of a core is as much work as the machine has left for it: a recipe on a busy machine looks like a worse one.

    Args:
        facts: the run's manifest, or one of its evaluations.
        counted: axes that all evaluations have.
    """
    if facts.get("compute_unit") != "core-hours" or facts.get("clock") == "virtual":
        return "compute"
    counts = set(counted)
    return next((axis for axis in WORK if axis in counts), "compute")


def _counted(table: Table, name: str) -> bool:
    """True if every row has a value in a column."""
    return name in table.cells and not any(blank(cell) for cell in table.cells[name])


def _unit_of(name: str) -> tuple[str, str]:
    """Unit of a column of compute by its name, and whether it holds times."""
    if name in UNITS:
        return UNITS[name], ""
    device = re.fullmatch(r"([a-z0-9]+?)_?hours", name)
    if device:
        plain = {"wall": "wall hours", "hours": "hours", "device": "GPU-hours"}
        return plain.get(device[1], f"{device[1].upper()}-hours"), ""
    if name == "hours":
        return "hours", ""
    if name in STEPS:
        return "steps", ""
    if name in COUNTS:
        return COUNTS[name], ""
    if name in SECONDS:
        return "wall hours", "seconds"
    if name in TIMES:
        return "wall hours", "times"
    return ("epochs" if name == "epoch" else ""), ""


def _others(table: Table, reading: Reading, compute: str) -> dict[str, str]:
    """Columns beside compute and pass rate: ours → theirs."""
    found: dict[str, str] = {}
    by_short = names_in(table)
    for ours in COLUMNS:
        theirs = reading.columns.get(ours)
        if ours in ("compute", "pass_rate") or (theirs and "*" in theirs):
            continue
        if theirs is not None:
            if theirs not in table.cells:
                raise LabError(f"{table.path}: no column {theirs!r} for {ours}; it has {dozen(table.columns)}")
            found[ours] = theirs
        elif ours in table.cells:
            found[ours] = ours
        else:
            names = STEPS if ours == "step" else ALIASES.get(ours, ())
            there = [by_short[name] for name in names if name in by_short]
            found |= {ours: there[0]} if there else {}
    return {ours: theirs for ours, theirs in found.items() if theirs != compute or ours == "step"}


def _rates(
    table: Table, reading: Reading, taken: set[str]
) -> tuple[dict[str, tuple[None, str | None]], tuple[str, ...]]:
    """Columns of pass rates → their task, and a remark where their names alone did not tell."""
    wanted = reading.columns.get("pass_rate")
    free = [name for name in table.columns if name not in taken]
    if wanted is not None:
        found = matching(free if "*" in wanted else table.columns, wanted)
        if not found:
            raise LabError(
                f"{table.path}: no column {wanted!r} for pass_rate; it has {dozen(table.columns)}; map one: "
                "--column pass_rate=NAME"
            )
        return {name: (None, task if "*" in wanted else None) for name, task in found.items()}, ()
    if "pass_rate" in table.cells:
        return {"pass_rate": (None, None)}, ()
    rates = [name for name in free if RATES.fullmatch(short(name)) and not name.endswith(("__MIN", "__MAX"))]
    for better in (lambda name: name.startswith("val-core/"), lambda name: bool(HELD_OUT.search(name.lower()))):
        rates = [name for name in rates if better(name)] or rates
    note: tuple[str, ...] = ()
    if not rates and "total" in names_in(table):
        rates = [name for name in free if short(name) in PASSES][:1]
    if not rates and {*map(short, table.columns)} == {"wall_time", "step", "value"}:  # TensorBoard's own CSV
        rates = [name for name in free if short(name) == "value"]
    if not rates and (metric := _metrics(table)):
        rates, note = ["value"], (f"taken for pass rates: {dozen(sorted(metric))} of the column metric",)
    if not rates:
        rates, note = _by_values(table, free)
    if not rates:
        raise LabError(
            f"{table.path}: no column for pass_rate; it has {dozen(table.columns)}; map one: --column pass_rate=NAME"
        )
    tasks = _tasks(rates)
    return {name: (None, tasks[name]) for name in rates}, note


def _by_values(table: Table, free: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    """Columns whose numbers lie in [0, 1] and differ, and whose names are not those of other things."""
    found = []
    for name in free:
        if any(NO_RATES.fullmatch(word) for word in re.split(r"[^a-z]+", short(name)) if word):
            continue
        column = numbers(table.cells[name], table.facts.get("comma", ""))
        values = column.value_N[~column.blank_N]
        if len(values) > 1 and not column.wrong and 0 <= values.min() < values.max() <= 1:
            found.append(name)
    return found, (f"taken for pass rates by their values: {dozen(found)}",) if found else ()


def _metrics(table: Table) -> frozenset[str]:
    """Metrics that are pass rates in a log with columns `metric` and `value`, one row for each metric."""
    if not {"metric", "value"} <= set(table.columns):
        return frozenset()
    return frozenset(name for name in set(map(str, table.cells["metric"])) if RATES.fullmatch(short(name)))


def _long(table: Table, parts: list[Part]) -> list[Part]:
    """The parts of a log with one row for each metric: rows of pass rates alone, each a task if there are several."""
    metrics = _metrics(table)
    if not metrics or [part.names["pass_rate"] for part in parts] != ["value"]:
        return parts
    names = {"task": "metric"} if len(metrics) > 1 and "task" not in parts[0].names else {}
    return [replace(parts[0], names={**parts[0].names, **names}, only={"metric": metrics})]


def _tasks(names: Sequence[str]) -> dict[str, str | None]:
    """The tasks that columns of pass rates stand for: what differs in their names."""
    if len(names) == 1:
        [name] = names
        return {name: matching([name], "*pass_rate").get(name) or None}
    parts = {name: [part for part in re.split(r"/", name) if part] for name in names}
    same = set.intersection(*(set(part) for part in parts.values()))
    tasks = {name: "/".join(part for part in parts[name] if part not in same) or name for name in names}
    ends = {
        name: re.sub(r"[_ ]?(pass_?rate|accuracy|acc)$", "", task).strip("_-/ ") or task for name, task in tasks.items()
    }
    return dict(ends if len(set(ends.values())) == len(names) else tasks)


def _chart(table: Table, reading: Reading) -> dict[str, tuple[str, str | None]] | None:
    """Columns `RUN - METRIC` of a W&B chart → run and task; None if the table is no chart."""
    if not any(name.endswith("__MIN") for name in table.columns):
        return None
    names = [name for name in table.columns[1:] if " - " in name and not name.endswith(("__MIN", "__MAX"))]
    split = {name: [part.strip() for part in name.rsplit(" - ", 1)] for name in names}
    split = {name: parts for name, parts in split.items() if not parts[1].startswith("_")}  # W&B's own: _step, _runtime
    metrics = list(dict.fromkeys(metric for _, metric in split.values()))
    if "pass_rate" in reading.columns:
        tasks: Mapping[str, str | None] = matching(metrics, reading.columns["pass_rate"])
    else:
        tasks = {metric: metric if len(metrics) > 1 else None for metric in metrics}
    found = {name: (run, tasks[metric] or None) for name, (run, metric) in split.items() if metric in tasks}
    if not found:
        raise LabError(f"{table.path}: no metric for pass_rate; the chart has {dozen(metrics)}")
    return found


def _starred(table: Table, reading: Reading, task: str | None) -> dict[str, str]:
    """Columns beside the pass rate that a star ties to the task: ours → theirs."""
    found = {}
    for ours, pattern in reading.columns.items():
        if "*" in pattern and ours not in ("compute", "pass_rate"):
            mine = [name for name, one in matching(table.columns, pattern).items() if one == task]
            if not mine:
                raise LabError(
                    f"{table.path}: no {pattern!r} for {ours} of {task or 'the run'}; it has {dozen(table.columns)}"
                )
            found[ours] = mine[0]
    return found


def matching(names: Iterable[str], pattern: str) -> dict[str, str]:
    """Names that a pattern with stars matches → the task that the first star stands for."""
    expression = re.compile("(.*)".join(re.escape(part) for part in pattern.split("*")))
    found = {}
    for name in names:
        match = expression.fullmatch(name)
        if match:
            found[name] = match.group(1).strip("/_- ").rsplit("/", 1)[-1] if match.groups() else ""
    return found
