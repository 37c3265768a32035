"""Results of a comparison of recipes: entries, differences and crossings, and the one table that shows them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from scalelab.curves.analysis import Analysis
from scalelab.curves.comparison_table import COLUMNS, SHORT_COLUMNS, ComparisonRow, TableColumn
from scalelab.curves.fitting.intervals import Interval
from scalelab.curves.stability import Stability
from scalelab.numbers import compact, percent

ComparisonVerdict = Literal["better", "worse", "equal", "unstable", "cannot tell"]


@dataclass(frozen=True)
class ComparisonSettings:
    """Settings of a comparison.

    Attributes:
        at: compute at which rates are compared.
        reach: pass rate to which compute is counted.
        margin: difference below which recipes count as equal.
        error: probability that a verdict is wrong.
        level: probability of intervals.
        lines: number of verdicts, over all tasks, that are to hold together.
    """

    at: float
    reach: float
    margin: float
    error: float
    level: float
    lines: int = 1

    @property
    def sure(self) -> float:
        """Share of the draws with which one recipe leads surely."""
        return 1 - self.error / 2


@dataclass(frozen=True)
class Difference:
    """One recipe less another.

    Attributes:
        median: of the difference of their pass rates at the compute of the comparison.
        interval: of that difference.
        probability: that the first is above.
        verdict: of the first against the second, for this pair alone.
        bound: largest size of the difference that the draws leave possible, with 1 − error/2 on each side.
        measured: difference of the measured rates; not a number where an evaluation so late is missing.
        holds_to_spread: largest standard deviation between seeds up to which `better` or `worse` can be said beside
            the words of all other lines; None if at none, where it was given, and where recipes have several seeds.
        A: median of the difference of their asymptotes, given sigmoids; the like for the rest.
        A_interval: of that difference.
        A_probability: that the first has the higher asymptote.
        log_B: of the difference of ln B.
        log_B_interval: of that difference.
        log_C_mid: of the difference of ln C_mid.
        log_C_mid_interval: of that difference.
        log_reach: of the difference of the logarithms of the compute to reach `Comparison.reach`, over all shapes.
        log_reach_interval: of that difference.
        wrong: probability of the error that the claim of `verdict` risks, two-sided; what Holm's rule orders by.
        claim: what the draws speak for most: `better`, `worse` or `equal`.
    """

    median: float
    interval: Interval
    probability: float
    verdict: ComparisonVerdict
    bound: float
    measured: float
    holds_to_spread: float | None
    A: float
    A_interval: Interval
    A_probability: float
    log_B: float
    log_B_interval: Interval
    log_C_mid: float
    log_C_mid_interval: Interval
    log_reach: float
    log_reach_interval: Interval
    wrong: float
    claim: ComparisonVerdict


@dataclass(frozen=True)
class Crossing:
    """Crossing of two recipes' curves up to the compute of the comparison.

    Attributes:
        first: a run.
        second: another.
        probability: that one is ahead where it leads most surely, and the other at the compute of the comparison.
        compute: median compute of the crossing; None unless both lead there with 1 − error/2.
        interval: its interval, given that they cross.
        leader_before: who is ahead before it.
    """

    first: str
    second: str
    probability: float
    compute: float | None
    interval: Interval | None
    leader_before: str


class Crossings(Sequence[Crossing], ABC):
    """Crossings of every pair of recipes; those that are told are found without the others."""

    @abstractmethod
    def told(self, run: str | None = None) -> tuple[Crossing, ...]:
        """The crossings whose compute is named, in the order of the pairs.

        Args:
            run: only those of this run's curve.
        """

    @abstractmethod
    def worded(self, baseline: str, words: Mapping[str, ComparisonVerdict]) -> Crossings:
        """The crossings where every run has this word against the baseline: only who leads surely has crossed it."""


@dataclass(frozen=True)
class PlaceByA:
    """Place of a run in the order by A, and by B at the common A among those that tie (ScaleRL §3.2).

    Attributes:
        rank: 1 for the highest.
        tied_with: runs that its A ties with.
        common_A: A at which the tied runs were refitted.
        B: exponent of that refit.
        B_interval: its interval.
    """

    rank: int
    tied_with: tuple[str, ...]
    common_A: float
    B: float
    B_interval: Interval


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison.

    Attributes:
        analysis: its fit.
        rank: 1 for the highest pass rate at the compute of the comparison.
        order_by_A: gives the places of all runs in the order by A, which takes refits and is made when asked for.
        rate: pass rate at the compute of the comparison, with the interval of the recipe.
        measured: mean of the last evaluations up to that compute, over seeds; not a number without any.
        differences: to each other recipe, by its run.
        best: probability that it is the best of all at that compute.
        stability: falls of its seeds.
        reaches: probability that its curve starts below the pass rate `Comparison.reach` and gets there.
    """

    analysis: Analysis
    rank: int
    order_by_A: Callable[[], Mapping[str, PlaceByA]]
    rate: tuple[float, Interval]
    measured: float
    differences: Mapping[str, Difference]
    best: float
    stability: Stability
    reaches: float

    @property
    def run(self) -> str:
        """Name of the run."""
        return self.analysis.fit.curve.run

    @property
    def by_A(self) -> PlaceByA:
        """Its place in the order by A."""
        return self.order_by_A()[self.run]

    @property
    def beats(self) -> dict[str, float]:
        """Probability that this recipe lies above another at the compute of the comparison, by the other's run."""
        return {run: one.probability for run, one in self.differences.items()}


