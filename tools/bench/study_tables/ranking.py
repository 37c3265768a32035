"""Time at which the order of the recipes was known, and the spending of a sweep that ends losers early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scalelab.curves import Analysis, Curve
from scalelab.curves.stopping import losers
from study_tables.runs import StudyRuns, fits, table

SHARES = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
"""Shares of the budget after which the order is looked at, and losers are ended."""

LAST = 3
"""Evaluations of each seed whose mean is its measured rate."""


@dataclass(frozen=True)
class Look:
    """The recipes after some share of the budget, on one task.

    Attributes:
        task: the task.
        share: of the budget.
        measured: mean of each seed's last evaluations, by recipe.
        fits: of the evaluations so far; recipes without one are absent.
        forecast: of the end of the budget, by recipe.
    """

    task: str
    share: float
    measured: Mapping[str, float]
    fits: Sequence[Analysis]
    forecast: Mapping[str, float]


def look(items: Sequence[Curve], share: float) -> Look:
    """The recipes of one task after some share of the budget; each of `items` holds all seeds of one."""
    end = max(float(item.compute_N.max()) for item in items)
    seen = [item.select(item.compute_N <= 1.01 * share * end) for item in items]
    found, _ = fits(seen)
    return Look(
        items[0].task,
        share,
        {item.run: measured(item) for item in seen},
        found,
        {one.fit.curve.run: float(np.median(one.draws().value([end]))) for one in found},
    )


def measured(item: Curve) -> float:
    """Mean over seeds of the mean of their last evaluations."""
    return float(np.mean([item.pass_rate_N[item.seed_N == at][-LAST:].mean() for at in range(len(item.seeds))]))


def order(rates: Mapping[str, float]) -> list[str]:
    """Recipes from the best to the worst."""
    return sorted(rates, key=lambda run: -rates[run])


def looks(runs: StudyRuns, recipes: Sequence[str]) -> dict[str, list[Look]]:
    """All looks at the recipes by task, the whole budget last."""
    by_task = {
        task: [item for item in runs.curves if item.task == task and item.run in recipes] for task in runs.tasks()
    }
    return {task: [look(items, share) for share in (*SHARES, 1.0)] for task, items in by_task.items() if items}


def ranking_table(taken: Mapping[str, Sequence[Look]]) -> str:
    """The leader and the order at every look, beside those of the whole budget."""
    rows = []
    for task, at in taken.items():
        final = order(at[-1].measured)
        for one in at:
            by_rate, by_forecast = order(one.measured), order(one.forecast)
            rows.append(
                [
                    *(task, f"{one.share:.0%}", f"`{by_rate[0]}`", f"`{by_forecast[0]}`" if by_forecast else "–"),
                    f"{agreement(by_rate, final):.0%}",
                    f"{agreement(by_forecast, final):.0%}",
                ]
            )
    header = ["task", "of the budget", "leader as measured", "leader by forecast"]
    return table([*header, "pairs in the final order, as measured", "by forecast"], rows)


def agreement(found: Sequence[str], final: Sequence[str]) -> float:
    """Share of all pairs of recipes that stand in the final order; a recipe without a place has none."""
    pairs = [(one, other) for at, one in enumerate(final) for other in final[at + 1 :]]
    placed = {run: place for place, run in enumerate(found)}
    right = [one in placed and other in placed and placed[one] < placed[other] for one, other in pairs]
    return float(np.mean(right)) if right else float("nan")


def sweep_table(taken: Mapping[str, Sequence[Look]], end: float) -> str:
    """Replay of a sweep that ends a recipe once it cannot be the best on any task (`scalelab run --stop-losers`).

    Args:
        taken: looks by task.
        end: compute of the budget.
    """
    running = {run: 1.0 for at in taken.values() for run in at[-1].measured}
    for place, share in enumerate(SHARES):
        lost = [_lost(at[place], running, end) for at in taken.values()]
        for run in set.intersection(*lost) if lost else set():
            running[run] = min(running[run], share)
    best = {task: order(at[-1].measured)[0] for task, at in taken.items()}
    rows = [
        [f"`{run}`", f"{share:.0%}", ", ".join(task for task, leader in best.items() if leader == run) or "–"]
        for run, share in running.items()
    ]
    spent = float(np.mean(list(running.values())))
    rows.append(["all", f"{spent:.0%}", ", ".join(best)])
    return table(["recipe", "ended at, of the budget", "best in the end on"], rows)


def _lost(one: Look, running: Mapping[str, float], end: float) -> set[str]:
    """Recipes still running that a look at one task would end."""
    going = [item for item in one.fits if running[item.fit.curve.run] == 1.0]
    return set(losers(going, end, len(running)))
