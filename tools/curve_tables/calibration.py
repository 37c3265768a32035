"""Calibration on simulated runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from curve_tables.common import markdown, sigmoid
from scalelab.curves import FitError, curve, fit_curve
from scalelab.curves.data import Curve, binomial_stderr
from scalelab.curves.fitting.intervals import METHODS, Method, draw, equal_tailed, intervals
from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.posterior import Draws, posterior


@dataclass(frozen=True)
class Population:
    """Ranges that simulated runs are drawn from; compute is in units of a run's budget.

    Attributes:
        seed: of the random numbers.
        R0: uniform.
        A: uniform from R0 plus the first to the second.
        B: log-uniform.
        C_mid: log-uniform.
        points: evaluations after step 0, uniform.
        samples: behind each evaluation, log-uniform.
        drift: largest standard deviation of the drift, uniform from 0.
        length: its length, uniform.
        kernel: its covariance by distance in units of its length.
    """

    seed: int
    R0: tuple[float, float]
    A: tuple[float, float]
    B: tuple[float, float]
    C_mid: tuple[float, float]
    points: tuple[int, int]
    samples: tuple[int, int]
    drift: float
    length: tuple[float, float]
    kernel: Callable[[np.ndarray], np.ndarray]


BROAD = Population(
    seed=2024,
    R0=(0.02, 0.5),
    A=(0.1, 0.95),
    B=(0.8, 3),
    C_mid=(0.05, 1),
    points=(15, 75),
    samples=(1000, 16_000),
    drift=0.008,
    length=(0.03, 0.2),
    kernel=lambda distance: np.exp(-0.5 * distance**2),
)

OTHERS = {
    "rough": Population(
        seed=4711,
        R0=(0.0, 0.6),
        A=(0.15, 0.9),
        B=(1, 2.6),
        C_mid=(0.08, 1.5),
        points=(12, 60),
        samples=(500, 8000),
        drift=0.012,
        length=(0.05, 0.3),
        kernel=lambda distance: np.exp(-np.abs(distance)),
    ),
    "precise": Population(
        seed=99,
        R0=(0.1, 0.4),
        A=(0.05, 1.0),
        B=(0.7, 4),
        C_mid=(0.03, 0.7),
        points=(20, 100),
        samples=(2000, 32_000),
        drift=0.006,
        length=(0.02, 0.3),
        kernel=lambda distance: (1 + np.sqrt(5) * distance + 5 / 3 * distance**2) * np.exp(-np.sqrt(5) * distance),
    ),
}
"""Runs of another kind: what holds for `BROAD` alone would have been tuned to it."""


@dataclass(frozen=True)
class CalibrationRun:
    """A simulated run and the truth about it."""

    item: Curve
    truth: dict[str, float]
    samples: int
    drift: float
    length: float
    value_at_4: float
    evaluation_at_4: float


def simulate(rng: np.random.Generator, ranges: Population) -> CalibrationRun:
    """A run drawn from a population."""

    def log_uniform(ends: tuple[float, float]) -> float:
        return float(np.exp(rng.uniform(*np.log(ends))))

    R0 = rng.uniform(*ranges.R0)
    truth = {
        "R0": R0,
        "A": rng.uniform(R0 + ranges.A[0], ranges.A[1]),
        "B": log_uniform(ranges.B),
        "C_mid": log_uniform(ranges.C_mid),
    }
    points, samples = int(rng.integers(*ranges.points, endpoint=True)), int(log_uniform(ranges.samples))
    drift, length = rng.uniform(0, ranges.drift), rng.uniform(*ranges.length)
    compute = np.concatenate([np.arange(points + 1) / points, [4.0]])
    kernel = ranges.kernel(np.abs(compute[:, None] - compute) / length) + 1e-9 * np.eye(len(compute))
    clean = sigmoid(compute, **truth)
    rate = np.clip(clean + drift * np.linalg.cholesky(kernel) @ rng.standard_normal(len(compute)), 0, 1)
    rate = rng.binomial(samples, rate) / samples
    item = curve(compute[:-1], rate[:-1], [binomial_stderr(p, samples) for p in rate[:-1]])
    return CalibrationRun(item, truth, samples, drift, length, float(clean[-1]), float(rate[-1]))


NO_PRIOR = "posterior, no prior"

TARGETS = ("A", "B", "C_mid", "value at 4×", "evaluation at 4×")

DRAWS: dict[Method, int] = {"posterior": 4000, "block": 400, "parametric": 400}


@dataclass
class Coverage:
    """Record of one kind of interval over all runs."""

    hits: dict[str, list[bool]]
    errors: list[float]
    widths: list[float]

    def share(self, name: str, chosen: np.ndarray | None = None) -> str:
        hits = np.array(self.hits[name])
        return f"{(hits if chosen is None else hits[chosen]).mean():.1%}"


def calibrate(
    runs: int, ranges: Population, labels: Sequence[str]
) -> tuple[list[CalibrationRun], dict[str, Coverage], int]:
    """Fit simulated runs and see how often each kind of interval holds the truth."""
    rng = np.random.default_rng(ranges.seed)
    simulated, refused = [], 0
    tallies = {label: Coverage({}, [], []) for label in labels}
    for count in range(runs):
        one = simulate(rng, ranges)
        try:
            fit, flat = fit_curve(one.item), fit_curve(one.item, prior=None)
        except FitError:
            refused += 1
            continue
        simulated.append(one)
        draws = {method: draw(fit, method, size=size) for method, size in DRAWS.items() if method in labels}
        draws["profile"] = draws["posterior"]  # the profile has no draws: its forecasts are the posterior's
        for method in METHODS:
            if method in labels:
                _score(one, fit, draws[method], method, tallies[method])
        if NO_PRIOR in labels:
            _score(one, flat, posterior(flat, None, size=2000), "posterior", tallies[NO_PRIOR])
        if sys.stderr.isatty() and count % 10 == 9:
            print(f"\r{count + 1} of {runs} runs", end="", file=sys.stderr)
    return simulated, tallies, refused


def _score(one: CalibrationRun, fit: Fit, draws: Draws, method: Method, tally: Coverage) -> None:
    found = intervals(fit, draws, 0.8, method)
    for name in ("A", "B", "C_mid"):
        tally.hits.setdefault(name, []).append(found[name][0] <= one.truth[name] <= found[name][1])
    for name, values, truth in (
        ("value at 4×", draws.value([4.0])[:, 0], one.value_at_4),
        ("evaluation at 4×", draws.evaluation([4.0])[:, 0], one.evaluation_at_4),
    ):
        low, high = equal_tailed(values, 0.8)
        tally.hits.setdefault(name, []).append(low <= truth <= high)
    tally.errors.append(fit.parameters["A"] - one.truth["A"])
    tally.widths.append(found["A"][1] - found["A"][0])


def calibration_section(runs: int) -> str:
    simulated, tallies, refused = calibrate(runs, BROAD, [*METHODS, NO_PRIOR])
    header = [*TARGETS, "median width for A", "median bias of A"]
    others = []
    for name, ranges in OTHERS.items():
        fitted, found, lost = calibrate(runs, ranges, ["posterior"])
        others.append([name, len(fitted), lost, *_cells(found["posterior"])])
    return "\n\n".join(
        [
            f"{len(simulated)} runs fitted, {refused} refused. Share of 80 % intervals that hold the truth:",
            markdown(["intervals", *header], [[label, *_cells(tally)] for label, tally in tallies.items()]),
            "The default (posterior) on the other two populations:",
            markdown(["population", "fitted", "refused", *header], others),
            "Where the default does better and worse, on the first population:",
            _strata(simulated, tallies["posterior"]),
        ]
    )


def _cells(tally: Coverage) -> list[str]:
    """Coverage of every target, width and bias."""
    return [
        *(tally.share(name) for name in TARGETS),
        f"{np.median(tally.widths):.3f}",
        f"{np.median(tally.errors):+.4f}",
    ]


def _strata(simulated: Sequence[CalibrationRun], tally: Coverage) -> str:
    kinds: list[tuple[str, Callable[[CalibrationRun], float], Sequence[float]]] = [
        ("budget in C_mid", lambda one: 1 / one.truth["C_mid"], (1, 1.7, 3.3, 8, 20)),
        ("B", lambda one: one.truth["B"], (0.8, 1.2, 1.8, 3)),
        ("points", lambda one: len(one.item) - 1, (15, 30, 50, 76)),
        ("drift", lambda one: one.drift, (0, 0.002, 0.005, 0.008)),
        ("length of drift", lambda one: one.length, (0.03, 0.1, 0.2)),
        ("samples per evaluation", lambda one: one.samples, (1000, 3000, 16_000)),
    ]
    errors, widths = np.array(tally.errors), np.array(tally.widths)
    rows = []
    for name, measure, edges in kinds:
        values = np.array([measure(one) for one in simulated])
        for low, high in pairwise(edges):
            chosen = (values >= low) & (values <= high)
            if chosen.any():
                cells = [tally.share(key, chosen) for key in ("A", "value at 4×", "evaluation at 4×")]
                rows.append(
                    [
                        f"{name} {low:g}–{high:g}",
                        int(chosen.sum()),
                        *cells,
                        f"{np.median(errors[chosen]):+.4f}",
                        f"{np.median(widths[chosen]):.3f}",
                    ]
                )
    return markdown(
        ["stratum", "runs", "A", "value at 4×", "evaluation at 4×", "median bias of A", "median width for A"], rows
    )
