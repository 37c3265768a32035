"""Bring a gold answer and an answer into one language: letters as the gold one uses them, one logarithm, vectors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from itertools import permutations

from tasks.math.nodes import FORMULA, Apply, Bracketed, Matrix, Meaning, Number, Relation, Symbol
from tasks.math.shape import CONSTANTS, heads, replaced, symbols, walk

_CONSTANT = re.compile(r"[ABCDKabcdk](_\d)?")
_SURELY_CONSTANT = re.compile(r"[cC](_\d)?")
_SAME_CONSTANT = {"C": frozenset(["c", "k", "K", "A", "C_1", "c_1"]), "c": frozenset(["C", "C_1", "c_1"])}
_MOST_CONSTANTS = 3
_AXES = ("i", "j", "k")


def is_comma(part: Meaning, which: str) -> bool:
    """True for a number with a decimal comma: `sure`, `unsure` (it may be a list of two numbers), or either ("")."""
    return isinstance(part, Apply) and part.head == "comma" and which in ("", getattr(part.args[1], "name", ""))


def in_one_language(gold: Meaning, answer: Meaning) -> tuple[Meaning, Meaning]:
    """Both with letters as the gold answer uses them, and logarithms of one base."""
    parts = [part.args[0] if is_comma(part, "") and isinstance(part, Apply) else part for part in (gold, answer)]
    variables = {
        one.sides[0].name
        for one in walk(parts[0])
        if isinstance(one, Relation) and isinstance(one.sides[0], Symbol) and one.sides[0].name in CONSTANTS
    }
    if variables:
        parts = [replaced(part, lambda one: _as_variable(one, variables)) for part in parts]
    if any("binom" in heads(part) for part in parts):
        parts = [replaced(part, _as_binomial) for part in parts]
    parts = [as_matrix(parts[0], parts[1]), as_matrix(parts[1], parts[0])]
    parts[1] = _with_argument(parts[0], parts[1])
    for natural, bare in (parts, parts[::-1]):
        if "ln" in heads(natural) and not _has_bare_log(natural) and _has_bare_log(bare) and "ln" not in heads(bare):
            parts = [replaced(part, _as_natural) for part in parts]
            break
    return parts[0], parts[1]


def _as_variable(part: Meaning, variables: set[str]) -> Meaning | None:
    return Symbol(f"{part.name} ") if isinstance(part, Symbol) and part.name in variables else None


def _as_binomial(part: Meaning) -> Meaning | None:
    """`C(10, 3)` beside a binomial coefficient."""
    called = isinstance(part, Apply) and part.head == "call:C" and len(part.args) == 2
    return Apply("binom", part.args) if called and isinstance(part, Apply) else None


def as_matrix(part: Meaning, other: Meaning) -> Meaning:
    """`[[1, 2], [3, 4]]` as a matrix, beside one; anything else as it is."""
    if not isinstance(other, Matrix) or not isinstance(part, Bracketed) or part.opening != "[":
        return part
    rows = [row.items for row in part.items if isinstance(row, Bracketed) and row.opening == "["]
    whole = len(rows) == len(part.items) and len({len(row) for row in rows}) == 1
    return Matrix(tuple(rows)) if whole else part


def _with_argument(gold: Meaning, answer: Meaning) -> Meaning:
    """`f(t) = 2t` with the argument of the gold `f(x) = …`."""
    names = [_argument(one) for one in (gold, answer)]
    if names[0] is None or names[1] is None or names[0] == names[1] or names[0][1] in symbols(answer):
        return answer
    (function, mine), (other, theirs) = names[0], names[1]
    return replaced(answer, partial(_renamed, {theirs: mine})) if function == other else answer


def _argument(part: Meaning) -> tuple[str, str] | None:
    """Function and argument of `f(x) = …`."""
    left = part.sides[0] if isinstance(part, Relation) and part.operators == ("=",) else None
    if isinstance(left, Apply) and left.head.startswith("call:") and len(left.args) == 1:
        argument = left.args[0]
        return (left.head, argument.name) if isinstance(argument, Symbol) else None
    return None


def _has_bare_log(part: Meaning) -> bool:
    return any(isinstance(one, Apply) and one.head == "log" and len(one.args) == 1 for one in walk(part))


def _as_natural(part: Meaning) -> Meaning | None:
    if isinstance(part, Apply) and part.head == "log" and len(part.args) == 1:
        return Apply("ln", (replaced(part.args[0], _as_natural),))
    return None


def with_constants(gold: Meaning, answer: Meaning) -> Iterator[Meaning]:
    """The answer with its arbitrary constants called like the gold answer's, in every order; nothing if none are."""
    mine, theirs = symbols(gold), symbols(answer)
    constants = sorted(name for name in mine if _SURELY_CONSTANT.fullmatch(name))
    variables = mine - set(constants)
    others = sorted(theirs - variables)
    if not constants or len(others) != len(constants) or len(constants) > _MOST_CONSTANTS or not variables <= theirs:
        return
    # A letter alone may be a quantity, such as the speed of light: only the other case is certainly the same.
    known = _SAME_CONSTANT.get(constants[0]) if len(constants) == 1 else None
    if not all(name in known if known is not None else _CONSTANT.fullmatch(name) for name in others):
        return
    for order in permutations(constants):
        names = dict(zip(others, order))
        if any(one != other for one, other in names.items()):
            yield replaced(answer, partial(_renamed, names))


def _renamed(names: dict[str, str], part: Meaning) -> Meaning | None:
    return Symbol(names[part.name]) if isinstance(part, Symbol) and part.name in names else None


def as_vector(part: Meaning) -> Meaning:
    """`2i - 3j` with the unit vectors i, j, k as a tuple; anything else as it is."""
    if not isinstance(part, FORMULA):
        return part
    names = {one.name for one in walk(part) if isinstance(one, Symbol)}
    axes = next((axes for axes in _spellings() if axes[0] in names and axes[1] in names), None)
    if axes is None or heads(part) - {"add", "mul", "neg", "div", "root"}:
        return part
    items = []
    for axis in axes[: 3 if axes[2] in names else 2]:
        values = {name: Number(Fraction(int(name == axis))) for name in axes}
        items.append(replaced(part, partial(_valued, values)))
    return Bracketed("<", tuple(items), ">")


def _spellings() -> Iterator[tuple[str, ...]]:
    for accent in ("hat", "vec"):
        yield tuple(f"{accent}({axis})" for axis in _AXES)
    yield _AXES


def _valued(values: dict[str, Number], part: Meaning) -> Meaning | None:
    return values.get(part.name) if isinstance(part, Symbol) else None
