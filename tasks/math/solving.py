"""Sets that an equation describes: which numbers are its roots, and how many roots there are.

An answer that lists numbers need not be solved for: each must be a root, and there must be as many as the polynomial
has. Real roots are counted by Sturm's theorem (J. C. F. Sturm, 1829), with exact fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor

from tasks.math.exact import Arithmetic, rational
from tasks.math.nodes import FORMULA, Apply, Collection, Meaning, Number, Relation, SetBuilder, Symbol
from tasks.math.shape import substituted, symbols
from tasks.math.verdicts import Equal, all_of

_HIGHEST = 12
_MOST_BITS = 512
_MOST_LISTED = 200
_ALL = ("setR", "setC")

Polynomial = list[Fraction]
"""Coefficients, lowest power first; the last is not 0, and the zero polynomial is empty."""


def listed_range(part: Meaning) -> Meaning:
    """A range of whole numbers, such as `{x in Z | 1 <= x < 5}`, as the set of them; anything else as it is."""
    if not isinstance(part, SetBuilder) or not isinstance(part.element, Relation) or len(part.conditions) != 1:
        return part
    (condition,) = part.conditions
    whole = part.element.sides[1:] in ((Symbol("setZ"),), (Symbol("setN"),)) and part.element.operators == ("in",)
    if not whole or not isinstance(condition, Relation) or not {*condition.operators} <= {"lt", "le"}:
        return part
    low, middle, high = condition.sides if len(condition.sides) == 3 else (None, None, None)
    bounds = [rational(one) if isinstance(one, FORMULA) else None for one in (low, high)]
    if middle != part.element.sides[0] or bounds[0] is None or bounds[1] is None:
        return part
    first, last = ceil(bounds[0]), floor(bounds[1])
    first += condition.operators[0] == "lt" and first == bounds[0]
    last -= condition.operators[1] == "lt" and last == bounds[1]
    if last - first >= _MOST_LISTED or (first <= 0 and part.element.sides[1] == Symbol("setN")):
        return part  # whether 0 is a natural number, nobody has said
    return Collection(tuple(Number(Fraction(one)) for one in range(first, last + 1)))


@dataclass(frozen=True)
class RootSet:
    """`{x | left = right}` where the difference of the sides is a polynomial."""

    variable: str
    left: Meaning
    right: Meaning
    polynomial: tuple[Fraction, ...]


def root_set(described: Meaning, items: Sequence[Meaning]) -> RootSet | None:
    """The set that a polynomial equation describes; None for another set, or beside items that are no numbers."""
    found = _equation(described)
    if found is None or not all(isinstance(one, FORMULA) and not symbols(one) - {"i"} for one in items):
        return None
    variable, left, right = found
    polynomial = _polynomial(Apply("add", (left, Apply("neg", (right,)))), variable)
    return RootSet(variable, left, right, tuple(polynomial)) if polynomial else None


def same_roots(described: RootSet, items: Sequence[Meaning], arithmetic: Arithmetic) -> Equal:
    """True if the numbers are all values for which the equation holds."""
    variable, left, right = described.variable, described.left, described.right
    free = _without_repeated(list(described.polynomial))
    among_complex = any("i" in symbols(one) for one in items)
    if len(items) != (len(free) - 1 if among_complex else _real_roots(free)):
        return False
    apart = [arithmetic.same(one, other) for place, one in enumerate(items) for other in items[:place]]
    if True in apart:
        return False
    return all_of(
        arithmetic.same(substituted(left, variable, one), substituted(right, variable, one))
        if None not in apart
        else None
        for one in items
    )


def _equation(part: Meaning) -> tuple[str, Meaning, Meaning] | None:
    """Variable and sides of `{x | left = right}`."""
    if not isinstance(part, SetBuilder) or len(part.conditions) != 1:
        return None
    element, (condition,) = part.element, part.conditions
    if isinstance(element, Relation) and element.operators == ("in",) and element.sides[1:] == (Symbol(_ALL[0]),):
        element = element.sides[0]
    if not isinstance(element, Symbol) or not isinstance(condition, Relation) or condition.operators != ("=",):
        return None
    left, right = condition.sides
    named = symbols(left) | symbols(right)
    return (element.name, left, right) if named == {element.name} else None


def _polynomial(part: Meaning, variable: str) -> Polynomial | None:
    """The coefficients of a formula; None if it is no polynomial with small rational ones."""
    if part == Symbol(variable):
        return [Fraction(0), Fraction(1)]
    if isinstance(part, Number):
        return _trimmed([part.value])
    if not isinstance(part, Apply) or part.head not in ("add", "mul", "neg", "pow", "div"):
        return None
    first, *others = [_polynomial(one, variable) for one in part.args]
    for other in others:
        if first is None or other is None:
            return None
        if part.head == "add":
            first = _sum(first, other)
        elif part.head == "mul":
            first = _product(first, other)
        elif part.head == "div":
            first = [one / other[0] for one in first] if len(other) == 1 else None
        else:
            exponent = other[0] if len(other) == 1 else Fraction(0)
            if exponent.denominator != 1 or not 0 < exponent <= _HIGHEST:
                return None
            base, first = first, [Fraction(1)]
            for _ in range(int(exponent)):
                first = _product(first, base) if first is not None else None
    if first is None or len(first) > _HIGHEST + 1 or any(_bits(one) > _MOST_BITS for one in first):
        return None
    return [-one for one in first] if part.head == "neg" else first


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _trimmed(coefficients: Polynomial) -> Polynomial:
    while coefficients and not coefficients[-1]:
        coefficients.pop()
    return coefficients


def _sum(one: Polynomial, other: Polynomial) -> Polynomial:
    size = max(len(one), len(other))
    padded = [each + [Fraction(0)] * (size - len(each)) for each in (one, other)]
    return _trimmed([first + second for first, second in zip(*padded)])


def _product(one: Polynomial, other: Polynomial) -> Polynomial | None:
    if len(one) + len(other) > _HIGHEST + 2:
        return None
    made = [Fraction(0)] * max(0, len(one) + len(other) - 1)
    for place, first in enumerate(one):
        for shift, second in enumerate(other):
            made[place + shift] += first * second
    return _trimmed(made)


def _remainder(one: Polynomial, other: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Quotient and remainder."""
    left, quotient = list(one), [Fraction(0)] * max(0, len(one) - len(other) + 1)
    while len(left) >= len(other):
        factor, shift = left[-1] / other[-1], len(left) - len(other)
        quotient[shift] = factor
        left = _trimmed([each - factor * (other[at - shift] if at >= shift else 0) for at, each in enumerate(left)])
    return quotient, left


def _derivative(one: Polynomial) -> Polynomial:
    return [power * each for power, each in enumerate(one)][1:]


def _without_repeated(one: Polynomial) -> Polynomial:
    """The polynomial with each root once."""
    common, other = list(one), _derivative(one)
    while other:
        common, other = other, _remainder(common, other)[1]
    return _remainder(one, common)[0]


def _real_roots(one: Polynomial) -> int:
    """The number of real roots of a polynomial without repeated ones: Sturm's sequence at both infinities."""
    sequence = [one, _derivative(one)]
    while sequence[-1]:
        sequence.append([-each for each in _remainder(sequence[-2], sequence[-1])[1]])
    signs = [(each[-1] * (-1) ** (len(each) - 1) > 0, each[-1] > 0) for each in sequence[:-1]]
    below, above = zip(*signs)
    return _changes(below) - _changes(above)


def _changes(signs: Sequence[bool]) -> int:
    return sum(one != other for one, other in pairwise(signs))
