"""Questions of the study: members held against a baseline by `scalelab compare`, on every axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch

import numpy as np

from scalelab.curves import compare
from scalelab.curves.compare import against
from scalelab.curves.comparison import Comparison
from scalelab.curves.comparison_table import ComparisonRow
from study_tables.axes import HOURS
from study_tables.ends import ends
from study_tables.runs import BASELINE, CENTRES, FIRST, LONG, MANY, OTHER_BASES, StudyRuns, table

NO_FIT = "no fit"
"""Word of a member whose evaluations no rising or falling curve goes through."""

OPEN = "cannot tell"

SAID = ("better", "worse", "equal")
"""Words that say something of a difference."""


@dataclass(frozen=True)
class Question:
    """One question of a study, and the members that answer it.

    Attributes:
        name: a short name, for sections of documents.
        title: as the page asks it.
        members: patterns of their names.
        baseline: what they are compared with.
    """

    name: str
    title: str
    members: tuple[str, ...]
    baseline: str = BASELINE


NAMES = ("deepseek_grpo", "qwen25_dapo", "magistral", "minimax_m1")

RECIPES = Question("recipes", "Which recipe?", NAMES)
RECIPES_MANY = Question(
    "recipes_many", "Which recipe, with 1,024 prompts?", tuple(MANY + name for name in NAMES), CENTRES[MANY]
)
RECIPES_FIRST = Question(
    "recipes_first", "Which recipe, from the first base model?", tuple(FIRST + name for name in NAMES), CENTRES[FIRST]
)

RECIPES_LONG = Question(
    "recipes_long", "Which recipe, at twice the hours?", tuple(LONG + name for name in NAMES), CENTRES[LONG]
)

RECIPES_OF_OTHER_BASES = tuple(
    Question(f"recipes_base_{seed}", f"From base model {seed}, with 1,024 prompts?", (f"{one}*",), CENTRES[one])
    for seed, one in enumerate(OTHER_BASES, start=1)
)

BASES = Question("base", "Does the base model matter?", (FIRST + BASELINE,))

QUESTIONS = (
    RECIPES_MANY,
    RECIPES_LONG,
    RECIPES,
    RECIPES_FIRST,
    *RECIPES_OF_OTHER_BASES,
    Question("without", "What is each ingredient worth?", ("without_*",)),
    Question("without_first", "And from the first base model?", (f"{FIRST}without_*",), FIRST + BASELINE),
    Question("without_many", "Ingredients, with 1,024 prompts?", (f"{MANY}without_*",), CENTRES[MANY]),
    Question(
        "axes_many",
        "Length, batch and staleness, with 1,024 prompts?",
        (f"{MANY}length_*", f"{MANY}batch_*", f"{MANY}k4"),
        CENTRES[MANY],
    ),
    Question(
        "sizes_many",
        "Generations and width, with 1,024 prompts?",
        (f"{MANY}generations_*", f"{MANY}width_*"),
        CENTRES[MANY],
    ),
    Question(
        "changes_long",
        "Loss and length, at twice the hours?",
        (f"{LONG}without_*", f"{LONG}length_*"),
        CENTRES[LONG],
    ),
    Question("additions", "What does each ingredient give alone?", ("baseline_and_*",), "baseline_and_baseline"),
    Question("staleness", "How stale, at which learning rate, with which loss?", ("k*",)),
    Question("prompts", "How many training prompts?", ("prompts_*",)),
    Question("generations", "How many generations of a prompt?", ("generations_*",)),
    Question("batch", "How large a batch?", ("batch_*",)),
    Question("length", "How many tokens?", ("length_*",)),
    Question("width", "How wide a model?", ("width_*",)),
    Question("tasks", "Two tasks, or one alone?", ("tasks_*",)),
    Question("noise", "What do verdicts cost that err in training?", ("false_*",)),
)
"""Questions of the second study."""


@dataclass(frozen=True)
class MemberAnswer:
    """Findings on one member and one task.

    Attributes:
        member: its name.
        baseline: what it is held against.
        task: the task.
        seeds: runs that it has.
        measured: mean of each seed's last four evaluations, less the baseline's.
        row: its row of `scalelab compare` over hours; None without a fit.
        words: by axis; `NO_FIT` where its evaluations carry none.
        all_questions: the word over hours that holds for the lines of all questions together; empty if none is asked.
    """

    member: str
    baseline: str
    task: str
    seeds: int
    measured: float | None
    row: ComparisonRow | None
    words: Mapping[str, str]
    all_questions: str = ""

    @property
    def stands(self) -> str:
        """The word that holds on every axis."""
        return common_word(self.words.values())

    def cells(self) -> list[str]:
        """The line of a table, words by axis last."""
        row = self.row
        curve = f"{row.difference:+.3f} [{row.difference_low:+.3f}, {row.difference_high:+.3f}]" if row else "–"
        measured = "–" if self.measured is None else f"{self.measured:+.3f}"
        return [
            *(f"`{self.member}`", self.task, str(self.seeds), measured, curve),
            *self.words.values(),
            f"**{self.stands}**",
            *([self.all_questions] if self.all_questions else []),
        ]


def common_word(words: Iterable[str]) -> str:
    """The word that all axes share; "cannot tell" where they differ."""
    found = set(words)
    return found.pop() if len(found) == 1 else OPEN


def members_of(question: Question, runs: StudyRuns) -> list[str]:
    """The baseline of a question, and its members that have runs."""
    found = [name for name in runs.members() if any(fnmatch(name, pattern) for pattern in question.members)]
    return [question.baseline, *(name for name in found if name != question.baseline)]


def compared(question: Question, runs: StudyRuns, share: float = 1.0) -> list[Comparison]:
    """Compare the members of a question, a comparison for each task; none if one side has no runs.

    Members whose runs are the baseline's to the last byte are left out. The spread between seeds is learnt from all
    members that have several, and the same base model and prompts as the baseline.

    Args:
        question: whose members.
        runs: over some axis.
        share: of the compute that all members spent, at which they are compared.
    """
    names = [name for name in members_of(question, runs) if not runs.unchanged(name, question.baseline)]
    told = {item.fit.curve.task for item in runs.of([question.baseline])}  # else another would be the baseline
    items = [item for item in runs.of(names) if item.fit.curve.task in told]
    if not {question.baseline} < {item.fit.curve.run for item in items}:
        return []
    at = None if share == 1 else share * min(item.fit.window[1] for item in items)
    others = [item for item in runs.like(question.baseline) if item not in items]
    return compare(items, spread_from=others, baseline=question.baseline, at=at)


def words_of(comparisons: Sequence[Comparison]) -> dict[tuple[str, str], str]:
    """The word of every member and task."""
    return {(run, one.task): word for one in comparisons for run, word in one.verdicts.items()}


def answers(question: Question, by_axis: Mapping[str, StudyRuns]) -> list[MemberAnswer]:
    """Members of a question against its baseline, task by task, on every axis; none whose runs are the baseline's."""
    compared_by = {axis: compared(question, runs) for axis, runs in by_axis.items()}
    said = {axis: words_of(found) for axis, found in compared_by.items()}
    rows = {(row.run, one.task): row for one in compared_by[HOURS] for row in one.rows()}
    runs, given = by_axis[HOURS], []
    for member in members_of(question, runs)[1:]:
        if runs.unchanged(member, question.baseline):
            continue  # of which `compare` says nothing
        for task in runs.tasks():
            words = {axis: of_axis.get((member, task), NO_FIT) for axis, of_axis in said.items()}
            measured = measured_difference(runs, member, question.baseline, task)
            row = rows.get((member, task))
            given.append(MemberAnswer(member, question.baseline, task, runs.seeds(member), measured, row, words))
    return given


