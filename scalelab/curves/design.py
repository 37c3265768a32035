"""Designs of further runs: seeds and evaluations that tell two recipes apart, and where on the axes a budget goes.

The power of a design is that of `compare`, which judges its runs in the end: it allows for drift, and learns the spread
between seeds from few of them. So runs of the design are simulated and fitted as `compare` fits them, which gives the
error of a run's number (its pass rate at the end of its budget, or its A) and what the fit says of that error; then
many studies are drawn, and each is judged by the two-stage hierarchy of its runs, which `compare` works out from whole
curves (`calibrate` simulates through `compare` itself). More evaluations shrink the error of a run only; more seeds
shrink what seeds differ by, and tell how much that is.

Axes: `_N` evaluations, `_R` recipes, `_S` seeds, `_K` candidates, `_M` studies or draws, `_T` spreads, `_Q` nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.intervals import Interval
from scalelab.curves.fitting.joint import FitError, fit_curve
from scalelab.curves.fitting.models import SIGMOID, log_compute, value
from scalelab.curves.fitting.noise import drift_kernel, log_spread_prior
from scalelab.curves.fitting.posterior import Draws, posterior
from scalelab.curves.law import Law, PlaceForecast, check_compute
from scalelab.curves.places import Place, rates, readable
from scalelab.errors import LabError
from scalelab.numbers import percent
from scalelab.reading.curve import binomial_stderr, curve

Quantity = Literal["value", "A", "log_B", "log_C_mid"]
"""A number to compare: pass rate at the end of the budget, A, ln B, or ln C_mid."""

NUMBER_AT: dict[Quantity, int] = {"A": 1, "log_B": 2, "log_C_mid": 3}
"""Places of the numbers among a curve's parameters."""

SURE = 0.95
"""Probability from which `compare` says better: it errs on either side with half of its error of 0.1."""

LOGARITHM = 8.0
"""Spread of ln B and ln C_mid between seeds for one of A: 0.02 in A goes with about 0.16 in ln B."""

MOST_SEEDS = 100
"""Seeds of each recipe beyond which no design is looked for."""

RUNS = 40
"""Runs that are simulated and fitted to learn the error of a run."""

STUDIES = 2000
"""Studies that are drawn for each power: it is known to about one percent."""

DRIFT_LENGTH = 0.15
"""Correlation length of a run's drift, as a share of its budget."""


@dataclass(frozen=True)
class Plan:
    """Plan of runs, evaluations and prompts.

    Attributes:
        spread: standard deviation between runs of one recipe, what paired seeds share left out; of `of`.
        seeds: runs of each recipe.
        evaluations: of each run, evenly over its budget.
        prompts: held-out prompts of each evaluation.
        samples: completions of each prompt.
        early_samples: completions of each prompt before `full_from`; None for `samples`.
        full_from: part of the budget from which there are `samples`.
        drift: standard deviation of a run's drift about its curve.
        R0: pass rate before RL.
        A: asymptote.
        B: exponent.
        budget: of each run, in units of C_mid.
        recipes: how many are compared with a baseline, the baseline among them.
        of: what is compared: the pass rate at the end of the budget, A, or the logarithm of B or of C_mid.
        known: `compare` is told the spread (`--seed-spread`) instead of learning it.
        prompt_spread: standard deviation between prompts of the difference of two recipes on one prompt; 0 where the
            verdict is about these prompts, more where it is about new ones (`compare --by-prompt`).
    """

    spread: float
    seeds: int = 3
    evaluations: int = 25
    prompts: int = 1000
    samples: int = 16
    early_samples: int | None = None
    full_from: float = 0.6
    drift: float = 0.004
    R0: float = 0.4
    A: float = 0.6
    B: float = 1.8
    budget: float = 4.0
    recipes: int = 2
    of: Quantity = "value"
    known: bool = False
    prompt_spread: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("seeds", 1), ("evaluations", 4), ("prompts", 1), ("samples", 1), ("recipes", 2)):
            if getattr(self, name) < least:
                raise LabError(f"{getattr(self, name)} {name} make no design: give at least {least}")
        if not 0 <= self.spread < 1:
            raise LabError(
                f"a seed spread of {self.spread:g} makes no sense: give a standard deviation of pass rates, or of "
                "logarithms where B or C_mid is compared"
            )
        if not 0 <= self.prompt_spread < 1 or (self.prompt_spread and self.of not in ("value", "A")):
            raise LabError(
                f"a prompt spread of {self.prompt_spread:g} makes no sense: give a standard deviation of pass rates, "
                "where a pass rate or A is compared"
            )
        if not 0 <= self.drift < 1:
            raise LabError(f"a drift of {self.drift:g} makes no sense: give a standard deviation of pass rates")
        if not 0 <= self.R0 < self.A <= 1:
            raise LabError(f"R0 {self.R0:g} and A {self.A:g} make no rising curve: give 0 ≤ R0 < A ≤ 1")
        if not (self.B > 0 and self.budget > 0):
            raise LabError("B and the budget in C_mid must be positive")
        if self.early_samples is not None and not 1 <= self.early_samples <= self.samples:
            raise LabError(
                f"{self.early_samples} early samples of {self.samples} make no design: give 1 or more, not above"
            )
        if not 0 < self.full_from < 1:
            raise LabError(
                f"all samples from {self.full_from:g} of the budget make no design: give a part, such as 0.8"
            )

    @property
    def compute_N(self) -> Array:
        """Compute of each evaluation in units of C_mid: of the first weights, and evenly over the budget."""
        return np.arange(self.evaluations + 1) / self.evaluations * self.budget

    @property
    def completions_N(self) -> np.ndarray:
        """Completions of each evaluation."""
        early = self.samples if self.early_samples is None else self.early_samples
        part_N = np.arange(self.evaluations + 1) / self.evaluations
        return self.prompts * np.where(part_N < self.full_from - 1e-9, early, self.samples)

    @property
    def theta_P(self) -> Array:
        """R0, A, ln B and ln C_mid."""
        return np.array([self.R0, self.A, np.log(self.B), 0.0])


