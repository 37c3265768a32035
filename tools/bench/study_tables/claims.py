"""Claims of ScaleRL (arXiv 2510.13786), each decided by a rule from the words of `scalelab compare`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scalelab.curves import parallel
from scalelab.curves.calibrate import like
from scalelab.curves.comparison import Comparison
from scalelab.curves.design import Plan, seeds_for
from study_tables.axes import DECODING, HOURS
from study_tables.ends import ends
from study_tables.exercised import exercises
from study_tables.falls import courses
from study_tables.questions import (
    NO_FIT,
    OPEN,
    QUESTIONS,
    MemberAnswer,
    common_word,
    compared,
    measured_difference,
    words_of,
)
from study_tables.runs import (
    BASELINE,
    CENTRES,
    FIRST,
    LONG,
    MANY,
    OTHER_BASES,
    StudyRuns,
    baseline_of,
    change_of,
    table,
)

Decision = Literal["agrees", "disagrees", "cannot tell", "not exercised"]
Kind = Literal["end", "early", "parallel", "falls", "cut off"]

BASELINES = tuple(CENTRES.values())

PROMPTS = {
    "4,096": (CENTRES[LONG],),
    "1,024": (CENTRES[MANY], *(CENTRES[one] for one in OTHER_BASES)),
    "256": (BASELINE, CENTRES[FIRST]),
}
"""ScaleRL by the training prompts of a task. A claim is decided for each: with 256 prompts come back and retire; with
4,096 runs have twice the hours."""

EARLY = 0.25
"""Share of the compute at which a claim on speed is looked at."""

CUT_OFF = 0.05
"""Share of completions cut off below which ScaleRL's runs stay (ScaleRL §3)."""

STEADY_FROM = 4
"""Seeds without a fall from which a member is called steady."""

MARGIN = 0.02
"""Difference that a design is to find."""

OPPOSITES = {
    "better": ("worse",),
    "worse": ("better",),
    "equal": ("better", "worse"),
    "parallel": ("not parallel",),
    "steady": ("falls",),
    "below": ("above",),
}
"""Words that contradict the expected one."""

EVERYWHERE = ("equal", "parallel", "steady", "below")
"""Expected words that must be said on every task; of the others one suffices, if no task contradicts."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and what it lets one expect here.

    Attributes:
        text: the claim.
        where: section of the paper.
        expects: expected word by member, beside ScaleRL.
        kind: words that are looked at: at the end or of the whole on every axis, at a quarter of the hours on every
            cluster, falls, completions that were cut off.
        counter: ingredient that must have had something to do; empty for none.
    """

    text: str
    where: str
    expects: Mapping[str, str]
    kind: Kind = "end"
    counter: str = ""


CLAIMS = (
    Claim("CISPO ends higher than DAPO's clip", "§3.2", {"without_loss": "worse"}, counter="loss"),
    Claim("An fp32 head raises the end", "§3.2", {"without_fp32_head": "worse"}, counter="fp32 head"),
    Claim("The prompt average ends higher", "§3.2", {"without_aggregation": "worse"}),
    Claim("Norms of advantages end alike", "§3.2", {"without_advantage_norm": "equal"}),
    Claim(
        "Dropping prompts without variance raises the end",
        "§3.2",
        {"without_zero_variance": "worse"},
        counter="zero variance",
    ),
    Claim("Retiring learnt prompts raises the end", "§3.2", {"without_curriculum": "worse"}, counter="curriculum"),
    Claim(
        "Interruption and length penalty end alike",
        "§4",
        {"without_length_control": "equal"},
        counter="interruption",
    ),
    Claim("PipelineRL and PPO-off-policy end alike", "§3.1", {"without_schedule": "equal"}, counter="schedule"),
    Claim("PipelineRL is faster", "§3.1", {"without_schedule": "worse"}, "early", "schedule"),
    Claim("PipelineRL-4 is as good as -8", "§3.1", {"k4": "equal"}),
    Claim("More tokens raise the end", "§5", {"length_56": "worse", "length_96": "better"}),
    Claim("More tokens are slower at first", "§5", {"length_56": "better", "length_96": "worse"}, "early"),
    Claim("A larger batch raises the end", "§5", {"batch_64": "worse", "batch_256": "better"}),
    Claim(
        "Generations of a prompt are of second order",
        "§5",
        {"generations_4": "equal", "generations_16": "equal", "generations_32": "equal"},
    ),
    Claim("A larger model raises the end", "§5", {"width_64": "worse", "width_192": "better"}),
    Claim("Joint curves are parallel", "§5", {BASELINE: "parallel"}, "parallel"),
    Claim("ScaleRL ends above GRPO", "§4", {"deepseek_grpo": "worse"}),
    Claim("ScaleRL ends above DAPO", "§4", {"qwen25_dapo": "worse"}),
    Claim("ScaleRL ends above Magistral", "§4", {"magistral": "worse"}),
    Claim("ScaleRL and MiniMax end alike", "§4", {"minimax_m1": "equal"}),
    Claim("ScaleRL is faster than MiniMax", "§4", {"minimax_m1": "worse"}, "early"),
    Claim("ScaleRL is stable", "§4", {BASELINE: "steady"}, "falls"),
    Claim("Under 5 % of ScaleRL's completions are cut off", "§3", {BASELINE: "below"}, "cut off"),
)


