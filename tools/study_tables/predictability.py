"""Predictability: forecasts from part of a run against what came, and how early the ranking was known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalelab.curves import Curve, FitError, Options, analyse, analyse_all
from scalelab.curves.stopping import chances_to_be_best, losers
from study_tables.questions import QUESTIONS, members_of
from study_tables.runs import StudyRuns, table

PARTS = (0.25, 0.5)
"""Shares of the budget from which the rest is forecast."""

LOOKS = np.linspace(0.25, 1.0, 7)
"""Shares of the budget at which a sweep is looked at."""


@dataclass(frozen=True)
class RunForecast:
    """One forecast of one run.

    Attributes:
        part: share of the budget that it was made from.
        error: forecast less the last evaluation; None where that part carries no fit.
        inside: whether the last evaluation fell into its 80 % interval.
        width: of that interval.
    """

    part: float
    error: float | None = None
    inside: bool = False
    width: float = float("nan")


def until(item: Curve, compute: float) -> Curve:
    """The evaluations up to some compute."""
    return item.select(item.compute_N <= compute)


def forecast_of(item: Curve, part: float) -> RunForecast:
    """RunForecast of a run's last evaluation from the first part of its budget."""
    last = int(item.compute_N.argmax())
    end = float(item.compute_N[last])
    try:
        found = analyse(until(item, part * end))
    except FitError:
        return RunForecast(part)
    low, high = (float(bound[0]) for bound in found.evaluation_interval([end], 0.8))
    middle = float(np.median(found.draws().value([end])))
    came = float(item.pass_rate_N[last])
    return RunForecast(part, middle - came, low <= came <= high, high - low)


def forecasts_table(runs: StudyRuns) -> str:
    """Forecasts of all single runs: bias, error, coverage and width, by task and part."""
    rows = []
    for task in runs.tasks():
        singles = [
            item.select(item.seed_N == at) for item in runs.curves if item.task == task for at in range(len(item.seeds))
        ]
        for part in PARTS:
            made = [forecast_of(item, part) for item in singles]
            fitted = [one for one in made if one.error is not None]
            if not fitted:
                rows.append([task, f"{part:.0%}", str(len(made)), "0", *("–",) * 4])
                continue
            errors = np.array([one.error for one in fitted])
            rows.append(
                [
                    task,
                    f"{part:.0%}",
                    str(len(made)),
                    str(len(fitted)),
                    f"{errors.mean():+.3f}",
                    f"{np.abs(errors).mean():.3f}",
                    f"{np.mean([one.inside for one in fitted]):.0%}",
                    f"{np.mean([one.width for one in fitted]):.3f}",
                ]
            )
    header = ("task", "from", "runs", "with a fit", "mean error", "mean size of error", "in the 80 % interval", "width")
    return table(header, rows)


@dataclass(frozen=True)
class SweepReplay:
    """A question's members as a sweep that is looked at while it runs.

    Attributes:
        best: member with the highest pass rate at the end.
        known_from: share of the compute from which on it was the likeliest best.
        spent: share of the compute that is spent if losers are ended.
        kept: whether the best one was kept to the end.
    """

    best: str
    known_from: float
    spent: float
    kept: bool


def look(items: Sequence[Curve], error: float = 0.05) -> SweepReplay | None:
    """Replay a sweep of one task, all members side by side; None if fewer than two carry fits at the end."""
    end = min(float(item.compute_N.max()) for item in items)
    fits = [analyse_all([until(item, share * end) for item in items], Options(checks=False))[0] for share in LOOKS]
    if len(fits[-1]) < 2:
        return None
    value = {one.fit.curve.run: float(np.median(one.draws().value([end]))) for one in fits[-1]}
    best = max(value, key=lambda name: value[name])
    known = 1.0
    for share, found in zip(LOOKS[::-1], fits[::-1]):
        chances = chances_to_be_best(found, end) if found else {}
        if not chances or max(chances, key=lambda name: chances[name]) != best:
            break
        known = float(share)
    ended: dict[str, float] = {}
    for share, found in zip(LOOKS, fits):
        going = [one for one in found if one.fit.curve.run not in ended]
        ended |= dict.fromkeys(losers(going, end, len(items), error), float(share))
    spent = float(np.mean([ended.get(item.run, 1.0) for item in items]))
    return SweepReplay(best, known, spent, best not in ended)


def sweeps_table(runs: StudyRuns) -> str:
    """Every question as a sweep: when its best member was known, and what ending losers would have saved."""
    rows = []
    for question in QUESTIONS:
        names = members_of(question, runs)
        for task in runs.tasks():
            items = [item for item in runs.curves if item.run in names and item.task == task]
            seen = look(items) if len(items) > 1 else None
            if seen is not None:
                kept = "kept" if seen.kept else "**ended**"
                rows.append(
                    [question.title, task, f"`{seen.best}`", f"{seen.known_from:.0%}", f"{seen.spent:.0%}", kept]
                )
    header = ("sweep", "task", "highest at the end", "likeliest from", "compute with --stop-losers", "the best was")
    return table(header, rows)
