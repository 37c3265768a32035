"""Allocation of a budget to runs on scaling axes, one after the other, each where it helps the choice most.

Axes of arrays: `_K` candidates, `_M` draws, `_Q` nodes of a quadrature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scalelab.curves.fitting.intervals import Interval, equal_tailed
from scalelab.curves.fitting.models import Array
from scalelab.curves.law import Law, Place, check_compute, rates, readable
from scalelab.errors import LabError


@dataclass(frozen=True)
class Proposal:
    """A run to make next.

    Attributes:
        at: its place on the axes.
        spends: compute of the run.
        value: expected pass rate of the place at the compute of the decision.
        interval: of that pass rate, before the run.
        best: probability that it is the best of all candidates.
        gain: by how much the run is expected to raise the pass rate of the place that is chosen in the end.
        reason: in words.
    """

    at: Mapping[str, float]
    spends: float
    value: float
    interval: Interval
    best: float
    gain: float
    reason: str


def allocate(
    law: Law, candidates: Sequence[Mapping[str, float]], compute: float, budget: float, trial: float | None = None
) -> list[Proposal]:
    """Spend a budget on runs, one at a time, each where it helps the choice of the best place most.

    The worth of a run is the expected rise of the best mean that it brings: the knowledge gradient for correlated
    normal beliefs (Frazier, Powell & Dayanik 2009), by the joint draws of the law. After each run the covariance of the
    candidates is what its result will leave, whatever that is.

    Args:
        law: the law of the runs so far.
        candidates: places to choose from; those that were run already may be among them.
        compute: the pass rate at this compute decides.
        budget: compute to spend on runs.
        trial: compute of each run; None takes the median of what the runs so far have spent.

    Returns:
        The runs in their order; fewer than the budget allows where no further one could change the choice.

    Raises:
        LabError: fewer than two candidates, or numbers that are not positive.
    """
    check_compute(compute)
    if len(candidates) < 2:
        raise LabError("a budget is divided among at least two places: name more with --candidate")
    trial = float(np.median([place.end for place in law.places])) if trial is None else trial
    if not (np.isfinite(trial) and trial > 0 and np.isfinite(budget) and budget > 0):
        raise LabError(f"a budget of {budget:g} in runs of {trial:g} cannot be spent: give positive numbers")
    value_MK = np.stack([rates(readable(_theta_of(law, at, index)), compute) for index, at in enumerate(candidates)], 1)
    mean_K, cov_KK = value_MK.mean(0), np.cov(value_MK, rowvar=False)
    error = trial_error(law, compute)
    best_K = np.bincount(value_MK.argmax(1), minlength=len(candidates)) / len(value_MK)
    proposals: list[Proposal] = []
    for _ in range(int(budget // trial)):
        gain_K = knowledge_gradient(mean_K, cov_KK, error)
        pick = int(gain_K.argmax())
        if gain_K[pick] < 1e-5:
            break
        interval = equal_tailed(value_MK[:, pick], law.level)
        proposals.append(
            Proposal(
                at=dict(candidates[pick]),
                spends=trial,
                value=float(mean_K[pick]),
                interval=interval,
                best=float(best_K[pick]),
                gain=float(gain_K[pick]),
                reason=_reason(mean_K, best_K, pick, interval, compute),
            )
        )
        column_K = cov_KK[:, pick] / np.sqrt(cov_KK[pick, pick] + error**2)
        cov_KK = cov_KK - np.outer(column_K, column_K)
    return proposals


def knowledge_gradient(mean_K: Array, cov_KK: Array, error: float) -> Array:
    """Expected rise of the largest mean after one noisy look at each candidate, `[K]`.

    Looking at k moves all means by cov[:, k] / √(cov[k, k] + error²) times a standard normal, over which the largest
    is integrated by Gauss–Hermite quadrature.
    """
    node_Q, weight_Q = np.polynomial.hermite_e.hermegauss(61)
    weight_Q = weight_Q / weight_Q.sum()
    variance_K = np.maximum(np.diagonal(cov_KK), 0)
    slope_KK = cov_KK / np.sqrt(variance_K + error**2)
    largest_QK = (mean_K[None, :, None] + node_Q[:, None, None] * slope_KK[None]).max(1)
    return np.maximum(weight_Q @ largest_QK - mean_K.max(), 0)


def trial_error(law: Law, compute: float) -> float:
    """Standard error that one run leaves of its pass rate at some compute: the median over the places."""
    return float(np.median([rates(readable(place.theta_DJ), compute).std() for place in law.places]))


def grid_of(places: Sequence[Place], axes: Sequence[str]) -> list[dict[str, float]]:
    """Every combination of the values that the places have on the axes."""
    values = [sorted({place.at[axis] for place in places}) for axis in axes]
    mesh = np.stack(np.meshgrid(*values, indexing="ij"), axis=-1).reshape(-1, len(values))
    return [dict(zip(axes, row)) for row in mesh.tolist()]


def label(at: Mapping[str, float]) -> str:
    """A place in words: `batch 2,048, length 14,000`."""
    return ", ".join(f"{axis} {number:,.6g}" for axis, number in at.items())


def _reason(mean_K: Array, best_K: Array, pick: int, interval: Interval, compute: float) -> str:
    """Reason to make a run next: its forecast beside that of the most promising candidate."""
    low, high = interval
    leader = int(mean_K.argmax())
    foretold = f"its pass rate at {compute:,g} is foretold as {mean_K[pick]:.3f} [{low:.3f}, {high:.3f}]"
    if pick == leader:
        return f"{foretold}, the highest of all, and it is the best with only {best_K[pick]:.0%}"
    return (
        f"{foretold}, which may be above the {mean_K[leader]:.3f} of the leader: it is the best with {best_K[pick]:.0%}"
    )


def _theta_of(law: Law, at: Mapping[str, float], index: int) -> Array:
    """θ of a candidate `[M, J]`: that of its run, where it was run."""
    for position, place in enumerate(law.places):
        if all(place.at[axis] == at.get(axis) for axis in law.axes):
            return law.theta_MSJ[:, position]
    return law.theta(at, seed=1 + index)