@dataclass(frozen=True)
class RunError:
    """Error of one run's number, the spread between seeds left out.

    Attributes:
        actual: standard deviation of the estimates about their mean over simulated runs.
        stated: standard error that the fits state: the root of its mean square, for seeds that are fitted together
            share the scale of their noise.
        unfitted: share of the simulated runs that carry no fit.
    """

    actual: float
    stated: float
    unfitted: float


def run_error(plan: Plan) -> RunError:
    """Error of one run's number that its evaluations and its drift leave, by simulated runs.

    Raises:
        LabError: runs of such a plan carry no fit.
    """
    return _run_error(replace(plan, spread=0.0, seeds=1, recipes=2, known=False, prompt_spread=0.0))


def drift_root(compute_N: Array, budget: float) -> Array:
    """Matrix that makes a drift of unit size at some compute out of independent normals."""
    return np.linalg.cholesky(drift_kernel(compute_N, DRIFT_LENGTH, budget) + 1e-10 * np.eye(len(compute_N)))


@lru_cache(maxsize=64)
def _run_error(plan: Plan) -> RunError:
    rng = np.random.default_rng(0)
    compute_N, total_N = plan.compute_N, plan.completions_N
    clean_N = value(SIGMOID, plan.theta_P, log_compute(compute_N, 1.0))
    root_NN = plan.drift * drift_root(compute_N, plan.budget)
    found = []
    for _ in range(RUNS):
        rate_N = np.clip(clean_N + root_NN @ rng.standard_normal(len(clean_N)), 0, 1)
        measured_N = rng.binomial(total_N, rate_N) / total_N
        try:
            fit = fit_curve(curve(compute_N, measured_N, binomial_stderr(measured_N, total_N)))
        except FitError:
            continue
        draws = posterior(fit, fit.prior, size=1500, quick=True)
        found.append(np.quantile(_number(draws, plan), [0.1, 0.5, 0.9]))
    if len(found) < RUNS / 2:
        raise LabError("most runs of such a plan carry no fit: plan more evaluations, more prompts or a larger budget")
    low_X, middle_X, high_X = np.array(found).T
    stated = float(np.sqrt(np.mean((high_X - low_X) ** 2))) / 2.563  # 80 % of a normal are 2.563 deviations wide
    return RunError(float(middle_X.std()), stated, 1 - len(found) / RUNS)


def _number(draws: Draws, plan: Plan) -> Array:
    """Draws of the number that is compared, `[M]`."""
    if plan.of == "value":
        return draws.value([plan.budget])[:, 0]
    return draws.theta_MP[:, NUMBER_AT[plan.of]]


