"""The page of some runs as one self-contained file with a sample of completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalelab.curves import Options
from scalelab.errors import LabError
from scalelab.reading import Reading
from scalelab.reading.settings import refuse_unknown_tasks
from scalelab.view.lab import Lab
from scalelab.view.rollouts import Rollouts
from scalelab.view.run import ViewedRun

SAMPLED = 2_000_000
"""Bytes of completions in the file, all runs together."""

DETAILED = 1_200_000
"""Bytes of the runs' own pages; beyond it charts of metrics are left out, those that stand last first."""

STEPS = 6
"""Evaluations of which completions are sampled."""

PROMPTS = 400
"""Prompts in the table of passes through the run."""


def write_report(
    sources: Path | Sequence[Path],
    path: Path,
    options: Options | None = None,
) -> Path:
    """Write the page of some runs.

    Args:
        sources: a run folder, or several sources.
        path: the HTML file to write; its folder is made.
        options: how to fit.

    Returns:
        `path`.

    Raises:
        LabError: a source cannot be read.
    """
    sources = [Path(sources)] if isinstance(sources, str | Path) else [Path(item) for item in sources]
    return write_page(read_lab(sources, options), path)


def read_lab(sources: Sequence[Path], options: Options | None = None, reading: Reading | None = None) -> Lab:
    """The runs of some sources, read once.

    Raises:
        LabError: a source is not there, or none has a point, or a single source cannot be read.
    """
    lab = Lab(sources, reading, options)
    lab.update()
    if not lab.curves:
        of_tasks = f" of {' or '.join(reading.tasks)}" if reading and reading.tasks else ""
        problems = [text for run in lab.runs.values() for text in run.problems] or [f"no evaluations{of_tasks} yet"]
        named = ", ".join(map(str, sources))
        raise LabError(problems[0] if problems[0].startswith(named) else f"{named}: {problems[0]}")
    if reading:
        refuse_unknown_tasks(reading.tasks, [item.task for item in lab.curves])
    return lab


def write_page(lab: Lab, path: Path) -> Path:
    """Write the page of runs that are read already."""
    from scalelab.view.page import page_html

    data = page_data(lab, lab.overview())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_html(lab, live=False, data=data), encoding="utf-8", errors="replace")
    return path


def page_data(lab: Lab, overview: Mapping[str, Any]) -> dict[str, Any]:
    """Data of a self-contained page: the overview, every run's own page, and a sample of completions."""
    share = max(len(lab.runs), 1)
    details = {id: _fitting(run.detail(), DETAILED // share) for id, run in lab.runs.items()}
    kept = {id: run for id, run in lab.runs.items() if run.member.folder and run.rollouts.steps()}
    return {
        "overview": overview,
        "curves": {name: lab.curve_data(name) for name in lab.groups()},
        "comparisons": {one["task"]: lab.comparison(one["task"]) for one in overview["comparisons"]},
        "details": details,
        "prompts": {id: run.rollouts.prompts(None, None, None, PROMPTS) for id, run in kept.items()},
        "completions": {id: list(sample(run, SAMPLED // len(kept))) for id, run in kept.items()},
    }


def sample(run: ViewedRun, most: int) -> Iterator[dict[str, Any]]:
    """Some completions of a run, of `most` bytes of JSON in all: the same prompts at each of a few evaluations.

    The prompts that changed most between the first evaluation and the last come first, task by task. The steps are
    spread evenly, and those around a fall of the pass rate are among them.
    """
    rollouts = run.rollouts
    steps = _steps(run)
    tasks = sorted({task for entry in rollouts.steps() for task in entry["tasks"]})
    ranked = [rollouts.prompts(task, None, None, PROMPTS)["rows"] for task in tasks]
    prompts = [row for rows in zip(*(_padded(rows, max(map(len, ranked))) for rows in ranked)) for row in rows if row]
    spent = 0
    for start in range(0, len(prompts), 8):
        ids = [id for row in prompts[start : start + 8] for id in _ids(rollouts, row, steps)]
        for record in rollouts.full(ids):
            record.pop("token_ids", None)
            spent += len(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace"))
            if spent > most:
                return
            yield record


def _ids(rollouts: Rollouts, row: Mapping[str, Any], steps: set[int]) -> list[str]:
    """Two completions of a prompt at each of some evaluations, one that passed and one that did not where there are."""
    found = []
    for entry in rollouts.prompt(row["task"], row["prompt_id"]):
        if entry["kind"] == "step" and entry["step"] in steps:
            by_outcome = {one["outcome"] == "passed": one["id"] for one in reversed(entry["rows"])}
            found += list(by_outcome.values()) if len(by_outcome) > 1 else [one["id"] for one in entry["rows"][:2]]
    return found


def _steps(run: ViewedRun) -> set[int]:
    """The evaluations of which completions are sampled."""
    steps = [entry["step"] for entry in run.rollouts.steps() if entry["kind"] == "step"]
    chosen = {steps[round(index * (len(steps) - 1) / (STEPS - 1))] for index in range(STEPS)} if steps else set()
    for fall in run.unusual():
        if fall["kind"] == "fall" and fall["step"] in steps:
            at = steps.index(int(fall["step"]))
            chosen |= {steps[at], steps[max(at - 1, 0)]}
    return chosen


def _padded(rows: list[Any], length: int) -> list[Any]:
    return rows + [None] * (length - len(rows))


def _fitting(detail: dict[str, Any], most: int) -> dict[str, Any]:
    """A run's own page cut to its share of the file: the last charts of metrics go first, then the time line."""
    left_out = 0
    while detail["panels"] and len(json.dumps(detail)) > most:
        detail["panels"] = detail["panels"][: len(detail["panels"]) // 2]
        left_out += 1
    if len(json.dumps(detail)) > most:
        detail["timeline"] = None
    if left_out:
        detail["still"] = [*detail["still"], "and more, which the live page shows"]
    return detail
