r"""Compare answers that are plain numbers or words, exactly and without a computer algebra system.

Numbers are integers, decimals, fractions, mixed numbers, scientific notation and digits with a base, with or without
a unit; words are names, choices, dates and times. What these comparisons decide is final; they evaluate nothing that
could take long.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from tasks.math.moments import same_moment
from tasks.math.spelling import normalise
from tasks.math.units import NAMES, measure

_MAX_EXPONENT = 1000
# Characters of the longest number that is read here; the patterns may take quadratic time.
_LONGEST = 120


@dataclass(frozen=True)
class Number:
    """A number as it was written.

    Attributes:
        value: its exact value (of the digits alone where there is a base).
        unit: what stood behind it (`%`, `^\\circ`, `cm`), lower case; empty if nothing did.
        base: of a numeral like `17_9`; None for an ordinary number.
    """

    value: Fraction
    unit: str = ""
    base: int | None = None


def decide(gold: str, answer: str) -> bool | None:
    """True if two answers are equal, as far as their spelling tells; None where mathematics must decide."""
    gold, answer = normalise(gold), normalise(answer)
    if _unspaced(gold) == _unspaced(answer):
        return True
    if _NOTHING.fullmatch(gold) or _NOTHING.fullmatch(answer):
        return bool(_NOTHING.fullmatch(gold) and _NOTHING.fullmatch(answer))
    if (same := same_moment(gold, answer)) is not None:
        return same
    gold_number, answer_number = number(gold), number(answer)
    if gold_number and answer_number:
        return _same_number(gold_number, answer_number)
    if (gold_number and gold_number.base) or (answer_number and answer_number.base):
        return False
    if (same := _same_decimal_comma(gold, answer)) is not None:
        return same
    if gold.startswith("(") and answer.startswith("\\{"):
        return False  # a tuple has an order
    if (gold_number and _no_number(answer)) or (answer_number and _no_number(gold)):
        return False
    return _same_words(gold, answer)


# Parsing LaTeX is nearly all that comparing costs, and half of the wrong answers need none of it.
def _no_number(answer: str) -> bool:
    """True if an answer is certainly no single number: a matrix, a tuple, an interval, or a word of three letters."""
    words = _words(answer)
    if words is not None:
        return words.isalpha() and len(words) >= 3
    return bool(_MATRIX.fullmatch(answer)) or _is_tuple(answer)


_MATRIX = re.compile(r"\\begin\{([pbB]matrix)\}(?:(?!\\end).)*?(?:&|\\\\)(?:(?!\\end).)*\\end\{\1\}")


def _is_tuple(answer: str) -> bool:
    """True if one pair of round or square brackets holds all of an answer, with a comma directly inside.

    The comma of `(1,234)` may be one of thousands.
    """
    if not (answer[:1] in ("(", "[") and answer[-1:] in (")", "]")) or number(answer[1:-1].strip()):
        return False
    depth, commas = 0, 0
    for place, character in enumerate(answer):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and place < len(answer) - 1:
            return False
        commas += character == "," and depth == 1
    return depth == 0 and commas > 0


_NOTHING = re.compile(
    r"\\emptyset|\\\{ ?\\\}|\{\}|(?:\\text\{ ?)?no(?: real| integer)? (?:solutions?|roots?|such [a-z]+)(?: ?\})?\.?",
    re.IGNORECASE,
)


def _same_decimal_comma(gold: str, answer: str) -> bool | None:
    """`3,5` beside 3.5; None where the comma may separate two numbers or thousands."""
    for one, other, own in ((answer, gold, False), (gold, answer, True)):
        # A gold answer of its own may well be a list of two digits.
        if (_DECIMAL_COMMA if not own else _SURE_DECIMAL_COMMA).fullmatch(one):
            mine, theirs = number(one.replace(",", ".")), number(other)
            if mine and theirs and theirs.value.denominator > 1:
                return _same_number(theirs, mine)
    return None


_DECIMAL_COMMA = re.compile(r"[+-]?(?:0,\d+|\d+,(?:\d{1,2}|\d{4,}))")
_SURE_DECIMAL_COMMA = re.compile(r"[+-]?(?:0,\d{2,}|\d+,(?:\d{2}|\d{4,}))")


def _same_words(gold: str, answer: str) -> bool | None:
    words, answered = _words(gold), _words(answer)
    if words is not None and words == answered:
        return True
    if words is None:
        return None
    if len(words) == 1 and (chosen := _CHOICE.match(_TEXT.sub(r"\1", answer))):
        others = _OTHER_CHOICE.search(_TEXT.sub(r"\1", answer), chosen.end())
        return chosen["letter"] == words and not others
    if answered is not None and len(words) >= 3 and _CAPITALS.fullmatch(gold):
        return False  # the name of a figure is no product of its letters
    return None


# `(B) 42`, `B) 42`, `B. 42`; and whether another choice follows.
_CHOICE = re.compile(r"\(?(?P<letter>[A-J])[).:] ?(?=\S)")
_OTHER_CHOICE = re.compile(r"\([A-J]\)|\b(?:and|or)\b|,")
_CAPITALS = re.compile(r"(?:\\text\{)?[A-Z]{3,}\}?")


def _unspaced(answer: str) -> str:
    return re.sub(r"(?<!\d) | (?!\d)", "", answer).removesuffix(".")


_TEXT = re.compile(r"\\text\{([^{}]*)\}")


def _words(answer: str) -> str | None:
    r"""`\text{Friday}` → `friday`, `\text{(B)}` → `B`; None if the answer is not words alone."""
    plain = _TEXT.sub(r"\1", answer)
    if not re.fullmatch(r"[A-Za-z,.() ]+", plain):
        return None
    plain = re.sub(r"\(([A-Za-z])\)", r"\1", plain.replace(" ", "")).removesuffix(".")
    return plain.lower() if len(plain) > 1 else plain


_DIGITS = r"(?:\d{1,3}(?:[, ]\d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_SIGN = r"(?P<sign>[+-]?) ?"
_FORMS = (
    # 3   -3.50   1,234   6.02e23   6.02 \times 10^{23}
    re.compile(
        rf"{_SIGN}(?P<top>{_DECIMAL})"
        r"(?:[eE](?P<e>[+-]?\d{1,6})| ?(?:\\times|\\cdot|\*|x) ?10 ?\^ ?\{? ?(?P<power>[+-]?\d{1,6}) ?\}?)?"
    ),
    # 0.\overline{3}
    re.compile(rf"{_SIGN}(?P<top>{_DIGITS}?\.\d*) ?\\overline ?\{{ ?(?P<repeated>\d+) ?\}}"),
    # 3/4
    re.compile(rf"{_SIGN}(?P<top>{_DECIMAL}) ?/ ?(?P<bottom>{_DECIMAL})"),
    # \frac{3}{4}   -\frac{3}{4}   \frac{-3}{4}   1\frac{3}{4}   \frac34   \frac3{40}
    re.compile(
        rf"{_SIGN}(?P<whole>\d*) ?\\frac ?"
        rf"(?:\{{ ?(?P<inner>-?) ?(?P<top>{_DECIMAL}) ?\}}|(?P<top_digit>\d)) ?"
        rf"(?:\{{ ?(?P<bottom>{_DECIMAL}) ?\}}|(?P<bottom_digit>\d))"
    ),
)
_NUMERAL = re.compile(rf"{_SIGN}\(?(?P<digits>[0-9A-Za-z]+)\)?_ ?\{{? ?(?P<base>\d{{1,2}}) ?\}}?\.?")
# Short names are letters of formulas unless a space stands before them.
_UNIT_WORDS = "|".join(["percent", "square units?", "units?", "ways?", *(re.escape(n) for n in NAMES if len(n) > 2)])
_SHORT_UNITS = "|".join(re.escape(name) for name in NAMES if len(name) <= 2)
_POWER = r"(?:\^\{?[23]\}?)?"
_WITH_UNIT = re.compile(
    r"(?P<number>[^a-zA-Z]*(?:\\frac)?[^a-zA-Z\\^]*?)"
    rf"(?P<unit> ?%| ?\^\\circ| ?\\text\{{[^{{}}]*\}}{_POWER}| ?(?:{_UNIT_WORDS}){_POWER}| (?:{_SHORT_UNITS}){_POWER}"
    rf"|(?<=\d)(?:mm|cm|km|kg|ft|lb){_POWER})\.?"
)


def number(answer: str) -> Number | None:
    """A normalised answer as a number, if that is all that it is."""
    if len(answer) > _LONGEST:
        return None
    numeral = _NUMERAL.fullmatch(_TEXT.sub(r"\1", answer))
    if numeral:
        return _numeral(numeral)
    with_unit = _WITH_UNIT.fullmatch(answer)
    text, unit = (with_unit["number"], with_unit["unit"]) if with_unit else (answer, "")
    text = text.strip()
    for form in _FORMS:
        match = form.fullmatch(text)
        if match:
            value = _value(match.groupdict())
            return None if value is None else Number(value, _unit(unit))
    return None


def _value(parts: dict[str, str | None]) -> Fraction | None:
    exponent = int(parts.get("e") or parts.get("power") or 0)
    top = _decimal(parts.get("top") or parts.get("top_digit") or "")
    bottom = _decimal(parts.get("bottom") or parts.get("bottom_digit") or "1")
    if bottom == 0 or abs(exponent) > _MAX_EXPONENT:
        return None
    value = top / bottom * Fraction(10) ** exponent
    if parts.get("inner"):
        value = -value
    value += int(parts.get("whole") or 0)
    if repeated := parts.get("repeated"):
        digits = len((parts["top"] or "").partition(".")[2])
        value += Fraction(int(repeated), 10**digits * (10 ** len(repeated) - 1))
    return -value if parts["sign"] == "-" else value


def _decimal(text: str) -> Fraction:
    return Fraction("0" + text.replace(",", "").replace(" ", "").removesuffix("."))


def _numeral(match: re.Match[str]) -> Number | None:
    base = int(match["base"])
    try:
        value = int(match["digits"], base) if 2 <= base <= 36 else None
    except ValueError:
        value = None
    if value is None:
        return None
    return Number(Fraction(-value if match["sign"] == "-" else value), base=base)


def _unit(text: str) -> str:
    plain = re.sub(r"[ .{}]", "", _TEXT.sub(r"\1", text)).lower()
    return {"percent": "%", "degree": "^\\circ", "degrees": "^\\circ"}.get(plain, plain)


def _same_number(gold: Number, answer: Number) -> bool | None:
    if gold.base or answer.base:
        return (gold.value, gold.base or 10) == (answer.value, answer.base or 10)
    mine, theirs = measure(gold.unit), measure(answer.unit)
    if mine and theirs:
        return mine[0] == theirs[0] and gold.value * mine[1] == answer.value * theirs[1]
    if gold.value == answer.value:
        return True if gold.unit == answer.unit or not (gold.unit and answer.unit) else None
    if gold.unit == "%" and not answer.unit:
        return gold.value == 100 * answer.value
    if answer.unit == "%" and not gold.unit:
        return answer.value == 100 * gold.value
    return False
