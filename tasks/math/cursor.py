"""A place in the tokens of an answer, with what every part of the parser does there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tasks.math.nodes import FORMULA, Meaning, UnreadableError
from tasks.math.tokens import Token

DEEPEST = 60
"""Levels of nesting of the deepest answer that is read."""
_NOTHING = Token("", "")


class Cursor(ABC):
    """A list of tokens and a place in it; what another part of the parser adds is declared below."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens, self.place, self.depth = list(tokens), 0, 0
        self.bars = self.builders = 0

    @property
    def now(self) -> Token:
        """The token to come; after the last, one without a kind."""
        return self.tokens[self.place] if self.place < len(self.tokens) else _NOTHING

    def ahead(self, places: int = 1) -> Token:
        """A token further on."""
        place = self.place + places
        return self.tokens[place] if 0 <= place < len(self.tokens) else _NOTHING

    def at(self, kind: str, *texts: str) -> bool:
        """True if the token to come is of a kind, and one of some texts if any are given."""
        return self.now.kind == kind and (not texts or self.now.text in texts)

    def take(self) -> Token:
        """The token to come; the place moves on."""
        token = self.now
        self.place += 1
        return token

    def accept(self, kind: str, *texts: str) -> bool:
        """True if the token to come is as asked; the place moves on then."""
        if self.at(kind, *texts):
            self.place += 1
            return True
        return False

    def expect(self, kind: str, *texts: str) -> Token:
        """The token to come, which must be as asked.

        Raises:
            UnreadableError: it is another.
        """
        if not self.at(kind, *texts):
            raise UnreadableError(f"{self.now.text!r} in place of {kind} {' '.join(texts)}")
        return self.take()

    def deeper(self) -> None:
        """Count one level of nesting; the caller takes it off."""
        self.depth += 1
        if self.depth > 6 * DEEPEST:
            raise UnreadableError("too deep")

    def formula(self, part: Meaning) -> Meaning:
        """The part, which must be one that arithmetic works on."""
        if not isinstance(part, FORMULA):
            raise UnreadableError(f"a {type(part).__name__} in a formula")
        return part

    @abstractmethod
    def at_qualifier(self) -> bool:
        """True where a condition begins."""

    @abstractmethod
    def listing(self) -> Meaning:
        """Statements between commas, "and", "or"."""

    @abstractmethod
    def items(self) -> tuple[list[Meaning], str]:
        """Statements up to a closing bracket, and the last word that joins them."""

    @abstractmethod
    def statement(self) -> Meaning:
        """Sides and what relates them."""

    @abstractmethod
    def sum(self) -> Meaning:
        """Terms with signs between them."""

    @abstractmethod
    def term(self) -> Meaning:
        """Factors, with or without a sign between them."""

    @abstractmethod
    def factor(self) -> Meaning:
        """An atom with what stands behind it."""

    @abstractmethod
    def brackets(self) -> Meaning:
        """A part in brackets."""

    @abstractmethod
    def condition(self) -> Meaning:
        """A cell behind the first of a row: a value, or the condition of a case."""

    @abstractmethod
    def argument(self) -> Meaning:
        """An argument of a command."""

    @abstractmethod
    def group(self) -> Meaning:
        """Content of braces."""

    @abstractmethod
    def atom(self) -> Meaning:
        """The smallest part at this place."""

    @abstractmethod
    def named(self, name: str) -> Meaning:
        """A symbol with its subscript and primes."""

    @abstractmethod
    def script(self) -> str:
        """The text of a subscript."""

    @abstractmethod
    def spelled_group(self) -> str:
        """The text of what stands in braces."""
