"""Decide whether two answers that have been read mean the same.

Three values: True, False, and None where the arithmetic at hand cannot tell. In the caller's process that is exact
arithmetic of rational numbers; what it leaves open goes to a worker with SymPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from tasks.math.equations import same_relations, value_of
from tasks.math.exact import Arithmetic, ExactArithmetic
from tasks.math.families import FamilyComparison, as_family, as_residues
from tasks.math.language import as_vector, in_one_language, is_comma, with_constants
from tasks.math.moments import same_moment
from tasks.math.nodes import (
    FORMULA,
    Apply,
    Based,
    Bracketed,
    Cases,
    ChosenLetter,
    Collection,
    Combined,
    Congruence,
    Counted,
    Dots,
    Labelled,
    Listing,
    Matrix,
    Meaning,
    Moment,
    Number,
    Qualified,
    Ratio,
    Relation,
    SetBuilder,
    Symbol,
    UnitQuantity,
    Unreadable,
    Words,
)
from tasks.math.read import ReadAnswer, read
from tasks.math.setwise import SetComparison, unnamed
from tasks.math.shape import is_name, substituted, symbols
from tasks.math.solving import listed_range, root_set, same_roots
from tasks.math.verdicts import Equal, all_of, any_of, matched

_CONSTANT = frozenset(["C", "c", "K", "k"])


def decide(gold: str, answer: str) -> Equal:
    """True if two answers are equal, as far as their spelling and rational numbers tell; None where they do not."""
    return same_answers(read(gold), read(answer), ExactArithmetic())


def same_answers(gold: ReadAnswer, answer: ReadAnswer, arithmetic: Arithmetic) -> Equal:
    """True if one meaning of the answer is one of the gold answer's."""
    if gold.spelling == answer.spelling:
        return True
    if not (gold.is_readable and answer.is_readable):
        return False
    comparison = AnswerComparison(arithmetic)
    return any_of(
        comparison.same_in_some_words(*in_one_language(mine, theirs))
        for mine in gold.readings
        for theirs in answer.readings
        if not (is_comma(mine, "unsure") or is_comma(theirs, ""))
        or (is_comma(theirs, "") and isinstance(mine, Number) and mine.value.denominator > 1)
    )


