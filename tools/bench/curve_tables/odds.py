"""Odds of the shapes of curves beforehand, learnt from the committed runs of the study."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from curve_tables.common import ROOT, markdown
from scalelab.curves import Curve, FitError, fit_curve, read_sources
from scalelab.curves.fitting.density import Change, Density, seed_noises
from scalelab.curves.fitting.posterior import find_mass
from scalelab.curves.fitting.shapes import CHANGES, OTHERS, SIGMOID_ODDS

NAMES = ("sigmoid", *(rise.name for rise in OTHERS), *(kind.name for kind in CHANGES))
ODDS = np.array([SIGMOID_ODDS, *(rise.odds for rise in OTHERS), *(kind.odds for kind in CHANGES)])
FIRM = 20.0
"""Curves that the odds beforehand count as."""


def evidence(item: Curve, until: float | None) -> list[float] | None:
    """Log evidence of every shape, up to a constant; None without a fit."""
    try:
        fit = fit_curve(item, until=until)
    except FitError:
        return None
    noises, log_end = seed_noises(fit), float(np.log(fit.window[1])) - fit.log_reference
    found = [Density(fit, fit.prior, model, coarse=True, noises=noises) for model in (None, *OTHERS)]
    changes = [Change(log_end + float(np.log(kind.share)), kind.steep) for kind in CHANGES]
    found += [Density(fit, fit.prior, coarse=True, noises=noises, change=change) for change in changes]
    return [find_mass(one, quick=True).weigh(np.random.default_rng(0)).log_evidence for one in found]


def most_probable(log_RF: Sequence[Sequence[float]]) -> np.ndarray:
    """Odds that make the points of all curves most probable, by EM from those beforehand."""
    likelihood_RF = np.array(log_RF)
    likelihood_RF = np.exp(likelihood_RF - likelihood_RF.max(1, keepdims=True))
    odds_F = first_F = ODDS / ODDS.sum()
    for _ in range(500):
        share_RF = odds_F * likelihood_RF
        share_RF /= share_RF.sum(1, keepdims=True)
        odds_F = (share_RF.sum(0) + FIRM * first_F) / (len(share_RF) + FIRM)
    return odds_F


def odds_section() -> str:
    """Odds by task, whole runs and first halves together, and their mean."""
    runs = [item for folder in sorted((ROOT / "docs/study/runs").glob("*/seed_*")) for item in read_sources([folder])]
    columns = []
    for task in ("math", "code"):
        mine = [item for item in runs if item.task == task]
        halves = [(item, until) for item in mine for until in (None, 0.5 * float(item.compute_N.max()))]
        found = [log_F for log_F in (evidence(item, until) for item, until in halves) if log_F is not None]
        columns.append(most_probable(found))
    columns.append(np.mean(columns, axis=0))
    rows = [[name, *(f"{column[at]:.3f}" for column in columns)] for at, name in enumerate(NAMES)]
    return markdown(["shape", "math", "code", "mean"], rows)


if __name__ == "__main__":
    print(odds_section())
