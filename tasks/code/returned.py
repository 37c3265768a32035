"""Compare what a program returned with what was expected, outside the sandbox and on plain data.

Types count: a bool is only a bool, an int only an int, text only text; where a float is expected, an int of that value
will do, and floats agree within a tolerance. Two liberties depend on where the expected values come from. JSON has
no tuples and no generators, so these pass for the list of their items. An assert says `==`, so a float passes for an
int of exactly its value, and 1 for True (but not True for 1).

Values are compared as `tasks.sandbox.values` writes them, without building them first: the numbers in a set or dict
that a program sends may be chosen so that hashing them takes for ever.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tasks.errors import TaskError

_LONGEST_DECIMAL = 1000
_ITERATED = (
    "generator",
    "map",
    "filter",
    "zip",
    "enumerate",
    "range",
    "dict_keys",
    "dict_values",
    "list_reverseiterator",
)


@dataclass(frozen=True)
class EqualityRules:
    """Rules for comparing values.

    Attributes:
        tolerance: two floats agree if they differ by at most this, relative to the larger.
        within: or by at most this, absolutely. None is as precise as the expected one is written, and at most
            `tolerance`; two whole numbers then agree only if they are equal.
        tuples_are_lists: a list and a tuple with the same items are the same.
        as_asserts: where an int is expected, a float of exactly that value will do, and 0 or 1 for a bool.
    """

    tolerance: float = 1e-6
    within: float | None = None
    tuples_are_lists: bool = True
    as_asserts: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise TaskError(f"float tolerance is {self.tolerance}: give a number in [0, 1)")
        if self.within is not None and not self.within >= 0:
            raise TaskError(f"floats shall agree within {self.within}: give a number from 0")

    def same(self, expected: Any, actual: Any) -> bool:
        """True if two written values are the same.

        Raises:
            ValueError: one of them is no written value.
            RecursionError: nested too deeply.
        """
        mine, theirs = typed(expected), typed(actual)
        match mine[0]:
            case "float":
                number = _number(theirs)
                return number is not None and self.close(mine[1], number)
            case "int" if theirs[0] in ("float", "fraction", "decimal"):
                return self.as_asserts and bool(mine[1] == _number(theirs))
            case "bool" if theirs[0] in ("int", "float"):
                return self.as_asserts and bool(mine[1] == theirs[1])
            case "complex":
                return theirs[0] == "complex" and all(map(self.close, mine[1], theirs[1]))
            case "list" if self.tuples_are_lists and (items := _iterated(theirs)) is not None:
                return self.same(mine[1], items)
            case "list" | "tuple":
                alike = ("list", "tuple") if self.tuples_are_lists else (mine[0],)
                return theirs[0] in alike and len(mine[1]) == len(theirs[1]) and all(map(self.same, mine[1], theirs[1]))
            case "dict":
                return theirs[0] == "dict" and self._same_dict(mine[1], theirs[1])
            case "other":
                return False
            case "set":
                return theirs[0] == "set" and set(map(_canonical, mine[1])) == set(map(_canonical, theirs[1]))
        return mine == theirs

    def _same_dict(self, expected: list[list[Any]], actual: list[list[Any]]) -> bool:
        mine, theirs = ({_canonical(key): value for key, value in pairs} for pairs in (expected, actual))
        return mine.keys() == theirs.keys() and all(self.same(value, theirs[key]) for key, value in mine.items())

    def close(self, expected: float, actual: float, written: str = "") -> bool:
        """True if two numbers agree within the tolerance; NaN agrees with itself.

        Args:
            expected: the right number.
            actual: the other.
            written: the right one as the data set writes it; empty is as Python does.
        """
        if math.isnan(expected):
            return math.isnan(actual)
        try:
            absolute = self.within
            if absolute is None:
                if float(expected).is_integer() and float(actual).is_integer():
                    return expected == actual
                absolute = min(self.tolerance, _half_of_last_place(written or repr(expected)))
            return math.isclose(expected, actual, rel_tol=self.tolerance, abs_tol=absolute)
        except OverflowError:  # an int beyond the range of floats
            return False


def _iterated(value: Typed) -> list[Any] | None:
    """Items of what Python makes lists of, such as a generator or `map(…)`; None for anything else."""
    name, content = value
    if name == "other" and isinstance(content, dict) and content.get("type") in _ITERATED:
        items = content.get("items")
        return items if isinstance(items, list) else None
    return None


def _half_of_last_place(written: str) -> float:
    exponent = Decimal(written).as_tuple().exponent
    return 0.5 * 10.0**exponent if isinstance(exponent, int) else 0.0


def _number(value: Typed) -> float | None:
    """A real number that is not a bool; None for anything else, and for what a float cannot hold."""
    name, content = value
    try:
        match name:
            case "int" | "float":
                return content  # type: ignore[no-any-return]
            case "decimal":
                return float(content)
            case "fraction" if content[1]:
                return float(content[0] / content[1])
    except (OverflowError, ValueError):
        pass
    return None


Typed = tuple[str, Any]
"""The type of a written value, and its content: a scalar, a list of written items, or a list of [key, value]."""


def typed(written: Any) -> Typed:
    """Read one level of a written value.

    Raises:
        ValueError: it is none.
    """
    if isinstance(written, dict):
        if len(written) == 1 and (tag := next(iter(written))) in _TAGS:
            return _TAGS[tag](written[tag])
        return "dict", list(written.items())
    for kind, name in _PLAIN.items():
        if type(written) is kind:
            return name, written
    raise ValueError(f"{type(written).__name__} is no written value")


_PLAIN = {type(None): "none", bool: "bool", int: "int", float: "float", str: "str", list: "list"}


def _items(name: str) -> Callable[[Any], Typed]:
    def read(content: Any) -> Typed:
        if not isinstance(content, list):
            raise ValueError(f"the items of a {name} are no list")
        return name, content

    return read


def _pairs(content: Any) -> Typed:
    if not isinstance(content, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in content):
        raise ValueError("the items of a dict are no pairs")
    return "dict", content


def _text(name: str, convert: Callable[[str], Any]) -> Callable[[Any], Typed]:
    def read(content: Any) -> Typed:
        if not isinstance(content, str):
            raise ValueError(f"a {name} is not written as text")
        return name, convert(content)

    return read


def _complex(content: Any) -> Typed:
    parts = [typed(part) for part in content] if isinstance(content, list) else []
    if [name for name, _ in parts] != ["float", "float"]:
        raise ValueError("a complex number is not written as two floats")
    return "complex", [value for _, value in parts]


def _fraction(content: Any) -> Typed:
    parts = [typed(part) for part in content] if isinstance(content, list) else []
    if [name for name, _ in parts] != ["int", "int"]:
        raise ValueError("a fraction is not written as two integers")
    return "fraction", [value for _, value in parts]


def _named(content: Any) -> Typed:
    if not isinstance(content, list) or len(content) != 2 or not isinstance(content[1], list):
        raise ValueError("a named tuple is not written as names and items")
    return "tuple", content[1]


def _plain_decimal(text: str) -> str:
    """One text for all equal numbers, however many zeros end them."""
    try:
        sign, digits, exponent = Decimal(text[:_LONGEST_DECIMAL]).as_tuple()
    except ArithmeticError as error:
        raise ValueError(f"no decimal number: {text[:20]}") from error
    if not isinstance(exponent, int):
        return f"{'-' * sign}{'inf' if exponent == 'F' else 'nan'}"
    short = "".join(map(str, digits)).rstrip("0")
    return f"{'-' * sign}{short}e{exponent + len(digits) - len(short)}" if short.strip("0") else "0e0"


_TAGS: dict[str, Callable[[Any], Typed]] = {
    "$tuple": _items("tuple"),
    "$set": _items("set"),
    "$frozenset": _items("set"),
    "$dict": _pairs,
    "$float": _text("float", float),
    "$int": _text("int", lambda text: int(text, 16)),
    "$bytes": _text("bytes", bytes.fromhex),
    "$other": lambda content: ("other", content),
    "$complex": _complex,
    "$bytearray": _text("bytes", bytes.fromhex),
    "$decimal": _text("decimal", _plain_decimal),
    "$fraction": _fraction,
    "$deque": _items("deque"),
    "$datetime": _text("datetime", str),
    "$date": _text("date", str),
    "$time": _text("time", str),
    "$timedelta": _items("timedelta"),
    "$named": _named,
}


def _canonical(written: Any) -> bytes:
    """A digest of a value; types count: 1, 1.0 and True in a set, or as keys, are three. Linear in what is written."""
    name, content = typed(written)
    match name:
        case "list" | "tuple" | "deque":
            parts = [_canonical(item) for item in content]
        case "set":
            parts = sorted({_canonical(item) for item in content})
        case "dict":
            parts = sorted(_canonical(key) + _canonical(value) for key, value in content)
        case "int":
            parts = [hex(content).encode()]
        case "bytes":
            parts = [content]
        case _:
            parts = [json.dumps(content).encode()]
    digest = hashlib.sha256(f"{name} {len(parts)} ".encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


# What an assert may apply to a result before it compares: `set(f(x)) == {1}`.


def through(name: str, written: Any) -> Any:
    """`name(value)` for a written value, written again.

    Raises:
        ValueError: the value has no items, or they have no order.
    """
    return THROUGH[name](written)


def _contents(written: Any) -> list[Any]:
    name, content = typed(written)
    match name:
        case "list" | "tuple" | "set" | "str" | "deque":
            return list(content)
        case "dict":
            return [key for key, _ in content]
        case "other" if isinstance(content, dict) and isinstance(content.get("items"), list):
            return list(content["items"])
    raise ValueError(f"a {name} has no items")


def _truth(written: Any) -> bool:
    name, content = typed(written)
    if name == "other":
        return isinstance(content, dict) and content.get("truth") is True
    return any(content) if name == "complex" else bool(content)


def _sorted(written: Any) -> list[Any]:
    items = _contents(written)
    try:
        return sorted(items, key=_sortable)
    except TypeError as error:
        raise ValueError(str(error)) from error


def _sortable(written: Any) -> Any:
    name, content = typed(written)
    match name:
        case "list" | "tuple":
            return tuple(map(_sortable, content))
        case "bool" | "int" | "float" | "str" | "bytes":
            return content
    raise ValueError(f"a {name} has no order")


THROUGH: dict[str, Callable[[Any], Any]] = {
    "bool": _truth,
    "len": lambda written: len(_contents(written)),
    "list": _contents,
    "set": lambda written: {"$set": _contents(written)},
    "sorted": _sorted,
    "tuple": lambda written: {"$tuple": _contents(written)},
}
