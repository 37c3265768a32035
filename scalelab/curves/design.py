"""Number of seeds, evaluations and prompts needed to tell two recipes apart.

A run's number (its pass rate at the end of its budget, or its A) errs by what its evaluations leave open and by what
makes seeds differ. With S seeds of each recipe, the difference of two means has the variance 2 (spread² + error²) / S,
where what paired seeds share has dropped out. It is tested by Student's t, since the spread is estimated from the same
seeds; the power is that of the noncentral t (Cohen 1988, ch. 2). More evaluations shrink the error only.

Axes: `_N` evaluations, `_P` parameters of the sigmoid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scalelab.curves.fitting.models import SIGMOID, Array, jacobian, log_compute, value
from scalelab.curves.fitting.prior import DEFAULT
from scalelab.errors import LabError

MOST_SEEDS = 100
"""Seeds of each recipe beyond which no design is looked for."""


@dataclass(frozen=True)
class Plan:
    """Plan of runs, evaluations and prompts.

    Attributes:
        spread: standard deviation between runs of one recipe, what paired seeds share left out.
        seeds: runs of each recipe.
        evaluations: of each run, evenly over its budget.
        prompts: held-out prompts of each evaluation.
        samples: completions of each prompt.
        R0: pass rate before RL.
        A: asymptote.
        B: exponent.
        budget: of each run, in units of C_mid.
        recipes: how many are compared with a baseline, the baseline among them.
        of: what is compared: the pass rate at the end of the budget, or A.
    """

    spread: float
    seeds: int = 3
    evaluations: int = 25
    prompts: int = 1000
    samples: int = 16
    R0: float = 0.4
    A: float = 0.6
    B: float = 1.8
    budget: float = 4.0
    recipes: int = 2
    of: Literal["value", "A"] = "value"

    def __post_init__(self) -> None:
        for name, least in (("seeds", 1), ("evaluations", 4), ("prompts", 1), ("samples", 1), ("recipes", 2)):
            if getattr(self, name) < least:
                raise LabError(f"{getattr(self, name)} {name} make no design: give at least {least}")
        if not 0 <= self.spread < 1:
            raise LabError(f"a seed spread of {self.spread:g} makes no sense: give a standard deviation of pass rates")
        if not 0 <= self.R0 < self.A <= 1:
            raise LabError(f"R0 {self.R0:g} and A {self.A:g} make no rising curve: give 0 ≤ R0 < A ≤ 1")
        if not (self.B > 0 and self.budget > 0):
            raise LabError("B and the budget in C_mid must be positive")


def run_error(plan: Plan) -> float:
    """Standard error of one run's number that its evaluations leave, by linearising the fit with its prior.

    Evaluations are binomial in `prompts` × `samples`, independent of each other.
    """
    compute_N = np.arange(plan.evaluations + 1) / plan.evaluations * plan.budget
    theta_P = np.array([plan.R0, plan.A, np.log(plan.B), 0.0])
    u_N = log_compute(compute_N, 1.0)
    rate_N = value(SIGMOID, theta_P, u_N)
    sigma_N = np.sqrt(rate_N * (1 - rate_N) / (plan.prompts * plan.samples))
    slopes_NP = jacobian(SIGMOID, theta_P[None], u_N)[0] / sigma_N[:, None]
    _, deviation_S = DEFAULT.shape(SIGMOID, float(u_N[-1]))
    information_PP = slopes_NP.T @ slopes_NP + np.diag([0.0, 0.0, *deviation_S**-2.0])
    covariance_PP = np.linalg.inv(information_PP)
    along_P: Array = np.array([0.0, 1.0, 0.0, 0.0])
    if plan.of == "value":
        along_P = jacobian(SIGMOID, theta_P[None], u_N[-1:])[0, 0]
    return float(np.sqrt(along_P @ covariance_PP @ along_P))


def difference_error(plan: Plan) -> float:
    """Standard error of the difference of two recipes' means."""
    return float(np.sqrt(2 * (plan.spread**2 + run_error(plan) ** 2) / plan.seeds))


def power(plan: Plan, difference: float, certainty: float = 0.9) -> float:
    """Probability that the better of two recipes is called ahead with this certainty.

    The certainty is that of the whole family: with several variants, each is held to its share (Bonferroni).

    Args:
        plan: the runs; with one seed of each the spread must be known, since nothing measures it.
        difference: true difference of the two.
        certainty: probability from which one is called ahead.
    """
    from scipy.stats import nct, norm, t

    level = 1 - (1 - certainty) / (plan.recipes - 1)
    shift = difference / difference_error(plan)
    if plan.seeds == 1:
        return float(norm.sf(norm.ppf(level) - shift))
    spare = 2 * (plan.seeds - 1)
    return float(nct.sf(t.ppf(level, spare), spare, shift))


def smallest_difference(plan: Plan, wanted: float = 0.8, certainty: float = 0.9) -> float:
    """The difference that is found with the wanted power, by bisection."""
    low, high = 0.0, 64 * difference_error(plan)
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if power(plan, middle, certainty) >= wanted else (middle, high)
    return high


def seeds_for(plan: Plan, difference: float, wanted: float = 0.8, certainty: float = 0.9) -> int | None:
    """The fewest seeds of each recipe, at least two, that find a difference with the wanted power; None beyond 100."""
    for seeds in range(2, MOST_SEEDS + 1):
        if power(replace(plan, seeds=seeds), difference, certainty) >= wanted:
            return seeds
    return None


def designs(
    plan: Plan, difference: float, seeds: Sequence[int], evaluations: Sequence[int], certainty: float = 0.9
) -> list[tuple[Plan, float, float]]:
    """Every combination of seeds and evaluations, with its power and the smallest difference it finds with 80 %."""
    plans = [replace(plan, seeds=count, evaluations=points) for count in seeds for points in evaluations]
    return [(one, power(one, difference, certainty), smallest_difference(one, 0.8, certainty)) for one in plans]