def decide(expects: Mapping[str, str], words: Mapping[tuple[str, str], str]) -> Decision:
    """Decide a claim by what was said.

    One word that contradicts it suffices to disagree. Of what should differ, one word that says so suffices to agree,
    unless another member or task is called unstable or carries no fit; what should be the same must be so on all.

    Args:
        expects: expected word by member.
        words: what was said of a member (first) on a task (second), where its ingredient had something to do.
    """
    said = [(expects[change_of(member)], word) for (member, _), word in words.items()]
    if not said:
        return "not exercised"
    if any(word in OPPOSITES[expected] for expected, word in said):
        return "disagrees"
    met = [word == expected for expected, word in said]
    if any(expected in EVERYWHERE for expected, _ in said):
        return "agrees" if all(met) else "cannot tell"
    return "agrees" if any(met) and not any(word in ("unstable", NO_FIT) for _, word in said) else "cannot tell"


class Evidence:
    """Words that were said of members, by kind of claim.

    Args:
        by_axis: the runs on every axis.
        given: answers at the end of the budget.
    """

    def __init__(self, by_axis: Mapping[str, StudyRuns], given: Sequence[MemberAnswer]) -> None:
        self._by_axis, self._runs = by_axis, by_axis[HOURS]
        self._given = {(one.member, one.task): one for one in given if one.baseline == baseline_of(one.member)}
        self._early: dict[tuple[str, str], str] | None = None

    def words(self, claim: Claim) -> dict[tuple[str, str], str]:
        """Words said of the members of a claim, by member and task."""
        found = {
            "end": self._at_end,
            "early": self._at_first,
            "parallel": self._parallel,
            "falls": self._falls,
            "cut off": self._cut_off,
        }[claim.kind]()
        return {key: word for key, word in found.items() if change_of(key[0]) in claim.expects}

    def text(self, claim: Claim, key: tuple[str, str], word: str) -> str:
        """The word said of one member and task, and that by hours where the axes differ."""
        by_hours = self._given[key].words[HOURS] if claim.kind == "end" else word
        return f"`{key[0]}` {key[1]}: {word}" + (f" ({by_hours} by hours)" if by_hours != word else "")

    def _at_end(self) -> dict[tuple[str, str], str]:
        return {key: one.stands for key, one in self._given.items()}

    def _at_first(self) -> dict[tuple[str, str], str]:
        if self._early is None:
            asked = {member for claim in CLAIMS if claim.kind == "early" for member in claim.expects}
            of_axes = []
            for axis in (HOURS, *DECODING):
                runs = self._by_axis[axis]
                asking = [one for one in QUESTIONS if asks([change_of(name) for name in one.members], asked)]
                found = [compared(question, runs, EARLY) for question in asking]
                of_axes.append({key: word for one in found for key, word in words_of(one).items()})
            self._early = {key: common_word([one.get(key, NO_FIT) for one in of_axes]) for key in self._given}
        return self._early

    def _parallel(self) -> dict[tuple[str, str], str]:
        of_axes = [
            {(one.run, " and ".join(one.tasks)): one.verdict for one in parallel(runs.of(BASELINES))}
            for runs in self._by_axis.values()
        ]
        return {key: common_word([one.get(key, OPEN) for one in of_axes]) for key in of_axes[0]}

    def _falls(self) -> dict[tuple[str, str], str]:
        from scalelab.curves.stability import stability

        found = {(item.run, item.task): stability(item) for item in self._runs.curves if item.run in BASELINES}
        words = {True: "falls", False: "steady"}
        return {
            key: words[one.unstable] if one.unstable or one.seeds >= STEADY_FROM else OPEN for key, one in found.items()
        }

    def _cut_off(self) -> dict[tuple[str, str], str]:
        words: dict[tuple[str, str], str] = {}
        for name in BASELINES:
            rows = [row for (member, _), of_run in courses(self._runs).items() if member == name for row in of_run]
            most = max((row["truncated"] for row in rows), default=float("nan"))
            words |= {} if np.isnan(most) else {(name, "both"): "below" if most < CUT_OFF else "above"}
        return words


