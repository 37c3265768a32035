"""Compare sets: of real numbers by their spans, others by how they are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tasks.math.exact import Arithmetic, ExactArithmetic
from tasks.math.nodes import Bracketed, Collection, Combined, Listing, Meaning, Relation, SetBuilder, Symbol
from tasks.math.realsets import RealSet, UnorderedError, normal, real_set
from tasks.math.shape import replaced
from tasks.math.verdicts import Equal, all_of, matched

_SETS = (SetBuilder, Combined, Bracketed)


class SetComparison(ABC):
    """Equality of sets."""

    arithmetic: Arithmetic

    @abstractmethod
    def same(self, gold: Meaning, answer: Meaning) -> Equal:
        """True if two parts mean the same."""

    def same_sets(self, gold: Meaning, answer: Meaning) -> Equal:
        """True if two sets are equal; False also where they are no sets."""
        if not any(isinstance(one, _SETS) or _is_inequality(one) for one in (gold, answer)):
            return False
        if isinstance(gold, Bracketed) and isinstance(answer, Bracketed):
            return False
        try:
            pair = [real_set(unnamed(one), self.arithmetic) for one in (gold, answer)]
            if pair[0] is None or pair[1] is None:
                return False
            return self._same_spans(pair[0], pair[1])
        except UnorderedError:
            return None

    def _same_spans(self, gold: RealSet, answer: RealSet) -> Equal:
        if gold.variable and answer.variable and gold.variable != answer.variable:
            return False
        try:
            mine, theirs = normal(gold.pieces, self.arithmetic), normal(answer.pieces, self.arithmetic)
        except UnorderedError:
            mine, theirs = gold.pieces, answer.pieces
            if len(mine) != len(theirs):
                return None if isinstance(self.arithmetic, ExactArithmetic) else False
        if len(mine) != len(theirs):
            return False
        return matched(mine, theirs, self._same_piece)

    def _same_piece(self, mine: Any, theirs: Any) -> Equal:
        if (mine.low_closed, mine.high_closed) != (theirs.low_closed, theirs.high_closed):
            return False
        return all_of(
            (one is None and other is None) or (one is not None and other is not None and self.same(one, other))
            for one, other in ((mine.low, theirs.low), (mine.high, theirs.high))
        )

    def same_written(self, gold: Meaning, answer: Meaning) -> Equal:
        """True if two sets of anything are written in the same way, but for names and order."""
        if isinstance(gold, Combined) and isinstance(answer, Combined):
            if gold.operation != answer.operation or len(gold.parts) != len(answer.parts):
                return False
            if gold.operation == "difference":
                return all_of(self.same(one, other) for one, other in zip(gold.parts, answer.parts))
            return matched(gold.parts, answer.parts, self.same)
        if not (isinstance(gold, SetBuilder) and isinstance(answer, SetBuilder)):
            return False
        mine, theirs = gold.element, answer.element
        if isinstance(mine, Symbol) and isinstance(theirs, Symbol):
            renamed = replaced(answer, lambda one: mine if one == theirs else None)
            assert isinstance(renamed, SetBuilder)
            answer = renamed
        return all_of((self.same(mine, answer.element), matched(gold.conditions, answer.conditions, self.same)))


def _is_inequality(part: Meaning) -> bool:
    if isinstance(part, Listing):
        return all(_is_inequality(one) for one in part.items)
    if isinstance(part, Relation):
        return bool({"lt", "le", "gt", "ge", "ne", "notin", "in"} & set(part.operators))
    return part in (Symbol("setR"), Symbol("emptyset"))


def unnamed(part: Meaning) -> Meaning:
    """`D = (0, 1)` and `x \\in \\{1, 2\\}` without their names."""
    if isinstance(part, Relation) and len(part.sides) == 2 and isinstance(part.sides[0], Symbol):
        last = part.sides[1]
        if part.operators == ("=",) and isinstance(last, Bracketed | SetBuilder | Combined | Collection):
            return last
        if part.operators == ("in",) and isinstance(last, Collection):
            return last
    return part
