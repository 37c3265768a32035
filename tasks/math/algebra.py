"""Decide equality of formulas with SymPy: exactly where they are numbers, else at points, to thirty digits.

Runs in a worker that may be killed: what stands in an answer decides how long this takes. Nothing here evaluates
Python that an answer contains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy

from tasks.math.equality import same_answers
from tasks.math.exact import ExactArithmetic, UndefinedError, infinite, rounds_to
from tasks.math.nodes import Apply, Matrix, Meaning, Number, Symbol, UnreadableError
from tasks.math.read import read
from tasks.math.shape import walk

_DIGITS = 30
# Relative difference up to which two values are one: both exact, or exactly one of them written as a decimal.
_EXACT, _ROUNDED = 1e-20, 1e-6
# Exact numbers are subtracted to this many digits; relative to them, their difference vanishes below the second.
_MOST_DIGITS, _VANISHING = 200, sympy.Float("1e-100")
_MOST_BITS = 200_000
_MOST_COUNTED = 100_000
_SIGNIFICANT = 4
# Arguments at which two formulas are compared, in no simple relation to each other: of both signs, then positive ones.
_MIXED = ("0.73718256", "-1.61927341", "2.90415537", "-0.31415826", "5.47721093", "1.20205690")
_POSITIVE = ("1.73718256", "0.61927341", "2.90415537", "3.31415826", "0.27721093", "1.20205690")
_POINTS = (*((_MIXED, shift) for shift in range(6)), *((_POSITIVE, shift) for shift in range(3)))

_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}
_ANGLES = frozenset(["sin", "cos", "tan", "cot", "sec", "csc"])
_FUNCTIONS = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
    "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "arccot": sympy.acot, "arcsec": sympy.asec,
    "arccsc": sympy.acsc, "sinh": sympy.sinh, "cosh": sympy.cosh, "tanh": sympy.tanh, "coth": sympy.coth,
    "sech": sympy.sech, "csch": sympy.csch, "arcsinh": sympy.asinh, "arccosh": sympy.acosh, "arctanh": sympy.atanh,
    "ln": sympy.log, "exp": sympy.exp, "abs": sympy.Abs, "floor": sympy.floor, "ceil": sympy.ceiling,
    "factorial": sympy.factorial, "double_factorial": sympy.factorial2, "binom": sympy.binomial, "gcd": sympy.gcd,
    "lcm": sympy.lcm, "max": sympy.Max, "min": sympy.Min, "mod": sympy.Mod, "sgn": sympy.sign, "erf": sympy.erf,
    "permutations": sympy.ff, "Re": sympy.re, "Im": sympy.im, "arg": sympy.arg,
    "cbrt": lambda inside: sympy.real_root(inside, 3),
}  # fmt: skip


def service(_: bytes) -> Callable[[Any], bool]:
    """Service of a worker of `tasks.bounded`: (gold, answer) → True if they are equal."""
    arithmetic = SymbolicArithmetic()
    return lambda pair: same_answers(read(pair[0]), read(pair[1]), arithmetic) is True


class SymbolicArithmetic(ExactArithmetic):
    """Equality of formulas, as far as SymPy knows it."""

    def same(self, gold: Meaning, answer: Meaning, rounded: bool = False) -> bool | None:
        """See `tasks.math.exact.Arithmetic`."""
        exact = super().same(gold, answer, rounded)
        if exact is not None:
            return exact
        try:
            mine, theirs = _translated(gold), _translated(answer)
        except (UnreadableError, UndefinedError):
            return False
        if isinstance(mine, sympy.MatrixBase) or isinstance(theirs, sympy.MatrixBase):
            return _same_entries(mine, theirs)
        places = _significant(gold)
        if rounded or (places is not None and not _has_decimals(answer)):
            nearest = _number(theirs)
            if nearest is not None and isinstance(gold, Number) and (rounded or (places or 0) >= _SIGNIFICANT):
                return rounds_to(gold, nearest)
        return _same(mine, theirs, _tolerance(gold, answer))

    def order(self, part: Meaning) -> Fraction | float | None:
        """See `tasks.math.exact.Arithmetic`."""
        exact = super().order(part)
        try:
            return exact if exact is not None else _number(_translated(part))
        except (UnreadableError, UndefinedError):
            return None

    def ratio(self, gold: Meaning, answer: Meaning) -> int | None:
        """See `tasks.math.exact.Arithmetic`."""
        try:
            mine, theirs = _translated(gold), _translated(answer)
        except (UnreadableError, UndefinedError):
            return 0
        if isinstance(mine, sympy.MatrixBase) or isinstance(theirs, sympy.MatrixBase) or not mine.free_symbols:
            return 0
        tolerance = _tolerance(gold, answer)
        sign = _ratio(mine, theirs, tolerance)
        if sign or (mine.is_polynomial() and theirs.is_polynomial()):
            return sign
        return abs(_ratio(_numerator(mine), _numerator(theirs), tolerance))

    def shifted(self, gold: Meaning, answer: Meaning) -> bool | None:
        """See `tasks.math.exact.Arithmetic`."""
        try:
            difference = _translated(gold) - _translated(answer)
        except (UnreadableError, UndefinedError, TypeError):
            return False
        values = [value for value in _values(difference, sorted(difference.free_symbols, key=str)) if value is not None]
        if len(values) < 2:
            return False
        scale = max(1, *(abs(value) for value in values))
        return all(abs(value - values[0]) <= _EXACT * scale for value in values)


def _tolerance(gold: Meaning, answer: Meaning) -> float:
    return _ROUNDED if _has_decimals(gold) != _has_decimals(answer) else _EXACT


def _has_decimals(part: Meaning) -> bool:
    return any(isinstance(one, Number) and one.places is not None for one in walk(part))


def _significant(part: Meaning) -> int | None:
    """Digits of a decimal that say how precise it is; None for an integer."""
    if not isinstance(part, Number) or part.places is None:
        return None
    return len(str(abs(int(part.value * 10**part.places))))


# Formulas as SymPy's.


@lru_cache(maxsize=1024)
def _translated(part: Meaning) -> Any:
    """A formula in SymPy's terms.

    Raises:
        UnreadableError: it holds something that SymPy has no word for, or a number that is too large.
        UndefinedError: it is infinite or undefined.
    """
    value = _expression(part, False, {})
    if isinstance(value, sympy.MatrixBase):
        return value
    if value.has(sympy.zoo, sympy.nan, sympy.oo, -sympy.oo):
        raise UndefinedError(str(part)[:80])
    if value.has(sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit):
        value = value.doit()
        if value.has(sympy.zoo, sympy.nan, sympy.oo, -sympy.oo):
            raise UndefinedError(str(part)[:80])
    return value


def _expression(part: Meaning, angle: bool, bound: dict[str, Any]) -> Any:
    if isinstance(part, Number):
        return sympy.Rational(part.value.numerator, part.value.denominator)
    if isinstance(part, Symbol):
        if part.name == "infty":
            raise UndefinedError("infinity in a formula")
        return bound.get(part.name) or _CONSTANTS.get(part.name) or sympy.Symbol(part.name, real=True)
    if isinstance(part, Matrix):
        return sympy.Matrix([[_expression(cell, angle, bound) for cell in row] for row in part.rows])
    if not isinstance(part, Apply):
        raise UnreadableError(type(part).__name__)
    if part.head in ("sum", "prod", "int", "lim"):
        return _bound(part, bound)
    args = [_expression(one, angle or part.head in _ANGLES, bound) for one in part.args]
    return _applied(part.head, args, angle)


def _applied(head: str, args: list[Any], angle: bool) -> Any:
    if head == "add":
        total = args[0]
        for one in args[1:]:
            total = total + one
        return total
    if head == "mul":
        product = args[0]
        for one in args[1:]:
            product = product * one
        return product
    if head == "neg":
        return -args[0]
    if head == "div":
        return args[0] / args[1]
    if head == "pow":
        return _power(*args)
    if head == "root":
        return _root(*args)
    if head == "degree":
        return args[0] * sympy.pi / 180 if angle else args[0]
    if head == "percent":
        return args[0] / 100
    if head in ("log", "lg", "lb"):
        return sympy.log(args[0]) / sympy.log(args[1] if len(args) > 1 else 2 if head == "lb" else 10)
    if head == "det":
        return args[0].det() if isinstance(args[0], sympy.MatrixBase) else sympy.Symbol(f"det({args[0]})", real=True)
    if head in _FUNCTIONS:
        if head in ("factorial", "double_factorial", "binom", "permutations"):
            _check_counted(args)
        return _FUNCTIONS[head](*args)
    if head.startswith("call:") or head in ("norm", "deg", "dim", "ker", "tr"):
        return sympy.Symbol(f"{head}({','.join(map(str, args))})", real=True)
    raise UnreadableError(head)


def _power(base: Any, exponent: Any) -> Any:
    if base == 0 and exponent.is_number and not exponent.is_positive:
        raise UndefinedError("a power of zero")
    if base.is_Rational and exponent.is_Rational:
        bits = max(base.p.bit_length(), base.q.bit_length()) * abs(exponent)
        if bits > _MOST_BITS:
            raise UnreadableError("a huge power")
    return base**exponent


def _root(inside: Any, degree: Any) -> Any:
    if degree == 0:
        raise UndefinedError("a root of degree zero")
    if degree.is_Integer and degree % 2 == 1 and inside.is_number and inside.is_negative:
        return sympy.real_root(inside, degree)
    return inside ** (1 / degree)


def _check_counted(args: Sequence[Any]) -> None:
    if any(one.is_number and (one.is_infinite or abs(one) > _MOST_COUNTED) for one in args):
        raise UnreadableError("a huge number of things")


def _bound(part: Apply, bound: dict[str, Any]) -> Any:
    variable = part.args[1]
    if not isinstance(variable, Symbol):
        raise UnreadableError("no variable")
    own = sympy.Symbol(variable.name, **({"real": True} if part.head in ("int", "lim") else {"integer": True}))
    body = _expression(part.args[0], False, {**bound, variable.name: own})
    limits = [infinite(one) * sympy.oo if infinite(one) else _expression(one, False, bound) for one in part.args[2:]]
    if part.head == "lim":
        return sympy.limit(body, own, limits[0])
    kind = {"sum": sympy.Sum, "prod": sympy.Product, "int": sympy.Integral}[part.head]
    return kind(body, (own, *limits)).doit()


# Values.


def _number(value: Any) -> Fraction | None:
    """A real number to thirty digits."""
    if value.free_symbols:
        return None
    number = value.evalf(_DIGITS)
    if not (number.is_real and number.is_finite and number.is_Float | number.is_Rational):
        return None
    return Fraction(str(sympy.Rational(str(number))))


def _same(mine: Any, theirs: Any, tolerance: float) -> bool:
    symbols = sorted(mine.free_symbols | theirs.free_symbols, key=str)
    if not symbols:
        return _same_exactly(mine, theirs) if tolerance == _EXACT else _near(_at(mine, {}), _at(theirs, {}), tolerance)
    if mine == theirs:
        return True
    pairs = list(zip(_values(mine, symbols), _values(theirs, symbols)))
    imaginary = mine.has(sympy.I) or theirs.has(sympy.I)
    known = [(one, other) for one, other in pairs if one is not None and other is not None]
    real = [(one, other) for one, other in known if one.is_real and other.is_real]
    compared = known if imaginary or not real else real
    return len(compared) >= 1 and all(_near(one, other, tolerance) for one, other in compared)


def _same_exactly(mine: Any, theirs: Any) -> bool:
    """True if two exact numbers are equal."""
    if mine.is_Rational and theirs.is_Rational:
        return bool(mine == theirs)
    difference = (mine - theirs).evalf(_DIGITS, maxn=_MOST_DIGITS)
    scale = max(abs(mine.evalf(_DIGITS)), abs(theirs.evalf(_DIGITS)))
    if not (difference.is_number and difference.is_finite and scale.is_finite):
        return False
    return bool(abs(difference) <= scale * _VANISHING)


def _same_entries(mine: Any, theirs: Any) -> bool:
    if not (isinstance(mine, sympy.MatrixBase) and isinstance(theirs, sympy.MatrixBase)) or mine.shape != theirs.shape:
        return False
    return all(_same(one, other, _EXACT) for one, other in zip(mine.flat(), theirs.flat()))


def _values(formula: Any, symbols: Sequence[Any]) -> list[Any]:
    """The formula's value at every set of points; None where it has none."""
    values = []
    for points, shift in _POINTS:
        at = {symbol: sympy.Rational(points[(place + shift) % len(points)]) for place, symbol in enumerate(symbols)}
        values.append(_at(formula, at))
    return values


def _at(formula: Any, points: dict[Any, Any]) -> Any:
    value = formula.subs(points) if points else formula
    value = value.doit().evalf(_DIGITS)
    return value if value.is_number and value.is_finite else None


def _near(one: Any, other: Any, tolerance: float) -> bool:
    if one is None or other is None:
        return False
    return bool(abs(one - other) <= tolerance * max(abs(one), abs(other)))


def _ratio(mine: Any, theirs: Any, tolerance: float) -> int:
    """The sign of theirs / mine if that is the same at every point, 0 if it is not."""
    symbols = sorted(mine.free_symbols | theirs.free_symbols, key=str)
    ratios = []
    for one, other in zip(_values(mine, symbols), _values(theirs, symbols)):
        if one is None or other is None or not (one.is_real and other.is_real):
            continue
        if one == 0 or other == 0:
            return 0
        ratios.append(other / one)
    if len(ratios) < 2 or not all(_near(ratio, ratios[0], 10 * tolerance) for ratio in ratios):
        return 0
    return 1 if ratios[0] > 0 else -1


def _numerator(formula: Any) -> Any:
    return sympy.together(formula).as_numer_denom()[0]
