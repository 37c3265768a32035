"""Decide whether two answers mean the same, with Math-Verify's parser and comparison and SymPy's arithmetic.

Runs in a worker that may be killed: what stands in an answer decides how long this takes. Nothing here evaluates
Python that an answer contains. Math-Verify alone would accept `6=5` for 5 and 10⁻²¹ for 10⁻²⁰.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import sympy
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from math_verify.grader import is_assignment_relation, is_equation, is_relation, take_last_relation

logging.getLogger("math_verify").setLevel(logging.CRITICAL)

_TARGETS = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
_DIGITS = 30
# Relative difference up to which two values are one: both exact, or one of them written as a decimal.
_EXACT, _ROUNDED = 1e-20, 1e-6
# Exact numbers are subtracted to this many digits; relative to them, their difference vanishes below the second.
_MOST_DIGITS, _VANISHING = 200, sympy.Float("1e-100")
# Arguments at which two formulas are compared: of both signs, large and small, in no simple relation to each other.
_POINTS = ("0.73718256", "-1.61927341", "2.90415537", "-0.31415826", "5.47721093", "1.20205690")


def service(_: bytes) -> Callable[[Any], bool]:
    """Service of a worker of `tasks.bounded`: (gold, answer) → True if they are equal."""
    return lambda pair: equal(*pair)


def equal(gold: str, answer: str) -> bool:
    """True if two normalised answers mean the same.

    Raises:
        MemoryError: the comparison needs more memory than the process may have.
    """
    gold, answer = _same_logarithm(gold, answer)
    gold_value, answer_value = _parsed(gold), _parsed(answer)
    if gold_value is None or answer_value is None:
        return False
    gold_value, answer_value = _bare(gold_value, answer_value)
    if answer_value is None:
        return False
    same = _same_scalar(gold_value, answer_value)
    if same is not None:
        return same
    if not verify(gold_value, answer_value, timeout_seconds=None, allow_set_relation_comp=True):
        return False
    pairs = zip(_entries(gold_value), _entries(answer_value))
    return all(_same_scalar(one, other) is not False for one, other in pairs)


_BARE_LOG = re.compile(r"\\log(?![a-zA-Z_ ]| ?_)|\\log (?! ?_)")


def _same_logarithm(gold: str, answer: str) -> tuple[str, str]:
    """Read a logarithm without a base as the natural one where the other side is natural."""
    for natural, bare in ((gold, answer), (answer, gold)):
        if "\\ln" in natural and "\\log" not in natural and _BARE_LOG.search(bare):
            return _BARE_LOG.sub(r"\\ln ", gold), _BARE_LOG.sub(r"\\ln ", answer)
    return gold, answer


@lru_cache(maxsize=1024)
def _parsed(answer: str) -> Any:
    """A SymPy object, or None if the answer cannot be read."""
    found = parse(f"${answer}$", _TARGETS, fallback_mode="no_fallback", parsing_timeout=None)
    return _same_symbols(found[0]) if found else None


def _same_symbols(value: Any) -> Any:
    """The value with one symbol per name, real, and the imaginary unit for i; the parser guesses by the spelling."""
    names = {symbol: symbol.name for symbol in value.free_symbols if isinstance(symbol, sympy.Symbol)}
    canonical = {s: sympy.I if name == "i" else sympy.Symbol(name, real=True) for s, name in names.items()}
    changed = {symbol: other for symbol, other in canonical.items() if symbol != other}
    return value.xreplace(changed) if changed else value


def _bare(gold: Any, answer: Any) -> tuple[Any, Any]:
    """Both without a leading `x =`, where only one has it; the answer is None if it states a false equation."""
    if is_equation(answer) and not is_relation(gold):
        for equation in answer.atoms(sympy.Eq):
            if not equation.lhs.free_symbols and _same_scalar(equation.lhs, equation.rhs) is not True:
                return gold, None
        return gold, take_last_relation(answer).rhs
    if is_assignment_relation(gold) and not is_relation(answer):
        return take_last_relation(gold).rhs, answer
    return gold, answer


def _same_scalar(gold: Any, answer: Any) -> bool | None:
    """True if two numbers or formulas have the same values; None if they are something else or have no value.

    Numbers without a decimal point are compared exactly. Formulas are compared at a few points to thirty digits, which
    is quicker than `simplify` and misses nothing that it finds.
    """
    if not (isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr)):
        return None
    if isinstance(gold, sympy.Symbol) or isinstance(answer, sympy.Symbol):
        return None
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    rounded = gold.has(sympy.Float) or answer.has(sympy.Float)
    if not symbols and not rounded and (exact := _same_exactly(gold.doit(), answer.doit())) is not None:
        return exact
    tolerance = _ROUNDED if rounded else _EXACT
    compared = False
    for shift in range(len(_POINTS) if symbols else 1):
        points = {s: sympy.Rational(_POINTS[(i + shift) % len(_POINTS)]) for i, s in enumerate(symbols)}
        one, other = _value(gold, points), _value(answer, points)
        if one is None or other is None:
            continue
        if abs(one - other) > tolerance * max(abs(one), abs(other)):
            return False
        compared = True
    return True if compared else None


def _same_exactly(gold: Any, answer: Any) -> bool | None:
    """True if two exact numbers are equal; None where that is not known, or they have no finite value."""
    if gold.is_Rational and answer.is_Rational:
        return bool(gold == answer)
    difference = (gold - answer).evalf(_DIGITS, maxn=_MOST_DIGITS)
    scale = max(abs(gold.evalf(_DIGITS)), abs(answer.evalf(_DIGITS)))
    if not (difference.is_number and difference.is_finite and scale.is_finite):
        return None
    return bool(abs(difference) <= scale * _VANISHING)


def _value(formula: Any, points: dict[Any, Any]) -> Any:
    if formula.has(sympy.Sum, sympy.Product):  # their closed form has values at every point
        formula = formula.doit()
    value = formula.subs(points).doit().evalf(_DIGITS)
    return value if value.is_number and value.is_finite else None


def _entries(value: Any) -> list[Any]:
    """The numbers in a matrix, tuple, interval or finite set, in an order that two equal ones share."""
    if isinstance(value, sympy.MatrixBase):
        return list(value.flat())
    if isinstance(value, sympy.Interval):
        return [value.start, value.end]
    if isinstance(value, sympy.FiniteSet):
        return sorted(value.args, key=sympy.default_sort_key)
    return list(value.args) if isinstance(value, sympy.Tuple) else []
