"""Which recipe scales better: by A first, then by B at a common A (ScaleRL §3.2, A.5), with probabilities.

A recipe is judged by a run, and runs of one recipe differ: the paper's three ended ±0.015 apart. Where a run has
several seeds their spread is measured; for a single one, win probabilities allow for the paper's.

Axes: `_M` draws, `_C` points of compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from scalelab.curves.analysis import MARGIN, Analysis
from scalelab.curves.data import same_unit
from scalelab.curves.fitting.intervals import Interval, around, equal_tailed
from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.models import SIGMOID, Array, value
from scalelab.curves.fitting.posterior import Draws
from scalelab.curves.fitting.problem import make_problem
from scalelab.curves.fitting.solver import minimise
from scalelab.errors import LabError

TieRule = Literal["margin", "overlap"]

RUN_SPREAD = 0.0125
"""Standard deviation of A between runs of one recipe that matches the paper's ±0.015 over three runs."""


@dataclass(frozen=True)
class Entry:
    """One run of a comparison.

    Attributes:
        analysis: its fit.
        rank: 1 for the best; by A, and by B at the common A among those that tie.
        tied_with: runs that its A ties with.
        common_A: A at which the tied runs were refitted.
        B_at_common_A: exponent of that refit.
        B_interval: its interval.
        rate: pass rate at the compute where probabilities are taken, with interval.
        beats: probability that this recipe lies above another at that compute, by the other's run.
    """

    analysis: Analysis
    rank: int = 0
    tied_with: tuple[str, ...] = ()
    common_A: float = float("nan")
    B_at_common_A: float = float("nan")
    B_interval: Interval = (float("nan"), float("nan"))
    rate: tuple[float, Interval] = (float("nan"), (float("nan"), float("nan")))
    beats: dict[str, float] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """Name of the run."""
        return self.analysis.fit.curve.run


@dataclass(frozen=True)
class Crossing:
    """Where the curves of two runs cross.

    Attributes:
        first: a run.
        second: another.
        probability: that they cross between the first evaluation and a hundred times the compute spent.
        compute: median compute of the last crossing, if there is one at all likely (probability over one half).
        interval: its interval, given that they cross.
        leader_before: who is probably ahead before it.
    """

    first: str
    second: str
    probability: float
    compute: float | None
    interval: Interval | None
    leader_before: str


@dataclass(frozen=True)
class Comparison:
    """The runs of one task, best first.

    Attributes:
        task: the task.
        at: compute at which `rate` and `beats` are taken.
        entries: the runs, by rank.
        crossings: of every pair.
        notes: what the reader should know.
    """

    task: str
    at: float
    entries: tuple[Entry, ...]
    crossings: tuple[Crossing, ...]
    notes: tuple[str, ...]


def compare(
    analyses: Sequence[Analysis],
    *,
    tie: TieRule = "margin",
    margin: float = MARGIN,
    at: float | None = None,
    run_spread: float | None = None,
) -> list[Comparison]:
    """Compare runs, task by task.

    Args:
        analyses: joint sigmoid fits with draws; each run once per task.
        tie: what makes two A the same: they are within `margin`, or their intervals overlap.
        margin: see `tie`.
        at: compute at which win probabilities are taken; None takes the largest that every run has spent.
        run_spread: standard deviation of A between runs of one recipe, for runs with a single seed; None takes the
            paper's.

    Raises:
        LabError: fits without draws, power laws, mixed units, or an unknown tie rule.
    """
    if tie not in ("margin", "overlap"):
        raise LabError(f"unknown tie rule {tie!r}: use margin or overlap")
    if any(item.draws is None or item.fit.model is not SIGMOID for item in analyses):
        raise LabError("only joint sigmoid fits can be compared: use --method joint")
    same_unit([item.fit.curve for item in analyses])
    tasks = dict.fromkeys(item.fit.curve.task for item in analyses)
    spread = RUN_SPREAD if run_spread is None else run_spread
    return [
        _compare_task(task, [item for item in analyses if item.fit.curve.task == task], tie, margin, at, spread)
        for task in tasks
    ]


