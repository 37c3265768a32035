"""The parts that an answer is made of once it has been read; every class is one kind of answer."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


class UnreadableError(ValueError):
    """A text is no answer of the grammar, or too deep or too large to be read as one."""


@dataclass(frozen=True)
class Number:
    """A number as it is written.

    Attributes:
        value: its exact value.
        places: digits behind the decimal point; None for an integer.
    """

    value: Fraction
    places: int | None = None


@dataclass(frozen=True)
class Symbol:
    r"""A name: `x`, `\\alpha` as `alpha`, `x_{1}` as `x_1`, `\\bar x` as `bar(x)`."""

    name: str


@dataclass(frozen=True)
class Apply:
    """An operation on formulas: `add`, `mul`, `pow`, `sin`, `call:f`, ….

    Attributes:
        head: its name.
        args: its operands, formulas (of `sum`, `prod`, `int` and `lim`: the body, the bound symbol, the bounds).
    """

    head: str
    args: tuple[Meaning, ...]


@dataclass(frozen=True)
class Matrix:
    """A matrix, row by row."""

    rows: tuple[tuple[Meaning, ...], ...]


@dataclass(frozen=True)
class UnitQuantity:
    """A formula times a unit.

    Attributes:
        value: the formula.
        dimension: exponents of the base dimensions, sorted by name; a unit of its own kind is a dimension, too.
        scale: how many base units one unit is.
    """

    value: Meaning
    dimension: tuple[tuple[str, int], ...]
    scale: Fraction = Fraction(1)


@dataclass(frozen=True)
class Counted:
    """A number of things, `7 apples`: the words behind it, in the singular."""

    value: Meaning
    noun: tuple[str, ...]


@dataclass(frozen=True)
class Ratio:
    """`1:2:3`."""

    terms: tuple[Meaning, ...]


@dataclass(frozen=True)
class Based:
    """A numeral with its base, `17_9`."""

    value: int
    base: int


@dataclass(frozen=True)
class Bracketed:
    """A tuple, or an interval if it has two items: only what it is compared with tells which."""

    opening: str
    items: tuple[Meaning, ...]
    closing: str


@dataclass(frozen=True)
class Collection:
    """A finite set, `{1, 2}`; without items, the empty set."""

    items: tuple[Meaning, ...]


@dataclass(frozen=True)
class SetBuilder:
    """`{x | conditions}`: all values of an expression under conditions."""

    element: Meaning
    conditions: tuple[Meaning, ...]


@dataclass(frozen=True)
class Combined:
    """Sets joined by one operation: `union`, `intersection` or `difference`."""

    operation: str
    parts: tuple[Meaning, ...]


@dataclass(frozen=True)
class Relation:
    """A chain such as `0 < x <= 1` or `m = 200 + 4 = 204`: one operator fewer than sides."""

    sides: tuple[Meaning, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Congruence:
    """`n = 1 (mod 4)` with three bars."""

    left: Meaning
    right: Meaning
    modulus: Meaning


@dataclass(frozen=True)
class Listing:
    """Several answers: in no order, unless dots stand among them.

    Attributes:
        items: the answers.
        joined: `and` or `or` if that word joins them, else a comma.
    """

    items: tuple[Meaning, ...]
    joined: str = ","


@dataclass(frozen=True)
class Dots:
    """The dots of a sequence."""


@dataclass(frozen=True)
class Cases:
    """A function by cases: pairs of a value and its condition (None for "otherwise")."""

    branches: tuple[tuple[Meaning, Meaning | None], ...]


@dataclass(frozen=True)
class Qualified:
    """A statement and what restricts it: `x = 2k`, `k` an integer."""

    statement: Meaning
    conditions: tuple[Meaning, ...]


@dataclass(frozen=True)
class Labelled:
    """Parts of an answer under their labels: `(a) 3 (b) 4`."""

    parts: tuple[tuple[str, Meaning], ...]


@dataclass(frozen=True)
class ChosenLetter:
    """A letter of a multiple-choice question, and what stands behind it."""

    letter: str
    content: Meaning | None = None


@dataclass(frozen=True)
class Moment:
    """A date, or a time of day; what was not written is None."""

    kind: str
    fields: tuple[str | None, ...]


@dataclass(frozen=True)
class Words:
    """An answer in words, without those that carry no meaning."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Unreadable:
    """A text that the grammar does not cover, as it is spelled: it equals nothing else."""

    spelling: str


Meaning = (
    Number
    | Symbol
    | Apply
    | Matrix
    | UnitQuantity
    | Counted
    | Ratio
    | Based
    | Bracketed
    | Collection
    | SetBuilder
    | Combined
    | Relation
    | Congruence
    | Listing
    | Dots
    | Cases
    | Qualified
    | Labelled
    | ChosenLetter
    | Moment
    | Words
    | Unreadable
)
"""Anything that an answer may be."""

FORMULA = (Number, Symbol, Apply, Matrix)
"""The kinds that arithmetic works on."""
