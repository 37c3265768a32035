"""Read an answer as one typed part, or as several where its spelling has several meanings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from tasks.math.english import NUMBERS
from tasks.math.moments import moment
from tasks.math.nodes import (
    FORMULA,
    Apply,
    Based,
    Bracketed,
    ChosenLetter,
    Congruence,
    Labelled,
    Listing,
    Meaning,
    Number,
    Qualified,
    Relation,
    Symbol,
    UnitQuantity,
    Unreadable,
    UnreadableError,
)
from tasks.math.parser import parse
from tasks.math.shape import branches, is_name, symbols
from tasks.math.tokens import Token, lex
from tasks.math.units import measure
from tasks.math.wording import ENDLESS_SIGNS, worded

MAX_ANSWER = 1000
"""Characters of the longest answer that is graded; MATH's longest gold has about 160."""

_MOST_ITEMS = 64
_BASED = re.compile(r"(?P<sign>-?) ?\(?(?P<digits>[0-9A-Z]*[0-9][0-9A-Z]*)\)?_\{?(?P<base>\d{1,2}|[a-z]{3,8})\}?")
_LETTERS = frozenset("ABCDEFGHIJ")


@dataclass(frozen=True)
class ReadAnswer:
    """A text, read.

    Attributes:
        spelling: the text in one spelling, to compare what cannot be read.
        readings: what it may mean, the most probable first; `Unreadable` if it is nothing that is known.
    """

    spelling: str
    readings: tuple[Meaning, ...]

    @property
    def is_readable(self) -> bool:
        """False if the text equals nothing but its own spelling."""
        return not isinstance(self.readings[0], Unreadable)


@lru_cache(maxsize=4096)
def read(text: str) -> ReadAnswer:
    """Every meaning of an answer; total, in time linear in its length."""
    bare = " ".join(text.split())
    if not bare or len(text) > MAX_ANSWER:
        return ReadAnswer(bare, (Unreadable(bare),))
    when = moment(_plain(bare))
    if when is not None:
        return ReadAnswer(bare, (when,))
    try:
        tokens = _unwrapped(lex(bare))
    except UnreadableError:
        return ReadAnswer(bare, (Unreadable(bare),))
    spelling = _spelling(tokens)
    if not tokens:
        return ReadAnswer(bare, (Unreadable(bare),))
    readings = list(_meanings(bare, tokens))
    return ReadAnswer(spelling, tuple(readings) or (Unreadable(spelling),))


def _spelling(tokens: Sequence[Token]) -> str:
    return " ".join(token.text for token in tokens)


def _unwrapped(tokens: list[Token]) -> list[Token]:
    """Without braces and brackets around all of it; without commas, colons and equals signs at its ends."""
    start, end = 0, len(tokens)
    while start < end and tokens[end - 1].kind in ("join", "row") and tokens[end - 1].text != "or":
        end -= 1
    while start < end and (tokens[start].kind == "join" or tokens[start].text in ("=", ":", "approx")):
        start += 1
    partners = _partners(tokens)
    while end - start > 2 and partners.get(start) == end - 1 and _is_wrapper(tokens, start, end, partners):
        start, end = start + 1, end - 1
    return tokens[start:end]


def _is_wrapper(tokens: list[Token], start: int, end: int, partners: dict[int, int]) -> bool:
    """True for braces, and for round brackets inside which others stand that hold everything, too."""
    if tokens[start].kind == "{":
        return True
    return (
        tokens[start].text == "(" and tokens[end - 1].text == ")" and tokens[start + 1].text in ("(", "{")
        and partners.get(start + 1) == end - 2
    )  # fmt: skip


def _partners(tokens: Sequence[Token]) -> dict[int, int]:
    """Place of an opening bracket → place of the one that closes it."""
    partners: dict[int, int] = {}
    opened: list[int] = []
    for place, token in enumerate(tokens):
        if token.kind in ("open", "{"):
            opened.append(place)
        elif token.kind in ("close", "}") and opened:
            partners[opened.pop()] = place
    return partners


def _plain(text: str) -> str:
    """A text without the commands around its words."""
    text = re.sub(r"\\(?:[!,;: ]|displaystyle|quad)", "", re.sub(r"\\[()\[\]]", " ", text))
    text = re.sub(r"\\(?:text|textbf|mathrm|mbox) ?\{([^{}]*)\}", r" \1 ", text)
    return text.replace("\\", " ").replace("$", " ")


def _meanings(text: str, tokens: list[Token]) -> Iterator[Meaning]:
    based = _based(tokens)
    if based is not None:
        yield based
        return
    special = _labelled(tokens) or _choice(tokens)
    if special is not None:
        yield special
    if isinstance(special, Labelled):
        return
    words = worded(tokens)
    first = tokens[0]
    if words is not None and first.kind == "symbol" and first.text not in (*ENDLESS_SIGNS, "a", "A"):
        parsed = list(_parsed(text, tokens))
        yield from parsed or [words]
        return
    if words is not None:
        yield words
        if isinstance(words, Listing) or len(tokens) > 2 or not _may_be_product(first):
            return
    yield from _parsed(text, tokens)


