"""Choices for further compute: go on with a run, run another seed, or try another setting.

All of it is read from the joint draws of the recipes' curves, the mean over the tasks of each draw. The worth of a step
is what it is expected to add to the pass rate that one ends with: for a longer run the rise of the best curve, for
another seed the better choice among the recipes (the knowledge gradient for correlated normal beliefs; Frazier, Powell
& Dayanik 2009).

Axes: `_M` joint draws, `_R` recipes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.analysis import Analysis
from scalelab.curves.design import knowledge_gradient
from scalelab.curves.fitting.intervals import Interval, equal_tailed
from scalelab.curves.forecast import WORTHWHILE
from scalelab.curves.joint_draws import joint_draws
from scalelab.errors import LabError
from scalelab.numbers import percent, quantity
from scalelab.reading.data import same_unit

NextStep = Literal["extend", "seed", "another setting"]


@dataclass(frozen=True)
class BudgetChoice:
    """One way to spend the budget.

    Attributes:
        step: `extend` a run, or another `seed` of a recipe.
        run: the recipe.
        gain: by how much it is expected to raise the pass rate that one ends with, above the highest that a recipe has
            reached.
        interval: of the pass rate that it ends with.
        seeds: how many seeds the budget pays for; 0 for `extend`.
    """

    step: NextStep
    run: str
    gain: float
    interval: Interval
    seeds: int


@dataclass(frozen=True)
class Decision:
    """Advice on a budget.

    Attributes:
        unit: of compute.
        budget: compute to spend.
        at: largest compute that all recipes have reached.
        leader: recipe with the highest expected pass rate there.
        best: probability that it is the best of all.
        regret: expected loss from taking it for the best.
        rate: its pass rate at `at`.
        choices: ways to spend the budget, the most promising first.
        step: what is proposed.
        worthwhile: gain below which another setting is proposed.
        tasks: the tasks whose mean counts.
        forgets: a clause for each task of each recipe that forgets.
    """

    unit: str
    budget: float
    at: float
    leader: str
    best: float
    regret: float
    rate: tuple[float, Interval]
    choices: tuple[BudgetChoice, ...]
    step: NextStep
    worthwhile: float
    tasks: tuple[str, ...]
    forgets: tuple[str, ...] = ()

    def text(self) -> list[str]:
        """The page: plain sentences."""
        rate, (low, high) = self.rate
        what = "the mean over " + ", ".join(self.tasks) if len(self.tasks) > 1 else (self.tasks[0] or "the pass rate")
        lines = [
            f"Which recipe: {self.leader}. At {quantity(self.at, self.unit)}, {what} is {rate:.3f} "
            f"[{low:.3f}, {high:.3f}]; it is the best of all with {percent(self.best)}, and taking it for the best is "
            f"expected to lose {_small(self.regret)}."
        ]
        if self.forgets:
            lines.append(f"All of this counts that {'; '.join(self.forgets)}.")
        extend = next(one for one in self.choices if one.step == "extend")
        lines.append(
            f"Extend or stop: {quantity(self.budget, self.unit)} more for {extend.run} are expected to add "
            f"{extend.gain:+.4f} and to end at [{extend.interval[0]:.3f}, {extend.interval[1]:.3f}]."
        )
        seed = next((one for one in self.choices if one.step == "seed"), None)
        if seed is None:
            lines.append("Another seed: there is nothing to choose between, or the budget does not pay for one.")
        else:
            count = f"{seed.seeds} seed{'s' * (seed.seeds > 1)}"
            lines.append(
                f"Another seed: {count} of {seed.run} would let you choose better by {_small(seed.gain)} on average."
            )
        first = self.choices[0]
        if self.step == "another setting":
            lines.append(
                f"Do: try another setting. No step with these recipes is expected to add {self.worthwhile:g}; a new "
                f"one pays if it adds more than {_small(first.gain)}."
            )
        elif self.step == "extend":
            lines.append(f"Do: go on with {first.run}.")
        else:
            lines.append(f"Do: run {first.seeds} more seed{'s' * (first.seeds > 1)} of {first.run}.")
        return lines

    def as_json(self) -> dict[str, Any]:
        """The object of `--json`."""
        return vars(self) | {"choices": [vars(one) for one in self.choices], "text": self.text()}


def decide(analyses: Sequence[Analysis], budget: float, worthwhile: float = WORTHWHILE) -> Decision:
    """Decide what to do with a budget.

    Args:
        analyses: fits of one or several recipes; each task of each.
        budget: compute to spend, in their unit.
        worthwhile: gain in pass rate below which another setting is proposed.

    Raises:
        LabError: no positive budget, mixed units, or a recipe without one of the tasks.
    """
    if not (np.isfinite(budget) and budget > 0):
        raise LabError(f"a budget of {budget:g} cannot be spent: give a positive number with --budget")
    unit = same_unit([item.fit.curve for item in analyses])
    tasks = tuple(dict.fromkeys(item.fit.curve.task for item in analyses))
    runs = list(dict.fromkeys(item.fit.curve.run for item in analyses))
    missing = [run for run in runs if sum(item.fit.curve.run == run for item in analyses) < len(tasks)]
    if missing:
        raise LabError(f"{missing[0]} carries no fit of every task: name one with --task, or leave that run out")
    ends = {run: min(item.fit.window[1] for item in analyses if item.fit.curve.run == run) for run in runs}
    at = min(ends.values())
    here_MR, now_MR, there_MR = _means(analyses, tasks, runs, ends, at, budget)
    mean_R = here_MR.mean(0)
    leader = int(mean_R.argmax())
    wins_R = np.bincount(here_MR.argmax(1), minlength=len(runs)) / len(here_MR)
    gain_R = there_MR.mean(0) - now_MR.mean(0).max()  # what longer runs have reached costs no more
    further = int(gain_R.argmax())
    level = analyses[0].level
    choices = [
        BudgetChoice("extend", runs[further], float(gain_R[further]), equal_tailed(there_MR[:, further], level), 0)
    ]
    count = int(budget // float(np.median(list(ends.values()))))
    if len(runs) > 1 and count:
        error = _error_of_seeds(here_MR, analyses, count)
        value_R = knowledge_gradient(mean_R, np.cov(here_MR, rowvar=False), error)
        pick = int(value_R.argmax())
        interval = equal_tailed(here_MR[:, pick], level)
        choices.append(BudgetChoice("seed", runs[pick], float(value_R[pick]), interval, count))
    choices.sort(key=lambda one: -one.gain)
    return Decision(
        unit=unit,
        budget=float(budget),
        at=float(at),
        leader=runs[leader],
        best=float(wins_R[leader]),
        regret=float(here_MR.max(1).mean() - mean_R[leader]),
        rate=(float(np.median(here_MR[:, leader])), equal_tailed(here_MR[:, leader], level)),
        choices=tuple(choices),
        step=choices[0].step if choices[0].gain >= worthwhile else "another setting",
        worthwhile=worthwhile,
        tasks=tasks,
        forgets=tuple(f"{item.fit.curve.name} {item.fall_text()}" for item in analyses if item.falls),
    )


def _small(gain: float) -> str:
    """A gain in pass rate that is never below zero but for rounding."""
    return "less than 0.0001" if gain < 1e-4 else f"{gain:.4f}"


def _means(
    analyses: Sequence[Analysis],
    tasks: Sequence[str],
    runs: Sequence[str],
    ends: dict[str, float],
    at: float,
    budget: float,
) -> tuple[Array, Array, Array]:
    """Mean of every recipe's curve over the tasks, `[M, R]` each: at the common compute, its end, the budget more."""
    here, now, there = [], [], []
    for index, task in enumerate(tasks):
        members = [item for item in analyses if item.fit.curve.task == task]
        elsewhere = [item for item in analyses if item.fit.curve.task != task]
        drawn = joint_draws(members, borrowed=elsewhere, seed=index).recipes
        here.append(np.stack([drawn[run].value([at])[:, 0] for run in runs], axis=1))
        now.append(np.stack([drawn[run].value([ends[run]])[:, 0] for run in runs], axis=1))
        there.append(np.stack([drawn[run].value([ends[run] + budget])[:, 0] for run in runs], axis=1))
    return np.mean(here, axis=0), np.mean(now, axis=0), np.mean(there, axis=0)


def _error_of_seeds(here_MR: Array, analyses: Sequence[Analysis], count: int) -> float:
    """Standard error of the mean of so many further seeds: by what a recipe's seeds so far leave of its own."""
    seeds = float(np.median([len(item.fit.curve.seeds) for item in analyses]))
    return float(np.median(here_MR.std(0)) * np.sqrt(seeds / count))
