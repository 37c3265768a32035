"""Choices for further compute: go on with a run, run another seed, or try another setting.

Going on is read from the draws that `forecast` reads: the median of what it adds to the highest pass rate so far. The
choice among recipes, and another seed of one, are read from the joint draws that `compare` reads, where a recipe with
one seed is another run of it: a seed is worth the better choice that it is expected to lead to (the knowledge gradient
for correlated normal beliefs; Frazier, Powell & Dayanik 2009). Tasks count by the mean over them of each draw.

Axes: `_M` joint draws, `_R` recipes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.analysis import Analysis
from scalelab.curves.design import knowledge_gradient
from scalelab.curves.fitting.intervals import Interval, equal_tailed
from scalelab.curves.forecast import gain_text
from scalelab.curves.joint_draws import JointDraws, check_spread, joint_draws, several, spread_note
from scalelab.defaults import WORTHWHILE
from scalelab.errors import LabError
from scalelab.numbers import counted, percent, quantity
from scalelab.reading.curve import same_unit

NextStep = Literal["extend", "seed", "another setting"]

NOTHING = 1e-4
"""Share of a run's compute below which a budget is taken to be in another unit."""

LEAST = 1e-4
"""Gain in pass rate below which no number is printed."""


@dataclass(frozen=True)
class BudgetChoice:
    """One way to spend the budget.

    Attributes:
        step: `extend` a run, or another `seed` of a recipe.
        run: the recipe.
        gain: by how much it raises the pass rate that one ends with, above the highest that a recipe has reached: the
            median for `extend`, the expectation for another seed.
        interval: of the pass rate that it ends with.
        seeds: how many seeds the budget pays for; 0 for `extend`.
        rate: the pass rate that it ends with, the median.
        added: by how much it raises the run's own pass rate, and the interval of that; None for another seed.
        highest: the recipe that has the highest pass rate so far.
        falls: whether the run's curve of any task falls.
    """

    step: NextStep
    run: str
    gain: float
    interval: Interval
    seeds: int
    rate: float
    added: tuple[float, Interval] | None = None
    highest: str = ""
    falls: bool = False