def _may_be_product(word: Token) -> bool:
    """True for up to four letters that may be factors; capitals are the name of a figure."""
    return not word.quoted and len(word.text) <= 4 and not word.text.isupper()


def _parsed(text: str, tokens: list[Token]) -> Iterator[Meaning]:
    """The grammar's reading, and other meanings of the same signs."""
    compact = text.replace(" ", "").strip("$")
    if re.fullmatch(r"[+-]?\d+\{,\}(?:\d{1,2}|\d{4,})", compact):  # no list is written so, and no thousands
        decimals = compact.partition(",")[2].lstrip("}")
        value = Fraction(compact.replace("{,}", "."))
        yield Apply("comma", (Number(value, len(decimals)), Symbol("sure")))
        return
    quantity = _short_unit(tokens)
    try:
        part = finished(parse(tokens))
    except UnreadableError:
        part = None
    except RecursionError:
        part = None
    if part is not None:
        yield part
        if "/" in text and (tight := finished(parse(tokens, tight=True))) != part:
            yield tight
        if quantity is not None:
            yield quantity
    elif quantity is not None:
        yield quantity
    if re.fullmatch(r"[+-]?(?:0,\d+|\d+,(?:\d{1,2}|\d{4,}))", compact):
        whole, _, decimals = compact.partition(",")
        yield Apply(
            "comma", (Number(Fraction(compact.replace(",", ".")), len(decimals)), Symbol(_sure(whole, decimals)))
        )
    elif re.fullmatch(r"\d{1,3}(?:,\d{3})+", compact):
        yield Listing(tuple(Number(Fraction(int(digits))) for digits in compact.split(",")))


def _sure(whole: str, decimals: str) -> str:
    """`sure` where the comma separates decimals also of a gold answer, which may be a list of two numbers."""
    sure = len(decimals) >= 4 or len(decimals) == 2 or (whole.lstrip("+-") == "0" and len(decimals) >= 2)
    return "sure" if sure else "unsure"


def finished(part: Meaning) -> Meaning:
    """The part with its `\\pm` written out and the name of a list's first item given to the others."""
    if isinstance(part, Apply) and part.head == "mul" and all(_is_circled(one) for one in part.args):
        return Listing(part.args)
    if isinstance(part, Relation) and part.operators == ("equiv",):
        return Relation(part.sides, ("=",))
    if isinstance(part, Listing):
        if (total := _total(part)) is not None:
            return total
        items = _named(_congruences(list(part.items)))
        items = [branch for item in items for branch in branches(item)]
        if len(items) > _MOST_ITEMS:
            raise UnreadableError("too many items")
        return _with_domains(Listing(tuple(items), part.joined))
    if isinstance(part, Relation) and part.operators == ("=",):
        left, right = part.sides
        if isinstance(left, Bracketed) and isinstance(right, Bracketed) and len(left.items) == len(right.items):
            return Listing(tuple(Relation(pair, ("=",)) for pair in zip(left.items, right.items)), "and")
    expanded = list(branches(part))
    return expanded[0] if len(expanded) == 1 else Listing(tuple(expanded))


def _is_circled(part: Meaning) -> bool:
    return isinstance(part, Symbol) and part.name.startswith("(")


def _total(listing: Listing) -> Meaning | None:
    """`1 hour and 15 minutes` as one quantity: each unit is a smaller one of the same dimension."""
    items = [one for one in listing.items if isinstance(one, UnitQuantity)]
    if listing.joined != "and" or len(items) < len(listing.items):
        return None
    if any(one.dimension != other.dimension or one.scale <= other.scale for one, other in pairwise(items)):
        return None
    terms = [Apply("mul", (one.value, Number(one.scale / items[0].scale))) for one in items]
    return UnitQuantity(Apply("add", tuple(terms)), items[0].dimension, items[0].scale)


def _congruences(items: list[Meaning]) -> list[Meaning]:
    """`n \\equiv 1, 4 \\pmod 5` as two congruences."""
    first, last = items[0], items[-1]
    if not (isinstance(first, Relation) and first.operators == ("equiv",)):
        return items
    if not (isinstance(last, Apply) and last.head == "modulo" and all(isinstance(one, FORMULA) for one in items[1:])):
        return items
    residues = [first.sides[1], *items[1:-1], last.args[0]]
    return [Congruence(first.sides[0], residue, last.args[1]) for residue in residues]


