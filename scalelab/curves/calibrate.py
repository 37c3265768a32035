"""Error rates of verdicts: families of recipes like the user's are simulated, fitted and compared by `compare` itself.

Axes: `_N` evaluations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.analysis import Analysis, analyse
from scalelab.curves.checks import Options
from scalelab.curves.compare import compare
from scalelab.curves.comparison import Comparison
from scalelab.curves.design import Plan, drift_root
from scalelab.curves.fitting.joint import FitError
from scalelab.curves.fitting.models import SIGMOID, log_compute, value
from scalelab.defaults import LEVEL
from scalelab.numbers import FEW, percent, share
from scalelab.reading.curve import binomial_stderr, curve


@dataclass(frozen=True)
class SimulatedDesign:
    """A design of some recipes on one task, to simulate.

    Attributes:
        compute_N: compute of each evaluation.
        stderr: standard error of each evaluation, or of all.
        R0: pass rate before RL.
        A: asymptote of the baseline.
        B: exponent.
        C_mid: midpoint.
        seeds: runs of each recipe.
        spread: standard deviation of A between seeds.
        drift: standard deviation of a run's drift about its curve.
        margin: difference below which recipes count as equal.
        error: probability that a verdict is wrong.
        recipes: how many are compared, the baseline among them.
        level: probability of intervals.
        known_spread: the spread that comparisons are told; None: they learn it.
        task: its name.
    """

    compute_N: tuple[float, ...]
    stderr: float | tuple[float, ...]
    R0: float
    A: float
    B: float
    C_mid: float
    seeds: int
    spread: float
    drift: float
    margin: float
    error: float
    recipes: int
    level: float = LEVEL
    known_spread: float | None = None
    task: str = ""


@dataclass(frozen=True)
class WordRates:
    """Shares of the words that are said at one true difference.

    Attributes:
        difference: of the recipes' curves at the end of the budget.
        better: share of the verdicts on such a recipe that say this word; the other words alike.
        wrong: share in which the word is false: better or worse without a difference of that sign, equal at a
            difference of the margin or more.
        holds: share in which the interval of the difference holds the true one.
        pairs: verdicts, each on a recipe and the baseline.
        seeds: of each recipe.
        evaluations: of each run.
        spread: standard deviation of A between seeds.
        error: that verdicts were given.
    """

    difference: float
    better: float
    worse: float
    equal: float
    cannot_tell: float
    wrong: float
    holds: float
    pairs: int
    seeds: int
    evaluations: int
    spread: float
    error: float

    def cells(self) -> list[str]:
        """The row as text."""
        shares = (self.better, self.worse, self.equal, self.cannot_tell, self.wrong, self.holds)
        return [f"{self.difference:+.3f}", *(share(one, self.pairs) for one in shares)]


@dataclass(frozen=True)
class Calibration:
    """Error rates of the words of one comparison.

    Attributes:
        rates: of each task, by true difference.
        families: comparisons of all recipes on all tasks that were simulated.
        recipes: in each, the baseline among them.
        any_wrong: share of the families with at least one false word.
    """

    rates: dict[str, list[WordRates]]
    families: int
    recipes: int
    any_wrong: float

    def sentence(self) -> str:
        """The rate of families with a false word, in words."""
        [error] = {line.error for lines in self.rates.values() for line in lines}
        tasks = f" on {len(self.rates)} tasks" if len(self.rates) > 1 else ""
        wrong = round(self.any_wrong * self.families)
        said = (str(wrong) if wrong else "none") if self.families < FEW else percent(self.any_wrong)
        return (
            f"Of {self.families} simulated comparisons of {self.recipes} recipes{tasks}, whose words hold together, "
            f"{said} had a false word; {percent(error)} are asked for at most."
        )


def like(one: Comparison, known_spread: float | None = None) -> SimulatedDesign:
    """The design of a comparison: the baseline's curve, evaluations and seeds, the spread and drift that were found.

    Args:
        one: the comparison.
        known_spread: the spread that it was told.
    """
    item = one.reference.analysis
    points, params = item.fit.curve, item.params
    first = points.select(points.seed_N == 0)
    stderr = item.fit.relative if points.stderr_N is not None else float(np.median(item.fit.sigma_N))
    sigmoid = item.draws().sigmoid
    return SimulatedDesign(
        compute_N=tuple(first.compute_N[first.compute_N <= 1.001 * one.at].tolist()),
        stderr=stderr,
        R0=params["R0"],
        A=params["A"],
        B=params["B"],
        C_mid=params["C_mid"],
        seeds=max(round(np.mean([len(entry.analysis.fit.curve.seeds) for entry in one.entries])), 1),
        spread=one.spread[0],
        drift=float(np.median(sigmoid.drift_M)),
        margin=one.margin,
        error=one.error,
        level=item.level,
        known_spread=known_spread,
        task=one.task,
        recipes=len(one.entries),
    )


def planned(plan: Plan, task: str, margin: float, error: float) -> SimulatedDesign:
    """The design of runs that are only planned."""
    curve_N = value(SIGMOID, plan.theta_P, log_compute(plan.compute_N, 1.0))
    return SimulatedDesign(
        compute_N=tuple(plan.compute_N.tolist()),
        stderr=tuple(binomial_stderr(curve_N, plan.completions_N).tolist()),
        R0=plan.R0,
        A=plan.A,
        B=plan.B,
        C_mid=1.0,
        seeds=plan.seeds,
        spread=plan.spread,
        drift=plan.drift,
        margin=margin,
        error=error,
        known_spread=plan.spread if plan.known else None,
        task=task,
        recipes=plan.recipes,
    )


def calibrate(
    settings: Sequence[SimulatedDesign],
    pairs: int,
    differences: Sequence[float] | None = None,
    spread_from: Sequence[Analysis] = (),
) -> Calibration:
    """Simulate families of recipes, compare them, and count the words.

    A recipe differs from the baseline by as much on all tasks; the recipes of a family take the differences in turn.

    Args:
        settings: the design on each task, with as many recipes on each.
        pairs: least number of verdicts for each difference and task.
        differences: true differences at the end of the budget; None takes 0, half of the margin, and the margin.
        spread_from: other runs that comparisons learn the spread from, too.
    """
    margin, others = settings[0].margin, max(one.recipes for one in settings) - 1
    chosen = (0.0, 0.5 * margin, margin) if differences is None else tuple(differences)
    said: dict[tuple[str, float], list[tuple[str, bool, bool]]] = {
        (one.task, difference): [] for one in settings for difference in chosen
    }
    families = wrong_families = 0
    for family in range(-(-pairs * len(chosen) // others)):
        gains = [chosen[(family + index) % len(chosen)] for index in range(others)]
        wrongs = []
        for one, difference, word, (low, high) in _family(settings, gains, family, spread_from):
            wrongs.append(_is_wrong(word, difference, one.margin))
            said[one.task, difference].append((word, wrongs[-1], low <= difference <= high))
        families += bool(wrongs)  # one without any verdict is no comparison
        wrong_families += any(wrongs)
    rates = {
        one.task: [_rates(one, difference, said[one.task, difference]) for difference in chosen] for one in settings
    }
    return Calibration(rates, families, others + 1, wrong_families / max(families, 1))


def _rates(setting: SimulatedDesign, difference: float, said: Sequence[tuple[str, bool, bool]]) -> WordRates:
    words, done = Counter(word for word, _, _ in said), max(len(said), 1)
    return WordRates(
        difference=difference,
        better=words["better"] / done,
        worse=words["worse"] / done,
        equal=words["equal"] / done,
        cannot_tell=(words["cannot tell"] + words["unstable"]) / done,
        wrong=sum(wrong for _, wrong, _ in said) / done,
        holds=sum(held for _, _, held in said) / done,
        pairs=len(said),
        seeds=setting.seeds,
        evaluations=len(setting.compute_N),
        spread=setting.spread,
        error=setting.error,
    )


def _is_wrong(word: str, difference: float, margin: float) -> bool:
    if word == "equal":
        return abs(difference) >= margin * (1 - 1e-9)
    return (word == "better" and difference <= 0) or (word == "worse" and difference >= 0)


def _family(
    settings: Sequence[SimulatedDesign],
    gains: Sequence[float],
    family: int,
    spread_from: Sequence[Analysis],
) -> Iterator[tuple[SimulatedDesign, float, str, tuple[float, float]]]:
    """The verdicts on one simulated family, each with the true difference and the interval of it.

    Recipes without a fit are left out, as `compare` leaves them out.
    """
    fits = []
    for at, setting in enumerate(settings):
        compute_N = np.array(setting.compute_N)
        share = float(_curve(setting, 1.0, 0.0, compute_N[-1:])[0])
        for index, gain in enumerate((0.0, *gains)):
            rng = np.random.default_rng([0, family, at, index])
            try:
                fits.append(_fitted(setting, str(index), compute_N, setting.A + gain / share, rng))
            except FitError:
                if index == 0:
                    break
    if not fits:
        return
    first = settings[0]
    found = compare(
        fits,
        baseline="0",
        margin=first.margin,
        error=first.error,
        run_spread=first.known_spread,
        spread_from=spread_from,
    )
    for setting, one in ((s, one) for s in settings for one in found if one.task == s.task):
        for entry in one.entries:
            if entry.run != "0":
                interval = entry.differences["0"].interval
                yield setting, gains[int(entry.run) - 1], one.verdicts[entry.run], interval


def _curve(setting: SimulatedDesign, A: float, R0: float, compute_N: Array) -> Array:
    theta_P = np.array([R0, A, np.log(setting.B), np.log(setting.C_mid)])
    return value(SIGMOID, theta_P, log_compute(compute_N, 1.0))


def _fitted(setting: SimulatedDesign, run: str, compute_N: Array, A: float, rng: np.random.Generator) -> Analysis:
    """Simulated seeds of one recipe, fitted: sigmoids with drift, whose A differ between seeds."""
    root_NN = setting.drift * drift_root(compute_N, float(compute_N[-1]))
    stderr_N, rates = np.broadcast_to(np.asarray(setting.stderr), compute_N.shape), []
    for _ in range(setting.seeds):
        clean_N = _curve(setting, np.clip(A + setting.spread * rng.standard_normal(), 0, 1), setting.R0, compute_N)
        noise_N = root_NN @ rng.standard_normal(len(compute_N)) + stderr_N * rng.standard_normal(len(compute_N))
        rates.append(np.clip(clean_N + noise_N, 0, 1))
    count = len(compute_N)
    points = curve(
        np.tile(compute_N, setting.seeds),
        np.concatenate(rates),
        np.tile(stderr_N, setting.seeds),
        seed=[f"{run} {seed}" for seed in range(setting.seeds) for _ in range(count)],
        run=run,
        task=setting.task,
    )
    return analyse(points, Options(checks=False, level=setting.level))
