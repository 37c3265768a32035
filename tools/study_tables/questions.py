"""Questions of the study: members compared with a baseline, the differences, and a verdict in one of four words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from scalelab.curves import Analysis, compare
from scalelab.curves.comparison import Comparison, Difference
from scalelab.curves.design import Plan, smallest_difference
from scalelab.numbers import with_interval
from scalelab.report.plots import plot_efficiency, plot_fits
from study_tables.runs import BASELINE, StudyRuns, table

SAME = 0.02
"""Pass rates within this are the same (ScaleRL §3.2)."""


@dataclass(frozen=True)
class Question:
    """One question of the study, and the members that answer it.

    Attributes:
        title: of the section.
        name: of the pictures.
        members: patterns of their names.
        baseline: what they are compared with.
    """

    title: str
    name: str
    members: tuple[str, ...]
    baseline: str = BASELINE


QUESTIONS = (
    Question("Which recipe?", "recipes", ("deepseek_grpo", "qwen25_dapo", "magistral", "minimax_m1")),
    Question("ScaleRL without one ingredient", "without", ("without_*",)),
    Question("The baseline with one ingredient", "additions", ("baseline_and_*",), "baseline_and_baseline"),
    Question("How large a batch?", "batch", ("batch_*",)),
    Question("How long?", "length", ("length_*",)),
    Question("How many generations per prompt?", "generations", ("generations_*",)),
    Question("Dense or a mixture of experts?", "model", ("model_*",)),
    Question("Which mixture of tasks?", "tasks", ("tasks_*",)),
    Question("How many steps off policy?", "pipeline", ("pipeline_*",)),
    Question("What do steps half as long give?", "rate", ("lr_*",)),
    Question("Is it the 27 prompts of a step that set Magistral apart?", "prompts", ("magistral_*",), "magistral"),
    Question("Does the schedule matter as much if decoding is twice as fast?", "fast", ("fast_*",), "fast"),
    Question("And if it is half as fast?", "slow", ("slow_*",), "slow"),
)


@dataclass(frozen=True)
class MemberAnswer:
    """Findings on one member of the study and one task.

    Attributes:
        member: its name.
        task: the task.
        seeds: runs that it has.
        narrow: difference to the baseline with 80 % intervals.
        wide: the same with 95 % intervals.
        verdict: better or worse in pass rate or compute, equal within some pass rate, or cannot tell.
        smallest: smallest difference that so many seeds find with 80 %; None if there is none.
    """

    member: str
    task: str
    seeds: int
    narrow: Difference
    wide: Difference
    verdict: str
    smallest: float | None


LEVELS = (0.8, 0.95, 0.975)
"""Levels of the intervals: the two that are shown, and that of each of the two looks that a verdict takes."""


def verdict(narrow: Difference, strict: Difference) -> str:
    """One of four words, by the pass rate at the end of the budget, then by the compute to the same pass rate.

    Args:
        narrow: the difference with 80 % intervals; the members are equal if that of the pass rate stays within `SAME`.
        strict: the same with 97.5 % intervals, one of which has to exclude zero for better or worse: together the two
            looks are wrong as often as one at 95 %.
    """
    less_compute = -strict.log_reach_interval[1], -strict.log_reach_interval[0]
    for (low, high), by in ((strict.interval, "pass rate"), (less_compute, "compute")):
        if low > 0 or high < 0:
            return f"{'better' if low > 0 else 'worse'} in {by}"
    reach = max(abs(end) for end in narrow.interval)
    return f"equal within {reach:.3f}" if reach <= SAME else "cannot tell"


def members_of(question: Question, runs: StudyRuns) -> list[str]:
    """The baseline of a question, and its members that have runs."""
    found = [name for name in runs.members() if any(fnmatch(name, pattern) for pattern in question.members)]
    return [question.baseline, *(name for name in found if name != question.baseline)]


@dataclass(frozen=True)
class Compared:
    """The members of a question, compared.

    Attributes:
        question: the question.
        names: its baseline, and its members that have runs.
        narrow: a comparison for each task, with 80 % intervals.
        wide: the same with 95 % intervals.
        strict: the same with 97.5 % intervals.
        borrowed: whether other members of the study told the spread between seeds.
        unchanged: members left out of the comparisons, whose runs are the baseline's to the last byte.
    """

    question: Question
    names: tuple[str, ...]
    narrow: tuple[Comparison, ...]
    wide: tuple[Comparison, ...]
    strict: tuple[Comparison, ...]
    borrowed: bool
    unchanged: tuple[str, ...]


def compared(question: Question, runs: StudyRuns) -> Compared | None:
    """Compare the members of a question; None if one side has no runs.

    The spread between seeds is learnt from all members of the study that have several.
    """
    found = members_of(question, runs)
    unchanged = tuple(name for name in found if runs.unchanged(name, question.baseline))
    names = [name for name in found if name not in unchanged]
    items = runs.of(names)
    if not {question.baseline} < {item.fit.curve.run for item in items}:
        return None
    others = [item for item in runs.analyses if item not in items and len(item.fit.curve.seeds) > 1]
    levels = (tuple(compare([replace(one, level=level) for one in items], spread_from=others)) for level in LEVELS)
    return Compared(question, tuple(names), *levels, bool(others), unchanged)


def answers(found: Compared) -> list[MemberAnswer]:
    """Every member against the baseline, task by task."""
    baseline, given = found.question.baseline, []
    for narrow, wide, strict in zip(found.narrow, found.wide, found.strict):
        wides, stricts = ({entry.run: entry for entry in one.entries} for one in (wide, strict))
        for entry in sorted(narrow.entries, key=lambda entry: entry.run):
            if entry.run == baseline or baseline not in wides:
                continue
            one, other = entry.differences[baseline], wides[entry.run].differences[baseline]
            given.append(
                MemberAnswer(
                    member=entry.run,
                    task=narrow.task,
                    seeds=len(entry.analysis.fit.curve.seeds),
                    narrow=one,
                    wide=other,
                    verdict=verdict(one, stricts[entry.run].differences[baseline]),
                    smallest=smallest(entry.analysis, narrow, found.borrowed),
                )
            )
    return given


def smallest(item: Analysis, one: Comparison, known: bool) -> float | None:
    """Smallest difference of pass rates that as many seeds would find with 80 %, by `scalelab design`.

    Args:
        item: a member.
        one: the comparison that it is in.
        known: take the spread between seeds as known, since many other runs told it.
    """
    R0, A, B, C_mid = item.params.values()
    curve = item.fit.curve
    plan = Plan(
        spread=round(one.spread[0], 4),
        seeds=len(curve.seeds),
        evaluations=max(4, len(curve) // len(curve.seeds) - 1),
        prompts=int(curve.places["Evaluation.prompts"]),
        samples=int(curve.places["Evaluation.samples"]),
        drift=round(float(item.draws().sigmoid.drift_M.mean()), 4),
        R0=round(R0, 2),
        A=min(1.0, max(round(A, 2), round(R0, 2) + 0.05)),
        B=round(B, 1),
        budget=round(one.at / C_mid, 1),
        recipes=len(one.entries),
        known=known,
    )
    return smallest_difference(plan)


def section(found: Compared, runs: StudyRuns, folder: Path) -> str:
    """Question, picture, answer and tables."""
    question, given = found.question, answers(found)
    items = runs.of(found.names)
    plot_fits([item.fit.curve for item in items], items, folder / f"{question.name}.png")
    plot_efficiency(found.narrow, folder / f"{question.name}_efficiency.png", found.names)
    text = [f"### {question.title}", ""]
    text += [f"![{question.title} Held-out pass rate.]({question.name}.png)", "", sentence(question, given), ""]
    if found.unchanged:
        named = ", ".join(f"`{name}`" for name in found.unchanged)
        text += [f"The same runs as `{question.baseline}`'s to the last byte, so not exercised here: {named}.", ""]
    for task in runs.tasks():
        rows = [_row(one) for one in given if one.task == task]
        text += [f"**{task}**, less `{question.baseline}`:", "", table(HEADER, rows), ""]
    text += [f"![{question.title} Efficiency at a common A.]({question.name}_efficiency.png)", ""]
    return "\n".join(text)


def glance(questions: Sequence[Compared]) -> str:
    """All answers in one table: a line for each member, its difference and its verdict on every task."""
    tasks = list(dict.fromkeys(one.task for found in questions for one in answers(found)))
    rows = []
    for found in questions:
        given = answers(found)
        for member in dict.fromkeys(one.member for one in given):
            cells = {one.task: one for one in given if one.member == member}
            seeds = max(one.seeds for one in cells.values())
            row = [f"`{member}`", f"`{found.question.baseline}`", str(seeds)]
            for task in tasks:
                row += _at_a_glance(cells[task]) if task in cells else ["–", "–"]
            rows.append(row)
        for member in found.unchanged:
            rows.append([f"`{member}`", f"`{found.question.baseline}`", "–", *["the same runs", "× 1"] * len(tasks)])
    header = ["member", "against", "seeds"]
    for task in tasks:
        header += [f"{task}: pass rate, verdict", f"{task}: compute"]
    return table(header, rows)


def _at_a_glance(one: MemberAnswer) -> list[str]:
    return [f"{round(one.narrow.median, 3) + 0.0:+.3f} **{one.verdict}**", f"× {np.exp(one.narrow.log_reach):.2f}"]


HEADER = (
    "member",
    "seeds",
    "pass rate at the end, 80 %",
    "95 %",
    "smallest seen with 80 %",
    "A",
    "B, factor",
    "C_mid, factor",
    "compute to the same pass rate, factor",
    "95 %",
    "verdict",
)


def _row(one: MemberAnswer) -> list[str]:
    narrow, wide = one.narrow, one.wide
    return [
        one.member,
        str(one.seeds),
        with_interval(narrow.median, narrow.interval),
        "{:+.3f} … {:+.3f}".format(*wide.interval),
        "–" if one.smallest is None else f"{one.smallest:.3f}",
        with_interval(narrow.A, narrow.A_interval),
        _factor(narrow.log_B, narrow.log_B_interval),
        _factor(narrow.log_C_mid, narrow.log_C_mid_interval),
        _factor(narrow.log_reach, narrow.log_reach_interval),
        "{:.2f} … {:.2f}".format(*np.exp(wide.log_reach_interval)),
        f"**{one.verdict}**",
    ]


def _factor(log: float, interval: tuple[float, float]) -> str:
    return with_interval(float(np.exp(log)), tuple(np.exp(interval).tolist()))


WORDS = (
    *("better in pass rate", "better in compute", "worse in pass rate", "worse in compute"),
    *("equal", "cannot tell"),
)


def sentence(question: Question, found: Sequence[MemberAnswer]) -> str:
    """The answer in words, task by task."""
    parts = []
    for task in dict.fromkeys(one.task for one in found):
        said = []
        for word in WORDS:
            names = [f"`{one.member}`" for one in found if one.task == task and one.verdict.startswith(word)]
            if names:
                said.append(f"{word}{' within 0.02' if word == 'equal' else ''}: {', '.join(names)}")
        parts.append(f"On {task}, against `{question.baseline}`: {'; '.join(said)}.")
    return " ".join(parts)
