r"""Compares answers that are plain numbers or words, exactly and without a computer algebra system.

Numbers are integers, decimals, fractions, mixed numbers, scientific notation and digits with a base, with or without
a unit. What these comparisons decide is final; they evaluate nothing that could take long.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_MAX_EXPONENT = 1000
# Characters of the longest number that is read here; the patterns may take quadratic time.
_LONGEST = 120

# Spellings that mean the same, in the order in which they are replaced.
_SPELLINGS = (
    (re.compile(r"\\[dt]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|\\displaystyle(?![a-zA-Z])"), ""),
    (re.compile(r"\\!"), ""),
    (re.compile("≈"), r"\\approx "),
    (re.compile(r"(?<!\\)\\[,;: ]|\\q?quad(?![a-zA-Z])|~"), " "),
    (re.compile(r"\\\$|\$|\\[()\[\]]"), ""),
    (re.compile(r"\\(?:mathrm|textbf|textit|mbox|textrm|mathbf|operatorname)\{"), r"\\text{"),
    (re.compile(r"\{,\}"), ","),
    (re.compile("[−–﹣－]"), "-"),
    (re.compile("×"), r"\\times "),
    (re.compile("·|⋅"), r"\\cdot "),
    (re.compile(r"≤|\\leq(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"≥|\\geq(?![a-zA-Z])"), r"\\ge "),
    (re.compile("≠"), r"\\ne "),
    (re.compile("π"), r"\\pi "),
    (re.compile("∞"), r"\\infty "),
    (re.compile("∪"), r"\\cup "),
    (re.compile("°"), r"^\\circ"),
    (re.compile(r"\^\{\\circ\}"), r"^\\circ"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"(?:, ?)?\\text\{ ?(?:, ?)?(?:and|or) ?\}"), ", "),
    (re.compile(r"\s+"), " "),
)


def normalise(answer: str) -> str:
    """The answer with the spellings that mean the same made one."""
    for pattern, replacement in _SPELLINGS:
        answer = pattern.sub(replacement, answer)
    exact, *_ = answer.strip().removeprefix("\\approx").split("\\approx")
    return exact.strip()


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
    """Whether two answers are equal, as far as their spelling tells; None where mathematics must decide."""
    gold, answer = normalise(gold), normalise(answer)
    if _unspaced(gold) == _unspaced(answer):
        return True
    gold_number, answer_number = number(gold), number(answer)
    if gold_number and answer_number:
        return _same_number(gold_number, answer_number)
    if (gold_number and gold_number.base) or (answer_number and answer_number.base):
        return False
    words = _words(gold)
    if words is not None and words == _words(answer):
        return True
    return None


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
_UNIT_WORDS = (
    "percent|degrees?|dollars?|cents?|euros?|mm|cm|km|meters?|metres?|inch|inches|feet|foot|ft|yards?|miles?|mph|"
    "kg|grams?|pounds?|lbs?|seconds?|minutes?|hours?|days?|weeks?|months?|years?|units?|square units?|ways?"
)
_WITH_UNIT = re.compile(
    r"(?P<number>[^a-zA-Z]*(?:\\frac)?[^a-zA-Z\\^]*) ?"
    rf"(?P<unit>%|\^\\circ|\\text\{{[^{{}}]*\}}(?:\^\{{?[23]\}}?)?|(?:{_UNIT_WORDS})(?:\^\{{?[23]\}}?)?)\.?"
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
    plain = _TEXT.sub(r"\1", text).lower()
    plain = {"percent": "%", "degree": "^\\circ", "degrees": "^\\circ"}.get(plain.strip(" ."), plain)
    return re.sub(r"[ .{}]", "", plain).removesuffix("s")


def _same_number(gold: Number, answer: Number) -> bool | None:
    if gold.base or answer.base:
        return (gold.value, gold.base or 10) == (answer.value, answer.base or 10)
    if gold.value == answer.value:
        return True if gold.unit == answer.unit or not (gold.unit and answer.unit) else None
    if gold.unit == "%" and not answer.unit:
        return gold.value == 100 * answer.value
    if answer.unit == "%" and not gold.unit:
        return answer.value == 100 * gold.value
    return False
