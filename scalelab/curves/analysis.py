"""Analysis of one curve: fit, draws, intervals, back-test, and the effect of the prior."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.checks import (
    DRIVES,
    BackTest,
    Options,
    Outlier,
    back_test,
    fallen_remarks,
    fit_as,
    outliers,
)
from scalelab.curves.draws import CurveDraws, all_shapes, one_shape
from scalelab.curves.fitting.intervals import Interval, intervals, middles, tails_of
from scalelab.curves.fitting.joint import Fit, FitError
from scalelab.curves.fitting.models import SIGMOID
from scalelab.curves.fitting.posterior import posterior
from scalelab.defaults import MARGIN
from scalelab.errors import LabError
from scalelab.numbers import percent, quantity
from scalelab.reading.columns import recognise
from scalelab.reading.curve import UNITS, Curve, curve
from scalelab.reading.points import CurveReader
from scalelab.reading.settings import COLUMNS, Reading
from scalelab.reading.table import Table

HEADLINE = (1.0, 2.0, 4.0)
"""Multiples of the compute reached at which pass rates are the headline."""

LIMIT = 100.0
"""Multiple of the compute reached at which the curves of all shapes are held against the sigmoid's A."""


TOLD = 0.05
"""Probability of growth without end below which the points are said to tell a sigmoid from it."""


@dataclass(frozen=True)
class Rate:
    """The curve's pass rate at some multiple of the compute reached.

    Attributes:
        times: the multiple.
        compute: the compute.
        value: median over all shapes.
        interval: of the curve there.
    """

    times: float
    compute: float
    value: float
    interval: Interval