def _compare_task(
    task: str, analyses: Sequence[Analysis], tie: TieRule, margin: float, at: float | None, spread: float
) -> Comparison:
    at = min(item.fit.window[1] for item in analyses) if at is None else at
    ranked: list[Entry] = []
    for group in tie_groups(analyses, tie, margin):
        common = float(np.mean([item.fit.parameters["A"] for item in group]))
        refits = [_at_common_A(item, common) for item in group]
        for position in sorted(range(len(group)), key=lambda index: -refits[index][0]):
            others = tuple(item.fit.curve.run for item in group if item is not group[position])
            B, interval = refits[position]
            ranked.append(Entry(group[position], len(ranked) + 1, others, common, B, interval))
    rates = {entry.run: _recipe_draws(entry.analysis, at, spread) for entry in ranked}
    level = analyses[0].level
    entries = tuple(
        replace(
            entry,
            rate=(float(np.median(rates[entry.run])), equal_tailed(rates[entry.run], level)),
            beats={
                other.run: _probability_above(rates[entry.run], rates[other.run])
                for other in ranked
                if other is not entry
            },
        )
        for entry in ranked
    )
    crossings = tuple(
        crossing(first.analysis, second.analysis)
        for index, first in enumerate(ranked)
        for second in ranked[index + 1 :]
    )
    single = [entry.run for entry in entries if len(entry.analysis.fit.curve.seeds) == 1]
    notes = (
        (f"{', '.join(single)}: one seed, so a spread of A of {spread:g} between runs is assumed",) if single else ()
    )
    return Comparison(task, float(at), entries, crossings, notes)


def tie_groups(analyses: Sequence[Analysis], tie: TieRule = "margin", margin: float = MARGIN) -> list[list[Analysis]]:
    """Runs in falling order of A; a run joins the group above it if its A ties with the best of that group."""
    groups: list[list[Analysis]] = []
    for item in sorted(analyses, key=lambda item: -item.fit.parameters["A"]):
        if groups and _ties(groups[-1][0], item, tie, margin):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def _ties(best: Analysis, other: Analysis, tie: TieRule, margin: float) -> bool:
    if tie == "margin":
        return best.fit.parameters["A"] - other.fit.parameters["A"] <= margin
    return other.intervals["A"][1] >= best.intervals["A"][0]


def refit_at(fit: Fit, A: float, rate_MN: Array | None = None) -> Array:
    """Parameter vectors `[M, P]` of the curve refitted with A held, to its own points or to other pass rates."""
    problem, _ = make_problem(fit.curve, SIGMOID, fit.fixed_r0, fit.prior)
    lower_P, upper_P = problem.lower_P.copy(), problem.upper_P.copy()
    lower_P[1] = upper_P[1] = A
    rate_MN = fit.curve.pass_rate_N[None] if rate_MN is None else rate_MN
    sigma_N = fit.sigma_N / np.sqrt(fit.weight_N)
    solution = minimise(
        lambda theta_BP, at_B: problem.residuals(theta_BP, rate_MN[at_B], sigma_N),
        np.repeat(fit.theta_P[None], len(rate_MN), axis=0),
        lower_P,
        upper_P,
        tolerance=1e-6,
    )
    return solution.theta_BP


def _at_common_A(item: Analysis, A: float) -> tuple[float, Interval]:
    """B with A held, and its interval: draws of the curve, seen at the points, are refitted with that A."""
    fit = item.fit
    B = float(np.exp(refit_at(fit, A)[0, 2]))
    draws = _drawn(item)
    chosen_M = np.linspace(0, len(draws) - 1, min(len(draws), 500)).astype(int)
    u_N = make_problem(fit.curve, SIGMOID, fit.fixed_r0, fit.prior)[0].u_N
    rate_MN = value(SIGMOID, draws.theta_MP[chosen_M], u_N)
    return B, around(np.exp(refit_at(fit, A, rate_MN)[:, 2]), B, item.level)


def _drawn(item: Analysis) -> Draws:
    if item.draws is None:
        raise LabError("the paper's method has no uncertainty to compare with: use --method joint")
    return item.draws


