"""Ranking of recipes by scaling: by A first, then by B at a common A (ScaleRL §3.2, A.5), with probabilities.

A recipe is judged by its runs, and runs of one recipe differ: the paper's three ended ±0.015 apart. How much is learnt
from all recipes that have several seeds, over all tasks; recipes that share their seeds are compared within them
(`hierarchy`). Where no recipe has several seeds, a belief about the spread takes the place of a measurement, and the
verdict says up to which spread it would stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from scalelab.curves.analysis import MARGIN, Analysis
from scalelab.curves.data import same_unit
from scalelab.curves.efficiency import at_common_A
from scalelab.curves.estimates import ComparePoint, Quantity, RunDraws, runs_of, seed_draws
from scalelab.curves.fitting.intervals import Interval, equal_tailed
from scalelab.curves.fitting.models import SIGMOID
from scalelab.curves.forecast import Crossing, crossings
from scalelab.curves.hierarchy import Effects, recipe_effects, scales_of
from scalelab.errors import LabError
from scalelab.numbers import percent

TieRule = Literal["margin", "overlap"]

ComparisonVerdict = Literal["ahead", "behind", "cannot tell"]

SURE = 0.9
"""Probability from which one recipe is called ahead of another."""


@dataclass(frozen=True)
class Difference:
    """One recipe less another.

    Attributes:
        median: of the difference of their pass rates at the compute of the comparison.
        interval: of that difference.
        probability: that the first is above.
        verdict: `ahead` or `behind` from a probability of `SURE` on, else `cannot tell`.
        holds_to_spread: largest standard deviation between seeds up to which the more probable order stays as sure as
            `SURE`; None if it is at none, and where the spread was given.
        A: median of the difference of their asymptotes.
        A_interval: of that difference.
        A_probability: that the first has the higher asymptote.
        log_B: median of the difference of ln B.
        log_B_interval: of that difference.
        log_C_mid: median of the difference of ln C_mid.
        log_C_mid_interval: of that difference.
        log_reach: median of the difference of the logarithms of the compute to reach `Comparison.reach`.
        log_reach_interval: of that difference.
    """

    median: float
    interval: Interval
    probability: float
    verdict: ComparisonVerdict
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


@dataclass(frozen=True)
class Entry:
    """One run of a comparison.

    Attributes:
        analysis: its fit.
        rank: 1 for the best; by A, and by B at the common A among those that tie.
        tied_with: runs that its A ties with.
        common_A: A at which the tied runs were refitted.
        B_at_common_A: exponent of that refit.
        B_interval: its interval.
        rate: pass rate at the compute where probabilities are taken, with the interval of the recipe.
        beats: probability that this recipe lies above another at that compute, by the other's run.
        differences: to each other recipe, by its run.
        best: probability that it is the best of all at that compute.
    """

    analysis: Analysis
    rank: int = 0
    tied_with: tuple[str, ...] = ()
    common_A: float = float("nan")
    B_at_common_A: float = float("nan")
    B_interval: Interval = (float("nan"), float("nan"))
    rate: tuple[float, Interval] = (float("nan"), (float("nan"), float("nan")))
    beats: dict[str, float] = field(default_factory=dict)
    differences: dict[str, Difference] = field(default_factory=dict)
    best: float = float("nan")

    @property
    def run(self) -> str:
        """Name of the run."""
        return self.analysis.fit.curve.run


@dataclass(frozen=True)
class Comparison:
    """The runs of one task, best first.

    Attributes:
        task: the task.
        at: compute at which `rate` and `beats` are taken.
        reach: pass rate to which compute is counted.
        entries: the runs, by rank.
        crossings: of every pair.
        notes: what the reader should know.
        spread: standard deviation between runs of one recipe, what runs of one seed share left out: median, interval.
        shared: standard deviation of what runs of one seed share: median and interval; None where no seeds are shared.
        spreads: standard deviation between runs of one recipe, for every number that is compared: its median.
        measured: whether any recipe has several seeds, so that the spread was measured.
    """

    task: str
    at: float
    reach: float
    entries: tuple[Entry, ...]
    crossings: tuple[Crossing, ...]
    notes: tuple[str, ...]
    spread: tuple[float, Interval] = (float("nan"), (float("nan"), float("nan")))
    shared: tuple[float, Interval] | None = None
    spreads: dict[Quantity, float] = field(default_factory=dict)
    measured: bool = False


def compare(
    analyses: Sequence[Analysis],
    *,
    tie: TieRule = "margin",
    margin: float = MARGIN,
    at: float | None = None,
    reach: float | None = None,
    run_spread: float | None = None,
    spread_from: Sequence[Analysis] = (),
) -> list[Comparison]:
    """Compare runs, task by task.

    Args:
        analyses: joint sigmoid fits with draws; each run once per task.
        tie: what makes two A the same: they are within `margin`, or their intervals overlap.
        margin: see `tie`.
        at: compute at which win probabilities are taken; None takes the largest that every run has spent.
        reach: pass rate to which compute is counted; None takes the middle of the highest start and the lowest end.
        run_spread: standard deviation of A between runs of one recipe, where it is known; None learns it.
        spread_from: other runs of the same kind, at least one with several seeds, to learn the spread from.

    Raises:
        LabError: fits without draws, power laws, mixed units, an unknown tie rule, or a number that makes no sense.
    """
    if tie not in ("margin", "overlap"):
        raise LabError(f"unknown tie rule {tie!r}: use margin or overlap")
    if not (np.isfinite(margin) and margin >= 0):
        raise LabError(f"a margin of {margin:g} makes no sense: give a difference of pass rates from 0 on")
    if at is not None and not (np.isfinite(at) and at > 0):
        raise LabError(f"cannot compare at a compute of {at:g}: give a positive number")
    if reach is not None and not 0 < reach < 1:
        raise LabError(f"a pass rate of {reach:g} cannot be reached: give one between 0 and 1")
    if run_spread is not None and not (np.isfinite(run_spread) and 0 <= run_spread < 1):
        raise LabError(f"a seed spread of {run_spread:g} makes no sense: give a standard deviation of pass rates")
    if any(item.draws is None or item.fit.model is not SIGMOID for item in analyses):
        raise LabError("only joint sigmoid fits can be compared: use --method joint")
    same_unit([item.fit.curve for item in analyses])
    tasks = list(dict.fromkeys(item.fit.curve.task for item in analyses))
    by_task = {task: [item for item in analyses if item.fit.curve.task == task] for task in tasks}
    for members in by_task.values():
        names = [item.fit.curve.run for item in members]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise LabError(
                f"two runs of one task are called {twice[0]}: give each a name of its own (in a column run, or by "
                "fit(…, run=NAME))"
            )
    asked = {task: compare_point(found, at, reach) for task, found in by_task.items()}
    drawn = {task: [seed_draws(item, asked[task]) for item in found] for task, found in by_task.items()}
    seeds = {task: [draws for draws, _ in found] for task, found in drawn.items()}
    from_pilots = [seed_draws(item, compare_point([item], None, reach)) for item in spread_from]
    pilots = [draws for draws, _ in from_pilots if len(draws) > 1]
    of_pilots = [line for _, lines in from_pilots for line in lines]
    if spread_from and not pilots:
        raise LabError("the runs to learn the spread from have one seed each: name runs with several, or the spread")
    found = []
    for task in tasks:
        one = _compare_task(task, by_task[task], seeds, pilots, tie, margin, asked[task], run_spread)
        left_out = [line for _, lines in drawn[task] for line in lines] + of_pilots
        found.append(replace(one, notes=(*one.notes, *left_out)))
    return found


def compare_point(analyses: Sequence[Analysis], at: float | None, reach: float | None) -> ComparePoint:
    """Compute and pass rate at which the runs of one task are compared; `compare` says what None takes."""
    at = min(item.fit.window[1] for item in analyses) if at is None else at
    if reach is None:
        start = max(item.fit.parameters["R0"] for item in analyses)
        end = min(float(item.fit.value(item.fit.window[1])[0]) for item in analyses)
        reach = 0.5 * (start + end)
    return ComparePoint(at, reach)


def _compare_task(
    task: str,
    analyses: Sequence[Analysis],
    seeds: dict[str, list[list[RunDraws]]],
    pilots: list[list[RunDraws]],
    tie: TieRule,
    margin: float,
    asked: ComparePoint,
    spread: float | None,
) -> Comparison:
    at = asked.at
    ranked = _ranked(tie_groups(analyses, tie, margin))
    names = [item.fit.curve.run for item in analyses]
    several = {key: [found for found in members if len(found) > 1] for key, members in seeds.items()}
    borrowed = [members for members in (*(several[key] for key in several if key != task), pilots) if members]

    def effects(quantity: Quantity, pooled: bool = True) -> Effects:
        elsewhere = [runs_of([str(index) for index in range(len(members))], members, quantity) for members in borrowed]
        return recipe_effects(
            runs_of(names, seeds[task], quantity),
            scales_of(quantity),
            spread=spread if quantity in ("value", "A") else None,
            borrowed=elsewhere,
            pooled=pooled,
        )

    found = {quantity: effects(quantity) for quantity in get_args(Quantity)}
    rates, alone, level = found["value"], effects("value", pooled=False), analyses[0].level
    best = rates.best()
    entries = tuple(
        replace(
            entry,
            rate=_rate(entry, alone, at, level),
            differences={
                other.run: _difference(entry.run, other.run, found, level) for other in ranked if other is not entry
            },
            best=best[entry.run],
        )
        for entry in ranked
    )
    entries = tuple(
        replace(entry, beats={run: one.probability for run, one in entry.differences.items()}) for entry in entries
    )
    measured = spread is not None or bool(several[task]) or bool(borrowed)
    shared_M = rates.shared_M
    return Comparison(
        task=task,
        at=float(at),
        reach=float(asked.reach),
        entries=entries,
        crossings=crossings([entry.analysis for entry in ranked]),
        notes=_notes(entries, rates, at, spread, measured),
        spread=(float(np.median(rates.spread_M)), equal_tailed(rates.spread_M, level)),
        shared=(float(np.median(shared_M)), equal_tailed(shared_M, level)) if shared_M.any() else None,
        spreads={quantity: float(np.median(one.spread_M)) for quantity, one in found.items()},
        measured=measured,
    )


def _ranked(groups: Sequence[Sequence[Analysis]]) -> list[Entry]:
    """Entries in the order of the groups, within a group by B at the mean of its asymptotes."""
    ranked: list[Entry] = []
    for group in groups:
        common = float(np.mean([item.fit.parameters["A"] for item in group]))
        refits = [at_common_A(item, common) for item in group]
        for position in sorted(range(len(group)), key=lambda index: -refits[index][0]):
            others = tuple(item.fit.curve.run for item in group if item is not group[position])
            B, interval = refits[position]
            ranked.append(Entry(group[position], len(ranked) + 1, others, common, B, interval))
    return ranked


def _rate(entry: Entry, alone: Effects, at: float, level: float) -> tuple[float, Interval]:
    """Pass rate of a recipe, each judged for itself; the interval allows for other runs of it."""
    draws_M = np.clip(alone.draws_MR[:, alone.recipes.index(entry.run)], 0, 1)
    middle = float(np.median(entry.analysis.curve_draws().value([at])))
    low, high = equal_tailed(draws_M, level)
    return middle, (min(low, middle), max(high, middle))


def _difference(first: str, second: str, effects: Mapping[Quantity, Effects], level: float) -> Difference:
    rates, asymptotes = effects["value"], effects["A"]
    gaps = {quantity: one.difference(first, second) for quantity, one in effects.items()}
    middle = {quantity: float(np.median(gap_M)) for quantity, gap_M in gaps.items()}
    interval = {quantity: equal_tailed(gap_M, level) for quantity, gap_M in gaps.items()}
    # the mean of both orders, so that the two add up to one
    above = 0.5 * (rates.above(first, second) + 1 - rates.above(second, first))
    verdict: ComparisonVerdict = "ahead" if above >= SURE else "behind" if above <= 1 - SURE else "cannot tell"
    return Difference(
        median=middle["value"],
        interval=interval["value"],
        probability=above,
        verdict=verdict,
        holds_to_spread=rates.certain_up_to(first, second, SURE),
        A=middle["A"],
        A_interval=interval["A"],
        A_probability=0.5 * (asymptotes.above(first, second) + 1 - asymptotes.above(second, first)),
        log_B=middle["log_B"],
        log_B_interval=interval["log_B"],
        log_C_mid=middle["log_C_mid"],
        log_C_mid_interval=interval["log_C_mid"],
        log_reach=middle["log_reach"],
        log_reach_interval=interval["log_reach"],
    )


def _notes(
    entries: Sequence[Entry], rates: Effects, at: float, spread: float | None, measured: bool
) -> tuple[str, ...]:
    """Notes for the reader: the source of the spread, and disagreements of rank and probability."""
    notes = []
    single = [entry.run for entry in entries if len(entry.analysis.fit.curve.seeds) == 1]
    low, high = equal_tailed(rates.spread_M, 0.8)
    between = f"{np.median(rates.spread_M):.3f} [{low:.3f}, {high:.3f}]"
    if spread is not None:
        notes.append(f"a spread of {spread:g} between runs of one recipe was given")
    elif measured:
        notes.append(f"spread between runs of one recipe, learnt from all seeds: {between}")
    elif single:
        notes.append(
            f"{', '.join(single)}: one seed each, so the spread between runs of one recipe is not known; it is "
            f"believed to be {between}, and probabilities allow for that. Add seeds, or give --seed-spread or "
            "--spread-from"
        )
    for upper, lower in pairwise(entries):
        chance = lower.beats[upper.run]
        if chance >= 0.6:
            notes.append(
                f"{lower.run} ranks below {upper.run} by A and B, which speak of compute beyond the runs, but is "
                f"probably above it at {at:.4g} ({percent(chance)})"
            )
    return tuple(notes)


def tie_groups(analyses: Sequence[Analysis], tie: TieRule = "margin", margin: float = MARGIN) -> list[list[Analysis]]:
    """Runs in falling order of A; a run joins the group above it if its A ties with the best of that group."""
    groups: list[list[Analysis]] = []
    for item in sorted(analyses, key=lambda item: -item.fit.parameters["A"]):
        if groups and _ties(groups[-1][0], item, tie, margin):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def _ties(best: Analysis, other: Analysis, tie: TieRule, margin: float) -> bool:
    if tie == "margin":
        return best.fit.parameters["A"] - other.fit.parameters["A"] <= margin
    return other.intervals["A"][1] >= best.intervals["A"][0]


def entry_summary(entry: Entry) -> dict[str, Any]:
    """The entry of `scalelab compare --json`: that of `scalelab fit --json`, and what the comparison adds."""
    fitted = entry.analysis.as_json()
    return fitted | {
        "rank": entry.rank,
        "tied_with": list(entry.tied_with),
        "common_A": entry.common_A,
        "B_at_common_A": entry.B_at_common_A,
        "intervals": fitted["intervals"] | {"B_at_common_A": list(entry.B_interval)},
        "value": entry.rate[0],
        "value_interval": list(entry.rate[1]),
        "beats": entry.beats,
        "differences": {run: vars(one).copy() for run, one in entry.differences.items()},
        "best": entry.best,
        "seeds": len(entry.analysis.fit.curve.seeds),
    }