@dataclass(frozen=True)
class Decision:
    """Advice on a budget.

    Attributes:
        unit: of compute.
        budget: compute to spend.
        at: largest compute that all recipes have reached.
        leader: recipe with the highest pass rate there, by the median as in `compare`.
        best: probability that it is the best of all.
        regret: expected loss from taking it for the best.
        rate: its pass rate at `at`; that of another run of it where it has one seed.
        choices: ways to spend the budget, the most promising first.
        step: what is proposed.
        worthwhile: gain below which another setting is proposed.
        tasks: the tasks whose mean counts.
        forgets: a clause for each task of each recipe that forgets.
        recipes: how many there are.
        another: whether `rate` is that of another run.
        costs: compute of a run of each recipe.
        remarks: where the spread between runs comes from, if it is not measured.
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
    forgets: tuple[str, ...]
    recipes: int
    another: bool
    costs: Mapping[str, float]
    remarks: tuple[str, ...]

    def text(self) -> list[str]:
        """The page: plain sentences."""
        lines = [self._which()]
        if self.forgets:
            lines.append(f"All of this counts that {'; '.join(self.forgets)}.")
        lines += self.remarks
        extend = next(one for one in self.choices if one.step == "extend")
        lines.append(
            f"Extend or stop: {quantity(self.budget, self.unit)} more for {extend.run} would {_added(extend)}."
        )
        seed = next((one for one in self.choices if one.step == "seed"), None)
        if seed is None and self.recipes == 1:
            lines.append("Another seed: there is nothing to choose between.")
        elif seed is None:
            run = min(self.costs, key=lambda name: self.costs[name])
            lines.append(
                f"Another seed: the budget pays for none; the cheapest, of {run}, takes "
                f"{quantity(self.costs[run], self.unit)}."
            )
        else:
            count = counted(seed.seeds, "seed")
            lines.append(
                f"Another seed: {count} of {seed.run} would let you choose better by {_small(seed.gain)} on average."
            )
        first = self.choices[0]
        if self.step == "another setting":
            pays = "anything" if first.gain < LEAST else f"more than {_small(first.gain)}"
            lines.append(
                f"Do: try another setting. No step with {'this recipe' if self.recipes == 1 else 'these recipes'} is "
                f"expected to add {self.worthwhile:g}; a new one pays if it adds {pays}."
            )
        elif self.step == "extend":
            lines.append(f"Do: go on with {first.run}.")
        else:
            lines.append(f"Do: run {counted(first.seeds, 'more seed')} of {first.run}.")
        return lines

    def _which(self) -> str:
        """The leader, its pass rate, and how sure its lead is."""
        rate, (low, high) = self.rate
        what = "the mean over " + ", ".join(self.tasks) if len(self.tasks) > 1 else (self.tasks[0] or "the pass rate")
        said = f"Which recipe: {self.leader}. At {quantity(self.at, self.unit)}, {what}"
        said += f"{' of another run of it' * self.another} is {rate:.3f} [{low:.3f}, {high:.3f}]"
        if self.recipes == 1:
            return f"{said}; there is no other to choose."
        return (
            f"{said}; it is the best of all with {percent(self.best)}, and taking it for the best is expected to lose "
            f"{_small(self.regret)}."
        )

    def as_json(self) -> dict[str, Any]:
        """The object of `--json`."""
        return vars(self) | {"choices": [vars(one) for one in self.choices], "text": self.text()}


def decide(
    analyses: Sequence[Analysis],
    budget: float,
    worthwhile: float = WORTHWHILE,
    run_spread: float | None = None,
    spread_from: Sequence[Analysis] = (),
) -> Decision:
    """Decide what to do with a budget.

    Args:
        analyses: fits of one or several recipes; each task of each.
        budget: compute to spend, in their unit.
        worthwhile: gain in pass rate below which another setting is proposed.
        run_spread: standard deviation of A between runs of one recipe, where it is known; None learns it.
        spread_from: other runs of the same kind, at least one with several seeds, to learn the spread from.

    Raises:
        LabError: no positive budget, or hardly one; a negative gain, mixed units, a recipe without one of the tasks, or
            a spread that makes no sense.
    """
    check_spread(run_spread, spread_from)
    unit = same_unit([item.fit.curve for item in analyses])
    tasks, runs = _tasks_and_runs(analyses, budget, worthwhile)
    reached = {run: [item.fit.window[1] for item in analyses if item.fit.curve.run == run] for run in runs}
    ends, costs = ({run: float(most(of_tasks)) for run, of_tasks in reached.items()} for most in (min, max))
    at = min(ends.values())
    if budget < NOTHING * at:
        raise LabError(
            f"{quantity(budget, unit)} is next to nothing beside the {quantity(at, unit)} of a run: these curves "
            f"count in {unit}, and so does --budget"
        )
    families = _families(analyses, tasks, run_spread, spread_from)
    here_MR = _here(families.values(), runs, at)
    leader = int(np.median(here_MR, axis=0).argmax())  # as `compare` ranks
    wins_R = np.bincount(here_MR.argmax(1), minlength=len(runs)) / len(here_MR)
    level, choices = analyses[0].level, [_extension(analyses, runs, ends, budget)]
    count_R = np.array([int(budget // costs[run]) for run in runs])
    if len(runs) > 1 and count_R.any():
        choices.append(_seeds(analyses, runs, here_MR, count_R))
    choices.sort(key=lambda one: -one.gain)
    return Decision(
        unit=unit,
        budget=float(budget),
        at=float(at),
        leader=runs[leader],
        best=float(wins_R[leader]),
        regret=float((here_MR.max(1) - here_MR[:, leader]).mean()),
        rate=(float(np.median(here_MR[:, leader])), equal_tailed(here_MR[:, leader], level)),
        choices=tuple(choices),
        step=choices[0].step if choices[0].gain >= worthwhile else "another setting",
        worthwhile=worthwhile,
        tasks=tasks,
        forgets=tuple(f"{item.fit.curve.name} {item.fall_text()}" for item in analyses if item.falls),
        recipes=len(runs),
        another=not all(several(item) for item in analyses if item.fit.curve.run == runs[leader]),
        costs=costs,
        remarks=_remarks(families, analyses, run_spread),
    )


def _tasks_and_runs(
    analyses: Sequence[Analysis], budget: float, worthwhile: float
) -> tuple[tuple[str, ...], list[str]]:
    """The tasks and the recipes, in the order in which they come; refuses what cannot be decided on."""
    if not (np.isfinite(budget) and budget > 0):
        raise LabError(f"a budget of {budget:g} cannot be spent: give a positive number with --budget")
    if not worthwhile >= 0:
        raise LabError(f"a gain of {worthwhile:g} is none: give the least pass rate that counts with --worthwhile")
    tasks = tuple(dict.fromkeys(item.fit.curve.task for item in analyses))
    runs = list(dict.fromkeys(item.fit.curve.run for item in analyses))
    missing = [run for run in runs if sum(item.fit.curve.run == run for item in analyses) < len(tasks)]
    if missing:
        raise LabError(f"{missing[0]} carries no fit of every task: name one with --task, or leave that run out")
    return tasks, runs


def _small(gain: float) -> str:
    """A gain in pass rate that is never below zero but for rounding."""
    return f"less than {LEAST:.4f}" if gain < LEAST else f"{gain:.4f}"


def _added(one: BudgetChoice) -> str:
    """Gain of going on with a run, in the words of `forecast`."""
    assert one.added is not None
    added, interval = one.added
    said = f"{gain_text(added, interval, one.falls)}, and end at {one.rate:.3f} "
    said += f"[{one.interval[0]:.3f}, {one.interval[1]:.3f}]"
    if one.highest == one.run:
        return said
    side = "above" if one.gain >= 0 else "below"
    return f"{said}, {abs(one.gain):.3f} {side} the highest so far, that of {one.highest}"


def _families(
    analyses: Sequence[Analysis], tasks: Sequence[str], spread: float | None, pilots: Sequence[Analysis]
) -> dict[str, JointDraws]:
    """Joint draws of the recipes of each task."""
    families = {}
    for index, task in enumerate(tasks):
        members = [item for item in analyses if item.fit.curve.task == task]
        elsewhere = [item for item in analyses if item.fit.curve.task != task]
        families[task] = joint_draws(members, spread, (*elsewhere, *pilots), seed=index)
    return families


def _here(families: Iterable[JointDraws], runs: Sequence[str], at: float) -> Array:
    """Mean of every recipe's curve over the tasks at the common compute, `[M, R]`, another run where it has one."""
    drawn = [one.value(at) for one in families]
    result: Array = np.mean([np.stack([rates[run] for run in runs], axis=1) for rates in drawn], axis=0)
    return result