class Studies:
    """Verdicts on many studies of one design at once: the two-stage hierarchy of `compare`, without draws.

    A run's number is y = m + q + e, with m that of its recipe (anything), q ~ N(0, τ²) what seeds differ by, and e the
    error of its fit. Given τ, the difference of two recipes is normal with variance 2 (τ² + e²) / S, and v² / P more
    for new prompts, v the prompts' spread; τ is summed over with the weight that the squares of all runs about their
    recipes' means give it.

    Args:
        gap_M: difference of the means of recipes 1 and 0, one for each study.
        squares_M: squared deviations of the runs from their recipes' means, summed over all recipes.
        plan: the design.
        error: standard error of each run's number, as its fit states it.
    """

    def __init__(self, gap_M: Array, squares_M: Array, plan: Plan, error: float) -> None:
        unit = 1.0 if plan.of in ("value", "A") else LOGARITHM
        spread_T = np.array([plan.spread]) if plan.known else np.geomspace(0.0005, 0.3, 60) * unit
        variance_T1 = (spread_T**2 + error**2)[:, None]
        log_prior_T = np.zeros(1) if plan.known else log_spread_prior(spread_T / unit)
        spare = plan.recipes * (plan.seeds - 1)
        log_TM = log_prior_T[:, None] - 0.5 * spare * np.log(variance_T1) - 0.5 * squares_M / variance_T1
        weight_TM = np.exp(log_TM - log_TM.max(0))
        self._weight_TM, self._gap_M = weight_TM / weight_TM.sum(0), gap_M
        self._width_T1 = np.sqrt(2 * variance_T1 / plan.seeds + plan.prompt_spread**2 / plan.prompts)

    def above(self, difference: float) -> Array:
        """Probability `[M]` that recipe 1 is above recipe 0, had its runs all come out higher by `difference`."""
        from scipy.special import ndtr

        result: Array = (self._weight_TM * ndtr((self._gap_M + difference) / self._width_T1)).sum(0)
        return result


def studies(plan: Plan, error: RunError | None = None) -> Studies:
    """Studies of a plan, drawn without any difference between the recipes; the same ones at every call.

    Args:
        plan: the design.
        error: of each run's number; None simulates and fits runs.
    """
    error, rng = run_error(plan) if error is None else error, np.random.default_rng([plan.seeds, plan.recipes])
    between = float(np.hypot(plan.spread, error.actual))
    width = np.sqrt(2 * between**2 / plan.seeds + plan.prompt_spread**2 / plan.prompts)
    gap_M = width * rng.standard_normal(STUDIES)
    spare = plan.recipes * (plan.seeds - 1)
    squares_M = between**2 * rng.chisquare(spare, STUDIES) if spare else np.zeros(STUDIES)
    return Studies(gap_M, squares_M, plan, error.stated)


def threshold(plan: Plan, certainty: float) -> float:
    """Probability from which one of several recipes is called better: the words of `compare` hold for all together."""
    return 1 - (1 - certainty) / (plan.recipes - 1)


def power(plan: Plan, difference: float, certainty: float = SURE) -> float:
    """Probability that `compare` says of the better of two recipes that it is better, with this certainty.

    The difference is that of one recipe to the baseline, in the units of `Plan.of`; all further recipes of the plan are
    like the baseline.
    """
    return float((studies(plan).above(difference) >= threshold(plan, certainty)).mean())


def smallest_difference(plan: Plan, wanted: float = 0.8, certainty: float = SURE) -> float | None:
    """The difference that is found with the wanted power, by bisection; None where none is.

    It is looked for up to a half, and up to a factor of 10 in B and C_mid.
    """
    drawn, low, high = studies(plan), 0.0, 0.5 if plan.of in ("value", "A") else float(np.log(10))
    enough_at = threshold(plan, certainty)
    if (drawn.above(high) >= enough_at).mean() < wanted:
        return None
    for _ in range(20):
        middle = 0.5 * (low + high)
        enough = (drawn.above(middle) >= enough_at).mean() >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return high


def seeds_for(plan: Plan, difference: float, wanted: float = 0.8, certainty: float = SURE) -> int | None:
    """The fewest seeds of each recipe that find a difference with the wanted power, by bisection; None beyond 100."""
    low, high = 0, 1
    while power(replace(plan, seeds=high), difference, certainty) < wanted:
        if high == MOST_SEEDS:
            return None
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        enough = power(replace(plan, seeds=middle), difference, certainty) >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return high