def _recipe_draws(item: Analysis, at: float, spread: float) -> Array:
    """Pass rates `[M]` of the recipe at some compute: the curve's draws, moved by what another run might do."""
    draws = _drawn(item)
    rate_M = draws.value([at])[:, 0]
    if len(item.fit.curve.seeds) > 1:
        return rate_M  # the spread was measured, and the draws of their mean hold it
    u = np.array([np.log(at) - draws.log_reference])
    rise_M = SIGMOID.features(draws.theta_MP[:, 2:], u)[:, 0, 1]
    seed = sum(map(ord, item.fit.curve.run))
    return rate_M + spread * rise_M * np.random.default_rng(seed).standard_normal(len(rate_M))


def _probability_above(first_M: Array, second_M: Array) -> float:
    """Probability that a draw of the first is above an independent draw of the second."""
    below = np.searchsorted(np.sort(second_M), first_M, side="left")
    return float(below.mean() / len(second_M))


def crossing(first: Analysis, second: Analysis, size: int = 1000) -> Crossing:
    """Where two curves cross, on a logarithmic grid from the first evaluation to a hundred times the compute spent."""
    start = max(first.fit.window[0], second.fit.window[0])
    end = 100 * max(first.fit.window[1], second.fit.window[1])
    compute_C = np.geomspace(start, end, 300)
    one, two = (_spread_out(_drawn(item), size).value(compute_C) for item in (first, second))
    size = min(len(one), len(two))
    ahead_MC = one[:size] > two[np.random.default_rng(0).permutation(size)]
    changes_MC = ahead_MC[:, 1:] != ahead_MC[:, :-1]
    crossed_M = changes_MC.any(axis=1)
    last_M = changes_MC.shape[1] - 1 - np.argmax(changes_MC[:, ::-1], axis=1)
    at_M = np.sqrt(compute_C[last_M] * compute_C[last_M + 1])[crossed_M]
    probability = float(crossed_M.mean())
    before = ahead_MC[crossed_M, last_M[crossed_M]] if crossed_M.any() else ahead_MC[:, 0]
    runs = first.fit.curve.run, second.fit.curve.run
    likely = probability > 0.5
    return Crossing(
        first=runs[0],
        second=runs[1],
        probability=probability,
        compute=float(np.median(at_M)) if likely else None,
        interval=equal_tailed(at_M, first.level) if likely else None,
        leader_before=runs[0] if before.mean() > 0.5 else runs[1],
    )


def _spread_out(draws: Draws, size: int) -> Draws:
    """Fewer draws, evenly taken."""
    chosen_M = np.linspace(0, len(draws) - 1, min(size, len(draws))).astype(int)
    return replace(
        draws,
        theta_MP=draws.theta_MP[chosen_M],
        noise_M=draws.noise_M[chosen_M],
        spread_M=draws.spread_M[chosen_M],
    )


def efficiency(fit: Fit, A: float | None = None) -> tuple[Array, Array, Array]:
    """The linearised curve F(R) = C_mid^B / ((A − R0)/(R − R0) − 1) = C^B (ScaleRL A.5).

    Against compute, both logarithmic, it is a straight line of slope B.

    Args:
        fit: a sigmoid fit.
        A: common asymptote to refit at; None keeps the fit's own.

    Returns:
        Compute and F of the points that lie between R0 and A, and the fitted line C^B at those points.
    """
    theta_P = fit.theta_P if A is None else refit_at(fit, A)[0]
    R0, asymptote, B, C_mid = SIGMOID.readable(theta_P, fit.log_reference)
    rate_N, compute_N = fit.curve.pass_rate_N, fit.curve.compute_N
    inside_N = (rate_N > R0) & (rate_N < asymptote) & (compute_N > 0)
    F_N = C_mid**B / ((asymptote - R0) / (rate_N[inside_N] - R0) - 1)
    return compute_N[inside_N], F_N, compute_N[inside_N] ** B


def entry_summary(entry: Entry) -> dict[str, Any]:
    """The entry of `scalelab compare --json`: that of `scalelab fit --json`, and what the comparison adds."""
    fitted = entry.analysis.summary()
    return fitted | {
        "rank": entry.rank,
        "tied_with": list(entry.tied_with),
        "common_A": entry.common_A,
        "B_at_common_A": entry.B_at_common_A,
        "intervals": fitted["intervals"] | {"B_at_common_A": list(entry.B_interval)},
        "value": entry.rate[0],
        "value_interval": list(entry.rate[1]),
        "beats": entry.beats,
        "seeds": len(entry.analysis.fit.curve.seeds),
    }
