"""Find what a sentence states: the formulas, the number with its unit, or the words behind its verb."""

from __future__ import annotations

import re

from tasks.math.nodes import UnitQuantity
from tasks.math.read import MAX_ANSWER, read

LONGEST_LINE = 4 * MAX_ANSWER
"""Characters of the longest line that is looked at."""
CLOSING = ' \t\r\n*_`"“”'
"""Characters around an answer that are no part of it."""

FORMULA = re.compile(
    r"(?<![\\$])\$\$?(?! ?\d[\d,.]* [a-z])(?:\\.|[^$\\])+\$\$?"
    r"|\\\(.{1,1000}?\\\)|\\\[.{1,1000}?\\\]|\*\*[^*\n]+\*\*"
)
"""A formula, or bold type, in a text."""
_JOINER = re.compile(r"\s*(?:[,;]\s*(?:and|or)\b|[,;]|and\b|or\b)\s*", re.IGNORECASE)
_REASON = re.compile(
    r"[,;]?\s(?:because|since|as (?:shown|above|required|desired|we)|due to|when rounded)\b.*", re.IGNORECASE
)
_NUMBER = r"[$€£]?\s?[-−+]?[$€£]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
_VALUE = re.compile(rf"(?<![\w.]){_NUMBER}(?:\s?(?:[-+*/^=×·:]|\\times|\\cdot)\s?{_NUMBER})*%?")
_DOUBT = re.compile(
    r"\b(?:not|maybe|perhaps|possibly|probably|either|neither|nor|between|unless|except|wrong|incorrect|cannot|never|about|"
    r"at least|at most|(?:more|less|fewer|greater|smaller|larger) than|or more|or less|or fewer|unknown)\b|n't\b",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"(?<![\\A-Za-z])(?:is|are|was|were|has|have|had|makes?|takes?|gives?|gets?|got|earns?|needs?|equals?|of|so|thus|hence|after|"
    r"then|will|can|spends?|pays?|there|left|be|costs?|that)(?![A-Za-z])",
    re.IGNORECASE,
)
_STATING = re.compile(
    r"(?<![\\A-Za-z])(?:is|are|was|were|be|equals?|equal to|costs?|takes?|makes?|gives?|gets?|got|at|so|thus|hence|"
    r"therefore)[:,]?\s+",
    re.IGNORECASE,
)
_CALCULATED = re.compile(r"<<[^<>\n]{0,100}>>")
_MATHEMATICAL = "[]()^√_{}<>≤≥|πθ"


def answer_in(line: str) -> str | None:
    """The answer in what stands behind "the answer is"."""
    line = _inner(line)
    if joined := _joined_formulas(line):
        return joined
    line = _REASON.sub("", line)
    sentence = clean(re.split(r"(?<![\s.]\w)\.\s|\.$", line, maxsplit=1)[0])
    if not sentence or read(sentence).is_readable or _DOUBT.search(sentence):
        return sentence or None
    formulas = list(FORMULA.finditer(sentence))
    if formulas:
        return stated(sentence)
    first = _VALUE.match(sentence)
    if first and not re.search(r"\d", sentence[first.end() :]):
        return _with_words(sentence, first)
    return _behind_verb(sentence) or sentence


def stated(line: str) -> str | None:
    """The answer of a last line: itself if it is one, else what stands behind its verb, else its last number."""
    line = clean(_inner(line))
    if not line or len(line) > MAX_ANSWER:
        return None
    if not re.search(r"[A-Za-z]{2}", line) or _DOUBT.search(line) or _is_plain(line):
        return line
    formulas = list(FORMULA.finditer(line))
    while len(formulas) > 1 and re.fullmatch(r"[^\w\\]*\\?\w[^\w\\]*", formulas[-1][0]) and not _joins(line, formulas):
        formulas.pop()  # `for all $x$`
    if formulas:
        start = formulas[-1].start()
        for formula in reversed(formulas[:-1]):
            if not _JOINER.fullmatch(line[formula.end() : start]):
                break
            start = formula.start()
        joined = _joined_formulas(line[start:])
        if joined and not re.search(r"\d", line[start + len(joined) :].replace(".", "")):
            return joined
    return _behind_verb(line) or (line if "\\" in line else _last_numbers(line)) or line


