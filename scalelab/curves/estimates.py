"""Estimates of single runs by which recipes are compared, with their errors.

Axes: `_X` runs, `_M` draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scalelab.curves.analysis import Analysis
from scalelab.curves.fitting.joint import FitError, fit_curve
from scalelab.curves.fitting.models import Array
from scalelab.curves.fitting.posterior import Draws, posterior

Quantity = Literal["value", "A", "log_B", "log_C_mid", "log_reach"]
"""A number to compare: pass rate at some compute, A, ln B, ln C_mid, or ln of the compute to reach some pass rate."""

LONGEST = 100.0
"""Compute to reach a pass rate is taken to be at most this often the compute of the comparison."""


@dataclass(frozen=True)
class RunDraws:
    """Equally likely numbers of one run, `[M]` each.

    Attributes:
        seed: name of the seed; empty where the run shares it with none.
        value: pass rate at the compute of the comparison.
        A: asymptote.
        log_B: logarithm of the exponent.
        log_C_mid: logarithm of C_mid.
        log_reach: logarithm of the compute at which the curve reaches a pass rate.
    """

    seed: str
    value: Array
    A: Array
    log_B: Array
    log_C_mid: Array
    log_reach: Array


@dataclass(frozen=True)
class ComparePoint:
    """Compute and pass rate at which curves are compared.

    Attributes:
        at: compute at which pass rates are taken.
        reach: pass rate to which compute is counted.
    """

    at: float
    reach: float


def value_draws(draws: Draws, item: Analysis | None, at: float) -> Array:
    """Pass rates at some compute, `[M]`; beyond the points of an analysis other shapes count as well."""
    if item is not None and item.shapes is not None and at > 1.05 * item.fit.window[1]:
        return item.shapes.value([at])[:, 0]
    return draws.value([at])[:, 0]


def run_draws(seed: str, draws: Draws, item: Analysis | None, point: ComparePoint) -> RunDraws:
    """Numbers of a run by draws of its sigmoid.

    The compute to reach a pass rate stays within a factor of `LONGEST` of that of the comparison; curves that never get
    there, or begin above, are put at these ends.
    """
    ends = np.log(point.at) + np.log(LONGEST) * np.array([-1, 1])
    reached_M = draws.model.inverse(draws.theta_MP, point.reach) + draws.log_reference
    return RunDraws(
        seed=seed,
        value=value_draws(draws, item, point.at),
        A=draws.theta_MP[:, 1],
        log_B=draws.theta_MP[:, 2],
        log_C_mid=draws.theta_MP[:, 3] + draws.log_reference,
        log_reach=np.clip(reached_M, *ends),
    )


def seed_draws(item: Analysis, point: ComparePoint) -> tuple[list[RunDraws], list[str]]:
    """Draws of every seed's own curve, and a line for each seed that was left out because its points carry no curve.

    Where none does, the curve of all seeds together counts as one run.
    """
    curve = item.fit.curve
    if len(curve.seeds) == 1:
        return [run_draws(curve.seeds[0], item.curve_draws(), item, point)], []
    found, left_out = [], []
    for index, name in enumerate(curve.seeds):
        try:
            fit = fit_curve(curve.select(curve.seed_N == index), since=0, prior=item.fit.prior, r0=item.fit.fixed_r0)
        except FitError as reason:
            left_out.append(f"seed {name} of {curve.run} is left out of the comparison: {reason}")
            continue
        found.append(run_draws(name, posterior(fit, fit.prior, size=1500, quick=True), None, point))
    if not found:
        left_out.append(f"{curve.run} counts as one run: none of its seeds carries a curve by itself")
        found.append(run_draws("", item.curve_draws(), item, point))
    return found, left_out


@dataclass(frozen=True)
class RunEstimates:
    """One number of every run of one task.

    Attributes:
        value_X: the estimate.
        error_X: its standard error.
        recipe_X: index of the recipe.
        seed_X: index of the seed; runs of one index share what seeds share, −1 for a run that shares it with none.
        recipes: names of the recipes.
    """

    value_X: Array
    error_X: Array
    recipe_X: np.ndarray
    seed_X: np.ndarray
    recipes: tuple[str, ...]

    def scaled(self, unit: float) -> RunEstimates:
        """The numbers in units of `unit`."""
        return replace(self, value_X=self.value_X / unit, error_X=self.error_X / unit)


def runs_of(recipes: Sequence[str], runs: Sequence[Sequence[RunDraws]], quantity: Quantity) -> RunEstimates:
    """One number of every run: median, and the standard deviation that the middle of its draws agrees with.

    Args:
        recipes: names.
        runs: of each recipe.
        quantity: which number.
    """
    names = [run.seed for found in runs for run in found]
    paired = {name: index for index, name in enumerate(dict.fromkeys(names)) if name and names.count(name) > 1}
    ends = np.array([np.quantile(getattr(run, quantity), [0.1, 0.5, 0.9]) for found in runs for run in found])
    return RunEstimates(
        value_X=ends[:, 1],
        error_X=np.maximum((ends[:, 2] - ends[:, 0]) / 2.563, 1e-6),  # 80 % of a normal are 2.563 deviations wide
        recipe_X=np.array([at for at, found in enumerate(runs) for _ in found]),
        seed_X=np.array([paired.get(name, -1) for name in names]),
        recipes=tuple(recipes),
    )
