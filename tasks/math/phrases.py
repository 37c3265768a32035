"""Parse the words around formulas: units, things that are counted, conditions, and what leads to an answer."""

from __future__ import annotations

import re
from fractions import Fraction

from tasks.math.cursor import Cursor
from tasks.math.english import (
    COUNTED_FILLERS,
    DOMAINS,
    LEADS,
    LINKS,
    MEANING,
    ORDINALS,
    QUALIFIERS,
    SCALES,
    SHORT,
    UNIVERSAL,
)
from tasks.math.nodes import (
    Apply,
    Counted,
    Listing,
    Meaning,
    Number,
    Qualified,
    Relation,
    Symbol,
    UnitQuantity,
    UnreadableError,
    Words,
)
from tasks.math.tokens import Token
from tasks.math.units import MONEY, is_unit, measure

_MOST_WORDS = 8


class PhraseParser(Cursor):
    """The grammar of words."""

    def at_word(self) -> bool:
        """True at a word that is no product of letters."""
        token = self.now
        if token.kind == "symbol" and token.text == "mu":
            return self.ahead().kind == "word" and self.ahead().quoted
        if token.kind == "symbol" and token.text in ("C", "F"):
            before, earlier = self.ahead(-1), self.ahead(-2)
            return before.kind == "degree" or (before.kind == "}" and earlier.kind == "degree")
        if token.kind == "open" and token.text == "(":
            return _is_word(self.ahead()) or _is_noted(self.ahead(), self.ahead(2)) or self.at_qualifier()
        if self.at("structure", "frac"):
            return self.ahead().kind == "{" and self.ahead(2).kind == "word" and self.ahead(2).quoted
        return _is_word(token)

    def at_suffix(self) -> bool:
        """True at a word that says what the formula before it counts or measures."""
        return self.at_word() and not self.at_qualifier()

    def at_qualifier(self) -> bool:
        """True where a condition begins: `if x > 0`, `(k \\in \\mathbb{Z})`, `k is an integer`."""
        token, following = self.now, self.ahead()
        if token.kind == "word":
            return token.text.lower() in QUALIFIERS
        if token.kind == "open" and token.text == "(":
            if following.kind == "symbol":
                return self.ahead(2).text == "in" or self.ahead(2).text in ("is", "are")
            return following.text in QUALIFIERS
        return token.kind == "symbol" and following.kind == "word" and following.text in ("is", "are", "any")

    def skip_lead(self) -> None:
        """Leave out words before a formula that say nothing: "the answer is"."""
        place = 0
        while _is_word(self.ahead(place)) and self.ahead(place).text.lower() in LEADS:
            place += 1
        if place and self.ahead(place).text == ":":
            place += 1
        if place and self.ahead(place).kind not in ("", "word", "join", "relation"):
            self.place += place

    def word_name(self) -> Symbol | None:
        """`\\text{Total area} = 12`: words as the name of a value."""
        place = 0
        while _is_word(self.ahead(place)):
            place += 1
        if not place or self.ahead(place).text not in ("=", "approx"):
            return None
        words = [self.take().text.lower() for _ in range(place)]
        return Symbol(" ".join(word for word in words if word not in COUNTED_FILLERS) or " ".join(words))

    def money(self, value: Meaning) -> Meaning:
        """A quantity whose sign of money stands before it."""
        sign = next(token for token in reversed(self.tokens[: self.place]) if token.kind == "money")
        base, size = MONEY[sign.text]
        words = self._words() if self.at_suffix() else []
        while words and words[0].lower() in SCALES:
            value = Apply("mul", (self.formula(value), Number(Fraction(SCALES[words.pop(0).lower()]))))
        if words and measure(" ".join(words)) != (((base, 1),), size) and _noun(words) is None:
            raise UnreadableError(" ".join(words))
        return UnitQuantity(self.formula(value), ((base, 1),), size)

    def suffixed(self, value: Meaning) -> Meaning:
        """A formula with the words behind it, which must be a unit, or the name of what is counted."""
        self.formula(value)
        words = self._words()
        if words and words[0] in ORDINALS:
            words.pop(0)
        while words and words[0].lower() in SCALES:
            value = Apply("mul", (value, Number(Fraction(SCALES[words.pop(0).lower()]))))
        if not words:
            return value
        part = _measured(value, words)
        if isinstance(part, UnitQuantity) and self.at("number"):
            part = self._and_smaller(part)
        return part

    def _and_smaller(self, larger: UnitQuantity) -> Meaning:
        """`3 hours 30 minutes`: a second number with a smaller unit of the same dimension."""
        smaller = self.suffixed(self.factor())
        if (
            not isinstance(smaller, UnitQuantity)
            or smaller.dimension != larger.dimension
            or smaller.scale >= larger.scale
        ):
            raise UnreadableError("two quantities")
        share = Number(smaller.scale / larger.scale)
        total = Apply("add", (larger.value, Apply("mul", (smaller.value, share))))
        return UnitQuantity(total, larger.dimension, larger.scale)

    def _words(self) -> list[str]:
        """Words, signs of units and their powers, up to something else."""
        words: list[str] = []
        while len(words) <= 4 * _MOST_WORDS:
            token = self.now
            if self.at_qualifier():
                break
            if token.kind == "symbol" and token.text == "mu" and self.ahead().kind == "word":
                self.take()
                words.append(f"μ{self.take().text}")
            elif self.at("symbol", "Omega") and words:
                self.take()
                words[-1] += "Omega"
            elif (
                token.kind == "word"
                or (token.kind == "symbol" and (not words or self.ahead(-1).text in "/*^"))
                or (token.kind == "operator" and token.text in "/*" and self.ahead().kind in ("word", "symbol"))
            ):
                words.append(self.take().text)
            elif self.at("operator", "^") and words:
                self.take()
                words.append(f"^{self._power()}")
            elif self.at("operator", "-") and self.ahead().kind == "word" and words:
                self.take()
            elif self.at("open", "(") and (_is_word(self.ahead()) or _is_noted(self.ahead(), self.ahead(2))):
                self.take()
                words += self._words()
                self.expect("close", ")")
            elif self.at("structure", "frac"):
                words += self._fraction_of_units()
            else:
                break
        return words

    def _power(self) -> str:
        if not self.at("{"):
            return self.take().text
        self.take()
        sign = "-" if self.accept("operator", "-") else ""
        power = self.expect("number").text
        self.expect("}")
        return sign + power

    def _fraction_of_units(self) -> list[str]:
        self.take()
        words: list[str] = []
        for sign in ("", "/"):
            self.expect("{")
            words += [sign] * bool(sign) + self._words()
            self.expect("}")
        return words

    # Conditions.

    def qualified(self, part: Meaning) -> Meaning:
        """The part with the conditions behind it."""
        conditions = self._conditions()
        if isinstance(part, Listing):
            return Listing(tuple(_restricted(item, conditions) for item in part.items), part.joined)
        return _restricted(part, conditions)

    def _conditions(self) -> list[Meaning]:
        bracketed = self.accept("open", "(")
        conditions: list[Meaning] = []
        pending: list[Symbol] = []
        domain, universal = "", False
        while True:
            token = self.now
            word = token.text.lower()
            if token.kind == "word" and word in ("otherwise", "else"):
                self.take()
                conditions.append(Words(("otherwise",)))
            elif token.kind == "word" and word in LINKS:
                domain = domain or ("setR" if word.startswith("constant") else "")
                universal |= word in UNIVERSAL
                self.take()
            elif token.kind == "word" and word in DOMAINS:
                domain = domain or DOMAINS[word]
                self.take()
            elif token.kind == "word" and word == "positive" and self.ahead().text.lower() in ("integer", "integers"):
                self.take()
                domain = "setN"
            elif token.kind == "symbol" and (
                self.ahead().kind in ("word", "", "close") or (pending and not conditions)
            ):
                pending.append(Symbol(self.take().text))
            elif self.at("join") and pending and self.ahead().kind == "symbol" and self.ahead(2).kind != "relation":
                self.take()
            elif token.kind in ("", "join", "close", "}", "row", "end", "&"):
                break
            else:
                conditions.append(self.statement())
        if bracketed:
            self.expect("close", ")")
        if domain:
            conditions += [Relation((symbol, Symbol(domain)), ("in",)) for symbol in pending]
        elif pending and not universal:
            raise UnreadableError("a condition on nothing")
        return conditions

    def condition(self) -> Meaning:
        """A cell behind the first of a row: a value, or the condition of a case."""
        while self.now.kind == "word" and self.now.text.lower() in QUALIFIERS - {"otherwise"}:
            self.take()
        if self.now.kind == "word" and self.now.text.lower() in ("otherwise", "else"):
            self.take()
            return Words(("otherwise",))
        return self.listing()


