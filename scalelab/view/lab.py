"""All runs of a page: read, fitted, compared, and kept up to date while they go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.curves import Curve, Options
from scalelab.curves.branches import parents_first, trunk_points
from scalelab.curves.reading import Reading
from scalelab.errors import LabError
from scalelab.kept import Kept, user_folder
from scalelab.view.answer import answers
from scalelab.view.discover import find_runs
from scalelab.view.judge import Judge, as_recipe
from scalelab.view.palette import codes
from scalelab.view.points import curve_points
from scalelab.view.run import ViewedRun
from scalelab.view.settings import axes, differences

MOST_DIFFERENCES = 80
"""Settings in which runs differ that the page lists."""


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
        self._problems: list[str] = []
        self._discover()

    def update(self) -> bool:
        """Read what is new, runs that have begun since included; whether anything changed."""
        changed = self._discover()
        for run in self.runs.values():
            changed = run.update() or changed
        if changed:
            self.curves = self._pooled()
        return changed

    def overview(self, fit: bool = True, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
        """Everything that the page's first view shows.

        Args:
            fit: whether to make fits that are not kept; without, what is not kept is counted as `pending`.
            progress: told how many fits are done, and of how many.
        """
        fits, missing = [], 0
        for index, item in enumerate(self.curves):
            found = self.judge.fit(item) if fit else self.judge.known(item)
            if found is None:
                missing += 1
            else:
                fits.append(found)
            if progress is not None:
                progress(index + 1, len(self.curves))
        whole = fit or not missing
        comparisons = self._comparisons() if whole else []
        tasks = list(dict.fromkeys(item.task for item in self.curves))
        groups = list(dict.fromkeys([*self._groups(), *(item.run for item in self.curves)]))
        settings = self._settings()
        changed_settings = differences(settings)
        return {
            "title": groups[0] if len(groups) == 1 else f"{len(groups)} recipes, {len(self.runs)} runs",
            "made": time.time(),
            "level": self.options.level,
            "pending": missing,
            "groups": [{"name": name, **code} for name, code in zip(groups, codes(len(groups)))],
            "tasks": [
                {"name": name, "measure": self._measure(name), **code} for name, code in zip(tasks, codes(len(tasks)))
            ],
            "runs": [run.summary() for run in self.runs.values()],
            "points": self._points(),
            "fits": fits,
            "comparisons": comparisons,
            "parallel": [found for run in groups if whole and (found := self._parallel(run))],
            "axes": axes(settings, [found for found in fits if "refused" not in found]),
            "differences": changed_settings[:MOST_DIFFERENCES],
            "more_differences": max(len(changed_settings) - MOST_DIFFERENCES, 0),
            "answers": answers(tasks, fits, comparisons) if whole else [],
            "problems": self._problems,
        }

    def _measure(self, task: str) -> str:
        """Name of what the curves of a task have in common on the y-axis."""
        names = {item.measure for item in self.curves if item.task == task}
        return names.pop() if len(names) == 1 else "score"

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

    def run(self, id: str) -> ViewedRun:
        """A run by its id.

        Raises:
            LabError: there is none.
        """
        if id not in self.runs:
            raise LabError(f"there is no run {id[:40]!r}")
        return self.runs[id]

    def warm(self) -> None:
        """Make the comparisons and tests that the next overview needs."""
        for task in dict.fromkeys(item.task for item in self.curves):
            with suppress(LabError):  # the overview reports it
                self.judge.compare([item for item in self.curves if item.task == task])
        for name in dict.fromkeys(item.run for item in self.curves):
            self._parallel(name)

    def pending(self) -> int:
        """Number of curves whose fit is not kept yet."""
        return sum(self.judge.known(item) is None for item in self.curves)

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

    def _groups(self) -> list[str]:
        """The recipes, in order; those of a table are named by its runs."""
        return [run.member.group for run in self.runs.values() if run.member.folder]

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

    def _points(self) -> list[dict[str, Any]]:
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

    def _comparisons(self) -> list[dict[str, Any]]:
        found = []
        for task in dict.fromkeys(item.task for item in self.curves):
            try:
                one = self.judge.compare([item for item in self.curves if item.task == task])
            except LabError as error:
                self._problems.append(f"no comparison of {task}: {error}")
                continue
            if one is not None:
                found.append(one)
        return found

    def _parallel(self, name: str) -> dict[str, Any] | None:
        try:
            return self.judge.parallel([item for item in self.curves if item.run == name])
        except LabError:
            return None  # no joint fit: the tasks' own fits stand in the table

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


def _same_unit(curves: list[Curve], problems: list[str]) -> list[Curve]:
    """The curves that count compute as the first does; the others cannot share an axis with it."""
    if not curves:
        return []
    unit = curves[0].counted_in
    for name, other in dict.fromkeys((item.run, item.counted_in) for item in curves if item.counted_in != unit):
        problems.append(f"{name} counts compute in {other}, the others in {unit}: not fitted here; show it by itself")
    return [item for item in curves if item.counted_in == unit]
