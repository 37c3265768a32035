"""Comparison of recipes by one set of joint draws: rates, differences, verdicts, crossings, compute to a pass rate.

Recipes are ranked by the pass rate that was measured: that of their curves at the largest compute that all have
reached. Asymptotes are an extrapolation and come second. A verdict is one of five words, right with the stated error:

- better, worse: the difference is above or below zero with 1 − error/2;
- equal: it lies within ± margin, each side with 1 − error/2 (two one-sided tests, Schuirmann 1987);
- unstable: none of these, and more of its seeds fell beyond chance than of the other's;
- cannot tell.

The words of a table hold for all of its lines together (Holm 1979). Where no recipe has several seeds, a belief about
the spread, or that of other runs, takes the place of a measurement, and the verdict says up to which spread it stands.

Axes: `_M` joint draws, `_C` points of compute.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.analysis import Analysis
from scalelab.curves.asymptotes import TieRule, asymptotes_note, order_by_A, tie_groups
from scalelab.curves.claims import claim_of
from scalelab.curves.comparison import (
    ComparedRun,
    Comparison,
    ComparisonSettings,
    ComparisonVerdict,
    Difference,
)
from scalelab.curves.crossing import PairCrossings
from scalelab.curves.differences import ComparedNumbers, Pairs, ToOthers, verdict_word
from scalelab.curves.fitting.intervals import equal_tailed
from scalelab.curves.fitting.models import SIGMOID
from scalelab.curves.joint_draws import JointDraws, check_spread, joint_draws, several, spread_note
from scalelab.curves.stability import stability
from scalelab.defaults import ERROR, MARGIN
from scalelab.errors import LabError
from scalelab.numbers import quantity
from scalelab.reading.curve import Curve, same_unit
from scalelab.reading.throughput import refuse_other_loads

LONGEST = 100.0
"""Compute to reach a pass rate is taken to be at most this often the compute of the comparison."""

LATE = 4
"""Evaluations of each seed, up to the compute of the comparison, whose mean is the measured rate."""

MEASURED_FROM = 0.75
"""Share of the compute of the comparison from which on they count."""

SPREADS_TOLD = [float(f"{each:.2g}") for each in np.geomspace(0.001, 0.2, 24).tolist()]
"""Spreads between single seeds up to which a word is said to stand, as they are printed."""


def compare(
    analyses: Sequence[Analysis],
    *,
    tie: TieRule = "margin",
    margin: float = MARGIN,
    at: float | None = None,
    reach: float | None = None,
    run_spread: float | None = None,
    spread_from: Sequence[Analysis] = (),
    error: float = ERROR,
    baseline: str | None = None,
) -> list[Comparison]:
    """Compare runs, task by task.

    Args:
        analyses: joint sigmoid fits with draws; each run once per task.
        tie: what makes two A the same: they are within `margin`, or their intervals overlap.
        margin: difference of pass rates below which two recipes count as equal; see `tie`, too.
        at: compute at which recipes are compared; None takes the largest that every run has spent, by its longest seed.
        reach: pass rate to which compute is counted; None takes the middle of the highest start and the lowest end.
        run_spread: standard deviation of A between runs of one recipe, where it is known; None learns it.
        spread_from: other runs of the same kind, at least one with several seeds, to learn the spread from.
        error: probability that a verdict is wrong.
        baseline: run that the others are held against; None takes the first.

    Raises:
        LabError: fits without draws, power laws, mixed units, core-hours of unequal loads, an unknown tie rule, or a
            number that makes no sense.
    """
    _check(analyses, tie, margin, at, reach, error)
    check_spread(run_spread, spread_from)
    refuse_other_loads([item.fit.curve for item in analyses])
    tasks = list(dict.fromkeys(item.fit.curve.task for item in analyses))
    by_task = {task: [item for item in analyses if item.fit.curve.task == task] for task in tasks}
    lines = sum(len(members) - 1 for members in by_task.values())
    found = []
    for task, members in by_task.items():
        elsewhere = [item for item in analyses if item.fit.curve.task != task]
        family = joint_draws(members, run_spread, (*elsewhere, *spread_from))
        asked = ComparisonSettings(*compare_point(members, at, reach), margin, error, members[0].level, lines)
        found.append(_compare_task(task, members, family, tie, asked, run_spread, baseline))
    return _hold_together(found)


def _check(
    analyses: Sequence[Analysis],
    tie: str,
    margin: float,
    at: float | None,
    reach: float | None,
    error: float,
) -> None:
    if tie not in ("margin", "overlap"):
        raise LabError(f"unknown tie rule {tie!r}: use margin or overlap")
    if not (np.isfinite(margin) and margin >= 0):
        raise LabError(f"a margin of {margin:g} makes no sense: give a difference of pass rates from 0 on")
    if at is not None and not (np.isfinite(at) and at > 0):
        raise LabError(f"cannot compare at a compute of {at:g}: give a positive number")
    if reach is not None and not 0 < reach < 1:
        raise LabError(f"a pass rate of {reach:g} cannot be reached: give one between 0 and 1")
    if not 0.001 <= error < 0.5:
        raise LabError(f"an error of {error:g} makes no sense: give a probability from 0.001 to 0.5, such as {ERROR}")
    if any(item.curves is None or item.fit.model is not SIGMOID for item in analyses):
        raise LabError("only joint sigmoid fits can be compared: use --method joint")
    same_unit([item.fit.curve for item in analyses])
    names = [(item.fit.curve.task, item.fit.curve.run) for item in analyses]
    twice = [run for task, run in names if names.count((task, run)) > 1]
    if twice:
        raise LabError(
            f"two runs of one task are called {twice[0]}: give each a name of its own (in a column run, or by "
            "fit(…, run=NAME))"
        )


def compare_point(analyses: Sequence[Analysis], at: float | None, reach: float | None) -> tuple[float, float]:
    """Compute and pass rate at which the runs of one task are compared; `compare` says what None takes."""
    at = min(item.fit.window[1] for item in analyses) if at is None else at
    if reach is None:
        start = max(item.params["R0"] for item in analyses)
        end = min(item.rates()[0].value for item in analyses)
        reach = 0.5 * (start + end)
    return float(at), float(reach)


def _compare_task(
    task: str,
    analyses: Sequence[Analysis],
    family: JointDraws,
    tie: TieRule,
    asked: ComparisonSettings,
    spread: float | None,
    baseline: str | None,
) -> Comparison:
    names = [item.fit.curve.run for item in analyses]
    numbers = {run: _numbers(family, run, asked) for run in names}
    value_MR = np.stack([numbers[run].value for run in names], axis=1)
    best_R = np.bincount(value_MR.argmax(1), minlength=len(names)) / len(value_MR)
    order = np.argsort(-np.median(value_MR, axis=0), kind="stable").tolist()
    by_A = cache(partial(order_by_A, tie_groups(analyses, tie, asked.margin)))
    stable = {item.fit.curve.run: stability(item.fit.curve, asked.level, item.falls) for item in analyses}
    measured = {item.fit.curve.run: measured_rate(item.fit.curve, asked.at) for item in analyses}
    pairs = Pairs(numbers, measured, asked)
    value_at = cache(lambda spread: joint_draws(analyses, spread).value(asked.at))

    def difference(run: str, other: str) -> Difference:
        one, unstable = pairs.difference(run, other), stable[run].falls_more_than(stable[other])
        own = spread is not None or any(map(several, analyses))  # other tasks' and pilots' seeds may spread otherwise
        held = None if own else _holds(value_at, run, other, asked)
        return replace(one, verdict=verdict_word(one.claim, one.wrong <= asked.error, unstable), holds_to_spread=held)

    entries = []
    for place, index in enumerate(order, 1):
        run, own = names[index], numbers[names[index]]
        entries.append(
            ComparedRun(
                analysis=analyses[index],
                rank=place,
                order_by_A=by_A,
                rate=(float(np.median(own.value)), equal_tailed(own.value, asked.level)),
                measured=measured[run],
                differences=ToOthers(partial(difference, run), [other for other in names if other != run]),
                best=float(best_R[index]),
                stability=stable[run],
                reaches=own.reaches,
            )
        )
    chosen = baseline if baseline in names else names[0]
    comparison = Comparison(
        task=task,
        at=asked.at,
        reach=asked.reach,
        entries=tuple(entries),
        crossings=PairCrossings(family, names, asked, {entry.run: entry.differences for entry in entries}),
        remarks=(),
        spread=(float(np.median(family.spread_M)), equal_tailed(family.spread_M, asked.level)),
        measured=family.measured,
        margin=asked.margin,
        error=asked.error,
        baseline=chosen,
    )
    return replace(comparison, remarks=_remarks(comparison, spread, baseline or chosen))


def _numbers(family: JointDraws, run: str, asked: ComparisonSettings) -> ComparedNumbers:
    member = family.recipes[run]
    sigmoid, risen_M = member.sigmoid, member.risen(asked.reach)
    ends = asked.at / LONGEST, asked.at * LONGEST
    return ComparedNumbers(
        value=member.value([asked.at])[:, 0],
        A=sigmoid.theta_MP[:, 1],
        log_B=sigmoid.theta_MP[:, 2],
        log_C_mid=sigmoid.theta_MP[:, 3] + sigmoid.log_reference,
        log_reach=np.log(np.clip(risen_M, *ends)),
        reaches=float((np.isfinite(risen_M) & (risen_M > 0)).mean()),
    )


def _hold_together(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with a word for every run against the baseline that holds for all together (Holm 1979)."""
    lines = [
        (index, entry, entry.differences[one.baseline])
        for index, one in enumerate(comparisons)
        for entry in one.entries
        if entry.run != one.baseline
    ]
    words: list[dict[str, ComparisonVerdict]] = [{} for _ in comparisons]
    sure = True
    for place, (index, entry, found) in enumerate(sorted(lines, key=lambda line: line[2].wrong)):
        one = comparisons[index]
        sure = sure and found.wrong <= one.error / (len(lines) - place)
        unstable = entry.stability.falls_more_than(one.reference.stability)
        words[index][entry.run] = verdict_word(found.claim, sure, unstable)
    together = len(lines), len({index for index, _, _ in lines})
    return [
        replace(one, verdicts=found, together=together, crossings=one.crossings.worded(one.baseline, found))
        for one, found in zip(comparisons, words)
    ]


