"""The shape of a part, whatever it means: its symbols, the two branches of `\\pm`, whether it is only a name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from tasks.math.nodes import Apply, Meaning, Number, Symbol

CONSTANTS = frozenset(["pi", "e", "i", "infty", "emptyset"])


def children(part: Meaning) -> Iterator[Meaning]:
    """The parts directly inside a part."""
    for value in vars(part).values():
        yield from _parts(value)


def _parts(value: object) -> Iterator[Meaning]:
    if isinstance(value, tuple):
        for one in value:
            yield from _parts(one)
    elif isinstance(value, Meaning):
        yield value


def walk(part: Meaning) -> Iterator[Meaning]:
    """A part and everything inside it."""
    left = [part]
    while left:
        one = left.pop()
        yield one
        left.extend(children(one))


def replaced(part: Meaning, change: Callable[[Meaning], Meaning | None]) -> Meaning:
    """The part with every part inside it changed; None from `change` leaves one as it is, but not what it holds."""
    new = change(part)
    if new is not None:
        return new
    fields: dict[str, Any] = {
        name: _changed(value, change) for name, value in vars(part).items() if isinstance(value, tuple | Meaning)
    }
    return dataclasses.replace(part, **fields) if fields else part


def substituted(part: Meaning, name: str, value: Meaning) -> Meaning:
    """The part with a value in place of a symbol."""
    return replaced(part, lambda one: value if one == Symbol(name) else None)


def _changed(value: object, change: Callable[[Meaning], Meaning | None]) -> object:
    if isinstance(value, tuple):
        return tuple(_changed(one, change) for one in value)
    return replaced(value, change) if isinstance(value, Meaning) else value


def symbols(part: Meaning) -> frozenset[str]:
    """Names in a part that may be variables."""
    return frozenset(one.name for one in walk(part) if isinstance(one, Symbol) and one.name not in CONSTANTS)


def heads(part: Meaning) -> frozenset[str]:
    """Names of the operations in a part."""
    return frozenset(one.head for one in walk(part) if isinstance(one, Apply))


def branches(part: Meaning) -> Iterator[Meaning]:
    """A part for each sign of its `\\pm`: all of them at once, `\\mp` the other way."""
    if not heads(part) & {"pm", "mp"}:
        yield part
        return
    for upper in (True, False):

        def choose(one: Meaning, upper: bool = upper) -> Meaning | None:
            if not (isinstance(one, Apply) and one.head in ("pm", "mp")):
                return None
            inside = replaced(one.args[0], choose)
            if (one.head == "pm") == upper:
                return inside
            return Number(-inside.value, inside.places) if isinstance(inside, Number) else Apply("neg", (inside,))

        yield replaced(part, choose)


def is_name(part: Meaning) -> bool:
    """True for what an answer may be called: `x`, `f(x)`, `AB`, `h/r`, `|z|`, `\\angle A`."""
    if isinstance(part, Symbol):
        return True
    if not isinstance(part, Apply):
        return False
    if part.head.startswith("call:"):
        return True
    if part.head == "mul":
        return len(part.args) <= 5 and all(isinstance(one, Symbol) and _is_point(one.name) for one in part.args)
    if part.head == "pow":  # the name of an inverse
        return isinstance(part.args[0], Symbol) and part.args[1] in (Number(Fraction(-1)), Symbol("T"))
    if part.head == "div":
        return all(is_name(one) for one in part.args)
    return part.head in ("abs", "norm") and all(is_name(one) for one in part.args)


def _is_point(name: str) -> bool:
    return name[:1].isupper() or name in ("angle", "triangle")