def _named(items: list[Meaning]) -> list[Meaning]:
    """`n = 2, 5, 13` as three equations."""
    first = items[0]
    if not (isinstance(first, Relation) and first.operators == ("=",)):
        return items
    if isinstance(first.sides[0], Bracketed) and all(isinstance(one, Bracketed) for one in items[1:]):
        return [first.sides[1], *items[1:]]
    if not is_name(first.sides[0]):
        return items
    if any(isinstance(item, Relation) and item.operators != ("=",) for item in items):
        return items
    if all(isinstance(item, Number | Symbol | Apply) for item in items[1:]) and not any(
        isinstance(item, Symbol) for item in items[1:]
    ):
        return [first, *(Relation((first.sides[0], item), ("=",)) for item in items[1:])]
    named: list[Meaning] = []
    for item in items:
        plain = isinstance(item, Number | Apply) and all(
            not isinstance(other, Relation) or other.sides[0] == first.sides[0] for other in items
        )
        named.append(Relation((first.sides[0], item), ("=",)) if plain else item)
    return named


def _with_domains(listing: Listing) -> Meaning:
    """`x = k\\pi, k \\in \\mathbb{Z}`: membership of a symbol that the others contain is their condition."""
    domains = [item for item in listing.items if _is_domain(item)]
    others = [item for item in listing.items if not _is_domain(item)]
    if not domains or not others:
        return listing
    used = frozenset().union(*(symbols(item) for item in others))
    if not all(isinstance(one, Relation) and symbols(one.sides[0]) <= used for one in domains):
        return listing
    restricted = tuple(Qualified(item, tuple(domains)) for item in others)
    return restricted[0] if len(restricted) == 1 else Listing(restricted, listing.joined)


def _is_domain(part: Meaning) -> bool:
    return (
        isinstance(part, Relation)
        and part.operators == ("in",)
        and isinstance(part.sides[0], Symbol)
        and part.sides[1] in (Symbol("setZ"), Symbol("setN"), Symbol("setR"), Symbol("setQ"))
    )


def _short_unit(tokens: list[Token]) -> Meaning | None:
    """`20 s`, `5 m/s`: a number, a space, and a unit that might also be letters of a formula."""
    for place, token in enumerate(tokens):
        if place and token.kind in ("symbol", "word") and token.spaced and tokens[place - 1].kind != "operator":
            unit = measure("".join(one.text for one in tokens[place:] if one.kind not in ("{", "}")))
            if unit is None or any(one.kind in ("symbol", "word") for one in tokens[:place]):
                return None
            try:
                value = parse(tokens[:place])
            except UnreadableError:
                return None
            return UnitQuantity(value, *unit) if isinstance(value, Number | Apply) else None
    return None


def _based(tokens: Sequence[Token]) -> Based | None:
    if len(tokens) > 12:
        return None
    text = "".join(token.text for token in tokens).replace("\\", "")
    found = _BASED.fullmatch(text)
    if not found:
        return None
    base = int(found["base"]) if found["base"].isdigit() else NUMBERS.get(found["base"], 0)
    try:
        value = int(found["digits"], base) if 2 <= base <= 36 else None
    except ValueError:
        value = None
    return None if value is None else Based(-value if found["sign"] else value, base)


def _labelled(tokens: Sequence[Token]) -> Labelled | None:
    """`(a) 3 (b) 4`, `(i) 3, (ii) 4`, `(1) 3; (2) 4`."""
    for labels in ("abcdefg", ("i", "ii", "iii", "iv", "v"), "1234567"):
        places: list[int] = []
        for place in range(len(tokens) - 3):
            label = [one.text for one in tokens[place : place + 3]]
            if label == ["(", labels[min(len(places), len(labels) - 1)], ")"] and (places or place == 0):
                places.append(place)
        if len(places) > 1:
            parts = []
            for number, (start, end) in enumerate(zip(places, [*places[1:], len(tokens)])):
                inside = list(tokens[start + 3 : end])
                while inside and inside[-1].kind == "join":
                    inside.pop()
                try:
                    parts.append((labels[number], finished(parse(inside))))
                except UnreadableError:
                    return None
            return Labelled(tuple(parts))
    return None


def _choice(tokens: Sequence[Token]) -> ChosenLetter | None:
    """`(B)`, `(B) 42`, `B) 42`, `B. 42`, `E: …`."""
    kinds = [token.text for token in tokens[:3]]
    if len(kinds) == 3 and kinds[0] == "(" and kinds[1] in _LETTERS and kinds[2] == ")":
        rest = list(tokens[3:])
    elif len(kinds) > 1 and kinds[0] in _LETTERS and kinds[1] in (")", ":"):
        kinds.insert(0, "(")
        rest = list(tokens[2:])
    elif len(tokens) == 2 and kinds[0].lower() in ("option", "choice", "answer") and kinds[1] in _LETTERS:
        return ChosenLetter(kinds[1])
    else:
        return None
    if any(token.text in _LETTERS and rest[place + 1 : place + 2] and rest[place + 1].text == ")"
           for place, token in enumerate(rest)):  # fmt: skip
        return None
    if rest and rest[0].kind == "join":
        return None
    if rest and rest[0].text in (".", ":"):
        rest = rest[1:]
    if not rest:
        return ChosenLetter(kinds[1])
    words = worded(rest)
    try:
        content = words if words is not None else finished(parse(rest))
    except UnreadableError:
        content = None
    return ChosenLetter(kinds[1], content)
