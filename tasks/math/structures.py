"""Parse what has a syntax of its own in LaTeX: fractions, roots, sums, integrals, limits, and environments."""

from __future__ import annotations

from fractions import Fraction

from tasks.math.cursor import Cursor
from tasks.math.nodes import Apply, Cases, Listing, Matrix, Meaning, Number, Relation, Symbol, UnreadableError
from tasks.math.tokens import Token

_MATRICES = frozenset(["matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "vmatrix", "array", "psmallmatrix"])


class StructureParser(Cursor):
    """The grammar of commands and environments."""

    def structure(self) -> Meaning:
        """A command with its arguments."""
        name = self.take().text
        if name == "frac":
            return self._fraction()
        if name == "sqrt":
            return self._root()
        if name == "binom":
            return Apply("binom", (self.formula(self.argument()), self.formula(self.argument())))
        if name in ("sum", "prod", "int", "lim"):
            return self._bound(name)
        if name == "overline":
            return self.named(f"bar({self.spelled_group() if self.at('{') else self.take().text})")
        if name == "circled":
            return Symbol(f"({self.script()})")
        raise UnreadableError(name)

    def _fraction(self) -> Meaning:
        start = self.place
        top_differential = self._differential()
        if top_differential is not None:
            bottom = self._differential()
            if bottom is not None:
                return self.named(f"d{top_differential}/d{bottom}")
            self.place = start
        top = self.formula(self.argument())
        return Apply("div", (top, self.formula(self.argument())))

    def _differential(self) -> str | None:
        """`{d y}`, `{d^2y}`, `{\\partial}`: what stands behind the d; None for another group."""
        if not self.at("{"):
            return None
        first = self.ahead()
        if not (first.text in ("d", "partial") or (first.kind == "word" and first.text.startswith("d"))):
            return None
        if first.kind == "word" and len(first.text) > 2:
            return None
        place = 2
        while self.ahead(place).kind not in ("}", ""):
            if self.ahead(place).kind in ("open", "relation"):
                return None
            place += 1
        return self.spelled_group().replace(",", "").removeprefix("d").removeprefix("partial")

    def _root(self) -> Meaning:
        degree: Meaning | None = None
        if self.accept("open", "["):
            degree = self.formula(self.sum())
            self.expect("close", "]")
        inside = self.formula(self.atom() if self.at("number") else self.argument())
        return Apply("root", (inside, degree if degree is not None else whole("2")))

    def _bound(self, name: str) -> Meaning:
        """`\\sum_{k=1}^{n} …`, `\\int_a^b … dx`, `\\lim_{x \\to 0} …`."""
        below: Meaning | None = None
        above: Meaning | None = None
        while self.at("operator", "^", "_"):
            if self.take().text == "_":
                below = self.argument()
            else:
                above = self.formula(self.argument())
        if name == "int":
            return self._integral(below, above)
        if not (isinstance(below, Relation) and isinstance(below.sides[0], Symbol) and len(below.sides) == 2):
            raise UnreadableError(f"{name} without bounds")
        if (name == "lim") != (below.operators == ("to",)) or (name != "lim" and above is None):
            raise UnreadableError(f"{name} without bounds")
        body = self.formula(self.term())
        bounds = (below.sides[1],) if above is None else (below.sides[1], above)
        return Apply(name, (body, below.sides[0], *(self.formula(bound) for bound in bounds)))

    def _integral(self, below: Meaning | None, above: Meaning | None) -> Meaning:
        """The body ends at the last `d` of a variable at this depth."""
        depth, end = 0, None
        for place in range(self.place, len(self.tokens)):
            token = self.tokens[place]
            depth += (token.kind in ("open", "{")) - (token.kind in ("close", "}"))
            if depth < 0 or (depth == 0 and token.kind in ("relation", "join")):
                break
            if depth == 0 and ((token.text == "d" and token.kind == "symbol") or _is_differential(token)):
                end = place
                break
        if end is None or below is None or above is None:
            raise UnreadableError("an integral without bounds")
        if _is_differential(self.tokens[end]):
            self.tokens[end : end + 1] = [Token("symbol", "d"), Token("symbol", self.tokens[end].text[1])]
        self.tokens[end] = Token("close", "d")
        body = whole("1") if end == self.place else self.formula(self.sum())
        self.expect("close", "d")
        return Apply("int", (body, Symbol(self.expect("symbol").text), self.formula(below), above))

    def environment(self, cases: bool = False) -> Meaning:
        """A matrix, a system of statements, or a function by cases."""
        name = self.expect("begin").text.rstrip("*")
        if name == "array" and self.at("{"):
            self.spelled_group()
        outer = self.bars, self.builders
        self.bars = self.builders = 0
        rows = self._rows()
        self.bars, self.builders = outer
        if name in _MATRICES and not cases:
            matrix = Matrix(tuple(tuple(self.formula(cell) for cell in row) for row in rows))
            if not rows or len({len(row) for row in rows}) != 1:
                raise UnreadableError("a matrix with rows of several lengths")
            return Apply("det", (matrix,)) if name == "vmatrix" else matrix
        if name not in ("cases", "dcases", "rcases", "array", "aligned", "align", "gathered", "split"):
            raise UnreadableError(name)
        return _system(rows)

    def _rows(self) -> list[list[Meaning]]:
        """The cells of an environment, row by row, and its end."""
        rows: list[list[Meaning]] = [[]]
        while not self.at("end"):
            if self.accept("row"):
                rows.append([])
            elif not self.now.kind:
                raise UnreadableError("an environment without its end")
            elif not (self.accept("&") or self.accept("join")):
                rows[-1].append(self.condition() if rows[-1] else self.listing())
        self.take()
        return [row for row in rows if row]


def whole(digits: str) -> Number:
    """Digits as a number."""
    return Number(Fraction(int(digits)))


def _is_differential(token: Token) -> bool:
    return token.kind == "word" and len(token.text) == 2 and token.text[0] == "d"


def _system(rows: list[list[Meaning]]) -> Meaning:
    """Statements that all hold; with a second column, values and their conditions."""
    if not rows:
        raise UnreadableError("an environment without content")
    if any(len(row) > 2 for row in rows):
        raise UnreadableError("a case with two conditions")
    if any(len(row) == 2 for row in rows):
        return Cases(tuple((row[0], row[1] if len(row) == 2 else None) for row in rows))
    statements = [row[0] for row in rows]
    if not all(isinstance(statement, Relation) for statement in statements):
        raise UnreadableError("a system of values")
    return Listing(tuple(statements), "and") if len(statements) > 1 else statements[0]
