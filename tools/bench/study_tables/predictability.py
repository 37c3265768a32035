"""Predictability: forecasts from part of a run against what was measured, beside simpler forecasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import curve_fit

from scalelab.curves import Curve, FitError, Options, analyse
from study_tables.runs import StudyRuns, table

PARTS = (0.25, 0.5)
"""Shares of the budget from which the rest is forecast."""

LAST = 3
"""Evaluations at the end whose mean is forecast."""


@dataclass(frozen=True)
class RunForecast:
    """One forecast of one run.

    Attributes:
        errors: forecast less measured by every way of forecasting; the lab's is left out where there is no fit.
        inside: whether what was measured fell into the lab's 80 % interval.
    """

    errors: dict[str, float]
    inside: bool


def until(item: Curve, compute: float) -> Curve:
    """The evaluations up to some compute."""
    return item.select(item.compute_N <= compute)


def no_change(seen: Curve, end: float) -> float:
    """The mean of the last three evaluations."""
    return float(seen.pass_rate_N[np.argsort(seen.compute_N)][-LAST:].mean())


def line_in_log(seen: Curve, end: float) -> float:
    """A straight line in the logarithm of compute, by least squares on the evaluations after step 0."""
    later = seen.compute_N > 0
    slope, intercept = np.polyfit(np.log(seen.compute_N[later]), seen.pass_rate_N[later], 1)
    return float(slope * np.log(end) + intercept)


def least_squares(seen: Curve, end: float) -> float:
    """The sigmoid by SciPy's `curve_fit`, bounded as a pass rate; no change where it does not converge."""

    def sigmoid(compute: np.ndarray, R0: float, gain: float, log_B: float, log_C: float) -> np.ndarray:
        return R0 + gain / (1 + (np.exp(log_C) / np.maximum(compute, 1e-9)) ** np.exp(log_B))

    rate = seen.pass_rate_N
    start = (rate.min(), max(0.1, float(np.ptp(rate))), 0.4, np.log(0.5 * seen.compute_N.max()))
    try:
        found, _ = curve_fit(sigmoid, seen.compute_N, rate, start, bounds=([0, 0, -1, -9], [1, 1, 2, 9]), max_nfev=2000)
    except RuntimeError:
        return no_change(seen, end)
    return float(np.clip(sigmoid(np.array([end]), *found)[0], 0, 1))


WAYS: dict[str, Callable[[Curve, float], float]] = {
    "no change": no_change,
    "line in log C": line_in_log,
    "curve_fit": least_squares,
}


def forecast_of(item: Curve, part: float) -> RunForecast | None:
    """Forecasts of the mean of a run's last evaluations from the first part of its budget; None without a fit there."""
    order = np.argsort(item.compute_N)
    measured = float(item.pass_rate_N[order][-LAST:].mean())
    end = float(item.compute_N[order][-LAST:].mean())
    seen = until(item, part * float(item.compute_N.max()))
    try:
        found = analyse(seen, Options(checks=False))
    except FitError:
        return None
    errors = {"the lab": float(np.median(found.draws().value([end]))) - measured}
    errors |= {name: way(seen, end) - measured for name, way in WAYS.items()}
    low, high = (float(bound[0]) for bound in found.evaluation_interval([end], 0.8))
    return RunForecast(errors, low <= measured <= high)


def forecasts_table(runs: StudyRuns) -> str:
    """Forecasts of all single runs: mean size of the error of every way, and coverage of the lab's interval."""
    rows = []
    for task in runs.tasks():
        singles = [
            item.select(item.seed_N == at) for item in runs.curves if item.task == task for at in _own(item, runs)
        ]
        for part in PARTS:
            made = [one for item in singles if (one := forecast_of(item, part)) is not None]
            rows.append([task, f"{part:.0%}", f"{len(made)} of {len(singles)}", *_errors(made)])
    names = ["the lab", *WAYS]
    return table(["task", "from", "runs with a fit", *names, "the lab's mean error", "in its 80 % interval"], rows)


def _own(item: Curve, runs: StudyRuns) -> range:
    """Seeds of a member, none where its runs are the baseline's to the last byte."""
    return range(0 if runs.copies(item.run) else len(item.seeds))


def _errors(made: Sequence[RunForecast]) -> list[str]:
    if not made:
        return ["–"] * (len(WAYS) + 3)
    cells = [f"{np.mean([abs(one.errors[name]) for one in made]):.3f}" for name in ("the lab", *WAYS)]
    return [
        *cells,
        f"{np.mean([one.errors['the lab'] for one in made]):+.3f}",
        f"{np.mean([one.inside for one in made]):.0%}",
    ]
