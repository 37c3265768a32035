"""Compare answers with a parameter or a condition: functions by cases, `x = k\\pi` for whole k, congruences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations
from typing import Any

from tasks.math.exact import Arithmetic
from tasks.math.nodes import (
    FORMULA,
    Apply,
    Cases,
    Congruence,
    Listing,
    Meaning,
    Number,
    Qualified,
    Relation,
    SetBuilder,
    Symbol,
    Words,
)
from tasks.math.shape import replaced, substituted, symbols
from tasks.math.verdicts import Equal, all_of, any_of, matched

_MOST_PARAMETERS = 3


class FamilyComparison(ABC):
    """Equality of the kinds that hold for many values."""

    arithmetic: Arithmetic

    @abstractmethod
    def same(self, gold: Meaning, answer: Meaning) -> Equal:
        """True if two parts mean the same."""

    def _congruences(self, gold: Meaning, answer: Meaning) -> Equal:
        if not (isinstance(gold, Congruence) and isinstance(answer, Congruence)):
            return False
        modulus = self.same(gold.modulus, answer.modulus)
        difference = Apply("add", (gold.right, Apply("neg", (answer.right,))))
        rest = Apply("mod", (difference, gold.modulus))
        residue = any_of((self.same(gold.right, answer.right), self.arithmetic.same(Number(Fraction(0)), rest)))
        return all_of((modulus, self.same(gold.left, answer.left), residue))

    def _cases(self, gold: Meaning, answer: Meaning) -> Equal:
        mine, theirs = _as_cases(gold), _as_cases(answer)
        if mine is None or theirs is None or len(mine) != len(theirs):
            return False
        if len(mine) == 1:
            return False
        open_ends = sum(_is_otherwise(one) for _, one in mine), sum(_is_otherwise(one) for _, one in theirs)
        if open_ends[0] != open_ends[1]:
            mine = [(value, None if _is_otherwise(condition) else condition) for value, condition in mine]

        def same_branch(one: Any, other: Any) -> Equal:
            if _is_otherwise(one[1]) or _is_otherwise(other[1]):
                condition: Equal = _is_otherwise(one[1]) and _is_otherwise(other[1])
            else:
                condition = self.same(one[1], other[1])
            return all_of((condition, self.same(one[0], other[0])))

        return matched(mine, theirs, same_branch)

    def _qualified(self, gold: Meaning, answer: Meaning) -> Equal:
        mine = gold if isinstance(gold, Qualified) else Qualified(gold, ())
        theirs = answer if isinstance(answer, Qualified) else Qualified(answer, ())
        parameters = [_parameters(one.conditions) for one in (mine, theirs)]
        if not all(len(one) <= _MOST_PARAMETERS for one in parameters):
            return False
        rest = [[one for one in each.conditions if not _is_membership(one)] for each in (mine, theirs)]
        if not (parameters[0] and parameters[1]):
            return all_of((matched(rest[0], rest[1], self.same), self.same(mine.statement, theirs.statement)))
        if len(parameters[0]) != len(parameters[1]):
            return False
        return any_of(self._renamed(mine, theirs, parameters[0], order) for order in permutations(parameters[1]))

    def _renamed(self, gold: Qualified, answer: Qualified, mine: Sequence[Any], theirs: Sequence[Any]) -> Equal:
        if [domain for _, domain in mine] != [domain for _, domain in theirs]:
            return False
        names = {other: one for (one, _), (other, _) in zip(mine, theirs)}
        renamed = replaced(
            answer, lambda one: Symbol(names.get(one.name, one.name)) if isinstance(one, Symbol) else None
        )
        assert isinstance(renamed, Qualified)
        rest = [[one for one in each.conditions if not _is_membership(one)] for each in (gold, renamed)]
        same = self.same(gold.statement, renamed.statement)
        if same is not True and len(mine) == 1 and mine[0][1] == "setZ":
            same = any_of((same, self._same_steps(gold.statement, renamed.statement, mine[0][0])))
        return all_of((matched(rest[0], rest[1], self.same), same))

    def _same_steps(self, gold: Meaning, answer: Meaning, parameter: str) -> Equal:
        """True for two formulas in a whole number that run through the same values: `2k + 1` and `2k - 1`."""
        for one in (gold, answer):
            if isinstance(one, Relation) and one.operators != ("=",):
                return False
        values = [one.sides[1] if isinstance(one, Relation) else one for one in (gold, answer)]
        names = [one.sides[0] if isinstance(one, Relation) else None for one in (gold, answer)]
        if None not in names and names[0] != names[1]:
            return False
        if not all(isinstance(one, FORMULA) for one in values):
            return False
        starts, steps = [], []
        for one in values:
            at = [substituted(one, parameter, Number(Fraction(to))) for to in (0, 1, 2)]
            starts.append(at[0])
            first, second = (Apply("add", (at[n + 1], Apply("neg", (at[n],)))) for n in (0, 1))
            linear = self.arithmetic.same(first, second)
            if linear is not True:
                return linear
            steps.append(first)
        step = any_of(self.arithmetic.same(steps[0], one) for one in (steps[1], Apply("neg", (steps[1],))))
        shift = Apply("div", (Apply("add", (starts[1], Apply("neg", (starts[0],)))), steps[0]))
        return all_of((step, self.arithmetic.same(Apply("floor", (shift,)), shift)))


def as_family(part: Meaning) -> Meaning:
    r"""`\{2k | k \in \mathbb{Z}\}`, also as `\{x | x = 2k, …\}`, as a formula with the domain of its parameter."""
    if not (isinstance(part, SetBuilder) and _parameters(part.conditions)):
        return part
    domains = [one for one in part.conditions if _is_membership(one)]
    others = [one for one in part.conditions if not _is_membership(one)]
    element = part.element
    if isinstance(element, Symbol) and others and isinstance(others[0], Relation) and others[0].operators == ("=",):
        if others[0].sides[0] != element or element.name in {name for name, _ in _parameters(domains)}:
            return part
        element, others = others[0].sides[1], others[1:]
    elif isinstance(element, Symbol):
        return part
    return Qualified(element, (*others, *domains))


def as_residues(part: Meaning, other: Meaning) -> Meaning:
    r"""`n \equiv 1 \pmod 4` as `n = 1 + 4k`, and `n = 1 + 4k` with its domain, where the other is of the other form."""
    if isinstance(part, Congruence) and isinstance(other, Qualified | Relation):
        parameter = Symbol("parameter")
        value = Apply("add", (part.right, Apply("mul", (part.modulus, parameter))))
        return _whole_family(Relation((part.left, value), ("=",)), parameter)
    if isinstance(part, Relation) and isinstance(other, Congruence) and part.operators == ("=",):
        free = sorted(symbols(part.sides[1]) - symbols(other))
        if len(free) == 1 and part.sides[0] == other.left:
            return _whole_family(part, Symbol(free[0]))
    return part


def _whole_family(statement: Relation, parameter: Symbol) -> Qualified:
    return Qualified(statement, (Relation((parameter, Symbol("setZ")), ("in",)),))


def _as_cases(part: Meaning) -> list[tuple[Meaning, Meaning | None]] | None:
    if isinstance(part, Cases):
        return list(part.branches)
    if isinstance(part, Relation) and isinstance(part.sides[-1], Cases) and part.operators == ("=",):
        return list(part.sides[-1].branches)
    if isinstance(part, Listing) and all(isinstance(one, Qualified) for one in part.items):
        return [(one.statement, one.conditions[0]) for one in part.items if isinstance(one, Qualified)]
    return None


def _is_otherwise(condition: Meaning | None) -> bool:
    return condition is None or condition == Words(("otherwise",))


def _is_membership(part: Meaning) -> bool:
    return isinstance(part, Relation) and part.operators == ("in",) and isinstance(part.sides[1], Symbol)


def _parameters(conditions: Sequence[Meaning]) -> list[tuple[str, str]]:
    """(symbol, domain) of what is said to be of a set of numbers."""
    return [
        (one.sides[0].name, one.sides[1].name)
        for one in conditions
        if isinstance(one, Relation) and _is_membership(one)
        and isinstance(one.sides[0], Symbol) and isinstance(one.sides[1], Symbol)
    ]  # fmt: skip