def _is_word(token: Token) -> bool:
    """True for a word of English or a unit, not for letters that are a product."""
    if token.kind != "word":
        return False
    text = token.text
    if token.quoted or text.lower() in SHORT or len(text) > 5:
        return True
    if text.isupper():  # points of a figure
        return False
    if is_unit(text) and (len(text) > 2 or text in ("cm", "mm", "km", "kg", "ft", "lb", "mL", "ml", "Hz", "kW", "dm")):
        return True
    return len(text) >= 3 and token.spaced and bool(re.search("[aeiou]", text.lower()))


def _is_noted(token: Token, following: Token) -> bool:
    """True for words in brackets: `(packs of cookies)`."""
    return token.kind == "word" and len(token.text) >= 3 and following.kind in ("word", "close")


def _measured(value: Meaning, words: list[str]) -> Meaning:
    """The value in a unit, or of things that are counted."""
    text = re.sub(r" (\^)", r"\1", " ".join(words))
    lowered = text.lower()
    if lowered in ("percent", "percents", "per cent"):
        return Apply("percent", (value,))
    if isinstance(value, Apply) and value.head == "degree":
        if text in ("C", "Celsius", "celsius", "F", "Fahrenheit", "fahrenheit"):
            return UnitQuantity(value.args[0], (("celsius" if text[0] in "Cc" else "fahrenheit", 1),))
        raise UnreadableError(text)
    if words[0].lower() in ("degree", "degrees"):
        if len(words) == 1:
            return Apply("degree", (value,))
        return _measured(Apply("degree", (value,)), words[1:])
    unit = measure(text)
    if unit is not None:
        return UnitQuantity(value, *unit) if unit[0] else value
    noun = _noun(words)
    if noun is None:
        raise UnreadableError(text)
    return Counted(value, noun)


def _noun(words: list[str]) -> tuple[str, ...] | None:
    """Name of the things that are counted, in the singular; None if the words say more than that."""
    plain = [word.lower() for word in words]
    if len(plain) > _MOST_WORDS or any(word in MEANING or not word.isalpha() for word in plain):
        return None
    if all(len(word) < 2 for word in plain):
        return None
    return tuple(sorted({word[:-1] if word.endswith("s") else word for word in plain if word not in COUNTED_FILLERS}))


def _restricted(part: Meaning, conditions: list[Meaning]) -> Meaning:
    return Qualified(part, tuple(conditions)) if conditions else part
