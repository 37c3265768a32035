"""Sets of real numbers, however they are written: intervals, inequalities, unions, `x \\ne 1`, `\\{x | x > 2\\}`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tasks.math.exact import Arithmetic, infinite
from tasks.math.nodes import (
    Apply,
    Bracketed,
    Collection,
    Combined,
    Listing,
    Meaning,
    Number,
    Relation,
    SetBuilder,
    Symbol,
)
from tasks.math.shape import symbols

_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_REALS, _EMPTY = Symbol("setR"), Symbol("emptyset")


@dataclass(frozen=True)
class RealSpan:
    """An interval; a side without a bound is None."""

    low: Meaning | None
    low_closed: bool
    high: Meaning | None
    high_closed: bool


@dataclass(frozen=True)
class RealSet:
    """A union of intervals, and what its elements were called ("" if nothing)."""

    pieces: tuple[RealSpan, ...]
    variable: str = ""


_ALL = RealSpan(None, False, None, False)


class UnorderedError(ValueError):
    """The bounds of a set are in no known order."""


def real_set(part: Meaning, arithmetic: Arithmetic) -> RealSet | None:
    """The set that a part describes; None if it describes none.

    Raises:
        UnorderedError: a complement or an intersection needs an order of bounds that this arithmetic does not know.
    """
    if isinstance(part, Bracketed):
        return _interval(part, arithmetic)
    if isinstance(part, Symbol):
        return RealSet((_ALL,)) if part == _REALS else RealSet(()) if part == _EMPTY else None
    if isinstance(part, Collection):
        return (
            RealSet(tuple(RealSpan(one, True, one, True) for one in part.items)) if _are_numbers(part.items) else None
        )
    if isinstance(part, Combined):
        return _combined(part, arithmetic)
    if isinstance(part, Relation):
        return _related(part, arithmetic)
    if isinstance(part, Listing):
        return _listed(part.items, part.joined, arithmetic)
    if isinstance(part, SetBuilder):
        return _built(part, arithmetic)
    return None


def _are_numbers(items: Sequence[Meaning]) -> bool:
    return all(isinstance(one, Number | Apply | Symbol) for one in items)


def _interval(part: Bracketed, arithmetic: Arithmetic) -> RealSet | None:
    """An interval; None for a tuple, also one whose second number is the smaller."""
    if len(part.items) != 2 or part.opening not in ("(", "[") or part.closing not in (")", "]"):
        return None
    low, high = part.items
    if not _are_numbers(part.items) or infinite(low) > 0 or infinite(high) < 0:
        return None
    places = arithmetic.order(low), arithmetic.order(high)
    if places[0] is not None and places[1] is not None:
        closed = part.opening == "[" and part.closing == "]"
        if places[0] > places[1] or (places[0] == places[1] and not closed):
            return None
    if (infinite(low) and part.opening == "[") or (infinite(high) and part.closing == "]"):
        return None
    return RealSet(
        (
            RealSpan(
                None if infinite(low) else low,
                part.opening == "[",
                None if infinite(high) else high,
                part.closing == "]",
            ),
        )
    )


def _combined(part: Combined, arithmetic: Arithmetic) -> RealSet | None:
    sets = [real_set(one, arithmetic) for one in part.parts]
    known = [one for one in sets if one is not None]
    if len(known) < len(sets):
        return None
    variable = next((one.variable for one in known if one.variable), "")
    if part.operation == "union":
        return RealSet(tuple(piece for one in known for piece in one.pieces), variable)
    pieces = known[0].pieces
    for one in known[1:]:
        other = one.pieces if part.operation == "intersection" else complement(one.pieces, arithmetic)
        pieces = intersection(pieces, other, arithmetic)
    return RealSet(pieces, variable)


def _related(part: Relation, arithmetic: Arithmetic) -> RealSet | None:
    sides, operators = part.sides, part.operators
    if operators in (("in",), ("notin",)):
        inside = real_set(sides[1], arithmetic)
        if inside is None or not isinstance(sides[0], Symbol):
            return None
        pieces = inside.pieces if operators == ("in",) else complement(inside.pieces, arithmetic)
        return RealSet(pieces, sides[0].name)
    if operators == ("=",) and isinstance(sides[0], Symbol) and _are_numbers(sides):
        return RealSet((RealSpan(sides[1], True, sides[1], True),), sides[0].name)
    if operators == ("ne",) and isinstance(sides[0], Symbol):
        point = RealSpan(sides[1], True, sides[1], True)
        return RealSet(complement((point,), arithmetic), sides[0].name)
    if any(one not in _TURNED for one in operators) or len(sides) > 3:
        return None
    if len(sides) == 2:
        return _bounded(sides[0], operators[0], sides[1]) or _bounded(sides[1], _TURNED[operators[0]], sides[0])
    if not isinstance(sides[1], Symbol) or symbols(sides[1]) & (symbols(sides[0]) | symbols(sides[2])):
        return None
    if (operators[0] in ("lt", "le")) != (operators[1] in ("lt", "le")):
        return None
    outer = (sides[0], sides[2]) if operators[0] in ("lt", "le") else (sides[2], sides[0])
    closed = tuple(one in ("le", "ge") for one in operators)
    low_closed, high_closed = closed if operators[0] in ("lt", "le") else closed[::-1]
    interval = _interval(Bracketed("[" if low_closed else "(", outer, "]" if high_closed else ")"), arithmetic)
    return interval and RealSet(interval.pieces, sides[1].name)


def _bounded(side: Meaning, operator: str, bound: Meaning) -> RealSet | None:
    """`x < 2`, and `|x| < 2`."""
    if not _are_numbers((bound,)):
        return None
    closed = operator in ("le", "ge")
    if isinstance(side, Symbol) and side.name not in symbols(bound):
        limit = None if infinite(bound) else bound
        piece = (
            RealSpan(None, False, limit, closed) if operator in ("lt", "le") else RealSpan(limit, closed, None, False)
        )
        return RealSet((piece,), side.name)
    if isinstance(side, Apply) and side.head == "abs" and isinstance(side.args[0], Symbol):
        if isinstance(bound, Number) and bound.value <= 0:
            return None
        minus = Number(-bound.value, bound.places) if isinstance(bound, Number) else Apply("neg", (bound,))
        if operator in ("lt", "le"):
            return RealSet((RealSpan(minus, closed, bound, closed),), side.args[0].name)
        return RealSet((RealSpan(None, False, minus, closed), RealSpan(bound, closed, None, False)), side.args[0].name)
    return None


def _listed(items: Sequence[Meaning], joined: str, arithmetic: Arithmetic) -> RealSet | None:
    """Inequalities joined by "or" are a union, by "and" an intersection; what a symbol is not, always the latter."""
    items = _same_excluded(items)
    sets = [real_set(one, arithmetic) if isinstance(one, Relation) else None for one in items]
    known = [one for one in sets if one is not None]
    if len(known) < len(items) or len({one.variable for one in known}) != 1:
        return None
    excluding = [isinstance(one, Relation) and one.operators in (("ne",), ("notin",)) for one in items]
    if joined == "and" or all(excluding) or (joined == "," and any(excluding)):
        if not known[0].variable:
            return None
        pieces = known[0].pieces
        for one in known[1:]:
            pieces = intersection(pieces, one.pieces, arithmetic)
        return RealSet(pieces, known[0].variable)
    if joined == "or":
        return RealSet(tuple(piece for one in known for piece in one.pieces), known[0].variable)
    return None


def _same_excluded(items: Sequence[Meaning]) -> Sequence[Meaning]:
    """`x \\ne 1, 2` excludes both."""
    first = items[0]
    if isinstance(first, Relation) and first.operators == ("ne",) and isinstance(first.sides[0], Symbol):
        return [one if isinstance(one, Relation) else Relation((first.sides[0], one), ("ne",)) for one in items]
    return items


def _built(part: SetBuilder, arithmetic: Arithmetic) -> RealSet | None:
    element = part.element
    if isinstance(element, Relation) and element.operators == ("in",) and element.sides[1] == _REALS:
        element = element.sides[0]
    if not isinstance(element, Symbol):
        return None
    conditions = [one for one in part.conditions if one != Relation((element, _REALS), ("in",))]
    if len(conditions) == 1 and isinstance(conditions[0], Listing):
        conditions = list(conditions[0].items) if conditions[0].joined != "or" else conditions
    sets = [real_set(one, arithmetic) for one in conditions]
    pieces: tuple[RealSpan, ...] = (_ALL,)
    for one in sets:
        if one is None or one.variable not in ("", element.name):
            return None
        pieces = intersection(pieces, one.pieces, arithmetic) if pieces != (_ALL,) else one.pieces
    return RealSet(pieces)


# Sets as sorted pieces.

_Bound = tuple[int, Fraction | float]


def _place(bound: Meaning | None, side: int, arithmetic: Arithmetic) -> _Bound:
    if bound is None:
        return side, 0
    place = arithmetic.order(bound)
    if place is None:
        raise UnorderedError
    return 0, place


def normal(pieces: Sequence[RealSpan], arithmetic: Arithmetic) -> tuple[RealSpan, ...]:
    """A set in pieces that do not touch, from left to right.

    Raises:
        UnorderedError: the order of two bounds is not known.
    """
    kept = [piece for piece in pieces if not _is_void(piece, arithmetic)]
    kept.sort(key=lambda piece: (_place(piece.low, -1, arithmetic), not piece.low_closed))
    merged: list[RealSpan] = []
    for piece in kept:
        if merged and _touch(merged[-1], piece, arithmetic):
            last = merged[-1]
            ends = (
                (_place(last.high, 1, arithmetic), last.high_closed),
                (_place(piece.high, 1, arithmetic), piece.high_closed),
            )
            further = piece if ends[1] > ends[0] else last
            merged[-1] = RealSpan(last.low, last.low_closed, further.high, further.high_closed)
        else:
            merged.append(piece)
    return tuple(merged)


def _is_void(piece: RealSpan, arithmetic: Arithmetic) -> bool:
    low, high = _place(piece.low, -1, arithmetic), _place(piece.high, 1, arithmetic)
    return low > high or (low == high and not (piece.low_closed and piece.high_closed))


def _touch(left: RealSpan, right: RealSpan, arithmetic: Arithmetic) -> bool:
    end, start = _place(left.high, 1, arithmetic), _place(right.low, -1, arithmetic)
    return end > start or (end == start and (left.high_closed or right.low_closed))


def complement(pieces: Sequence[RealSpan], arithmetic: Arithmetic) -> tuple[RealSpan, ...]:
    """All real numbers that are not in a set."""
    ordered = normal(pieces, arithmetic) if len(pieces) > 1 else tuple(pieces)
    left, left_closed = None, False
    result: list[RealSpan] = []
    for piece in ordered:
        if piece.low is not None:
            result.append(RealSpan(left, left_closed, piece.low, not piece.low_closed))
        if piece.high is None:
            return tuple(result)
        left, left_closed = piece.high, not piece.high_closed
    return (*result, RealSpan(left, left_closed, None, False))


def intersection(one: Sequence[RealSpan], other: Sequence[RealSpan], arithmetic: Arithmetic) -> tuple[RealSpan, ...]:
    """Intersection of two sets."""
    result = []
    for mine in one:
        for theirs in other:
            low = max(
                ((_place(piece.low, -1, arithmetic), not piece.low_closed), number, piece)
                for number, piece in enumerate((mine, theirs))
            )[2]
            high = min(
                ((_place(piece.high, 1, arithmetic), piece.high_closed), number, piece)
                for number, piece in enumerate((mine, theirs))
            )[2]
            piece = RealSpan(low.low, low.low_closed, high.high, high.high_closed)
            if not _is_void(piece, arithmetic):
                result.append(piece)
    return tuple(result)