@dataclass(frozen=True)
class Comparison:
    """The runs of one task, best first.

    Attributes:
        task: the task.
        at: compute at which they are compared.
        reach: pass rate to which compute is counted.
        entries: the runs, by rank.
        crossings: of every pair, made when asked for.
        remarks: what the reader should know of this task.
        spread: standard deviation of A between runs of one recipe: median and interval.
        measured: whether any recipe has several seeds, so that the spread was measured.
        margin: difference below which two recipes count as equal.
        error: probability that a verdict is wrong.
        baseline: run that the others are held against.
        verdicts: word for every other run against the baseline, right for all of them, and all tasks, together.
        together: (lines, tasks) whose words those are.
    """

    task: str
    at: float
    reach: float
    entries: tuple[ComparedRun, ...]
    crossings: Crossings
    remarks: tuple[str, ...]
    spread: tuple[float, Interval]
    measured: bool
    margin: float
    error: float
    baseline: str
    verdicts: Mapping[str, ComparisonVerdict] = field(default_factory=dict)
    together: tuple[int, int] = (0, 0)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks, base models that differ, and which words hold together."""
        several = len({base for entry in self.entries for base in entry.analysis.fit.curve.bases}) > 1
        said = (*self.remarks, *[f"not all of these runs start from one base model: {self._by_base()}"] * several)
        lines, tasks = self.together
        if lines < 2:
            return said
        of = f"the words of all {lines} lines{f' of {tasks} tasks' * (tasks > 1)} hold together"
        return (*said, f"{of}: the probability that any is false is to be {percent(self.error)} at most")

    def _by_base(self) -> str:
        """Runs by the beginning of the digests of their base models."""
        runs: dict[str, list[str]] = {}
        for entry in self.entries:
            for base in entry.analysis.fit.curve.bases:
                runs.setdefault(base[:8], []).append(entry.run)
        return "; ".join(f"{', '.join(names)} from {base}" for base, names in runs.items())

    @property
    def reference(self) -> ComparedRun:
        """The entry of the baseline."""
        return next((entry for entry in self.entries if entry.run == self.baseline), self.entries[0])

    def rows(self) -> list[ComparisonRow]:
        """The comparison as a table, a row for each run, best first: the one that every face shows."""
        return [_row(self, entry) for entry in self.entries]

    def sentence(self) -> str:
        """The verdicts in one sentence: what was found at the compute of the comparison, word by word."""
        unit = self.reference.analysis.fit.curve.unit
        said, rows = [], self.rows()
        for word in ("better", "worse", "equal", "unstable", "cannot tell"):
            named = [row for row in rows if row.verdict == word]
            if not named:
                continue
            runs = ", ".join(row.run + (f" ({_sure(row)})" if word in ("better", "worse") else "") for row in named)
            said.append(f"{f'equal within {self.margin:g}' if word == 'equal' else word}: {runs}")
        return f"{self.task or 'all'}, at {compact(self.at)} {unit}, against {self.reference.run}: {'; '.join(said)}."

    def short_header(self) -> list[str]:
        """Titles of the columns that fit a narrow terminal."""
        return self._titles(SHORT_COLUMNS)

    def header(self) -> list[str]:
        """Titles of all columns."""
        return self._titles(COLUMNS)

    def _titles(self, columns: Sequence[TableColumn]) -> list[str]:
        facts = {"at": compact(self.at), "base": self.reference.run, "reach": f"{self.reach:.2f}"}
        return [column.title.format(**facts) for column in columns]


def _sure(row: ComparisonRow) -> str:
    """The probability of a difference in the direction of its verdict."""
    assert row.probability is not None
    return percent(row.probability if row.verdict == "better" else 1 - row.probability)


NOT_REACHED = {"log_reach": None, "log_reach_interval": None}


def _both_reach(one: ComparedRun, other: ComparedRun) -> bool:
    """True if both more likely than not come to the pass rate for which compute is compared."""
    return min(one.reaches, other.reaches) >= 0.5


def _row(one: Comparison, entry: ComparedRun) -> ComparisonRow:
    found = entry.differences.get(one.reference.run)
    reaches = found is not None and _both_reach(entry, one.reference)
    item = entry.analysis
    ends = {
        f"{name}_{end}": item.intervals[name][at]
        for name in ("A", "B", "C_mid")
        for at, end in enumerate(("low", "high"))
    }
    return ComparisonRow(
        task=one.task,
        rank=entry.rank,
        run=entry.run,
        at=one.at,
        measured=_known(entry.measured),
        value=entry.rate[0],
        value_low=entry.rate[1][0],
        value_high=entry.rate[1][1],
        measured_difference=None if found is None else _known(found.measured),
        difference=None if found is None else found.median,
        difference_low=None if found is None else found.interval[0],
        difference_high=None if found is None else found.interval[1],
        probability=None if found is None else found.probability,
        verdict="" if found is None else one.verdicts[entry.run],
        verdict_text="baseline" if found is None else _verdict_text(one, entry, found),
        bound=None if found is None else found.bound,
        compute_factor=float(np.exp(found.log_reach)) if found is not None and reaches else None,
        compute_low=float(np.exp(found.log_reach_interval[0])) if found is not None and reaches else None,
        compute_high=float(np.exp(found.log_reach_interval[1])) if found is not None and reaches else None,
        A=item.params["A"],
        A_told=item.stands,
        gain_seen=item.seen,
        B=item.params["B"],
        C_mid=item.params["C_mid"],
        falls=len(entry.stability.falls),
        **ends,
    )


def _known(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _verdict_text(one: Comparison, entry: ComparedRun, found: Difference) -> str:
    """The verdict in full: what it rests on, and what would change it."""
    word = one.verdicts[entry.run]
    above = f"{percent(found.probability)} above"
    if word == "equal":
        return f"equal within {one.margin:g} (at most {found.bound:.3f} apart)"
    if word in ("better", "worse"):
        small = f", by less than {one.margin:g}" if found.bound <= one.margin else ""
        chance = above if word == "better" else f"{percent(1 - found.probability)} below"
        held = f", as long as seeds spread by no more than {found.holds_to_spread:.2g}" if found.holds_to_spread else ""
        return f"{word} ({chance}{small}{held})"
    held = f", sure if seeds spread by no more than {found.holds_to_spread:.2g}" if found.holds_to_spread else ""
    return f"{word} ({above}, at most {found.bound:.3f} apart{held})"


MIRROR: Mapping[ComparisonVerdict, ComparisonVerdict] = {"better": "worse", "worse": "better"}
"""Verdicts that change when the two runs change places."""


def _of_pair(
    run: str, other: str, found: Difference, verdicts: Mapping[str, ComparisonVerdict], baseline: str
) -> dict[str, Any]:
    """A difference for JSON: against the baseline with the table's word, and always with that of the pair alone."""
    word = found.verdict
    if other == baseline:
        word = verdicts.get(run, word)
    elif run == baseline and other in verdicts:
        word = MIRROR.get(verdicts[other], verdicts[other])
        word = "cannot tell" if word == "unstable" else word  # it is the other that falls
    return vars(found) | {"measured": _known(found.measured), "verdict": word, "verdict_alone": found.verdict}