def against(comparisons: Sequence[Comparison], baseline: str) -> list[Comparison]:
    """Change the baseline of comparisons, so that their words hold for all lines against the new one.

    Args:
        comparisons: of all tasks that were compared together.
        baseline: the run that the others are held against; a task without it keeps its own.
    """
    has = [any(entry.run == baseline for entry in one.entries) for one in comparisons]
    changed = [replace(one, baseline=baseline) if own else one for one, own in zip(comparisons, has)]
    return _hold_together(changed)


def measured_rate(curve: Curve, at: float) -> float:
    """Mean of each seed's last evaluations up to some compute, and of the seeds; not a number if it is not measured.

    It is measured if every seed has an evaluation from `MEASURED_FROM` of `at` on.
    """
    rates = []
    for seed in range(len(curve.seeds)):
        mine = np.flatnonzero((curve.seed_N == seed) & (curve.compute_N > 0) & (curve.compute_N <= 1.001 * at))
        if not mine.size or curve.compute_N[mine[-1]] < MEASURED_FROM * at:
            return float("nan")
        late = mine[-LATE:]
        late = late[curve.compute_N[late] >= MEASURED_FROM * at]
        rates.append(float(curve.pass_rate_N[late].mean()))
    return float(np.mean(rates))


def _holds(
    value_at: Callable[[float], Mapping[str, Array]], run: str, other: str, asked: ComparisonSettings
) -> float | None:
    """Largest spread between single seeds up to which `better` or `worse` is said of two runs; None if it is at none.

    It is said among all lines: a line that errs with error / lines keeps its word, whatever the others say.

    Args:
        value_at: gives the rates of all runs, drawn as they are where that spread is given.
        run: one run.
        other: the other.
        asked: the settings.
    """

    def lost(spread: float) -> bool:
        drawn = value_at(spread)
        claim, wrong = claim_of(drawn[run] - drawn[other], asked.margin)
        return claim == "equal" or wrong > asked.error / asked.lines

    first = bisect_left(SPREADS_TOLD, True, key=lost)
    return SPREADS_TOLD[first - 1] if first else None