@dataclass(frozen=True)
class Analysis:
    """A fitted curve and what follows from it.

    Attributes:
        fit: the fitted curve: its window, weights and noise; estimates are read from the draws.
        curves: the curves that the points leave possible; None for the paper's method, which has no uncertainty.
        intervals: of the parameters, given the fitted shape.
        level: their probability.
        backtest: None where half of the points do not carry a fit.
        without_prior: intervals with the prior switched off, where a prior was used.
        warnings: of the fit, of the prior where it drives the answer, of another shape where the points favour it.
        outliers: evaluations that fall out of the curve.
    """

    fit: Fit
    curves: CurveDraws | None
    intervals: dict[str, Interval]
    level: float
    backtest: BackTest | None = None
    without_prior: dict[str, Interval] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    outliers: tuple[Outlier, ...] = ()

    def __repr__(self) -> str:
        ends = {name: f" [{low:.4g}, {high:.4g}]" for name, (low, high) in self.intervals.items()}
        values = (f"{name} {value:.4g}{ends.get(name, '')}" for name, value in self.params.items())
        return f"<Analysis of {self.fit.curve.name}: {', '.join(values)}>"

    @cached_property
    def params(self) -> Mapping[str, float]:
        """Parameters by name (R0, A, B, C_mid of the sigmoid; A, B, D of the power law): medians of its draws."""
        return MappingProxyType(self.fit.parameters if self.curves is None else middles(self.fit, self.curves.sigmoid))

    @property
    def falls(self) -> bool:
        """True if the task forgets: its curve falls, and A is a floor."""
        return self.fit.falls

    @cached_property
    def seen(self) -> float:
        """Share of the way from R0 to A that was made at the compute reached: the median, given a sigmoid."""
        return float(np.median(self.draws().sigmoid.rise([self.fit.window[1]])))

    @property
    def stands(self) -> bool:
        """True if A may be told as a limit: no shape goes beyond it, and a fall is not told from all sigmoids."""
        return not self._passed and not (self.falls and self.draws().probability[0] < TOLD)

    @property
    def _passed(self) -> bool:
        """True if the curves of all shapes go beyond the sigmoid's A."""
        return self.farthest < self.params["A"] if self.falls else self.farthest > self.params["A"]

    @cached_property
    def farthest(self) -> float:
        """The farthest that the median of all shapes comes within `LIMIT` times the compute reached."""
        start, end = self.fit.window
        turns = self.draws().changed > 0  # a curve that turns late was farther before
        at = np.geomspace(0.1 * start, LIMIT * end, 48) if turns else np.array([LIMIT * end])
        middle_C = np.median(self.draws().value(at), axis=0)
        return float(middle_C.min() if self.falls else middle_C.max())

    def asymptote_text(self) -> str:
        """A sigmoid's A in a sentence: how much of the gain was seen, and whether growth without end fits as well."""
        way, without = ("fall", "a fall without a floor") if self.falls else ("gain", "growth without end")
        endless = f"{without} has {percent(self.draws().endless)} of the probability"
        if len(self.draws().names) == 1:
            endless = "no other shape was looked at"
        elif self.draws().endless < TOLD:
            endless = f"the points tell it from {without} ({percent(1 - self.draws().endless)})"
        past = abs(self.farthest - self.params["A"])
        by = f"{past:.3f}" if past >= 1e-3 else "less than 0.001"
        beyond = f"; curves of all shapes come to {self.farthest:.3f} within {LIMIT:g} times the compute, {by} beyond A"
        forgets = f"{self.fall_text()}; " if self.falls else ""
        return f"{forgets}{self.seen:.0%} of a sigmoid's {way} was seen; {endless}{beyond * self._passed}"

    def fall_text(self) -> str:
        """The fall of a task that forgets, in words: from where, and towards which floor if that can be told."""
        low, high = self.intervals["A"]
        now = self.rates()[0]
        floor = f"towards {self.params['A']:.3f} ({self.level:.0%} {low:.3f}–{high:.3f})"
        if not self.stands:
            spent = quantity(now.compute, self.fit.curve.unit)
            floor = f"to {now.value:.3f} at {spent}, and where it ends cannot be told yet"
        return f"forgets: falls from {self.params['R0']:.3f} {floor}"

    def conf_int(self) -> dict[str, Interval]:
        """Interval of every parameter, of the probability `level`."""
        return dict(self.intervals)

    def predict(self, compute: Sequence[float] | float) -> list[dict[str, float]]:
        """Pass rate at some compute: `compute`, `value`, and the `low` and `high` ends for an evaluation there."""
        at = np.atleast_1d(np.asarray(compute, float))
        if not (np.isfinite(at).all() and (at > 0).all()):
            raise LabError("cannot predict at a compute that is not a positive number")
        middle_C = np.median(self.draws().value(at), axis=0)
        rows = zip(at.tolist(), middle_C.tolist(), *(ends.tolist() for ends in self.evaluation_interval(at)))
        return [dict(zip(("compute", "value", "low", "high"), row)) for row in rows]

    def summary(self) -> str:
        """The fit in a few lines of text."""
        lines = [f"{self.fit.curve.name}: {self.fit.model.name}, {len(self.fit.curve)} points"]
        for name, number in self.params.items():
            low, high = self.intervals.get(name, (np.nan, np.nan))
            lines.append(f"  {name:6s} {number:10.4g}   {self.level:.0%} [{low:.4g}, {high:.4g}]")
        return "\n".join([*lines, *(f"  ! {warning}" for warning in self.warnings)])

    def to_frame(self) -> Any:
        """A pandas table of the parameters: `value`, `low`, `high`.

        Raises:
            LabError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise LabError("tables need pandas: pip install pandas") from None
        rows = {name: [number, *self.intervals.get(name, (np.nan, np.nan))] for name, number in self.params.items()}
        return pandas.DataFrame.from_dict(rows, orient="index", columns=["value", "low", "high"])

    def as_json(self) -> dict[str, Any]:
        """The entry of `scalelab fit --json`."""
        curves = self.curves
        shapes = dict(zip(curves.names, curves.probability)) if curves and len(curves.names) > 1 else None
        covariance = curves.sigmoid.covariance() if curves else {}
        return (
            self.fit.as_json()
            | dict(self.params)
            | {
                "stderr": {name: row[name] ** 0.5 for name, row in covariance.items()} if curves else None,
                "intervals": {name: list(interval) for name, interval in self.intervals.items()},
                "level": self.level,
                "intervals_by": "posterior" if curves else None,
                "covariance": covariance or None,
                "without_prior": {name: list(interval) for name, interval in self.without_prior.items()},
                "warnings": list(self.warnings),
                "backtest": vars(self.backtest) | {"inside": self.backtest.inside} if self.backtest else None,
                "shapes": shapes,
                "rates": [vars(rate) for rate in self.rates()] if curves else None,
                "gain_seen": self.seen if curves and self.fit.model is SIGMOID else None,
                "A_stands": self.stands if curves else None,
                "endless": curves.endless if curves else None,
                "outliers": [vars(item).copy() for item in self.outliers],
                "seeds": len(self.fit.curve.seeds),
                "clock": self.fit.curve.clock,
            }
        )

    def draws(self) -> CurveDraws:
        """The draws.

        Raises:
            LabError: the method has none.
        """
        if self.curves is None:
            raise LabError("the paper's method has no uncertainty: use --method joint")
        return self.curves

    def rates(self) -> list[Rate]:
        """The curve's pass rate at the compute reached, at twice and at four times as much, over all shapes."""
        return list(self._rates)

    @cached_property
    def _rates(self) -> tuple[Rate, ...]:
        at = [times * self.fit.window[1] for times in HEADLINE]
        middle_C = np.median(self.draws().value(at), axis=0)
        ends = zip(*self.value_interval(at))
        return tuple(
            Rate(times, compute, float(middle), (float(low), float(high)))
            for times, compute, middle, (low, high) in zip(HEADLINE, at, middle_C, ends)
        )

    def value_interval(self, compute: Sequence[float] | Array) -> tuple[Array, Array]:
        """Interval of the curve at some compute, over all shapes: lower and upper ends, `[C]` each."""
        return self._ends(self.draws().value(compute))

    def evaluation_interval(self, compute: Sequence[float] | Array) -> tuple[Array, Array]:
        """Interval of an evaluation at some compute: lower and upper ends, `[C]` each."""
        return self._ends(self.draws().evaluation(compute))

    def _ends(self, drawn_MC: Array) -> tuple[Array, Array]:
        low_C, high_C = np.quantile(drawn_MC, tails_of(self.level), axis=0)
        return low_C, high_C


