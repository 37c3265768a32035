"""Read answers in words: names, "no solution", "all real numbers", "infinitely many", numbers that are spelled out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from tasks.math.english import FILLERS, NUMBERS, SCALES
from tasks.math.nodes import Collection, Listing, Meaning, Number, Symbol, Words
from tasks.math.tokens import Token

_NO_SUCH = re.compile(
    r"(?:there )?no (?:(?:real|integer|possible|valid|such|positive) )*(?:solutions?|roots?)(?: exists?)?"
)
_ENDLESS = re.compile(
    r"(?:infinite|infinitely many|infinite number|many infinitely)"
    r"(?: (?:many|solutions?|of solutions|number solutions?))*"
)
ENDLESS_SIGNS = ("infty", "propto")
"""Symbols that "solutions" follows where there are infinitely many; the second is a common slip for the first."""
_ALL_REAL = re.compile(
    r"(?:all|any|every|set all|set of all) (?:real numbers?|reals?|real values?)|reals?|real numbers"
)


def worded(tokens: Sequence[Token]) -> Meaning | None:
    """An answer in words alone: one, or several that "and", "or" or commas join; None if it has anything else."""
    if not any(token.kind == "word" for token in tokens):
        return None
    phrases: list[list[Token]] = [[]]
    for token in tokens:
        if token.kind == "join":
            phrases.append([])
        elif token.kind in ("word", "symbol") or (token.text == "-" and phrases[-1]):
            phrases[-1].append(token)
        else:
            return None
    phrases = [phrase for phrase in phrases if phrase]
    if all(len(token.text) == 1 for token in tokens):
        return None  # letters are symbols
    parts = [_phrase([token.text for token in phrase if token.text != "-"], phrase[0]) for phrase in phrases]
    known = [part for part in parts if part is not None]
    if len(known) < len(phrases):
        return None
    joined = next((token.text for token in tokens if token.text in ("and", "or")), ",")
    return known[0] if len(known) == 1 else Listing(tuple(known), joined)


def _phrase(spoken: list[str], first: Token) -> Meaning | None:
    """Words without a comma as what they mean; None where they may be the letters of a product."""
    if len(spoken) == 1 and len(first.text) == 1:
        return Symbol(first.text)
    if len(spoken) == 1 and not first.quoted and len(first.text) == 2 and first.text.lower() != "no":
        return None
    lowered = " ".join(word.lower() for word in spoken)
    if spoken[0] in ENDLESS_SIGNS:
        return Words(("infinitely", "many")) if lowered.split()[1:] in (["solutions"], ["many", "solutions"]) else None
    if _NO_SUCH.fullmatch(lowered) or lowered in ("empty set", "the empty set"):
        return Collection(())
    if lowered == "infinity":
        return Symbol("infty")
    if lowered == "dne":
        return Words(("not", "exist"))
    if _ENDLESS.fullmatch(lowered):
        return Words(("infinitely", "many"))
    if _ALL_REAL.fullmatch(lowered):
        return Symbol("setR")
    if (number := _spelled_number(lowered.split())) is not None:
        return number
    if len(spoken) == 1 and re.fullmatch("[A-Z]{3,}", spoken[0]):
        return Words((spoken[0],))
    meaning = tuple(word.lower() for word in spoken if word.lower() not in FILLERS)
    return Words(meaning or tuple(spoken))


def _spelled_number(words: Sequence[str]) -> Number | None:
    """`twenty four`, `one hundred twenty`, `five thousand`."""
    total = current = 0
    for word in words:
        if word in NUMBERS:
            current += NUMBERS[word]
        elif word in ("hundred", "thousand", "million", "billion") and current:
            current *= SCALES[word]
            total, current = (total + current, 0) if word != "hundred" else (total, current)
        elif word != "and" or not (total or current):
            return None
    return Number(Fraction(total + current)) if words else None