def _unmeasured(item: Analysis, at: float) -> str:
    """Reason why a run that goes as far as the comparison has no measured rate there."""
    points = item.fit.curve
    ends = [float(points.compute_N[points.seed_N == seed].max()) for seed in range(len(points.seeds))]
    since = quantity(MEASURED_FROM * at, points.unit)
    what = f"a seed ends before {since}" if min(ends) < MEASURED_FROM * at else f"no evaluation from {since} on"
    return f"{points.run}: {what}, so no rate is measured at {quantity(at, points.unit)}; --at takes another compute"


def _remarks(one: Comparison, spread: float | None, wanted: str) -> tuple[str, ...]:
    """Remarks for the reader: the baseline, the source of the spread, what is not measured, asymptotes, falls.

    Args:
        one: the comparison.
        spread: standard deviation between runs that was given.
        wanted: run that was to be the baseline.
    """
    remarks = []
    if wanted != one.baseline:
        remarks.append(f"{wanted} has no fit here, so {one.baseline} is the baseline")
    single = [entry.run for entry in one.entries if not several(entry.analysis)]
    remarks.append(spread_note(single, len(one.entries), one.spread, one.measured, spread))
    unmeasured = [entry.analysis for entry in one.entries if not np.isfinite(entry.measured)]
    remarks += [_unmeasured(item, one.at) for item in unmeasured if item.fit.window[1] >= one.at]
    remarks.append(asymptotes_note(one.entries))
    remarks += [f"{entry.run} {entry.analysis.fall_text()}" for entry in one.entries if entry.analysis.falls]
    remarks += [f"{entry.run}: {entry.stability.text()}" for entry in one.entries if entry.stability.unstable]
    return tuple(remarks)
