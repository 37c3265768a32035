r"""Find the one answer in what a model wrote: the last `\boxed{}`, else the "final answer", else the last line.

Linear in the length of the text, so that it may run in the caller's process.
"""

from __future__ import annotations

import calendar
import re

from tasks.math.units import NAMES

MAX_ANSWER = 1000
"""Characters of the longest answer that is graded; MATH's longest gold has about 160."""

_PHRASE = re.compile(r"(?:final answer|answer)(?: is)?[ :*]{0,8}", re.IGNORECASE)

_WORD = re.compile(r"(?<![\\A-Za-z{_^])[A-Za-z]{2,}(?![A-Za-z}])")
# Possessive, or it would be quadratic in the spaces behind a word.
_FORMULA = re.compile(r"[\s:=]*+(?=[-+−(\[$]*+\s*+[\d$\\])")
_JOINING = (
    *("and", "or", "to", "in", "of", "out", "over", "by", "per", "from", "at", "with", "remainder", "mod", "choose"),
    *("divided", "times", "plus", "minus", "square", "root", "gcd", "lcm", "max", "min", "det", "frac", "pi"),
    *("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "log", "ln", "lg", "exp", "sqrt"),
)
_MONTHS = (*calendar.month_name[1:], *calendar.month_abbr[1:])
_INSIDE = frozenset(name.lower() for name in (*_JOINING, *NAMES, *_MONTHS))
"""Words within an answer: "2 hours 30 minutes", "1 in 6", "3 sqrt 2", "x = 1 or x = 2", "5 May 2024"."""


def extract_answer(text: str) -> str | None:
    r"""The one answer that a solution commits itself to.

    Args:
        text: a solution, without the thinking before it.

    Returns:
        The content of the last `\boxed{}`; else of the last `<answer>`; else what follows the last "final answer is"
        (or "answer:") on its line; else the last line, and of a sentence with several formulas the last of them. None
        where that is empty, longer than `MAX_ANSWER`, or a box that never closes.
    """
    box = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if box >= 0:
        answer = _braced(text, text.index("{", box))
    else:
        answer = _tagged(text) or _after_phrase(text) or _last_line(text)
    if answer is None or not answer.strip() or len(answer) > MAX_ANSWER:
        return None
    return answer.strip()


def _braced(text: str, opening: int) -> str | None:
    """Text between the brace at `opening` and its partner, if that is near enough."""
    depth, position = 0, opening
    end = min(len(text), opening + MAX_ANSWER + 2)
    while position < end:
        character = text[position]
        if character == "\\":
            position += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[opening + 1 : position]
        position += 1
    return None


def _tagged(text: str) -> str | None:
    """Text in the last `<answer>…</answer>`."""
    _, opened, rest = text.rpartition("<answer>")
    inside, closed, _ = rest.partition("</answer>")
    return (inside.strip() or None) if opened and closed else None


def _after_phrase(text: str) -> str | None:
    lowered = text.lower()
    start = lowered.rfind("final answer")
    if start < 0:
        start = max(lowered.rfind("answer is"), lowered.rfind("answer:"))
    if start < 0:
        return None
    line = text[start:].split("\n", 1)[0]
    found = _PHRASE.match(line)
    rest = line[found.end() :] if found else ""
    return _sentence(rest) or None


def _sentence(text: str) -> str:
    """`$5$. I hope it is correct.` → `$5$`: a formula ends with its dollar, a sentence with a dot and a space."""
    text = text.strip(" *")
    formula = re.match(r"\$(?:\\.|[^$\\])+\$", text)
    return formula[0] if formula else re.split(r"\.\s|\.$", text, maxsplit=1)[0].strip(" *")


def _last_line(text: str) -> str | None:
    lines = text.strip().rsplit("\n", 1)
    return _last_stated(lines[-1].strip().removesuffix("."))


def _last_stated(line: str) -> str:
    """`The sum of 3 and 4 is 7` → `7`: the last formula that a word leads to, if another stands before that word.

    The first one is often the problem's own, which has the right value whatever the sentence goes on to say.
    """
    digit, start = re.search(r"\d", line), 0
    for word in _WORD.finditer(line, digit.end() if digit else len(line)):
        formula = _FORMULA.match(line, word.end())
        if formula and word[0].lower() not in _INSIDE:
            start = formula.end()
    return line[start:]
