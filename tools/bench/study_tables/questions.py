"""Questions of the study: members held against a baseline by `scalelab compare`, hours and learning apart."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch

from scalelab.curves import compare
from scalelab.curves.comparison import Comparison
from scalelab.curves.comparison_table import ComparisonRow
from study_tables.runs import BASELINE, StudyRuns, table


@dataclass(frozen=True)
class Question:
    """One question of the study, and the members that answer it.

    Attributes:
        title: as the page asks it.
        members: patterns of their names.
        baseline: what they are compared with.
    """

    title: str
    members: tuple[str, ...]
    baseline: str = BASELINE


QUESTIONS = (
    Question("Which recipe?", ("deepseek_grpo", "qwen25_dapo", "magistral", "minimax_m1")),
    Question("ScaleRL without one ingredient", ("without_*",)),
    Question("The baseline with one ingredient", ("baseline_and_*",), "baseline_and_baseline"),
    Question("How large a batch?", ("batch_*",)),
    Question("How long?", ("length_*",)),
    Question("How many generations per prompt?", ("generations_*",)),
    Question("Dense or a mixture of experts?", ("model_*",)),
    Question("Which mixture of tasks?", ("tasks_*",)),
    Question("How many steps off policy?", ("pipeline_*",)),
    Question("What do steps half as long give?", ("lr_*",)),
    Question("Is it the 27 prompts of a step that set Magistral apart?", ("magistral_*",), "magistral"),
    Question("Does the schedule matter as much if decoding is twice as fast?", ("fast_*",), "fast"),
    Question("And if it is half as fast?", ("slow_*",), "slow"),
)


@dataclass(frozen=True)
class MemberAnswer:
    """Findings on one member of the study and one task.

    Attributes:
        member: its name.
        seeds: runs that it has.
        row: its row of `scalelab compare`.
        pace: steps per hour of the baseline, as a multiple of the member's.
    """

    member: str
    seeds: int
    row: ComparisonRow
    pace: float

    @property
    def learning(self) -> float | None:
        """Steps to the same pass rate, as a multiple of the baseline's: the factor of hours less that of the pace."""
        return None if self.row.compute_factor is None else self.row.compute_factor / self.pace


def members_of(question: Question, runs: StudyRuns) -> list[str]:
    """The baseline of a question, and its members that have runs."""
    found = [name for name in runs.members() if any(fnmatch(name, pattern) for pattern in question.members)]
    return [question.baseline, *(name for name in found if name != question.baseline)]


def compared(question: Question, runs: StudyRuns) -> list[Comparison]:
    """Compare the members of a question, a comparison for each task; none if one side has no runs.

    Members whose runs are the baseline's to the last byte are left out. The spread between seeds is learnt from all
    members of the study that have several.
    """
    names = [name for name in members_of(question, runs) if not runs.unchanged(name, question.baseline)]
    items = runs.of(names)
    if not {question.baseline} < {item.fit.curve.run for item in items}:
        return []
    others = [item for item in runs.analyses if item not in items and len(item.fit.curve.seeds) > 1]
    return compare(items, spread_from=others, baseline=question.baseline)


def answers(question: Question, runs: StudyRuns) -> list[MemberAnswer]:
    """Every member against the baseline, task by task."""
    pace = {name: runs.steps_per_hour(name) for name in members_of(question, runs)}
    given = []
    for one in compared(question, runs):
        seeds = {entry.run: len(entry.analysis.fit.curve.seeds) for entry in one.entries}
        for row in sorted(one.rows(), key=lambda row: row.run):
            if row.run != question.baseline:
                given.append(MemberAnswer(row.run, seeds[row.run], row, pace[question.baseline] / pace[row.run]))
    return given


def glance(runs: StudyRuns) -> str:
    """All answers in one table: a line for each member, its difference and its verdict on every task."""
    tasks = runs.tasks()
    header = ["member", "against", "seeds"]
    for task in tasks:
        header += [f"{task}: measured", "curve, 80 %", "verdict", "hours", "of it learning"]
    rows = []
    for question in QUESTIONS:
        given = answers(question, runs)
        for member in dict.fromkeys(one.member for one in given):
            cells = {one.row.task: one for one in given if one.member == member}
            line = [f"`{member}`", f"`{question.baseline}`", str(max(one.seeds for one in cells.values()))]
            for task in tasks:
                line += _cells(cells[task]) if task in cells else ["–"] * 5
            rows.append(line)
        same = [name for name in members_of(question, runs) if runs.unchanged(name, question.baseline)]
        rows += [
            [f"`{name}`", f"`{question.baseline}`", "–", *["the same runs", *["–"] * 4] * len(tasks)] for name in same
        ]
    return table(header, rows)


def _cells(one: MemberAnswer) -> list[str]:
    row = one.row
    measured = "–" if row.measured_difference is None else f"{row.measured_difference:+.3f}"
    curve = (
        "–"
        if row.difference is None
        else f"{row.difference:+.3f} [{row.difference_low:+.3f}, {row.difference_high:+.3f}]"
    )
    verdict = f"equal within {row.bound:.3f}" if row.verdict == "equal" and row.bound is not None else row.verdict
    hours, learning = (f"× {value:.2f}" if value is not None else "–" for value in (row.compute_factor, one.learning))
    return [measured, curve, f"**{verdict}**", hours, learning]
