"""The table of a comparison: its rows, and its columns as text; terminal, `--json`, page and notebook show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scalelab.numbers import asymptote, percent, with_interval


@dataclass(frozen=True)
class ComparisonRow:
    """One run of a comparison's table; what is held against the baseline is None for the baseline itself.

    Attributes:
        task: the task.
        rank: by the curve's pass rate at the compute of the comparison.
        run: its name.
        at: that compute.
        measured: mean of the last evaluations there; None without any.
        value: median of the curve there; `value_low` and `value_high` are its interval.
        measured_difference: of the measured rates, to the baseline.
        difference: median of the curves' difference; `difference_low` and `difference_high` are its interval.
        probability: that the run is above the baseline.
        verdict: better, worse, equal, unstable or cannot tell; empty for the baseline.
        verdict_text: the verdict in full.
        bound: largest size of the difference that the draws leave possible.
        compute_factor: compute to the pass rate of the comparison as a multiple of the baseline's; None where one of
            the two probably does not get there. `compute_low` and `compute_high` are its interval.
        A: asymptote given a sigmoid, with `A_low` and `A_high`.
        A_told: whether A may be read as a limit.
        gain_seen: share of the gain from R0 to A that was seen.
        B: exponent given a sigmoid, with `B_low` and `B_high`.
        C_mid: of the sigmoid, with `C_mid_low` and `C_mid_high`.
        falls: number of seeds that fell beyond chance.
    """

    task: str
    rank: int
    run: str
    at: float
    measured: float | None
    value: float
    value_low: float
    value_high: float
    measured_difference: float | None
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    probability: float | None
    verdict: str
    verdict_text: str
    bound: float | None
    compute_factor: float | None
    compute_low: float | None
    compute_high: float | None
    A: float
    A_low: float
    A_high: float
    A_told: bool
    gain_seen: float
    B: float
    B_low: float
    B_high: float
    C_mid: float
    C_mid_low: float
    C_mid_high: float
    falls: int

    def short_cells(self) -> list[str]:
        """The row as text, column by column of `SHORT_COLUMNS`."""
        return [column.cell(self) for column in SHORT_COLUMNS]

    def cells(self) -> list[str]:
        """The row as text, column by column of `COLUMNS`."""
        return [column.cell(self) for column in COLUMNS]


@dataclass(frozen=True)
class TableColumn:
    """A column of a comparison's table.

    Attributes:
        key: the field of `ComparisonRow` that the page sorts by.
        title: over the column; {at}, {base} and {reach} stand for what is compared.
        cell: text of a row.
    """

    key: str
    title: str
    cell: Callable[[ComparisonRow], str]


def _measured(row: ComparisonRow) -> str:
    return "–" if row.measured is None else f"{row.measured:.3f}"


def _measured_difference(row: ComparisonRow) -> str:
    return "–" if row.measured_difference is None else f"{round(row.measured_difference, 3) + 0.0:+.3f}"


def _difference(row: ComparisonRow) -> str:
    return _between(row.difference, row.difference_low, row.difference_high)


def _factor(row: ComparisonRow) -> str:
    factor = _between(row.compute_factor, row.compute_low, row.compute_high)
    return f"×{factor}" if factor else "–"


def _asymptote(row: ComparisonRow) -> str:
    return asymptote(row.A, (row.A_low, row.A_high), row.A_told)


def _beside(cell: Callable[[ComparisonRow], str]) -> Callable[[ComparisonRow], str]:
    """A cell that is empty for the baseline."""
    return lambda row: "" if row.difference is None else cell(row)


COLUMNS = (
    TableColumn("rank", "rank", lambda row: str(row.rank)),
    TableColumn("run", "run", lambda row: row.run),
    TableColumn("measured", "measured at {at}", _measured),
    TableColumn("value", "curve there", lambda row: with_interval(row.value, (row.value_low, row.value_high))),
    TableColumn("measured_difference", "measured less {base}", _beside(_measured_difference)),
    TableColumn("difference", "curve less {base}", _difference),
    TableColumn("probability", "verdict", lambda row: row.verdict_text),
    TableColumn("compute_factor", "compute to {reach}", _beside(_factor)),
    TableColumn("A", "A if a sigmoid", _asymptote),
    TableColumn("B", "B", lambda row: with_interval(row.B, (row.B_low, row.B_high))),
    TableColumn("C_mid", "C_mid", lambda row: with_interval(row.C_mid, (row.C_mid_low, row.C_mid_high))),
)
"""The columns of `scalelab compare`, of the page, and of tables in Markdown; add one here."""


SHORT_COLUMNS = (
    COLUMNS[1],
    TableColumn("measured", "measured", _measured),
    TableColumn("measured_difference", "less {base}", _beside(_measured_difference)),
    COLUMNS[5],
    TableColumn("probability", "above", lambda row: "" if row.probability is None else percent(row.probability)),
    TableColumn("verdict", "verdict", lambda row: row.verdict or "baseline"),
)
"""Columns that fit a narrow terminal."""


def _between(middle: float | None, low: float | None, high: float | None) -> str:
    return "" if middle is None or low is None or high is None else with_interval(middle, (low, high))
