"""Ending runs of a sweep early, with a bound on the chance that the best one is among them.

Looking after every evaluation gives chance many occasions. Under a model whose prior does not move, the probability
that a run is the best of all, given the evaluations so far, is a martingale, and a run that is ended the first time
that its probability is below ε is the best one with a probability below ε, however often one looks (Doob). With N runs,
of which N − 1 can be ended at most, ε = error / (N − 1) then bounds the chance to end the best by `error`. The prior of
C_mid here moves with the compute spent, so the bound is a guide and not a theorem.

The best is the run, or the mean of a recipe's runs, whose own curve is highest. What another seed would have done is
left out: going on with a run does not tell it.

Axes: `_M` draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scalelab.curves.analysis import Analysis
from scalelab.defaults import STOP_ERROR
from scalelab.errors import LabError

SHARE = 0.25
"""Share of the compute of the comparison that a run must have spent before it can be ended."""

ROUNDS = 5
"""Times that the draws of the runs are matched anew: enough to tell half a percent from zero."""


def chances_to_be_best(analyses: Sequence[Analysis], at: float) -> dict[str, float]:
    """Probability of each run to have the highest pass rate at some compute, by name.

    Args:
        analyses: fits of one task, one for each run or for all seeds of a recipe.
        at: the compute; the runs' curves over all shapes are drawn independently of each other.
    """
    names = [item.fit.curve.run for item in analyses]
    drawn_R = [item.draws().value([at])[:, 0] for item in analyses]
    wins_R = np.zeros(len(names))
    rng = np.random.default_rng(0)
    for _ in range(ROUNDS):
        size = min(map(len, drawn_R))
        value_MR = np.stack([rng.permutation(value_M)[:size] for value_M in drawn_R], axis=1)
        wins_R += np.bincount(value_MR.argmax(1), minlength=len(names)) / size
    return dict(zip(names, (wins_R / ROUNDS).tolist()))


def losers(analyses: Sequence[Analysis], at: float, recipes: int, error: float = STOP_ERROR) -> dict[str, float]:
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
        raise LabError(f"an error of {error:g} is no probability: give one between 0 and 1, such as {STOP_ERROR:g}")
    if len(analyses) < 2:
        return {}
    limit = error / max(recipes - 1, 1)
    spent = {item.fit.curve.run: item.fit.window[1] for item in analyses}
    return {
        run: chance
        for run, chance in chances_to_be_best(analyses, at).items()
        if chance < limit and spent[run] >= SHARE * at
    }