def entry_summary(
    entry: ComparedRun,
    others: Sequence[ComparedRun],
    verdicts: Mapping[str, ComparisonVerdict] = MappingProxyType({}),
    baseline: str = "",
) -> dict[str, Any]:
    """The entry of `scalelab compare --json`: that of `scalelab fit --json`, and what the comparison adds.

    Args:
        entry: the run.
        others: all runs of the comparison.
        verdicts: words of the other runs against the baseline that hold for all lines together.
        baseline: the run that they are held against.
    """
    fitted, by_A = entry.analysis.as_json(), entry.by_A
    differences = {
        other.run: _of_pair(entry.run, other.run, one, verdicts, baseline)
        | ({} if _both_reach(entry, other) else NOT_REACHED)
        for other in others
        if (one := entry.differences.get(other.run)) is not None
    }
    return fitted | {
        "rank": entry.rank,
        "rank_by_A": by_A.rank,
        "tied_with": list(by_A.tied_with),
        "common_A": by_A.common_A,
        "B_at_common_A": by_A.B,
        "intervals": fitted["intervals"] | {"B_at_common_A": list(by_A.B_interval)},
        "value": entry.rate[0],
        "value_interval": list(entry.rate[1]),
        "measured": entry.measured if np.isfinite(entry.measured) else None,
        "beats": entry.beats,
        "differences": differences,
        "best": entry.best,
        "seeds": len(entry.analysis.fit.curve.seeds),
        "falls": [vars(fall).copy() for fall in entry.stability.falls],
        "fall_rate": [entry.stability.rate, *entry.stability.interval],
    }