class AnswerComparison(FamilyComparison, SetComparison):
    """Equality of parts, kind by kind."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic

    def same_in_some_words(self, gold: Meaning, answer: Meaning) -> Equal:
        """True if two parts mean the same when arbitrary constants are called alike."""
        same = self.same(gold, answer)
        if same is True:
            return same
        return any_of((same, *(self.same(gold, renamed) for renamed in with_constants(gold, answer))))

    def same(self, gold: Meaning, answer: Meaning) -> Equal:
        """True if two parts mean the same."""
        gold, answer = as_family(gold), as_family(answer)
        if isinstance(gold, Congruence) != isinstance(answer, Congruence):
            gold, answer = as_residues(gold, answer), as_residues(answer, gold)
        for kind, compare in _OWN:
            if isinstance(gold, kind) or isinstance(answer, kind):
                return compare(self, gold, answer)
        gold, answer = listed_range(gold), listed_range(answer)
        for described, other in ((gold, answer), (answer, gold)):
            if isinstance(described, SetBuilder) and (isinstance(other, Collection) or other == Symbol("emptyset")):
                items = _items(other) or []
                if (roots := root_set(described, items)) is not None:
                    return same_roots(roots, items, self.arithmetic)
        sets = self.same_sets(gold, answer)
        if sets is not False:
            return sets
        if isinstance(gold, SetBuilder | Combined) and isinstance(answer, SetBuilder | Combined):
            return self.same_written(gold, answer)
        if isinstance(gold, Relation) or isinstance(answer, Relation):
            return self._relations(gold, answer)
        if isinstance(gold, Listing | Collection) or isinstance(answer, Listing | Collection):
            return self._lists(gold, answer)
        if isinstance(gold, Bracketed) or isinstance(answer, Bracketed):
            return self._tuples(gold, answer)
        if isinstance(gold, Ratio) or isinstance(answer, Ratio):
            return self._ratios(gold, answer)
        return self._quantities(gold, answer)

    # Kinds that equal only their own.

    def _choices(self, gold: Meaning, answer: Meaning) -> Equal:
        if isinstance(gold, ChosenLetter) and isinstance(answer, ChosenLetter):
            return gold.letter == answer.letter
        choice, other = (gold, answer) if isinstance(gold, ChosenLetter) else (answer, gold)
        assert isinstance(choice, ChosenLetter)
        if other == Symbol(choice.letter) or other == Words((choice.letter,)):
            return True
        if isinstance(gold, ChosenLetter) or choice.content is None:
            return False
        return self.same(other, choice.content)

    def _moments(self, gold: Meaning, answer: Meaning) -> Equal:
        if isinstance(gold, Moment) and isinstance(answer, Moment):
            return same_moment(gold, answer)
        time, other = (gold, answer) if isinstance(gold, Moment) else (answer, gold)
        assert isinstance(time, Moment)
        if time.kind != "time" or not isinstance(other, Ratio):
            return False
        hour, minute, _, half = time.fields
        clock = int(hour or 0) + (12 if half == "p" or (half is None and hour == "0") else 0)
        return other.terms == (Number(Fraction(clock)), Number(Fraction(minute or "0")))

    def _words(self, gold: Meaning, answer: Meaning) -> Equal:
        return gold == answer or (_letters(gold) != () and _letters(gold) == _letters(answer))

    def _numerals(self, gold: Meaning, answer: Meaning) -> Equal:
        return _as_numeral(gold) == _as_numeral(answer)

    def _labelled(self, gold: Meaning, answer: Meaning) -> Equal:
        parts = [[part for _, part in one.parts] if isinstance(one, Labelled) else None for one in (gold, answer)]
        labels = [[label for label, _ in one.parts] for one in (gold, answer) if isinstance(one, Labelled)]
        if labels[0] != labels[-1]:
            return False
        mine = parts[0] or (list(gold.items) if isinstance(gold, Listing) else [])
        theirs = parts[1] or (list(answer.items) if isinstance(answer, Listing) else [])
        return self._in_order(mine, theirs)

    # Equations and other relations.

    def _relations(self, gold: Meaning, answer: Meaning) -> Equal:
        if isinstance(gold, Relation) and isinstance(answer, Relation):
            return same_relations(gold, answer, self.same, self.arithmetic)
        if isinstance(gold, Listing) or isinstance(answer, Listing):
            return self._lists(gold, answer)
        relation, other = (gold, answer) if isinstance(gold, Relation) else (answer, gold)
        assert isinstance(relation, Relation)
        found = value_of(relation, isinstance(gold, Relation), self.arithmetic)
        if found is None:
            return False
        values, rounded = found
        verdicts = []
        for value in values:
            if rounded and isinstance(gold, Relation):
                verdicts.append(self._rounded(value, other))
            else:
                verdicts.append(self.same(value, other) if isinstance(gold, Relation) else self.same(other, value))
        return any_of(verdicts)

    def _rounded(self, gold: Meaning, answer: Meaning) -> Equal:
        """Like `same`, to as many digits as the gold answer has."""
        if isinstance(gold, UnitQuantity):
            same_unit = isinstance(answer, UnitQuantity) and (answer.dimension, answer.scale) == (
                gold.dimension,
                gold.scale,
            )
            gold, answer = gold.value, answer.value if same_unit and isinstance(answer, UnitQuantity) else answer
        if isinstance(gold, FORMULA) and isinstance(answer, FORMULA):
            return self.arithmetic.same(gold, answer, rounded=True)
        return self.same(gold, answer)

    # Several answers.

    def _lists(self, gold: Meaning, answer: Meaning) -> Equal:
        gold, answer = unnamed(gold), unnamed(answer)
        if isinstance(answer, Listing) and answer.joined == "or" and not isinstance(gold, Listing | Collection):
            return all_of(self.same(gold, one) for one in answer.items)  # `3/4 or 0.75`
        mine, theirs = _items(gold), _items(answer)
        if mine is None or theirs is None:
            return False
        single = [
            one.items[0] if isinstance(one, Collection) and len(one.items) == 1 else one for one in (gold, answer)
        ]
        if isinstance(single[0], Bracketed) and isinstance(single[1], Bracketed):
            return self._tuples(single[0], single[1])
        if isinstance(gold, Bracketed) or isinstance(answer, Bracketed):
            named = [one for one in (gold, answer) if isinstance(one, Listing)]
            if not named or not _are_named_apart(named[0].items):
                return False
            return self._in_order(mine, theirs)
        if any(isinstance(one, Dots) for one in (*mine, *theirs)):
            return self._in_order(mine, theirs)
        letters = _letters(gold), _letters(answer)
        if letters[0] and isinstance(gold, Listing) != isinstance(answer, Listing):
            return letters[0] == letters[1]
        apart = [isinstance(one, Listing) and _are_named_apart(one.items) for one in (gold, answer)]
        if apart[0] != apart[1]:
            mine, theirs = ([_without_index(one) for one in items] for items in (mine, theirs))
            apart = [_are_named_apart(items) for items in (mine, theirs)]
        if apart[0] != apart[1] and len(mine) > 1:
            return self._in_order(mine, theirs)
        if isinstance(gold, Collection) or len(set(mine)) == len(mine):
            mine, theirs = list(dict.fromkeys(mine)), list(dict.fromkeys(theirs))
        return matched(mine, theirs, self.same)  # copies count where a gold list has some: `75°, 75°, 30°`

    def _in_order(self, mine: Sequence[Meaning], theirs: Sequence[Meaning]) -> Equal:
        if not mine or len(mine) != len(theirs):
            return False
        return all_of(self.same(one, other) for one, other in zip(mine, theirs))

    def _tuples(self, gold: Meaning, answer: Meaning) -> Equal:
        first, second = _coordinates(as_vector(gold)), _coordinates(as_vector(answer))
        if first is None or second is None:
            return False
        (brackets, mine), (others, theirs) = first, second
        if brackets != others and not (len(mine) > 2 and {brackets, others} == {"()", "[]"}):
            return False
        return self._in_order(mine, theirs)

    def _ratios(self, gold: Meaning, answer: Meaning) -> Equal:
        terms = []
        for one in (gold, answer):
            if isinstance(one, Ratio):
                terms.append(one.terms)
            elif isinstance(one, Apply) and one.head == "div":
                terms.append(one.args)
            else:
                return False
        if len(terms[0]) != len(terms[1]):
            return False
        first, *others = zip(*terms)
        return all_of(
            self.arithmetic.same(Apply("mul", (one[0], first[1])), Apply("mul", (one[1], first[0]))) for one in others
        )

    # Formulas, with or without a unit.

    def _quantities(self, gold: Meaning, answer: Meaning) -> Equal:
        if isinstance(gold, UnitQuantity) and isinstance(answer, UnitQuantity):
            if gold.dimension != answer.dimension:
                return False
            return self.arithmetic.same(_in_base_units(gold), _in_base_units(answer))
        if isinstance(gold, Counted) and isinstance(answer, Counted):
            related = not gold.noun or not answer.noun or bool(set(gold.noun) & set(answer.noun))
            return self.same(gold.value, answer.value) if related else False
        kinds = [_unit_kind(one) for one in (gold, answer)]
        if None not in kinds and kinds[0] != kinds[1]:
            return False
        if kinds[1] == "percent" and kinds[0] == "percent":
            return self.same(_bare(gold), _bare(answer))
        if "percent" in kinds:
            return any_of((self._formulas(gold, answer), self._formulas(_bare(gold), _bare(answer))))
        return self._formulas(_bare(gold), _bare(answer))

    def _formulas(self, gold: Meaning, answer: Meaning) -> Equal:
        if not (isinstance(gold, FORMULA) and isinstance(answer, FORMULA)):
            return False
        if any(name.startswith("hat(") for name in symbols(gold) ^ symbols(answer)):
            vectors = as_vector(gold), as_vector(answer)
            return self.same(*vectors) if vectors != (gold, answer) else False
        same = self.arithmetic.same(gold, answer)
        if same is not True and (mine := _constant(gold)) is not None and (theirs := _constant(answer)) is not None:
            # antiderivatives that differ by the constant that both have
            return any_of((same, self.arithmetic.shifted(gold, substituted(answer, theirs, Symbol(mine)))))
        return same


_OWN: tuple[tuple[type | tuple[type, ...], Callable[[AnswerComparison, Meaning, Meaning], Equal]], ...] = (
    (Unreadable, lambda _, gold, answer: gold == answer),
    (ChosenLetter, AnswerComparison._choices),
    (Moment, AnswerComparison._moments),
    (Words, AnswerComparison._words),
    (Based, AnswerComparison._numerals),
    (Labelled, AnswerComparison._labelled),
    (Cases, AnswerComparison._cases),
    (Qualified, AnswerComparison._qualified),
    (Congruence, AnswerComparison._congruences),
    (Dots, lambda _, gold, answer: gold == answer),
)


def _as_numeral(part: Meaning) -> Meaning:
    return Based(int(part.value), 10) if isinstance(part, Number) and part.value.denominator == 1 else part


def _items(part: Meaning) -> list[Meaning] | None:
    if isinstance(part, Listing | Collection | Bracketed):
        return list(part.items)
    if part == Symbol("emptyset"):
        return []
    return [part]


def _are_named_apart(items: Sequence[Meaning]) -> bool:
    """True for `x = 1, y = 2`: equations of several names."""
    names = [
        one.sides[0]
        for one in items
        if isinstance(one, Relation) and one.operators in (("=",), ("approx",)) and is_name(one.sides[0])
    ]
    return len(names) == len(items) and all(name not in names[:place] for place, name in enumerate(names))


def _without_index(item: Meaning) -> Meaning:
    """`x_1 = 2` → `x = 2`."""
    if isinstance(item, Relation) and isinstance(item.sides[0], Symbol):
        return Relation((Symbol(item.sides[0].name.partition("_")[0]), *item.sides[1:]), item.operators)
    return item


def _letters(part: Meaning) -> tuple[str, ...]:
    """The choices of `A, C, D`, also written as `ACD`; nothing if a part is something else."""
    items: Sequence[object] = ()
    if isinstance(part, Words) and len(part.words) == 1:
        items = [Symbol(letter) for letter in part.words[0]]
    elif isinstance(part, Listing) or (isinstance(part, Apply) and part.head == "mul"):
        items = part.items if isinstance(part, Listing) else part.args
    names = tuple(item.name for item in items if isinstance(item, Symbol) and item.name in "ABCDEFGH")
    return names if len(names) == len(items) and list(names) == sorted(set(names)) else ()


def _coordinates(part: Meaning) -> tuple[str, list[Meaning]] | None:
    """Brackets and items of a tuple; a column is one, too."""
    if isinstance(part, Bracketed):
        brackets = part.opening + part.closing
        return ("()" if brackets == "<>" else brackets), list(part.items)
    if isinstance(part, Matrix) and all(len(row) == 1 for row in part.rows):
        return "()", [row[0] for row in part.rows]
    return None


def _in_base_units(part: UnitQuantity) -> Meaning:
    return Apply("mul", (part.value, Number(part.scale)))


def _unit_kind(part: Meaning) -> object:
    """The kind of a number's unit; None for a bare one."""
    if isinstance(part, UnitQuantity):
        return part.dimension
    if isinstance(part, Counted):
        return "things"
    if isinstance(part, Apply) and part.head in ("degree", "percent"):
        return part.head
    return None


def _bare(part: Meaning) -> Meaning:
    if isinstance(part, UnitQuantity | Counted):
        return part.value
    return part.args[0] if isinstance(part, Apply) and part.head in ("degree", "percent") else part


def _constant(part: Meaning) -> str | None:
    """The constant of integration in a sum: `C`, if that stands nowhere else."""
    if not (isinstance(part, Apply) and part.head == "add"):
        return None
    named = [one.name for one in part.args if isinstance(one, Symbol) and one.name in _CONSTANT]
    rest = [one for one in part.args if not (isinstance(one, Symbol) and one.name in _CONSTANT)]
    if len(named) != 1 or any(named[0] in symbols(one) for one in rest):
        return None
    return named[0] if any(symbols(one) for one in rest) else None
