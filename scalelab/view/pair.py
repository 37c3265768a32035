"""Two sets of runs head to head, each pooled by hand as if its runs were seeds of one recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scalelab.curves import Curve
from scalelab.curves.paired import compare_paired
from scalelab.defaults import MARGIN
from scalelab.errors import LabError
from scalelab.view.judge import as_recipe
from scalelab.view.lab import Lab, without
from scalelab.view.rollouts import differing


def pair(lab: Lab, first: Sequence[str], second: Sequence[str]) -> dict[str, Any]:
    """Fit and compare two sets of runs.

    Args:
        lab: the runs.
        first: ids of runs.
        second: ids of others, which the first are held against.

    Returns:
        `{"names", "tasks": [{"task", "at", "unit", "family", "header", "rows"}], "curves": {name: points, tables,
        fits}}`; no tasks where none has a fit on both sides.

    Raises:
        LabError: a run is unknown or on both sides.
    """
    if not first or not second or set(first) & set(second):
        raise LabError("name runs on both sides, and none on both")
    names = [_name(lab, ids) for ids in (first, second)]
    sides = [_pooled(lab, ids, name) for ids, name in zip((first, second), names)]
    shared = {item.task for item in sides[0]} & {item.task for item in sides[1]}
    both = [item for side in sides for item in side if item.task in shared]
    tasks = []
    for found in lab.judge.compare(both) or []:
        against = found["against"][names[1]]
        rows = [next(row for row in against["rows"] if row["run"] == name) for name in names]
        facts = {"task": found["task"], "at": found["at"], "unit": found["unit"], "family": 2}
        tasks.append(facts | {"header": against["short_header"], "rows": rows})
    curves = {}
    for ids, name, items in zip((first, second), names, sides):
        fits = {item.task: found for item in items if "refused" not in (found := lab.judge.fit(item))}
        points = [entry | {"group": name} for entry in lab.points() if entry["run"] in ids]
        tables = {task: found["table"] for task, found in fits.items()}
        short = {task: without(found, "table") for task, found in fits.items()}
        curves[name] = {"points": points, "tables": tables, "fits": short}
    return {"names": names, "tasks": tasks, "curves": curves}


def between(lab: Lab, first: Sequence[str], second: Sequence[str]) -> dict[str, Any]:
    """The prompts on which two sets of runs differ most at their last evaluations; see `differing`.

    Returns:
        What `differing` gives, and `paired`: sentences on the difference prompt by prompt, of branches and of runs
        whose curves carry no fit.
    """
    found = differing([lab.run(id).rollouts for id in first], [lab.run(id).rollouts for id in second])
    names = [_name(lab, ids) for ids in (second, first)]
    curves = [item for ids, name in zip((second, first), names) for item in _pooled(lab, ids, name)]
    fitted = [(item.task, item.run) for item in curves if "refused" not in lab.judge.fit(item)]
    compared = {task: [run for other, run in fitted if other == task] for task, _ in fitted}
    return found | {"paired": [f"{one.text()}." for one in compare_paired(curves, compared, MARGIN)]}


def _name(lab: Lab, ids: Sequence[str]) -> str:
    """Name of some runs together: a run's own, or their recipes, with numbers where some of the runs are left out."""
    if len(ids) == 1:
        return lab.run(ids[0]).member.name
    sizes = Counter(run.member.group for run in lab.runs.values())
    counts = Counter(lab.run(id).member.group for id in ids)
    return " + ".join(
        name if count == sizes[name] else f"{name} ({count} of {sizes[name]} seeds)" for name, count in counts.items()
    )


def _pooled(lab: Lab, ids: Sequence[str], name: str) -> list[Curve]:
    curves = [replace(item, run=f"{item.run} {id}") for id in ids for item in lab.run(id).curves]
    return as_recipe(curves, name) if curves else []
