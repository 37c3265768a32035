"""Predictability: forecasts from part of a run against what was measured, beside simpler forecasts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import curve_fit

from scalelab.curves import Curve
from study_tables.runs import StudyRuns, fitted, table

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
    bounds = ([0, 0, -1, -9], [1, 1, 2, 9])
    try:
        with warnings.catch_warnings(action="ignore"):  # of a covariance that nobody asks for
            found, _ = curve_fit(sigmoid, seen.compute_N, rate, start, bounds=bounds, max_nfev=2000)
    except RuntimeError:
        return no_change(seen, end)
    return float(np.clip(sigmoid(np.array([end]), *found)[0], 0, 1))


WAYS: dict[str, Callable[[Curve, float], float]] = {
    "no change": no_change,
    "line in log C": line_in_log,
    "curve_fit": least_squares,
}


OTHERS = "others' growth"
"""No change, and the mean growth of the other members' runs on the task from the same share of the budget on."""


def growth(item: Curve, part: float) -> float:
    """Growth of a run from a part of its budget to the mean of its last evaluations."""
    order = np.argsort(item.compute_N)
    return float(item.pass_rate_N[order][-LAST:].mean()) - no_change(until(item, part * float(item.compute_N.max())), 0)


def forecast_of(item: Curve, part: float, others: float | None = None) -> RunForecast | None:
    """Forecasts of the mean of a run's last evaluations from the first part of its budget; None without a fit there.

    Args:
        item: the run's evaluations.
        part: share of the budget that is seen.
        others: mean growth of other members' runs from there on, if it is known.
    """
    order = np.argsort(item.compute_N)
    measured = float(item.pass_rate_N[order][-LAST:].mean())
    end = float(item.compute_N[order][-LAST:].mean())
    seen = until(item, part * float(item.compute_N.max()))
    found = fitted(seen)
    if found is None:
        return None
    errors = {"the lab": float(np.median(found.draws().value([end]))) - measured}
    errors |= {name: way(seen, end) - measured for name, way in WAYS.items()}
    if others is not None:
        errors[OTHERS] = no_change(seen, end) + others - measured
    low, high = (float(bound[0]) for bound in found.evaluation_interval([end]))
    return RunForecast(errors, low <= measured <= high)


def forecasts_table(runs: StudyRuns) -> str:
    """Forecasts of all single runs: mean size of the error of every way, and coverage of the lab's interval.

    Runs that fall are among them: no rising curve foretells a fall, nor does any of the other ways.
    """
    rows = []
    for task in runs.tasks():
        singles = [
            item.select(item.seed_N == at) for item in runs.curves if item.task == task for at in _own(item, runs)
        ]
        for part in PARTS:
            grown = {name: [growth(item, part) for item in singles if item.run == name] for name in runs.members()}
            told = [forecast_of(item, part, _of_others(grown, item.run)) for item in singles]
            made = [one for one in told if one is not None]
            rows.append([task, f"{part:.0%}", f"{len(made)} of {len(singles)}", *_errors(made)])
    names = ["the lab", *WAYS, OTHERS]
    return table(["task", "from", "runs with a fit", *names, "the lab's mean error", "in its 80 % interval"], rows)


def _of_others(grown: Mapping[str, Sequence[float]], member: str) -> float | None:
    """Mean over the other members of the mean growth of their runs."""
    means = [float(np.mean(each)) for name, each in grown.items() if name != member and each]
    return float(np.mean(means)) if means else None


def _own(item: Curve, runs: StudyRuns) -> range:
    """Seeds of a member, none where its runs are the baseline's to the last byte."""
    return range(0 if runs.copies(item.run) else len(item.seeds))


def _errors(made: Sequence[RunForecast]) -> list[str]:
    names = ("the lab", *WAYS, OTHERS)
    if not made:
        return ["–"] * (len(names) + 2)
    told = [[abs(one.errors[name]) for one in made if name in one.errors] for name in names]
    return [
        *(f"{np.mean(each):.3f}" if each else "–" for each in told),
        f"{np.mean([one.errors['the lab'] for one in made]):+.3f}",
        f"{np.mean([one.inside for one in made]):.0%}",
    ]
