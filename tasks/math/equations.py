"""Compare equations and other relations, and take the value that an equation states."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

from tasks.math.exact import Arithmetic
from tasks.math.nodes import (
    FORMULA,
    Apply,
    Bracketed,
    Collection,
    Combined,
    Counted,
    Meaning,
    Number,
    Relation,
    SetBuilder,
    Symbol,
    UnitQuantity,
)
from tasks.math.shape import is_name, symbols, walk

_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "=": "=", "ne": "ne", "perp": "perp", "parallel": "parallel",
           "approx": "approx", "sim": "sim", "cong": "cong"}  # fmt: skip
_ORDERED = frozenset(["=", "ne", "lt", "le", "gt", "ge"])
_STATING = frozenset(["=", "approx", "in"])
_SETS = (Bracketed, Collection, SetBuilder, Combined)
_VALUES = (*FORMULA, UnitQuantity, Counted)
_NEAR = Fraction(1, 100)
_FUNCTION_NAMES = frozenset(["f", "g", "h", "F", "G", "H"])


def value_of(relation: Relation, is_gold: bool, arithmetic: Arithmetic) -> tuple[list[Meaning], bool] | None:
    """The values that a chain of equations states, any of which stands for all, and whether they are rounded.

    None if it states none: an inequality, a false equation, an equation to be solved.
    """
    sides, operators = list(relation.sides), list(relation.operators)
    if not set(operators) <= _STATING or ("in" in operators and not isinstance(sides[-1], _SETS)):
        return None
    if is_name(sides[-1]) and not is_name(sides[0]) and len(sides) == 2:
        sides.reverse()
    named = is_name(sides[0]) or (not is_gold and _is_sought(sides[0]))
    values = sides[1:] if named else sides
    if not named and (any(symbols(one) for one in values) or not all(isinstance(one, _VALUES) for one in values)):
        return None
    between = operators[1:] if named else operators
    for (one, other), operator in zip(pairwise(values), between):
        if _consistent(one, other, operator, arithmetic) is False:
            return None
    rounded = operators[0] == "approx" if named else False
    exact = [value for value, operator in zip(values[1:], between) if operator != "approx"]
    return ([values[0], *exact] if "approx" in between else values), rounded


def _is_sought(side: Meaning) -> bool:
    """True for what a problem may ask for: `m + n`, `x^2 + y^2`; not for `2x`, which would be solved."""
    if not isinstance(side, Apply) or not symbols(side):
        return False
    powers = [one for one in walk(side) if isinstance(one, Apply) and one.head == "pow"]
    exponents = {id(inner) for one in powers for inner in walk(one.args[1])}
    return not any(isinstance(one, Number) and id(one) not in exponents for one in walk(side))


def _consistent(one: Meaning, other: Meaning, operator: str, arithmetic: Arithmetic) -> bool | None:
    """False if two sides of a chain cannot both be right."""
    mine, theirs = (side.value if isinstance(side, UnitQuantity | Counted) else side for side in (one, other))
    if not (isinstance(mine, FORMULA) and isinstance(theirs, FORMULA)):
        return True
    if operator == "approx":
        places = arithmetic.order(mine), arithmetic.order(theirs)
        if places[0] is None or places[1] is None:
            return None
        return abs(Fraction(places[0]) - Fraction(places[1])) <= _NEAR * abs(Fraction(places[0]))
    percent = [side.args[0] if isinstance(side, Apply) and side.head == "percent" else side for side in (mine, theirs)]
    same = arithmetic.same(mine, theirs)
    return same if same is not False or percent == [mine, theirs] else arithmetic.same(percent[0], percent[1])


def same_relations(
    gold: Relation, answer: Relation, same: Callable[[Meaning, Meaning], bool | None], arithmetic: Arithmetic
) -> bool | None:
    """True if two relations say the same."""
    sides = _sides_agree(gold, answer, same)
    if sides is True:
        return True
    if len(gold.sides) > 2 or len(answer.sides) > 2:
        return _chains(gold, answer, same, arithmetic, sides)
    mine, theirs = gold.operators[0], answer.operators[0]
    named = _named_values(gold, answer, same)
    if named is not False:
        return named
    if not all(isinstance(side, FORMULA) for side in (*gold.sides, *answer.sides)):
        return sides
    if mine not in _ORDERED or theirs not in (mine, _TURNED[mine]):
        return sides
    sign = arithmetic.ratio(_difference(gold), _difference(answer))
    if sign is None:
        return None
    if mine in ("=", "ne"):
        return bool(sign)
    return sign == (1 if mine == theirs else -1)


def _sides_agree(gold: Relation, answer: Relation, same: Callable[[Meaning, Meaning], bool | None]) -> bool | None:
    """True if all sides are equal, in the same order or in the opposite one."""
    if len(gold.sides) != len(answer.sides):
        return False
    turned = tuple(_TURNED.get(one, "") for one in reversed(answer.operators))
    found: bool | None = False
    for operators, sides in ((answer.operators, answer.sides), (turned, answer.sides[::-1])):
        if operators != gold.operators or _is_numeric(gold) or _is_numeric(answer):
            continue
        verdicts = [same(one, other) for one, other in zip(gold.sides, sides)]
        if all(verdicts):
            return True
        if False not in verdicts:
            found = None
    return found


def _is_numeric(relation: Relation) -> bool:
    return not any(symbols(side) for side in relation.sides)


def _named_values(gold: Relation, answer: Relation, same: Callable[[Meaning, Meaning], bool | None]) -> bool | None:
    """Two statements of the value of one name, one of them perhaps rounded; False if they are something else."""
    if not {*gold.operators, *answer.operators} <= {"=", "approx", "in"}:
        return False
    (mine, value), (theirs, other) = gold.sides, answer.sides
    if not (is_name(mine) and is_name(theirs)):
        return False
    if mine != theirs and not _are_functions(mine, theirs, value):
        return False
    return same(value, other)


def _are_functions(mine: Meaning, theirs: Meaning, value: Meaning) -> bool:
    """True for `y` beside `f(x)` or `y(x)`."""
    for one, other in ((mine, theirs), (theirs, mine)):
        if not (isinstance(one, Symbol) and isinstance(other, Apply) and other.head.startswith("call:")):
            continue
        if other.head[5:] == one.name:
            return True
        if one.name == "y" and other.head[5:] in _FUNCTION_NAMES:
            return set(symbols(value)) >= set(symbols(other.args[0]))
    return False


def _chains(
    gold: Relation,
    answer: Relation,
    same: Callable[[Meaning, Meaning], bool | None],
    arithmetic: Arithmetic,
    sides: bool | None,
) -> bool | None:
    """Chains of equations that state a value, with or without the steps to it."""
    if len(gold.sides) > 2 and _is_numeric(gold) and _is_numeric(answer):
        return sides
    mine, theirs = value_of(gold, True, arithmetic), value_of(answer, False, arithmetic)
    if mine is None or theirs is None:
        return sides
    names = [one.sides[0] for one in (gold, answer) if is_name(one.sides[0])]
    if len(names) == 2 and names[0] != names[1]:
        return sides
    verdicts = [same(one, other) for one in mine[0] for other in theirs[0]]
    return True if True in verdicts else None if None in verdicts else sides


def _difference(relation: Relation) -> Meaning:
    left, right = relation.sides
    return Apply("add", (left, Apply("neg", (right,))))