def measured_difference(runs: StudyRuns, member: str, baseline: str, task: str) -> float | None:
    """Mean of the ends of a member's seeds, less the baseline's; None without runs."""
    one, other = runs.curve(member, task), runs.curve(baseline, task)
    return None if one is None or other is None else float(np.mean(ends(one)) - np.mean(ends(other)))


def all_answers(by_axis: Mapping[str, StudyRuns]) -> dict[str, list[MemberAnswer]]:
    """Answers to all questions that have runs, by the question's name, with the words that hold for all together."""
    runs = by_axis[HOURS]
    together = against([one for question in QUESTIONS for one in compared(question, runs)], BASELINE)
    words = {(one.baseline, run, one.task): word for one in together for run, word in one.verdicts.items()}
    given = {question.name: answers(question, by_axis) for question in QUESTIONS}
    return {
        name: [
            replace(one, all_questions=words.get((one.baseline, one.member, one.task), NO_FIT)) for one in of_question
        ]
        for name, of_question in given.items()
        if of_question
    }


def answers_table(given: Sequence[MemberAnswer]) -> str:
    """A line for each answer."""
    axes = list(given[0].words)
    header = ["member", "task", "seeds", "measured", "curve, 80 %", *axes, "on all axes"]
    return table(header + ["with all questions"] * bool(given[0].all_questions), [one.cells() for one in given])


def in_words(given: Sequence[MemberAnswer]) -> str:
    """Answers in a line for each task: which members are better, worse, equal, unstable, or cannot be told."""
    lines = []
    for task in dict.fromkeys(one.task for one in given):
        mine = [one for one in given if one.task == task]
        parts = []
        for word in (*SAID, "unstable", OPEN, NO_FIT):
            named = [_named(one) for one in mine if one.stands == word]
            parts += [f"{word}: {', '.join(named)}"] if named else []
        lines.append(f"- **{task}** {'; '.join(parts)}.")
    return "\n".join(lines)


def _named(one: MemberAnswer) -> str:
    """A member with its measured difference, and where hours alone say something, that word."""
    by_hours = one.words[HOURS]
    only = f", {by_hours} by hours" if one.stands == OPEN and by_hours != OPEN else ""
    measured = "" if one.measured is None else f" ({one.measured:+.3f}{only})"
    return f"`{one.member}`{measured}"
