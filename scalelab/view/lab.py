"""All runs of a page: read, fitted, compared, and kept up to date while they go on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.curves import Curve, Options
from scalelab.errors import LabError
from scalelab.kept import Kept, key_of, user_folder
from scalelab.numbers import counted
from scalelab.reading import Reading
from scalelab.reading.branches import parents_first, trunk_points
from scalelab.view.answer import answers, by_measured_rate, measured
from scalelab.view.bindings import axes, differences
from scalelab.view.discover import find_runs
from scalelab.view.judge import Judge, as_recipe, has_pairs
from scalelab.view.palette import codes
from scalelab.view.points import curve_points
from scalelab.view.run import ViewedRun

MOST_DIFFERENCES = 80
"""Settings in which runs differ that the page lists."""

FIRST = 8
"""Recipes of a task that are fitted and compared before the others, those with the highest measured rates."""

MOST_COMPARED = 64
"""Recipes of a task that are compared with each other: the work grows with the square of their number."""

LATER = ("against", "efficiency", "beats")
"""Parts of a comparison that are sent when somebody asks for them."""


@dataclass(frozen=True)
class Step:
    """A piece of work that is missing: a fit, a comparison, or a test of parallel tasks.

    Attributes:
        what: `fit`, `compare` or `parallel`.
        curves: what it is about.
    """

    what: str
    curves: Sequence[Curve]

    @property
    def weight(self) -> float:
        """Time that it takes, in fits."""
        sizes = Counter(item.task for item in self.curves) if self.what == "compare" else {"": len(self.curves)}
        pairs = sum(size * (size - 1) / 2 for size in sizes.values())
        return {"fit": 1.0, "compare": 0.015 * pairs, "parallel": 0.05 * pairs}[self.what]


class Lab:
    """The runs of some sources, and what is known of them.

    Args:
        sources: run folders, folders of runs, or tables.
        reading: how points are read.
        options: how to fit.
        kept: where fits are kept; None takes the user's cache.

    Raises:
        LabError: a source is not there.
    """

    def __init__(
        self,
        sources: Sequence[Path],
        reading: Reading | None = None,
        options: Options | None = None,
        kept: Kept | None = None,
    ) -> None:
        self.sources, self.reading = [Path(source) for source in sources], reading or Reading()
        self.options = options or Options()
        self.judge = Judge(self.options, kept or Kept(user_folder()))
        self.runs: dict[str, ViewedRun] = {}
        self.curves: list[Curve] = []
        self.failed: dict[tuple[str, ...], str] = {}
        self._leaders: dict[int, list[Curve]] = {}
        self._problems: list[str] = []
        self._discover()

    def update(self, progress: Callable[[int, int], None] | None = None) -> bool:
        """Read what is new, runs that have begun since included; whether anything changed.

        Args:
            progress: told how many runs are read, and of how many.
        """
        changed = self._discover()
        for index, run in enumerate(self.runs.values()):
            changed = run.update() or changed
            if progress is not None:
                progress(index + 1, len(self.runs))
        if changed:
            self.failed.clear()
            self._leaders.clear()
            self.curves = self._pooled()
        return changed

    def overview(self, fit: bool = True, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
        """Everything that the page's first view shows, but for points, tables and the `LATER` parts of comparisons.

        Args:
            fit: whether to make what is not kept; without, it is counted as `pending`.
            progress: told how many fits are done, and of how many.
        """
        if fit:
            for index, item in enumerate(self.curves):
                self.judge.fit(item)
                if progress is not None:
                    progress(index + 1, len(self.curves))
        fits = [without(found, "table") for item in self.curves if (found := self.judge.known(item)) is not None]
        problems = [*self._problems, *self.failed.values()]
        comparisons = self._comparisons(fit, problems)
        tasks = list(dict.fromkeys(item.task for item in self.curves))
        groups = self.groups()
        settings = self._settings()
        changed_settings = differences(settings)
        by_task = {task: [item for item in self.curves if item.task == task] for task in tasks}
        said = answers(tasks, fits, comparisons)
        ready = {one["task"] for one in comparisons} | {
            task for task, items in by_task.items() if all(self.judge.known(item) is not None for item in items)
        }
        count = self.count()
        return {
            "title": groups[0] if len(groups) == 1 else f"{len(groups)} recipes, {counted(count, 'run')}",
            "count": count,
            "made": time.time(),
            "level": self.options.level,
            "pending": 0 if fit else len(self.steps()),
            "groups": [{"name": name, **code} for name, code in zip(groups, codes(len(groups)))],
            "tasks": [
                {"name": name, "measure": self._measure(name), **code} for name, code in zip(tasks, codes(len(tasks)))
            ],
            "runs": [run.summary() for run in self.runs.values()],
            "counted_in": self.curves[0].counted_in if self.curves else None,
            "axes_known": self._axes_known(),
            "stamps": {name: self._stamp(name) for name in groups},
            "fits": fits,
            "comparisons": [without(one, *LATER) | {"entries": _short(one)} for one in comparisons],
            "parallel": [found for run in groups if (found := self._parallel(run, fit))],
            "axes": axes(settings, [found for found in fits if "refused" not in found]),
            "differences": changed_settings[:MOST_DIFFERENCES],
            "more_differences": max(len(changed_settings) - MOST_DIFFERENCES, 0),
            "answers": [one if one["task"] in ready else measured(one["task"], by_task[one["task"]]) for one in said],
            "problems": problems,
        }

    def _measure(self, task: str) -> str:
        """Name of what the curves of a task have in common on the y-axis."""
        names = {item.measure for item in self.curves if item.task == task}
        return names.pop() if len(names) == 1 else "score"

    def steps(self) -> list[Step]:
        """The work that is missing, in the order in which it says most: the leaders of each task, then the others."""
        found: list[Step] = []
        for most in (FIRST, MOST_COMPARED):
            if self._compared(MOST_COMPARED)[0]:
                continue
            chosen = self._leading(most)
            found += [Step("fit", [item]) for item in chosen]
            found += [Step("compare", chosen)] if has_pairs("compare", chosen) and not self._compared(most)[0] else []
        found += [Step("fit", [item]) for item in self.curves]
        for name in dict.fromkeys(item.run for item in self.curves):
            mine = [item for item in self.curves if item.run == name]
            found += [Step("parallel", mine)] if len(mine) > 1 and not self._known_parallel(mine) else []
        unique: dict[tuple[str, ...], Step] = {}
        for step in found:
            unique.setdefault((step.what, *map(self.judge.key, step.curves)), step)
        missing = [step for key, step in unique.items() if key not in self.failed]
        return [step for step in missing if step.what != "fit" or self.judge.known(step.curves[0]) is None]

    def take(self, step: Step) -> None:
        """Do a piece of missing work; one that fails is put into `failed`, and not tried again before runs change."""
        try:
            if step.what == "fit":
                self.judge.fit(step.curves[0])
            else:
                getattr(self.judge, step.what)(step.curves)
        except LabError as error:
            what = "no comparison: " if step.what == "compare" else ""
            self.failed[(step.what, *map(self.judge.key, step.curves))] = f"{what}{error}"

    def curve_data(self, name: str) -> dict[str, Any]:
        """Data of the charts of a recipe: its points, and the tables of its fits by task."""
        tables = {}
        for item in self.curves:
            if item.run == name and (found := self.judge.known(item)) is not None and "table" in found:
                tables[item.task] = found["table"]
        points = [points for points in self.points() if points["group"] == name]
        return {"stamp": self._stamp(name), "points": points, "tables": tables}

    def comparison(self, task: str) -> dict[str, Any]:
        """The `LATER` parts of a task's comparison.

        Raises:
            LabError: there is none yet.
        """
        for most in (MOST_COMPARED, FIRST):
            found = next((one for one in self._compared(most)[1] if one["task"] == task), None)
            if found is not None:
                later = [name for name in LATER if name != "against"]
                entries = {entry["run"]: {name: entry[name] for name in later} for entry in found["entries"]}
                return {"against": found["against"], "entries": entries}
        raise LabError(f"there is no comparison of {task[:80]!r} yet")

    def groups(self) -> list[str]:
        """The recipes, in order; those of a table are named by its runs."""
        named = [run.member.group for run in self.runs.values() if run.member.folder]
        return list(dict.fromkeys([*named, *(item.run for item in self.curves)]))

    def count(self) -> int:
        """Number of runs that the recipes have: a folder is one, and so is each seed of a recipe of a table."""
        folders = Counter(run.member.group for run in self.runs.values() if run.member.folder)
        seeds = Counter(name for name, _ in {(item.run, seed) for item in self.curves for seed in item.seeds})
        return sum(max(folders[name], seeds[name]) for name in self.groups())

    def pool(self, name: str) -> None:
        """Take all runs for seeds of one recipe with this name.

        Raises:
            LabError: they count compute in different units.
        """
        for run in self.runs.values():
            run.member = replace(run.member, group=name)
            run.points = [{key: value for key, value in points.items() if key != "run"} for points in run.points]
        curves = [replace(item, run=run.member.name) for run in self.runs.values() for item in run.curves]
        self.curves = as_recipe(curves, name) if curves else []
        self._leaders.clear()

    def run(self, id: str) -> ViewedRun:
        """A run by its id.

        Raises:
            LabError: there is none.
        """
        if id not in self.runs:
            raise LabError(f"there is no run {id[:40]!r}")
        return self.runs[id]

    def _discover(self) -> bool:
        """Take in runs that are new; whether the runs changed."""
        members = {member.id: member for member in find_runs(self.sources)}
        before = {run.member.path: run for run in self.runs.values()}
        if {id: member.path for id, member in members.items()} == {id: r.member.path for id, r in self.runs.items()}:
            return False
        runs = {}
        for id, member in members.items():
            run = before.get(member.path)
            if run is None:
                run = ViewedRun(member, self.reading)
            else:
                run.member = member
            runs[id] = run
        self.runs = runs
        return True

    def _pooled(self) -> list[Curve]:
        """One curve for each recipe and task."""
        self._problems = []
        pooled: list[Curve] = []
        groups: dict[str, list[ViewedRun]] = {}
        for run in self.runs.values():
            groups.setdefault(run.member.group, []).append(run)
        for name, runs in groups.items():
            curves = [replace(item, run=f"{item.run} {index}") for index, run in enumerate(runs) for item in run.curves]
            try:
                if runs[0].member.folder:
                    pooled += as_recipe(curves, name) if curves else []
                else:
                    pooled += [item for run in runs for item in run.curves]
            except LabError as error:
                self._problems.append(f"{name}: {error}")
        return _same_unit(pooled, self._problems)

    def points(self) -> list[dict[str, Any]]:
        """The points of every run and task; a trunk's are those of the run that it is of, where that is shown, too."""
        curves = [(run.member.id, item) for run in self.runs.values() for item in run.curves]
        branches: dict[str, list[dict[str, Any]]] = {id: [] for id, item in curves if item.fork is not None}
        for id, item in _own(curves) if branches else ():
            if id in branches:
                branches[id] += curve_points(item)
        return [
            {"run": run.member.id, "group": points.get("run", run.member.group)}
            | {key: value for key, value in points.items() if key != "run"}
            for run in self.runs.values()
            for points in branches.get(run.member.id, run.points)
        ]

    def _comparisons(self, fit: bool, problems: list[str]) -> list[dict[str, Any]]:
        """The comparison of each task, or that of the leaders while the whole one is not there."""
        found, most = [], MOST_COMPARED
        if fit:
            try:
                found = self.judge.compare(self._leading(MOST_COMPARED)) or []
            except LabError as error:
                problems.append(f"no comparison: {error}")
        else:
            known, found = self._compared(MOST_COMPARED)
            if not known:
                most, found = FIRST, self._compared(FIRST)[1]
        sizes = Counter(item.task for item in self.curves)
        return [one | {"of": sizes[one["task"]], "left_out": max(sizes[one["task"]] - most, 0)} for one in found]

    def _leading(self, most: int) -> list[Curve]:
        """The curves of all tasks; of more than `most` of one, those with its highest measured rates."""
        if most not in self._leaders:
            chosen: set[int] = set()
            for task in dict.fromkeys(item.task for item in self.curves):
                curves = [item for item in self.curves if item.task == task]
                chosen |= set(map(id, by_measured_rate(curves)[:most] if len(curves) > most else curves))
            self._leaders[most] = [item for item in self.curves if id(item) in chosen]
        return self._leaders[most]

    def _compared(self, most: int) -> tuple[bool, list[dict[str, Any]]]:
        """True with the comparisons of the tasks, where they are made or need not be."""
        known, found = self.judge.known_together("compare", self._leading(most))
        return known, found or []

    def _known_parallel(self, curves: Sequence[Curve]) -> bool:
        return self.judge.known_together("parallel", curves)[0]

    def _parallel(self, name: str, fit: bool) -> dict[str, Any] | None:
        curves = [item for item in self.curves if item.run == name]
        try:
            return self.judge.parallel(curves) if fit else self.judge.known_together("parallel", curves)[1]
        except LabError:
            return None  # no joint fit: the tasks' own fits stand in the table

    def _axes_known(self) -> list[str]:
        """Horizontal axes that some run has values for."""
        return list(dict.fromkeys(axis for run in self.runs.values() for points in run.points for axis in points["x"]))

    def _stamp(self, name: str) -> str:
        """A stamp that changes whenever `curve_data` does."""
        known = [(self.judge.key(item), self.judge.known(item) is None) for item in self.curves if item.run == name]
        members = [run.member.id for run in self.runs.values() if run.member.group == name or not run.member.folder]
        return key_of(known, members)[:16]

    def _settings(self) -> dict[str, dict[str, str]]:
        """The bindings of each recipe: those of its first run."""
        settings: dict[str, dict[str, str]] = {}
        for run in self.runs.values():
            settings.setdefault(run.member.group, run.settings)
        return settings


def _own(curves: Sequence[tuple[str, Curve]]) -> list[tuple[str, Curve]]:
    """The curves of runs by their ids, each with the points that no run before it among its parents has."""
    found: list[tuple[str, Curve]] = []
    for index in parents_first([item for _, item in curves]):
        owner, item = curves[index]
        own_N = ~trunk_points(item, [other for id, other in found if id != owner])
        if own_N.any():
            found.append((owner, item.select(np.flatnonzero(own_N))))
    return found


def without(record: dict[str, Any], *names: str) -> dict[str, Any]:
    """A record but for some of its entries."""
    return {name: value for name, value in record.items() if name not in names}


def _short(one: dict[str, Any]) -> list[dict[str, Any]]:
    return [without(entry, *LATER) for entry in one["entries"]]


def _same_unit(curves: list[Curve], problems: list[str]) -> list[Curve]:
    """The curves that count compute as the first does; the others cannot share an axis with it."""
    if not curves:
        return []
    unit = curves[0].counted_in
    for name, other in dict.fromkeys((item.run, item.counted_in) for item in curves if item.counted_in != unit):
        problems.append(f"{name} counts compute in {other}, the others in {unit}: not fitted here; show it by itself")
    return [item for item in curves if item.counted_in == unit]
