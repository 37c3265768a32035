"""Numbers formatted for readers."""

from __future__ import annotations

import math
from collections.abc import Sequence

FEW = 100
"""Cases below which a share of them is told by its count: `<1%` of ten would be more than they say."""


def compact(value: float) -> str:
    """A number of four digits, or a whole one with commas from 10,000 up to 1e9."""
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e9 else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.4g}"


def with_interval(value: float, interval: Sequence[float | None] | None) -> str:
    """`0.612 [0.604, 0.621]`: two digits of the interval's width; an open end is `…`.

    Numbers from 1e9 on, and those whose interval shows only behind the sixth decimal, are written with exponents.
    """
    if interval is None:
        return compact(value)
    low, high = interval
    known = [abs(end - value) for end in interval if end is not None]
    largest = max(abs(number) for number in (value, low, high) if number is not None)
    if largest >= 1e9 or 0 < max(known, default=0.0) < 5e-6:
        shown = ("…" if end is None else f"{end:.3g}" for end in (low, high))
        return f"{value:.3g} [{', '.join(shown)}]"
    if known and not any(known):
        return compact(value)
    decimals = _decimals(2 * max(known)) if known else 3
    ends = ("…" if end is None else _fixed(end, decimals) for end in (low, high))
    return f"{_fixed(value, decimals)} [{', '.join(ends)}]"


def asymptote(value: float, interval: Sequence[float | None] | None, stands: bool | None) -> str:
    """A curve's A with its interval; in brackets where it is no limit, as curves of other shapes go beyond it."""
    text = with_interval(value, interval)
    return f"({text})" if stands is False else text


def with_interval_of_ratio(ratio: float, interval: Sequence[float | None]) -> str:
    """`1.1 [0.02, 8.0]`: two significant digits where its ends lie far apart, as a ratio is never 0."""
    low, high = interval
    if low is None or high is None or not low > 0 or high < 2 * low:
        return with_interval(ratio, interval)
    return f"{_two(ratio)} [{_two(low)}, {_two(high)}]"


def share(part: float, count: int) -> str:
    """A share of so many cases: its count up to `FEW` of them, else as a percentage."""
    return f"{round(part * count)} of {count}" if count < FEW else percent(part)


def percent(chance: float) -> str:
    """A probability in whole percent, `>99%` and `<1%` at the ends: a share of finitely many draws is never certain."""
    return ">99%" if chance > 0.99 else "<1%" if chance < 0.01 else f"{chance:.0%}"


def counted(number: int, what: str) -> str:
    """A number of things, such as `1 node` and `1,000 nodes`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def quantity(amount: float, unit: str) -> str:
    """Compute in a unit that people read: minutes for small parts of an hour, thousands with a comma."""
    if unit.endswith("-hours") and 0 < amount < 0.5:
        return f"{amount * 60:.3g} {unit.removesuffix('hours')}minutes"
    return f"{compact(amount)} {unit}"


def _two(value: float) -> str:
    """A positive number of two significant digits; all of those before the point from 100 on."""
    if value >= 1e9 or value < 1e-4:
        return f"{value:.1e}"
    return f"{value:,.{max(0, 1 - math.floor(math.log10(value)))}f}"


def _fixed(value: float, decimals: int) -> str:
    """A number with so many decimals, and never `-0.000`."""
    return f"{round(value, decimals) + 0.0:,.{decimals}f}"


def _decimals(error: float) -> int:
    """Decimals that show two digits of an error."""
    return min(max(0, 1 - math.floor(math.log10(error))), 6)