def designs(
    plan: Plan, difference: float, seeds: Sequence[int], evaluations: Sequence[int], certainty: float = SURE
) -> list[tuple[Plan, float, float | None]]:
    """Every combination of seeds and evaluations, with its power and the smallest difference it finds with 80 %."""
    plans = [replace(plan, seeds=count, evaluations=points) for count in seeds for points in evaluations]
    return [(one, power(one, difference, certainty), smallest_difference(one, 0.8, certainty)) for one in plans]


@dataclass(frozen=True)
class Proposal:
    """A run to make next.

    Attributes:
        at: its place on the axes.
        spends: compute of the run.
        value: pass rate of the place at the compute of the decision, as the law forecasts it.
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
    law: Law, candidates: Sequence[Mapping[str, float]], compute: float, budget: float, per_run: float | None = None
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
        per_run: compute of each run; None takes the median of what the runs so far have spent.

    Returns:
        The runs in their order; fewer than the budget allows where no further one could change the choice.

    Raises:
        LabError: fewer than two candidates, or numbers that are not positive.
    """
    check_compute(compute)
    if len(candidates) < 2:
        raise LabError("a budget is divided among at least two places: name more with --predict")
    per_run = cost_of_run(law) if per_run is None else per_run
    if not (np.isfinite(per_run) and per_run > 0 and np.isfinite(budget) and budget > 0):
        raise LabError(f"a budget of {budget:g} in runs of {per_run:g} cannot be spent: give positive numbers")
    value_MK = np.stack([rates(readable(law.theta(at, 1 + index)), compute) for index, at in enumerate(candidates)], 1)
    mean_K, cov_KK = value_MK.mean(0), np.cov(value_MK, rowvar=False)
    error = place_error(law, compute)
    best_K = np.bincount(value_MK.argmax(1), minlength=len(candidates)) / len(value_MK)
    said = [law.forecast(at, compute) for at in candidates]  # a place has the same numbers wherever it is printed
    proposals: list[Proposal] = []
    for _ in range(int(budget // per_run)):
        gain_K = knowledge_gradient(mean_K, cov_KK, error)
        pick = int(gain_K.argmax())
        if gain_K[pick] < 1e-5:
            break
        proposals.append(
            Proposal(
                at=dict(candidates[pick]),
                spends=per_run,
                value=said[pick].value,
                interval=said[pick].interval,
                best=float(best_K[pick]),
                gain=float(gain_K[pick]),
                reason=_reason(said, float(best_K[pick]), pick, compute),
            )
        )
        column_K = cov_KK[:, pick] / np.sqrt(cov_KK[pick, pick] + error**2)
        cov_KK = cov_KK - np.outer(column_K, column_K)
    return proposals


def cost_of_run(law: Law) -> float:
    """Compute of a further run: the median of what the runs so far have spent."""
    return float(np.median([place.end for place in law.places]))


def knowledge_gradient(mean_K: Array, cov_KK: Array, error: float | Array) -> Array:
    """Expected rise of the largest mean after one noisy look at each candidate, `[K]`, by the error of each or of all.

    Looking at k moves all means by cov[:, k] / √(cov[k, k] + error²) times a standard normal, over which the largest
    is integrated by Gauss–Hermite quadrature.
    """
    node_Q, weight_Q = np.polynomial.hermite_e.hermegauss(61)
    weight_Q = weight_Q / weight_Q.sum()
    variance_K = np.maximum(np.diagonal(cov_KK), 0)
    slope_KK = cov_KK / np.sqrt(variance_K + error**2)
    largest_QK = (mean_K[None, :, None] + node_Q[:, None, None] * slope_KK[None]).max(1)
    result: Array = np.maximum(weight_Q @ largest_QK - mean_K.max(), 0)
    return result


def place_error(law: Law, compute: float) -> float:
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


def _reason(said: Sequence[PlaceForecast], best: float, pick: int, compute: float) -> str:
    """Reason to make a run next: its forecast beside that of the most promising candidate."""
    (low, high), leader = said[pick].interval, max(said, key=lambda one: one.value)
    forecast = f"its pass rate at {compute:,g} is forecast as {said[pick].value:.3f} [{low:.3f}, {high:.3f}]"
    if said[pick] is leader:
        return f"{forecast}, the highest of all, and it is the best with only {percent(best)}"
    return f"{forecast}, which may be above the {leader.value:.3f} of the leader: it is the best with {percent(best)}"