def analyse(item: Curve, options: Options | None = None) -> Analysis:
    """Fit one curve, and compute intervals, back-test and warnings.

    Raises:
        FitError: the points do not carry a curve.
    """
    options = options or Options()
    try:
        fit = fit_as(item, options)
    except FitError as reason:  # what was left out of a log may be why
        raise FitError("; ".join([str(reason), *item.notes])) from None
    fallen = outliers(item, fit)
    if options.method == "paper":
        return Analysis(fit, None, {}, options.level, warnings=fit.warnings, outliers=fallen)
    draws = posterior(fit, fit.prior, seed=options.seed)
    found = intervals(fit, draws, options.level)
    without, remarks = _without_prior(fit, options, found) if options.checks else ({}, [])
    curves = one_shape(draws, fit)
    if options.shapes and options.method == "joint":
        curves = all_shapes(fit, options.prior, draws, seed=options.seed)
        remarks += _shape_remarks(curves)
    return Analysis(
        fit=fit,
        curves=curves,
        intervals=found,
        level=options.level,
        backtest=back_test(item, options) if options.checks else None,
        without_prior=without,
        warnings=(*fit.warnings, *fallen_remarks(fallen), *remarks),
        outliers=fallen,
    )


def fit(
    compute: Sequence[float] | Array | Curve | Any,
    pass_rate: Sequence[float] | Array | None = None,
    stderr: Sequence[float] | Array | None = None,
    *,
    run: str = "run",
    **options: Any,
) -> Analysis:
    """Fit a sigmoid to pass rates against compute.

    Args:
        compute: training compute of each evaluation, 0 for the one before RL; or a `Curve`; or a table (such as a
            pandas DataFrame) of one run and task, with the columns that a file has: `compute` (or `gpu_hours`,
            `core_hours`) and `pass_rate`, and perhaps `stderr` or `n`, and `seed`.
        pass_rate: of each evaluation, in [0, 1].
        stderr: its standard error, if known.
        run: name of the run, which tells fits apart in `compare`; a `Curve` has its own.
        **options: of `Options`, such as `level=0.9` or `method="power"`.

    Raises:
        LabError: the points are no evaluations, or carry no curve.

    Examples:
        >>> from scalelab.curves import fit
        >>> found = fit([0, 1, 2, 4, 8, 16], [0.2, 0.3, 0.41, 0.52, 0.58, 0.6], [0.01] * 6)
        >>> round(found.params["A"], 2)
        0.61
        >>> sorted(found.conf_int())
        ['A', 'B', 'C_mid', 'R0']
        >>> [row["compute"] for row in found.predict([32, 64])]
        [32.0, 64.0]
    """
    if isinstance(compute, Curve):
        return analyse(compute, Options(**options))
    if pass_rate is not None:
        return analyse(curve(compute, pass_rate, stderr, run=run), Options(**options))
    return analyse(_curve_of_table(compute, run), Options(**options))


