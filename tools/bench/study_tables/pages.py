"""Sections of the study's pages, by document and name."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.experiment import load
from study_tables.axes import AXES, DECODING, HOURS
from study_tables.bases import bases_table
from study_tables.claims import claims_tables
from study_tables.ends import benchmark_table, ends_table
from study_tables.exercised import exercised_table, of_member
from study_tables.falls import falls_table, grid_table, signs_table
from study_tables.predictability import forecasts_table
from study_tables.questions import (
    BASES,
    QUESTIONS,
    RECIPES,
    RECIPES_FIRST,
    RECIPES_LONG,
    RECIPES_MANY,
    RECIPES_OF_OTHER_BASES,
    all_answers,
    answers,
    answers_table,
    compared,
    in_words,
    members_of,
)
from study_tables.ranking import looks, ranking_table, sweep_table
from study_tables.runs import BASELINE, BENCHMARK, CENTRES, FIRST, LONG, MANY, StudyRuns, repeated, table
from study_tables.words import controls, error_rates

NOT_RUN = "Not run yet."
"""Text of a question none of whose members has runs."""

Sections = dict[str, dict[str, str]]
"""Text by document and name of the section."""


def facts(runs: StudyRuns) -> str:
    """Runs and what they cost, in a sentence."""
    manifests = runs.manifests()
    members = {name.partition("/")[0] for name in manifests}
    cpu = sum(sum(one["cpu_seconds"].values()) for one in manifests.values()) / 3600
    commits = len({one["git_commit"][:10] for one in manifests.values()})
    processors = ", ".join(sorted({one["hardware"]["processor"] for one in manifests.values()}))
    said = [
        f"{len(manifests)} runs of {len(members)} members, {cpu:.1f} core-hours, made at {commits} commits",
        f"on {processors}.",
    ]
    twice = repeated(runs.folder)
    if twice:
        said.append(f"Runs made twice: {len(twice)}, with the same bytes: {sum(same for _, same in twice)}.")
    return " ".join(said)


def done_table(runs: StudyRuns) -> str:
    """Members of every question that have runs, of those that the family has, in the order of their first runs."""
    family, made_by = [name.partition("/")[2] for name in load("study_two")], dict[str, list[dict[str, Any]]]()
    for name, one in runs.manifests().items():
        made_by.setdefault(name.partition("/")[0].removeprefix(FIRST), []).append(one)
    centres = [name for name in CENTRES.values() if name in family]
    asked = {
        one.title: [name for name in family if name not in centres and any(fnmatch(name, each) for each in one.members)]
        for one in QUESTIONS
    }
    asked |= {f"`{name}`": [name] for name in centres}
    lines: list[tuple[float, list[str]]] = []
    for title, planned in asked.items():
        mine = {name: made_by.pop(name) for name in planned if name in made_by}
        if not mine:
            continue  # a question on the first base model, counted with that on the second
        counts = [len(found) for found in mine.values()]
        seeds = f"{min(counts)}–{max(counts)}" if min(counts) < max(counts) else str(counts[0])
        found = [one for each in mine.values() for one in each]
        hours = sum(sum(one["cpu_seconds"].values()) for one in found) / 3600
        began = min(float(one["started"]) for one in found)
        open_ = ", ".join(f"`{name}`" for name in planned if name not in mine) or "–"
        cells = [title, f"{len(mine)} of {len(planned)}", seeds, f"{hours:.1f}"]
        lines.append((began, [*cells, f"{datetime.fromtimestamp(began, UTC):%d %B}".lstrip("0"), open_]))
    header = ["question", "members that ran", "runs of each", "core-hours", "from", "not run"]
    return table(header, [cells for _, cells in sorted(lines)])


def pace_table(by_axis: Mapping[str, StudyRuns]) -> str:
    """Steps and tokens of each member's budget, and what a step cost in the runs and on other clusters."""
    rows = []
    for member in by_axis[HOURS].members():
        items = {axis: next(item for item in runs.curves if item.run == member) for axis, runs in by_axis.items()}
        steps = float(np.nanmax(items[HOURS].other_N["step"]))
        cells = [f"{float(items['steps'].compute_N.max()):,.0f}", f"{float(items['tokens'].compute_N.max()):,.0f}"]
        cells += [f"{float(items[axis].compute_N.max()) / steps:.3f}" for axis in (HOURS, *DECODING)]
        rows.append([f"`{member}`", *cells])
    return table(["member", "steps", "tokens", *(f"{axis} a step" for axis in (HOURS, *DECODING))], rows)


def second_sections(by_axis: Mapping[str, StudyRuns]) -> Sections:
    """All sections that the second study's pages hold."""
    runs, given = by_axis[HOURS], all_answers(by_axis)
    of_recipes = (RECIPES_MANY, RECIPES_LONG, RECIPES, RECIPES_FIRST, *RECIPES_OF_OTHER_BASES)
    recipes = [one for question in of_recipes for one in compared(question, runs)]
    ranked = members_of(RECIPES_MANY, runs)
    taken = looks(runs, ranked)
    budget = max(float(item.compute_N.max()) for item in runs.curves if item.run in ranked)
    shown = [
        BASELINE,
        *(name for name in runs.members() if name.startswith("without_")),
        *members_of(RECIPES, runs)[1:],
        CENTRES[MANY],
        *(name for name in runs.members() if name.startswith((MANY, LONG))),
    ]
    every = [one for of_question in given.values() for one in of_question]
    decisions, claims = claims_tables(by_axis, every, recipes)
    readme = {"facts": facts(runs), "grid": grid_table(runs), "claims": decisions, "bases": bases_table(runs)}
    readme |= {name: in_words(of_question) or NOT_RUN for name, of_question in given.items()}
    tables = {
        "claims": claims,
        "ends": ends_table(runs),
        "falls": falls_table(runs),
        "signs": signs_table(runs),
        "forecasts": forecasts_table(runs),
        "ranking": ranking_table(taken),
        "sweep": sweep_table(taken, budget),
        "errors": error_rates(recipes),
        "controls": controls(runs),
        "exercised": exercised_table({f"`{name}`": of_member(runs.folder, name) for name in shown}),
        "pace": pace_table(by_axis),
        "benchmark": benchmark_table(runs.folder / BENCHMARK),
        "base": answers_table(answers(BASES, by_axis)),
    }
    tables |= {name: answers_table(of_question) if of_question else NOT_RUN for name, of_question in given.items()}
    return {"README.md": readme, "tables.md": tables, "design.md": {"done": done_table(runs)}}


def read_axes(folder: Path) -> dict[str, StudyRuns]:
    """The runs over every axis."""
    return {axis: StudyRuns.read(folder, axis) for axis in AXES}


def first_sections(folder: Path) -> Sections:
    """The section of the first study's page: its recipes and falls."""
    by_axis = {axis: StudyRuns.read(folder, axis) for axis in (HOURS, "steps")}
    runs = by_axis[HOURS]
    parts = [facts(runs), answers_table(answers(RECIPES, by_axis)), falls_table(runs)]
    return {"first.md": {"first": "\n\n".join(parts)}}