def _remarks(families: Mapping[str, JointDraws], analyses: Sequence[Analysis], given: float | None) -> tuple[str, ...]:
    """The sentence on a spread that no seeds of these recipes measure; it is that of every task."""
    if given is None and any(map(several, analyses)):
        return ()
    family = next(iter(families.values()))
    single = list(dict.fromkeys(item.fit.curve.run for item in analyses if not several(item)))
    spread = float(np.median(family.spread_M)), equal_tailed(family.spread_M, analyses[0].level)
    return (f"Between seeds: {spread_note(single, len(single), spread, family.measured, given)}.",)


def _extension(
    analyses: Sequence[Analysis], runs: Sequence[str], ends: dict[str, float], budget: float
) -> BudgetChoice:
    """The run to go on with: the one whose median gain over the highest pass rate so far is the largest."""
    drawn = [
        _own([item for item in analyses if item.fit.curve.run == run], [ends[run], ends[run] + budget], index)
        for index, run in enumerate(runs)
    ]
    highest = max(range(len(runs)), key=lambda index: float(np.median(drawn[index][:, 0])))
    gains = []  # what longer runs have reached costs no more
    for one_M2 in drawn:
        size = min(len(one_M2), len(drawn[highest]))
        gains.append(one_M2[:size, 1] - drawn[highest][:size, 0])
    pick = int(np.argmax([np.median(gain_M) for gain_M in gains]))
    (here_M, there_M), level = drawn[pick].T, analyses[0].level
    return BudgetChoice(
        step="extend",
        run=runs[pick],
        gain=float(np.median(gains[pick])),
        interval=equal_tailed(there_M, level),
        seeds=0,
        rate=float(np.median(there_M)),
        added=(float(np.median(there_M - here_M)), equal_tailed(there_M - here_M, level)),
        highest=runs[highest],
        falls=any(item.falls for item in analyses if item.fit.curve.run == runs[pick]),
    )


def _seeds(analyses: Sequence[Analysis], runs: Sequence[str], here_MR: Array, count_R: np.ndarray) -> BudgetChoice:
    """The recipe whose further seeds, as many as the budget pays for, are worth most; it must pay for one of some."""
    error_R = np.array([_error_of_seeds(here_MR, analyses, count) if count else np.inf for count in count_R.tolist()])
    value_R = knowledge_gradient(here_MR.mean(0), np.cov(here_MR, rowvar=False), error_R)
    value_R[value_R < LEAST] = 0.0  # else rounding, which differs between processors, would pick the recipe
    pick = int(np.where(count_R > 0, value_R, -1.0).argmax())
    return BudgetChoice(
        step="seed",
        run=runs[pick],
        gain=float(value_R[pick]),
        interval=equal_tailed(here_MR[:, pick], analyses[0].level),
        seeds=int(count_R[pick]),
        rate=float(np.median(here_MR[:, pick])),
    )


def _own(items: Sequence[Analysis], compute: Sequence[float], seed: int) -> Array:
    """Mean over the tasks of a recipe's own curves, `[M, C]`; the draws of one task are left as they are."""
    drawn = [item.draws().value(compute) for item in items]
    if len(drawn) > 1:  # draws of tasks are independent, and so are those of recipes
        rng, size = np.random.default_rng(seed), min(map(len, drawn))
        drawn = [one_MC[rng.permutation(len(one_MC))[:size]] for one_MC in drawn]
    result: Array = np.mean(drawn, axis=0)
    return result


def _error_of_seeds(here_MR: Array, analyses: Sequence[Analysis], count: int) -> float:
    """Standard error of the mean of so many further seeds: by what a recipe's seeds so far leave of its own."""
    seeds = float(np.median([len(item.fit.curve.seeds) for item in analyses]))
    return float(np.median(here_MR.std(0)) * np.sqrt(seeds / count))
