"""Ending runs of a sweep early, with a bound on the chance that the best one is among them.

Looking after every evaluation gives chance many occasions. The probability that a run is the best of all, given the
evaluations so far, is a martingale: however often it is looked at, and whenever one stops, its mean is what it was
(Doob; Berger & Wolpert 1988 on optional stopping). If a run is ended the first time that its probability is below ε, it
is the best one with a probability below ε. With N runs, of which N − 1 can be ended at most, ε = error / (N − 1) bounds
the chance to end the best by `error`. The bound is that of the model, averaged over what it believes; how often it is
kept by sweeps that were drawn otherwise is in docs/curves.md.

The best is the run, or the mean of a recipe's runs, whose own curve is highest. What another seed would have done is
left out: going on with a run does not tell it.

Axes: `_M` draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scalelab.curves.analysis import Analysis
from scalelab.curves.estimates import RunEstimates, value_draws
from scalelab.curves.hierarchy import RATE, recipe_effects
from scalelab.errors import LabError

ERROR = 0.05
"""Chance to end the best run of a sweep, unless the caller says otherwise."""

SHARE = 0.25
"""Share of the compute of the comparison that a run must have spent before it can be ended."""

DRAWS = 20_000
"""Draws of the runs: enough to tell a probability of half a percent from one of zero."""


def chances_to_be_best(analyses: Sequence[Analysis], at: float) -> dict[str, float]:
    """Probability of each run to have the highest pass rate at some compute, by name.

    Runs are drawn towards their mean, as many looks ask for (`hierarchy`). A forecast counts as a normal with the wider
    of its two sides.

    Args:
        analyses: fits of one task, one for each run or for all seeds of a recipe.
        at: the compute; forecasts beyond the points allow for other shapes than the sigmoid.
    """
    names = tuple(item.fit.curve.run for item in analyses)
    ends = np.array([np.quantile(value_draws(item.curve_draws(), item, at), [0.1, 0.5, 0.9]) for item in analyses])
    side = np.maximum(ends[:, 2] - ends[:, 1], ends[:, 1] - ends[:, 0]) / 1.2816
    alone = np.full(len(names), -1)
    runs = RunEstimates(ends[:, 1], np.maximum(side, 1e-6), np.arange(len(names)), alone, names)
    return recipe_effects(runs, RATE, spread=0.0, size=DRAWS).best()


def losers(analyses: Sequence[Analysis], at: float, recipes: int, error: float = ERROR) -> dict[str, float]:
    """Runs that can be ended, and the probability of each to be the best after all.

    Args:
        analyses: fits of one task, one for each run (or all seeds of a recipe) that has one.
        at: compute at which they are compared, such as the budget of the sweep's runs.
        recipes: how many the sweep has, those without a fit among them.
        error: bound on the chance that the best one of the sweep is ended, whenever and however often one looks.

    Raises:
        LabError: the error is no probability.
    """
    if not 0 < error < 1:
        raise LabError(f"an error of {error:g} is no probability: give one between 0 and 1, such as {ERROR:g}")
    if len(analyses) < 2:
        return {}
    limit = error / max(recipes - 1, 1)
    spent = {item.fit.curve.run: item.fit.window[1] for item in analyses}
    return {
        run: chance
        for run, chance in chances_to_be_best(analyses, at).items()
        if chance < limit and spent[run] >= SHARE * at
    }
