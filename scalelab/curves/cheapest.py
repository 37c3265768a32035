"""The cheapest study that finds a difference: seeds, evaluations, prompts and samples chosen together.

A seed costs the completions that its run trains on and those of its evaluations. Seeds shrink what seeds differ by, and
tell how much that is; evaluations and samples shrink the error of a run's number; prompts shrink what is left of a
verdict about new prompts. For each number of seeds there is a largest error of a run with which the study still finds
the difference, and for each error a cheapest set of evaluations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from scalelab.curves.design import MOST_SEEDS, SURE, Plan, RunError, power, studies, threshold
from scalelab.curves.sparing import MOST, expected_error

EVALUATIONS = (8, 10, 12, 16, 20, 25, 32, 40, 50, 75, 100)
"""Numbers of evaluations of a run that are tried."""

FULL_FROM = (0.6, 0.75, 0.9)
"""Parts of the budget up to which few samples are tried."""

PARTS = (1, 2, 4, 8)
"""The prompts of the plan are divided by these, where a prompt spread says what fewer prompts lose."""


@dataclass(frozen=True)
class Study:
    """A study that finds a difference.

    Attributes:
        plan: seeds of each recipe, evaluations, prompts and samples.
        completions: of all its runs, those that they train on included.
        power: probability that it finds the difference, by simulated runs.
    """

    plan: Plan
    completions: int
    power: float


def cost(plan: Plan, training: int) -> int:
    """Completions of a study.

    Args:
        plan: the study.
        training: completions that a run trains on.
    """
    return plan.seeds * plan.recipes * (training + int(plan.completions_N.sum()))


def cheapest(
    plan: Plan, difference: float, training: int, wanted: float = 0.8, certainty: float = SURE
) -> Study | None:
    """The study with the fewest completions that finds a difference; None where none of up to 100 seeds does.

    Args:
        plan: curve, spread, drift and recipes, the most prompts that there are, and samples of which four times as
            many are tried.
        difference: as `power` has it.
        training: completions that a run trains on.
        wanted: probability to find it.
        certainty: from which `compare` says better.
    """
    evaluations = sorted(_evaluations(plan), key=lambda one: int(one.completions_N.sum()))
    errors = [expected_error(one, plan.of) for one in evaluations]
    prompts = sorted({one.prompts for one in evaluations})
    best: Plan | None = None
    for seeds in range(1, MOST_SEEDS + 1):
        if best is not None and cost(replace(evaluations[0], seeds=seeds), training) >= cost(best, training):
            break
        allowed = {
            count: largest_error(replace(plan, seeds=seeds, prompts=count), difference, wanted, certainty)
            for count in prompts
        }
        for one, error in zip(evaluations, errors):
            most = allowed[one.prompts]
            if most is not None and error <= most:
                found = replace(one, seeds=seeds)
                best = found if best is None or cost(found, training) < cost(best, training) else best
                break
    return None if best is None else _simulated(best, difference, training, wanted, certainty)


def _simulated(best: Plan, difference: float, training: int, wanted: float, certainty: float) -> Study | None:
    """The study with its power by simulated runs, and seeds added until that is what was wanted."""
    for seeds in range(best.seeds, MOST_SEEDS + 1):
        plan = replace(best, seeds=seeds)
        found = power(plan, difference, certainty)
        if found >= wanted:
            return Study(plan, cost(plan, training), found)
    return None


def largest_error(plan: Plan, difference: float, wanted: float, certainty: float = SURE) -> float | None:
    """Largest standard error of a run's number with which a plan finds a difference, by bisection; None if with none.

    Args:
        plan: its seeds, recipes, spread and prompts matter.
        difference: as `power` has it.
        wanted: probability to find it.
        certainty: from which `compare` says better.
    """
    enough_at = threshold(plan, certainty)

    def finds(error: float) -> bool:
        above = studies(plan, RunError(error, error, 0.0)).above(difference)
        return float((above >= enough_at).mean()) >= wanted

    low, high = 0.0, 4 * difference
    if not finds(low):
        return None
    for _ in range(12):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if finds(middle) else (low, middle)
    return low


def _evaluations(plan: Plan) -> Iterator[Plan]:
    """Plans of one run's evaluations: prompts, points, and samples early and late."""
    late = [1 << power for power in range((MOST * plan.samples).bit_length())]
    for prompts in sorted({max(plan.prompts // part, 1) for part in (PARTS if plan.prompt_spread else PARTS[:1])}):
        for points in EVALUATIONS:
            few = replace(plan, prompts=prompts, evaluations=points, early_samples=None)
            for samples in late:
                yield replace(few, samples=samples)
                for early in (count for count in late if count < samples):
                    for part in FULL_FROM:
                        yield replace(few, samples=samples, early_samples=early, full_from=part)
