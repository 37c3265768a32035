"""Decide equality of numbers that are certainly rational, without a computer algebra system and in little time."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Protocol

from tasks.math.nodes import Apply, Matrix, Meaning, Number, Symbol
from tasks.math.shape import CONSTANTS

_MOST_BITS = 4096
_MOST_FACTORIAL = 300
_INFINITE = Symbol("infty")


class UndefinedError(ArithmeticError):
    """A formula has no value: it divides by zero, or is infinite."""


class Arithmetic(Protocol):
    """Knowledge of formulas that comparing needs; None where this arithmetic cannot tell."""

    def same(self, gold: Meaning, answer: Meaning, rounded: bool = False) -> bool | None:
        """True if two formulas are equal; with `rounded`, to as many digits as the gold one has."""
        ...

    def order(self, part: Meaning) -> Fraction | float | None:
        """The place of a number among others."""
        ...

    def ratio(self, gold: Meaning, answer: Meaning) -> int | None:
        """1 or -1 if the answer is a positive or negative constant times the gold, which is no constant; 0 if not."""
        ...

    def shifted(self, gold: Meaning, answer: Meaning) -> bool | None:
        """True if the two differ by nothing but a constant, one that has a name already."""
        ...


def rational(part: Meaning) -> Fraction | None:
    """The exact value of a formula; None if it is not known to be rational, or too long to compute here.

    Raises:
        UndefinedError: it has none.
    """
    if isinstance(part, Number):
        return part.value
    if not isinstance(part, Apply):
        return None
    values = []
    for one in part.args:
        value = rational(one)
        if value is None:
            return None
        values.append(value)
    return _applied(part.head, values)


def _applied(head: str, values: list[Fraction]) -> Fraction | None:
    if head == "add":
        return _short(sum(values, Fraction(0)))
    if head == "mul":
        return _short(math.prod(values, start=Fraction(1)))
    if head == "neg":
        return -values[0]
    if head == "div":
        if not values[1]:
            raise UndefinedError("division by zero")
        return _short(values[0] / values[1])
    if head == "pow":
        return _power(values[0], values[1])
    if head == "percent":
        return values[0] / 100
    if head == "degree":
        return values[0]
    if head == "abs":
        return abs(values[0])
    if head in ("floor", "ceil"):
        return Fraction(math.floor(values[0]) if head == "floor" else math.ceil(values[0]))
    if head == "root":
        return _root(*values)
    whole = [int(value) for value in values if value.denominator == 1 and abs(value) <= _MOST_FACTORIAL]
    return _combinatorial(head, whole) if len(whole) == len(values) else None


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1 or abs(exponent) > _MOST_BITS:
        return None
    if not base:
        if exponent <= 0:
            raise UndefinedError("a power of zero")
        return base
    bits = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(int(exponent))
    return Fraction(base ** int(exponent)) if bits <= _MOST_BITS else None


def _root(inside: Fraction, degree: Fraction) -> Fraction | None:
    """A square root that is rational."""
    if degree != 2 or inside < 0:
        return None
    top, bottom = math.isqrt(inside.numerator), math.isqrt(inside.denominator)
    return Fraction(top, bottom) if top**2 == inside.numerator and bottom**2 == inside.denominator else None


def _combinatorial(head: str, whole: list[int]) -> Fraction | None:
    if head == "factorial" and whole[0] >= 0:
        return Fraction(math.factorial(whole[0]))
    if min(whole) >= 0 and head in ("binom", "permutations"):
        return Fraction(math.comb(*whole) if head == "binom" else math.perm(*whole))
    if head in ("gcd", "lcm"):
        return Fraction(math.gcd(*whole) if head == "gcd" else math.lcm(*whole))
    if head in ("max", "min"):
        return Fraction(max(whole) if head == "max" else min(whole))
    if head == "mod" and whole[1]:
        return Fraction(whole[0] % whole[1])
    return None


def _short(value: Fraction) -> Fraction | None:
    return value if max(value.numerator.bit_length(), value.denominator.bit_length()) <= _MOST_BITS else None


def infinite(part: Meaning) -> int:
    """1 and -1 for the infinities as they are written, 0 for everything else."""
    if part == _INFINITE:
        return 1
    return -1 if isinstance(part, Apply) and part.head == "neg" and part.args[0] == _INFINITE else 0


def rounds_to(gold: Number, value: Fraction) -> bool:
    """True if a value rounds to a decimal, or to one digit less than it where its last digit is 5."""
    places = gold.places or 0
    return abs(value - gold.value) <= Fraction(1, 2 * 10**places)


class ExactArithmetic:
    """Equality of formulas where rational numbers decide it."""

    def same(self, gold: Meaning, answer: Meaning, rounded: bool = False) -> bool | None:
        """See `Arithmetic`."""
        if infinite(gold) or infinite(answer):
            return infinite(gold) == infinite(answer)
        try:
            mine, theirs = rational(gold), rational(answer)
        except UndefinedError:
            return False
        if mine is not None and theirs is not None:
            return mine == theirs or (rounded and isinstance(gold, Number) and rounds_to(gold, theirs))
        if isinstance(gold, Matrix) and isinstance(answer, Matrix):
            return self._same_entries(gold, answer)
        if isinstance(gold, Matrix | Symbol | Number) and isinstance(answer, Matrix | Symbol | Number):
            return gold == answer or (None if {gold, answer} & _CONSTANTS else False)
        return None

    def _same_entries(self, gold: Matrix, answer: Matrix) -> bool | None:
        if [len(row) for row in gold.rows] != [len(row) for row in answer.rows]:
            return False
        verdicts = [
            self.same(mine, theirs) for row, other in zip(gold.rows, answer.rows) for mine, theirs in zip(row, other)
        ]
        return False if False in verdicts else None if None in verdicts else True

    def order(self, part: Meaning) -> Fraction | float | None:
        """See `Arithmetic`."""
        try:
            return rational(part)
        except UndefinedError:
            return None

    def ratio(self, gold: Meaning, answer: Meaning) -> int | None:
        """See `Arithmetic`."""
        return None

    def shifted(self, gold: Meaning, answer: Meaning) -> bool | None:
        """See `Arithmetic`."""
        return None


_CONSTANTS = frozenset(Symbol(name) for name in CONSTANTS)

__all__ = ["Arithmetic", "ExactArithmetic", "UndefinedError", "infinite", "rational"]
