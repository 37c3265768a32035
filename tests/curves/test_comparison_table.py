"""The table of a comparison: a column is one entry, and each sorts by a field of the rows."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from scalelab.curves.comparison_table import COLUMNS, SHORT_COLUMNS, ComparisonRow

ROW = ComparisonRow(
    task="math", rank=2, run="rival", at=10.0, measured=0.5, value=0.51, value_low=0.5, value_high=0.52,
    measured_difference=0.03, difference=0.02, difference_low=-0.01, difference_high=0.05, probability=0.9,
    verdict="better", verdict_text="better (90 % above)", bound=0.05, compute_factor=0.8, compute_low=0.7,
    compute_high=0.9, A=0.7, A_low=0.6, A_high=0.8, A_told=True, gain_seen=0.9, B=1.0, B_low=0.9, B_high=1.1,
    C_mid=5.0, C_mid_low=4.0, C_mid_high=6.0, falls=0,
)  # fmt: skip


def test_a_column_sorts_by_a_field_of_the_rows_and_shows_it() -> None:
    assert {column.key for column in (*COLUMNS, *SHORT_COLUMNS)} <= {field.name for field in fields(ComparisonRow)}
    cells = dict(zip((column.key for column in COLUMNS), ROW.cells(), strict=True))
    assert (cells["rank"], cells["run"], cells["measured"]) == ("2", "rival", "0.500")
    assert cells["measured_difference"] == "+0.030"
    [nothing] = [one for one in COLUMNS if one.key == "measured_difference"]
    assert nothing.cell(replace(ROW, measured_difference=-1e-5)) == "+0.000"
    assert cells["probability"] == "better (90 % above)"
    assert cells["compute_factor"].startswith("×0.8")
    assert len(ROW.short_cells()) == len(SHORT_COLUMNS) == 6
    assert ROW.short_cells()[-1] == "better"


def test_the_baseline_is_held_against_nothing_and_what_is_not_known_is_a_dash() -> None:
    names = ("difference", "difference_low", "difference_high", "measured_difference", "probability")
    nothing: dict[str, Any] = dict.fromkeys(names)
    baseline = replace(ROW, **nothing, compute_factor=None, verdict="", verdict_text="baseline")
    cells = dict(zip((column.key for column in COLUMNS), baseline.cells(), strict=True))
    assert (cells["difference"], cells["measured_difference"], cells["compute_factor"]) == ("", "", "")
    assert baseline.short_cells()[-1] == "baseline"
    unknown = replace(ROW, measured=None, measured_difference=None, compute_factor=None, A_told=False)
    cells = dict(zip((column.key for column in COLUMNS), unknown.cells(), strict=True))
    assert (cells["measured"], cells["measured_difference"], cells["compute_factor"]) == ("–", "–", "–")
    assert cells["A"].startswith("(")
    assert cells["A"].endswith(")")