def clean(text: str) -> str:
    """A text without bold type, quotation marks and the full stop around it."""
    text = text.strip(CLOSING)
    if text.endswith("..") or re.search(r"\b[ap]\.m\.$", text):
        return text
    return text.removesuffix(".").strip(CLOSING)


def last_line(text: str) -> str:
    """The last line of a text, unless it is too long."""
    line = text.rstrip()[-LONGEST_LINE - 1 :].rsplit("\n", 1)[-1].strip()
    return line if len(line) <= LONGEST_LINE else ""


def _joins(line: str, formulas: list[re.Match[str]]) -> bool:
    return bool(_JOINER.fullmatch(line[formulas[-2].end() : formulas[-1].start()]))


def _joined_formulas(line: str) -> str | None:
    """`$5$ or $9$` whole; `$5$ cm` whole; `$5$. I hope …` its formula; None where no formula comes first."""
    first = FORMULA.match(line)
    if not first:
        return None
    end = first.end()
    while (joiner := _JOINER.match(line, end)) and (following := FORMULA.match(line, joiner.end())):
        end = following.end()
    if joiner and (number := _VALUE.match(line, joiner.end())):
        end = number.end()
    behind = re.match(r"\s*[A-Za-z%°][^.,;:()$\n]{0,60}", line[end:])
    if behind and (_DOUBT.search(behind[0]) or read(line[:end] + behind[0]).is_readable):
        end += behind.end()
    return clean(line[:end])


def _inner(line: str) -> str:
    """A line without the signs of displayed formulas, lists and bold type around it."""
    line = _CALCULATED.sub("", line)
    line = line.strip(CLOSING + ">").lstrip(":").strip(CLOSING)
    displayed = re.fullmatch(r"\\[\[(](.*)\\[\])]\.?", line)
    return displayed[1].strip() if displayed and "\\]" not in displayed[1] and "\\)" not in displayed[1] else line


def _is_plain(line: str) -> bool:
    """True if a line is an answer as it stands, without a verb."""
    return not _VERB.search(line) and read(line).is_readable


def _behind_verb(line: str) -> str | None:
    """`The length is \\sqrt{2}` → `\\sqrt{2}`: what can be read, without another verb."""
    for verb in list(_STATING.finditer(line))[:16]:
        rest = clean(line[verb.end() :])
        if re.search(r"\d", line) and not re.search(r"\d", rest):
            continue  # `at the market`
        if rest and not _VERB.search(rest) and read(rest).is_readable:
            return rest
    return None


def _with_words(line: str, value: re.Match[str]) -> str:
    """A number with the words behind it that are its unit; a number in a formula that cannot be read is none."""
    around = line[: value.start()].rstrip()[-1:] + line[value.end() :].lstrip()[:1]
    if any(sign in _MATHEMATICAL for sign in around):
        return line
    words = re.match(r"(?: [A-Za-z°²³/]+){0,5}", line[value.end() :])
    behind = words[0].split() if words else []
    while behind and not read(f"{value[0]} {' '.join(behind)}").is_readable:
        behind.pop()
    return " ".join([value[0].rstrip(","), *behind])


def _last_numbers(line: str) -> str | None:
    """The last number of a sentence with its unit, and those that "and", "or", a comma or a unit join to it."""
    values = list(_VALUE.finditer(line))
    if not values:
        return None
    start = values[-1].start()
    last = _with_words(line, values[-1])
    for value in reversed(values[:-1]):
        between = line[value.end() : start]
        longer = line[value.start() : start] + last
        if not _JOINER.fullmatch(between) and not isinstance(read(longer).readings[0], UnitQuantity):
            break
        start, last = value.start(), longer
    return last
