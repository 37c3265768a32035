"""Replace spellings that mean the same by one; answers have at most a thousand characters."""

from __future__ import annotations

import re

# What is replaced, in this order.
_SPELLINGS = (
    (re.compile(r"</?answer>"), " "),
    (re.compile(r"\*\*"), ""),
    (re.compile(r"\\[dt]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|\\displaystyle(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:tiny|small|normalsize|large|Large|LARGE|huge|Huge|checkmark)(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:text)?color ?\{[a-zA-Z]*\}"), ""),
    (re.compile(r"\\(?:underline|boxed|fbox|mathbf|boldsymbol|bm) ?(?=\{)"), ""),
    (re.compile(r"\\!"), ""),
    (re.compile("≈"), r"\\approx "),
    (re.compile(r"(?<!\\)\\[,;: ]|\\q?quad(?![a-zA-Z])|~"), " "),
    (re.compile(r"\\\$|\$|\\[()\[\]]"), ""),
    (re.compile(r"\\(?:mathrm|textbf|textit|mbox|textrm|operatorname)\{"), r"\\text{"),
    (re.compile(r"\{,\}"), ","),
    (re.compile("[−–﹣－]"), "-"),
    (re.compile("×"), r"\\times "),
    (re.compile("·|⋅"), r"\\cdot "),
    (re.compile(r"≤|\\leq(?![a-zA-Z])|\\leqslant(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"≥|\\geq(?![a-zA-Z])|\\geqslant(?![a-zA-Z])"), r"\\ge "),
    (re.compile("≠"), r"\\ne "),
    (re.compile("π"), r"\\pi "),
    (re.compile("∞"), r"\\infty "),
    (re.compile("∪"), r"\\cup "),
    (re.compile(r"∅|\\varnothing(?![a-zA-Z])"), r"\\emptyset "),
    (re.compile("°"), r"^\\circ"),
    (re.compile(r"\^ ?\{ ?\\circ ?\}|\^ \\circ"), r"^\\circ"),
    # In a sine or cosine, degrees are an angle; elsewhere they are a unit.
    (
        re.compile(r"(\\(?:sin|cos|tan|cot|sec|csc)) ?(?:\( ?)?(\d+(?:\.\d+)?) ?\^\\circ(?: ?\))?"),
        r"\1(\2\\cdot\\frac{\\pi}{180})",
    ),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"(?:, ?)?\\text\{ ?(?:, ?)?(?:and|or) ?\}"), ", "),
    (re.compile(r"\s+"), " "),
)
_OPEN_INTERVAL = re.compile(r"([\[\]])([^\[\](){}]*,[^\[\](){}]*)([\[\]])")


def normalise(answer: str) -> str:
    """The answer with the spellings that mean the same made one."""
    for pattern, replacement in _SPELLINGS:
        answer = pattern.sub(replacement, answer)
    exact, *_ = answer.strip().removeprefix("\\approx").split("\\approx")
    return _unwrapped(_OPEN_INTERVAL.sub(_interval, exact.strip()))


def _interval(match: re.Match[str]) -> str:
    """`]0,1[` → `(0,1)`."""
    opening, ends, closing = match.groups()
    if (opening, closing) == ("[", "]"):
        return match[0]
    return f"{'[' if opening == '[' else '('}{ends}{']' if closing == ']' else ')'}"


def _unwrapped(answer: str) -> str:
    """Without braces around all of it, and without all but one pair of brackets; none around a single value."""
    depth = lowest = 0
    wrapped = len(answer) - len(answer.lstrip("({"))
    inner = answer[wrapped : len(answer) - wrapped] if wrapped else ""
    if not wrapped or len(answer) <= 2 * wrapped or not _closes(answer, wrapped):
        return answer
    for character in inner:
        depth += (character in "({[") - (character in ")}]")
        lowest = min(lowest, depth)
    layers = wrapped + lowest
    if layers <= 0:
        return answer
    bare = answer[layers:-layers].strip()
    keep = answer[layers - 1] == "(" and "," in bare
    return answer[layers - 1 : -(layers - 1) or None] if keep else bare


def _closes(answer: str, layers: int) -> bool:
    """True if the answer ends with the partners of its first brackets."""
    partners = {"(": ")", "{": "}"}
    return all(partners[answer[place]] == answer[-1 - place] for place in range(layers))