def _curve_of_table(table: Any, run: str) -> Curve:
    """The one curve of a table in memory, such as a pandas DataFrame."""
    try:
        cells = {name: list(table[name]) for name in (*COLUMNS, *UNITS) if name in table}
    except (TypeError, KeyError, IndexError):
        cells = {}
    for names in (("compute", *UNITS), ("pass_rate",)):
        if not any(name in cells for name in names):
            raise LabError(f"no {names[0]} to fit: give compute and pass_rate, or a table with such columns")
    held = Table(Path("table"), "table", cells, range(1, len(next(iter(cells.values()))) + 1), run)
    found = CurveReader(held, recognise(held, Reading()), Reading()).curves()
    if len(found) > 1:
        listing = ", ".join(item.name for item in found)
        raise LabError(f"the table holds several curves ({listing}): fit the rows of each by themselves")
    return found[0]


def analyse_all(
    curves: Sequence[Curve], options: Options | None = None, one: Callable[[Curve, Options | None], Analysis] = analyse
) -> tuple[list[Analysis], list[dict[str, str]]]:
    """Analyse every curve; those that carry no fit are listed with the reason instead of stopping the rest."""
    analyses, refused = [], []
    for item in curves:
        try:
            analyses.append(one(item, options))
        except FitError as reason:
            refused.append({"source": item.source, "run": item.run, "task": item.task, "reason": str(reason)})
    return analyses, refused


IMPROBABLE = 0.1
"""Probability of the sigmoid below which the reader is told that the points favour another shape."""


def _shape_remarks(curves: CurveDraws) -> list[str]:
    share = curves.probability[0]
    if share > IMPROBABLE:
        return []
    best = curves.names[int(np.argmax(curves.probability[1:])) + 1]
    return [
        f"the points favour another shape, {best} (probability of the sigmoid {percent(share)}): forecasts allow for "
        "it, A, B and C_mid are the sigmoid's"
    ]


def _without_prior(fit: Fit, options: Options, found: dict[str, Interval]) -> tuple[dict[str, Interval], list[str]]:
    """Intervals with flat beliefs instead, and a warning if an end of A's moves much."""
    if options.prior is None or options.method != "joint":
        return {}, []
    flat = intervals(fit, posterior(fit, None, 2000, options.seed, quick=True), options.level)
    (low, high), (flat_low, flat_high) = found["A"], flat["A"]
    moved = max(abs(flat_low - low), abs(flat_high - high)) / max(high - low, MARGIN)
    if moved > DRIVES:
        return flat, [f"the prior drives the answer: without it A would be in {flat_low:.3f}–{flat_high:.3f}"]
    return flat, []
