"""Parse the tokens of an answer into one typed part, by recursive descent; all tokens are used or nothing is read."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.math.atoms import AtomParser
from tasks.math.nodes import (
    Apply,
    Bracketed,
    Collection,
    Combined,
    Congruence,
    Dots,
    Listing,
    Meaning,
    Number,
    Ratio,
    Relation,
    SetBuilder,
    Symbol,
    UnreadableError,
)
from tasks.math.phrases import PhraseParser
from tasks.math.tokens import Token

_SET_OPERATORS = {"cup": "union", "cap": "intersection", "minus": "difference"}
_NEGATED = {"=": "ne", "in": "notin", "mid": "nmid", "equiv": "nequiv"}


def parse(tokens: Sequence[Token], tight: bool = False) -> Meaning:
    """All tokens as one answer.

    Args:
        tokens: what it is written with.
        tight: read `t/RC` as `t/(RC)`, not as `(t/R)C`.

    Raises:
        UnreadableError: they are none, or one that is nested too deep.
    """
    parser = AnswerParser(tokens, tight)
    part = parser.listing()
    if parser.now.kind:
        raise UnreadableError(f"{parser.now.text!r} is left")
    return part


class AnswerParser(AtomParser, PhraseParser):
    """The grammar from lists of statements down to factors."""

    def __init__(self, tokens: Sequence[Token], tight: bool = False) -> None:
        super().__init__(tokens)
        self._tight = tight

    def listing(self) -> Meaning:
        """Statements between commas, "and", "or"."""
        items, joined = self.items()
        if not items:
            raise UnreadableError("nothing")
        return items[0] if len(items) == 1 else Listing(tuple(items), joined)

    def items(self) -> tuple[list[Meaning], str]:
        """Statements up to a closing bracket or the end, and the last word that joins them."""
        items: list[Meaning] = []
        joined = ","
        while self.now.kind not in ("", "close", "}", "row", "&", "end"):
            if items and self.at_qualifier():
                items[-1] = self.qualified(items[-1])
            else:
                items.append(self.statement())
            if self.at("open", "(") and self.ahead().text == "or":  # `0.75 (or 3/4)`
                self.place += 2
                items.append(self.statement())
                self.expect("close", ")")
                joined = "or"
            if not self.at("join"):
                break
            while self.at("join"):
                word = self.take().text
                joined = word if word in ("and", "or") else joined
        return items, joined

    def statement(self) -> Meaning:
        """Sides and what relates them; words that lead to them are left out."""
        self.deeper()
        self.skip_lead()
        name = self.word_name()
        if self.accept("dots"):
            self.depth -= 1
            return Dots()
        sides, operators = [name or self._side()], []
        while self.at("relation") or (self.at("bar", "|") and not self.bars and not self.builders):
            operators.append(self._relation())
            sides.append(self._side())
        part = _related(sides, operators) if operators else sides[0]
        if self.at_qualifier():
            part = self.qualified(part)
        self.depth -= 1
        return part

    def _relation(self) -> str:
        r"""The name of a relation; `\not` turns the one behind it round."""
        name = self.take().text
        if name == "not":
            following = self.expect("relation").text
            if following not in _NEGATED:
                raise UnreadableError(f"not {following}")
            name = _NEGATED[following]
        return "mid" if name == "|" else name

    def _side(self) -> Meaning:
        """A formula, set or quantity; ratios and operations on sets bind least."""
        sign = self.accept("operator", "-") if self.ahead().kind == "money" else False
        if self.accept("money"):
            value = self.sum()
            value = Apply("neg", (value,)) if sign else value
            return self.money(value)
        part = self._operand()
        while self.at("operator", *_SET_OPERATORS):
            operation = _SET_OPERATORS[self.take().text]
            other = self._operand()
            if isinstance(part, Combined) and part.operation == operation and operation != "difference":
                part = Combined(operation, (*part.parts, other))
            else:
                part = Combined(operation, (part, other))
        if (self.at("operator", ":") and not self.builders) or self.at("word", "to"):
            terms = [part]
            while self.accept("operator", ":") or self.accept("word", "to"):
                terms.append(self._operand())
            part = Ratio(tuple(self.formula(term) for term in terms))
        return part

    def _operand(self) -> Meaning:
        """A formula with the words behind it: a unit, things that are counted, `(mod n)`."""
        part = self.sum()
        if self.at("structure", "pmod"):
            self.take()
            part = Apply("modulo", (self.formula(part), self.formula(self.argument())))
        elif self.at("open", "(") and self.ahead().text in ("bmod", "mod"):
            self.place += 2
            part = Apply("modulo", (self.formula(part), self.formula(self.sum())))
            self.expect("close", ")")
        return self.suffixed(part) if self.at_suffix() and not self.at("word", "to") else part

    def sum(self) -> Meaning:
        """Terms with signs between them."""
        self.deeper()
        terms = [self._signed()]
        while self.at("operator", "+", "-", "pm", "mp"):
            sign = self.take().text
            terms.append(_with_sign(sign, self.formula(self.term())))
        self.depth -= 1
        return terms[0] if len(terms) == 1 else Apply("add", tuple(self.formula(term) for term in terms))

    def _signed(self) -> Meaning:
        """A term with any signs before it."""
        signs: list[str] = []
        while self.at("operator", "+", "-", "pm", "mp"):
            signs.append(self.take().text)
        if len(signs) > 2:
            raise UnreadableError("three signs")
        part = self.term()
        for sign in reversed(signs):
            part = _with_sign(sign, self.formula(part))
        return part

    def term(self) -> Meaning:
        """Factors, with or without a sign between them."""
        factors = [self.factor()]
        while True:
            if self.at("operator", "*", "/", "cross", "circ"):
                sign = self.take().text
                factor = self.formula(self._unary())
                while sign == "/" and self._tight and self.at("symbol") and not self.now.spaced:
                    factor = Apply("mul", (factor, self.formula(self.factor())))
                if sign == "circ":
                    factors[-1] = Apply("composed", (self.formula(factors[-1]), factor))
                elif sign != "/" and (_is_vector(factors[-1]) or _is_vector(factor)):
                    factors[-1] = Apply("dot" if sign == "*" else "cross", (self.formula(factors[-1]), factor))
                elif sign == "/":
                    factors = [Apply("div", (self.formula(_product(factors)), factor))]
                else:
                    factors.append(factor)
            elif self.accept("structure", "bmod"):
                return Apply("mod", (self.formula(_product(factors)), self.formula(self.factor())))
            elif self._starts_factor():
                self._beside(factors)
            else:
                break
        if len(factors) > 1:
            for factor in factors:
                self.formula(factor)
        return _product(factors)

    def _unary(self) -> Meaning:
        """A factor behind a sign of multiplication may have a sign of its own."""
        if self.accept("operator", "-"):
            return Apply("neg", (self.formula(self.factor()),))
        self.accept("operator", "+")
        return self.factor()

    def _beside(self, factors: list[Meaning]) -> None:
        """Add the factor right behind another; of two numbers, only those of a mixed number, which is a sum."""
        before = factors[-1]
        if isinstance(before, Number) and self.tokens[self.place - 1].kind == "number" and before.places is None:
            if self.at("structure", "frac"):
                fraction = self.atom()
                if _is_plain_fraction(fraction):
                    factors[-1] = self.postfixed(Apply("add", (before, fraction)))
                else:
                    factors.append(self.postfixed(fraction))
                return
            if self.at("number") and self.ahead().text == "/" and self.ahead(2).kind == "number":
                top = self.factor()
                self.take()
                factors[-1] = Apply("add", (before, Apply("div", (top, self.factor()))))
                return
        if self.at("number") and self.tokens[self.place - 1].kind not in ("close", "}"):
            raise UnreadableError("a number behind a factor")
        factors.append(self.factor())

    def _starts_factor(self) -> bool:
        """True if the token to come begins a factor that multiplies the one before it."""
        token = self.now
        if self.at_word() or self.at_qualifier():
            return False
        if token.kind == "open":
            return token.text not in ("[", ".") and self.ahead().text not in ("bmod", "mod", "or")
        if token.kind == "bar":
            return not self.bars and not self.builders and self._closes_bar()
        if token.kind == "structure":
            return token.text not in ("choose", "over", "pmod", "bmod")
        return token.kind in ("number", "symbol", "function", "decoration", "{", "begin", "word")

    def _closes_bar(self) -> bool:
        """True if another bar follows within the same brackets."""
        depth = 0
        for token in self.tokens[self.place + 1 :]:
            depth += (token.kind in ("open", "{")) - (token.kind in ("close", "}"))
            if depth < 0 or (token.kind in ("join", "relation") and not depth):
                return False
            if token.kind == "bar" and not depth:
                return True
        return False

    def factor(self) -> Meaning:
        """An atom with its powers, factorials, degrees and per cents."""
        self.deeper()
        part = self.postfixed(self.atom())
        self.depth -= 1
        return part

    def brackets(self) -> Meaning:
        """A formula in brackets, a tuple, an interval, a set, or what `|`, floor and ceiling make of a formula."""
        opening = self.take().text
        outer = self.bars, self.builders
        self.bars, self.builders = 0, int(opening == "\\{")
        if opening in ("|", "floor", "ceil", "norm"):
            part: Meaning = Apply({"|": "abs"}.get(opening, opening), (self.formula(self.sum()),))
            self.expect("close", opening)
        elif opening in (".", "\\{") and self.at("begin"):
            part = self.environment(cases=opening == "\\{")
            self.expect("close", ".", "\\}")
        else:
            part = self._set() if opening == "\\{" else self._tuple(opening)
        self.bars, self.builders = outer
        return part

    def _set(self) -> Meaning:
        items, joined = self.items()
        if self.at("bar", "|") or self.at("operator", ":"):
            self.take()
            conditions, joined = self.items()
            self.expect("close", "\\}")
            return _builder(items, conditions, joined)
        self.expect("close", "\\}")
        if items and isinstance(items[0], Relation) and "mid" in items[0].operators:
            head, place = items[0], items[0].operators.index("mid") + 1
            element, condition = _chain(head, 0, place), _chain(head, place, len(head.sides))
            return _builder([element], [condition, *items[1:]], joined)
        return Collection(tuple(items))

    def _tuple(self, opening: str) -> Meaning:
        items, joined = self.items()
        closing = self.expect("close", ")", "]", ">").text
        matched = (opening, closing) in (("(", ")"), ("[", "]"), ("<", ">"))
        if len(items) == 1 and matched and opening != "<":
            return items[0]
        if not items or (not matched and len(items) != 2) or joined == "or":
            raise UnreadableError("brackets of nothing")
        return Bracketed(opening, tuple(items), closing)


def _related(sides: list[Meaning], operators: list[str]) -> Meaning:
    last = sides[-1]
    if "equiv" in operators:
        if operators != ["equiv"]:
            raise UnreadableError("a chain of congruences")
        if isinstance(last, Apply) and last.head == "modulo":
            return Congruence(sides[0], last.args[0], last.args[1])
    return Relation(tuple(sides), tuple(operators))


def _is_vector(part: Meaning) -> bool:
    return isinstance(part, Symbol) and (part.name.startswith("vec(") or part.name == "nabla")


def _with_sign(sign: str, part: Meaning) -> Meaning:
    if sign == "+":
        return part
    if sign == "-" and isinstance(part, Number):
        return Number(-part.value, part.places)
    return Apply("neg" if sign == "-" else sign, (part,))


def _product(factors: list[Meaning]) -> Meaning:
    return factors[0] if len(factors) == 1 else Apply("mul", tuple(factors))


def _chain(relation: Relation, start: int, end: int) -> Meaning:
    """Some sides of a chain, and what relates them."""
    sides = relation.sides[start:end]
    return sides[0] if len(sides) == 1 else Relation(sides, relation.operators[start : end - 1])


def _builder(elements: list[Meaning], conditions: list[Meaning], joined: str) -> Meaning:
    if joined == "or":
        conditions = [Listing(tuple(conditions), joined)]
    if len(elements) != 1 or not conditions:
        raise UnreadableError("a set without an element or a condition")
    return SetBuilder(elements[0], tuple(conditions))


def _is_plain_fraction(part: Meaning) -> bool:
    return isinstance(part, Apply) and part.head == "div" and all(isinstance(number, Number) for number in part.args)
