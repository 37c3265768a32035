"""Cells of a log as numbers: percent signs, thousands, decimal commas, multiples, times.

Axes: `_N` rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from scalelab.arrays import Array
from scalelab.errors import LabError

Comma = Literal["", "thousands", "decimal", "either"]
"""Meaning of a comma inside a number of one file; `either` where nothing in the file decides."""

THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?")
DECIMAL = re.compile(r"[-+]?(\d{1,3}(\.\d{3})+|\d+)?,\d+(e[-+]?\d+)?", re.IGNORECASE)
GROUPED = re.compile(r"([-+]?\d{1,3}(?:['’ \u00a0\u2009\u202f]\d{3})+)(?:[.,](\d*))?")
"""Thousands as they are written in Switzerland (1'000.5) and France (1 000,5)."""
POINTS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+")
"""Thousands as they are written where a comma parts decimals (1.000)."""
MULTIPLE = re.compile(r"([-+]?[\d.]+)\s?([kKMBGT])")
MULTIPLES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
BLANKS = frozenset(("", "nan", "null", "none", "na", "n/a", "-", "–"))

UNIX = (9e8, 5e9)
"""Seconds of Unix time that are taken for a date (1998 to 2128); milliseconds are a thousand times as many."""


def blank(cell: Any) -> bool:
    """True if a cell is empty, or holds the text or number NaN."""
    return cell is None or (isinstance(cell, float) and cell != cell) or str(cell).strip().lower() in BLANKS


def comma_meaning(cells: Sequence[str]) -> Comma:
    """Tell what commas mean in the numbers of a file from all cells that have one."""
    cells = [cell.strip().removesuffix("%").strip() for cell in cells]
    numbers = [cell for cell in cells if THOUSANDS.fullmatch(cell) or DECIMAL.fullmatch(cell)]
    if not numbers:
        return ""
    decimal = any(map(GROUPED.fullmatch, cells)) or sum(
        not THOUSANDS.fullmatch(cell) or cell.lstrip("-+").startswith("0,") for cell in numbers
    )
    thousands = sum(not DECIMAL.fullmatch(cell) for cell in numbers)
    if decimal and not thousands:
        return "decimal"
    return "thousands" if thousands and not decimal else "either"


@dataclass
class Numbers:
    """A column as numbers.

    Attributes:
        value_N: the numbers; NaN where `blank_N`.
        blank_N: rows whose cell is empty.
        percent: the cells had percent signs, and were divided by 100.
        wrong: rows whose cell is no number, with what to do about it.
        converted: how cells were rewritten, and how many.
    """

    value_N: Array
    blank_N: np.ndarray
    percent: bool = False
    wrong: dict[int, str] = field(default_factory=dict)
    converted: Counter[str] = field(default_factory=Counter)


def numbers(cells: Sequence[Any], comma: Comma = "") -> Numbers:
    """Read a column's cells as numbers.

    Args:
        cells: text, numbers, None, or whatever else a file holds in their place.
        comma: what a comma means in them.
    """
    if comma == "decimal" and _points_part_thousands(cells):
        return _one_by_one(cells, comma, points=True)
    try:
        value_N = np.fromiter(map(float, cells), float, len(cells))
    except (TypeError, ValueError, OverflowError):
        return _one_by_one(cells, comma)
    return Numbers(value_N, np.isnan(value_N))


def _points_part_thousands(cells: Sequence[Any]) -> bool:
    """True if each point of a column, in a file whose decimals have commas, stands where one between thousands does."""
    texts = [cell.strip().removesuffix("%").strip() for cell in cells if isinstance(cell, str) and "." in cell]
    return any(map(POINTS.fullmatch, texts)) and all(POINTS.fullmatch(one) or DECIMAL.fullmatch(one) for one in texts)


def _one_by_one(cells: Sequence[Any], comma: Comma, points: bool = False) -> Numbers:
    found = Numbers(np.full(len(cells), np.nan), np.zeros(len(cells), bool))
    percent = 0
    for row, cell in enumerate(cells):
        if blank(cell):
            found.blank_N[row] = True
            continue
        text = cell.strip() if isinstance(cell, str) else ""
        if text.endswith("%"):
            text, percent = text[:-1].strip(), percent + 1
        elif not points:
            try:
                found.value_N[row] = float(cell)
                continue
            except (TypeError, ValueError, OverflowError):
                pass
        value, how = _rewritten(text, comma, points)
        if value is None:
            found.wrong[row] = how
            continue
        found.value_N[row] = value
        if how:
            found.converted[how] += 1
    if percent:
        found.percent = True
        found.value_N /= 100
        found.converted["percent signs"] += percent
        plain = [row for row in np.flatnonzero(~found.blank_N) if "%" not in str(cells[row])]
        found.wrong.update(dict.fromkeys(plain, "other cells have a percent sign; write all of them alike"))
    return found


def _rewritten(text: str, comma: Comma, points: bool) -> tuple[float | None, str]:
    """The number that a text means and how it was rewritten; None and the remedy if it means none."""
    if points and POINTS.fullmatch(text):
        return float(text.replace(".", "")), "points between thousands"
    try:
        return float(text), ""
    except ValueError:
        pass
    if "," in text:
        thousands, decimal = THOUSANDS.fullmatch(text), DECIMAL.fullmatch(text)
        if thousands and comma != "decimal" and not (decimal and comma == "either"):
            return float(text.replace(",", "")), "commas between thousands"
        if decimal and comma == "decimal":
            return float(text.replace(".", "").replace(",", ".")), "decimal commas"
        if thousands or decimal:
            return None, "its comma may part thousands or decimals; write decimals with a point"
    if grouped := GROUPED.fullmatch(text):
        return float(re.sub(r"[^-+\d]", "", grouped[1]) + "." + (grouped[2] or "")), "signs between thousands"
    multiple = MULTIPLE.fullmatch(text)
    if multiple:
        try:
            return float(multiple[1]) * MULTIPLES[multiple[2]], f"multiples such as {multiple[2]}"
        except ValueError:
            pass
    return None, "mend it or remove the row"


def hours_since_first(cells: Sequence[Any], where: str) -> tuple[list[Any], str]:
    """Times as hours since the first of them.

    Args:
        cells: Unix times in seconds or milliseconds, or dates as ISO 8601 has them.
        where: file and column, for messages.

    Returns:
        The hours, None where a cell is empty; and what the first time was, as text.

    Raises:
        LabError: a cell is no time.
    """
    seconds = [None if blank(cell) else _seconds(cell, where) for cell in cells]
    first = min((one for one in seconds if one is not None), default=0.0)
    began = f"{datetime.fromtimestamp(first, UTC):%Y-%m-%d %H:%M} UTC"
    return [None if one is None else (one - first) / 3600 for one in seconds], began


def _seconds(cell: Any, where: str) -> float:
    try:
        value = float(cell)
    except (TypeError, ValueError, OverflowError):
        try:
            moment = datetime.fromisoformat(str(cell).strip())
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise LabError(f"{where}: {cell!r:.60} is no time; write it as 2026-11-25T16:00:00") from None
    if UNIX[0] * 1000 <= value <= UNIX[1] * 1000:
        return value / 1000
    if UNIX[0] <= value <= UNIX[1]:
        return value
    raise LabError(
        f"{where}: {value:g} is no Unix time; give --column compute=… and --compute-scale for hours or seconds"
    )