def asks(patterns: Sequence[str], members: set[str]) -> bool:
    """True if any of the members belongs to a question's patterns."""
    from fnmatch import fnmatch

    return any(fnmatch(member, pattern) for member in members for pattern in patterns)


class Seeds:
    """Seeds of each recipe that a design takes, for members that spread as much as these.

    The design is that of `scalelab design`: the baseline's curve, drift and evaluations, and the standard deviation of
    the last four evaluations between the seeds of the two members, pooled; where neither has two, that of the study.

    Args:
        runs: over hours.
        recipes: comparisons of recipes with every baseline, whose curve is planned; on every task.
    """

    def __init__(self, runs: StudyRuns, recipes: Sequence[Comparison]) -> None:
        self._runs, self._designs = runs, {(one.baseline, one.task): like(one) for one in recipes}

    def spread(self, member: str, task: str) -> float:
        """Standard deviation between seeds: s² = Σ (y − ȳ of its member)² / Σ (seeds − 1), y the end of a seed."""
        found = [
            ends(item) for name in (member, baseline_of(member)) if (item := self._runs.curve(name, task)) is not None
        ]
        squares = sum(float(((np.array(one) - np.mean(one)) ** 2).sum()) for one in found)
        spare = sum(len(one) - 1 for one in found)
        return float(np.sqrt(squares / spare)) if spare else self._designs[baseline_of(member), task].spread

    def wanted(self, member: str, task: str, difference: float) -> str:
        """Seeds of each of the two that find a difference with 80 %; "no fit" without a curve of the baseline."""
        design = self._designs.get((baseline_of(member), task))
        if design is None:
            return NO_FIT
        plan = Plan(
            spread=self.spread(member, task),
            evaluations=len(design.compute_N) - 1,
            prompts=256,
            samples=2,
            drift=design.drift,
            R0=design.R0,
            A=design.A,
            B=design.B,
            budget=design.compute_N[-1] / design.C_mid,
        )
        found = seeds_for(plan, difference)
        return "> 100" if found is None else str(found)


def claims_tables(
    by_axis: Mapping[str, StudyRuns], given: Sequence[MemberAnswer], recipes: Sequence[Comparison]
) -> tuple[str, str]:
    """A line for each claim: the decisions alone; and with what was said, and the seeds that open ones take."""
    evidence, seeds, runs = Evidence(by_axis, given), Seeds(by_axis[HOURS], recipes), by_axis[HOURS]
    worked = {centre: exercises(runs.folder, centre) for centre in BASELINES}
    short, rows, decisions = [], [], {prompts: Counter[str]() for prompts in PROMPTS}
    for claim in CLAIMS:
        words = evidence.words(claim)
        counted = {key: word for key, word in words.items() if worked[baseline_of(key[0])].get(claim.counter, True)}
        said = "; ".join(
            evidence.text(claim, key, word) + ("" if key in counted else " (not exercised)")
            for key, word in words.items()
        )
        decided: list[str] = []
        open_: dict[tuple[str, str], str] = {}
        for prompts, centres in PROMPTS.items():
            mine = {key: word for key, word in counted.items() if baseline_of(key[0]) in centres}
            decided.append(decide(claim.expects, mine))
            decisions[prompts][decided[-1]] += 1
            if claim.kind == "end" and decided[-1] in ("cannot tell", "not exercised"):
                open_ |= mine or {key: word for key, word in words.items() if baseline_of(key[0]) in centres}
        needed = [_needed(seeds, runs, open_, size) or "–" for size in (MARGIN, None)]
        short.append([claim.text, claim.where, *decided])
        rows.append([claim.text, said or "no runs", *decided, *needed])
    decisions_header = [f"with {prompts} prompts" for prompts in PROMPTS]
    header = ["claim", "said", *decisions_header, f"seeds to find {MARGIN:g}", "seeds to find what was measured"]
    counts = [
        f"with {prompts} prompts {', '.join(f'{decision}: {count}' for decision, count in found.most_common())}"
        for prompts, found in decisions.items()
    ]
    decided_table = table(["claim", "ScaleRL", *decisions_header], short)
    return f"{decided_table}\n\nOf {len(CLAIMS)} claims, {'; '.join(counts)}.", table(header, rows)


def _needed(seeds: Seeds, runs: StudyRuns, words: Mapping[tuple[str, str], str], difference: float | None) -> str:
    """Seeds for every open line of a claim; those for what was measured where no difference is given."""
    told, several = [], len({member for member, _ in words}) > 1
    for member, task in words:
        size = difference
        if size is None:
            measured = measured_difference(runs, member, baseline_of(member), task)
            size = 0.0 if measured is None else abs(measured)
        enough = seeds.wanted(member, task, size) if size >= 0.5 * MARGIN else "–"
        told.append(f"{f'`{member}` ' * several}{task}: {enough}")
    return "; ".join(told)
