r"""Find the one answer in what a model wrote: the last `\boxed{}`, else `<answer>`, else a final line.

Linear in the length of the text, so that it may run in the caller's process.
"""

from __future__ import annotations

import re

from tasks.math.read import MAX_ANSWER
from tasks.math.sentences import CLOSING, FORMULA, LONGEST_LINE, answer_in, clean, last_line, stated

__all__ = ["MAX_ANSWER", "extract_answer"]

_MOST_BOXES = 16

_BOX = re.compile(r"\\(?:boxed|fbox) ?")
_PHRASES = (
    *("final answer", "answer is", "answers are", "answer:", "answers:", "answer**:", "answer ="),
    *("answer would be", "answer should be"),
)
_PHRASE = re.compile(r"(?:final )?answers?[*_]{0,4}(?: (?:is|are|would be|should be)\b)?[ :*_=]{0,8}", re.IGNORECASE)
_SHORT_PHRASE = re.compile(r"(?:^|\n)[>*_ ]{0,8}(?:A|Ans|Result)\b[*_ ]{0,4}:[*_ ]{0,8}")
_BETWEEN_BOXES = re.compile(r"[\s$]*(?:\\[)\]])?\s*(?:[,;]?\s*(?:and|or)\b|[,;])\s*(?:\\[(\[])?[\s$]*", re.IGNORECASE)
_HEDGE = re.compile(r"[\s$*,]{0,6}(?:\\[)\]])?[\s$*,]{0,6}\b(?:or|and)\b(?P<rest>[^\n]{1,200})", re.IGNORECASE)
_DENIED = re.compile(
    r"[\s$.}]{0,6}(?:is|was|seems|looks|would be) (?:wrong|incorrect|not|false|impossible)\b", re.IGNORECASE
)


def extract_answer(text: str) -> str | None:
    r"""The one answer that a solution commits itself to.

    Args:
        text: a solution, without the thinking before it.

    Returns:
        The content of the last `\boxed{}`, and of those joined to it by "and", "or" or a comma; else of the last
        `<answer>`; else what follows the last `####`, "final answer is", "answer:" or `A:`; else what the last line
        states. Several formulas joined by "and" or "or" are one answer. None where that is empty, longer than
        `MAX_ANSWER`, or a box that never closes.
    """
    if max(text.rfind("\\boxed"), text.rfind("\\fbox")) >= 0:
        answer = _boxed(text)
    else:
        answer = _tagged(text) or _after_hashes(text) or _after_phrase(text) or stated(last_line(text))
    if answer is None or not answer.strip() or len(answer) > MAX_ANSWER:
        return None
    return answer.strip()


_NAMED = re.compile(r"\s*([A-Za-z](?:_\w|_\{\w\})?)\s*=(?!=)")


def _boxed(text: str) -> str | None:
    """Contents of the last boxes that only a joining word stands between."""
    contents: list[str] = []
    end, start = len(text), len(text)
    while len(contents) < _MOST_BOXES:
        box = max(text.rfind("\\boxed", 0, start), text.rfind("\\fbox", 0, start))
        found = _braced(text, box) if box >= 0 else None
        if found is None:
            if not contents:
                return None
            break
        content, close = found
        if contents and not (close <= start and _BETWEEN_BOXES.fullmatch(text[close:start][:60])):
            break
        if not contents:
            end = close
        contents.insert(0, content)
        start = box
    if len(set(contents)) == 1:
        contents = contents[:1]
    if denied := _DENIED.match(text, end):
        return contents[-1] + denied[0]
    hedge = _HEDGE.match(text, end)
    if hedge and (other := _alternative(hedge["rest"])) and other.strip("$ .") != contents[-1].strip("$ ."):
        contents.append(other)
    named = [name[1] for content in contents if (name := _NAMED.match(content))]
    together = len(named) == len(contents) == len(set(named))  # `x = 2`, `y = 3` are one answer
    return (", " if together else " or ").join(contents)


def _alternative(rest: str) -> str | None:
    """A second answer behind a box: `or 9`, `or $9$`; None for other words."""
    formula = FORMULA.match(rest.strip())
    if formula:
        return formula[0]
    found = re.match(r"\s*(?:maybe |perhaps |possibly |it(?:'s| is) )?([-−+]?\$?\d[\d.,/]*)", rest)
    return found[1].rstrip(".,") if found else None


def _braced(text: str, box: int) -> tuple[str, int] | None:
    """Content of a box's braces, and the place behind them; None if they do not close near enough."""
    opening = _BOX.match(text, box)
    place = opening.end() if opening else box
    if text[place : place + 1] != "{":
        plain = re.compile(r"\s*(-?\w+)").match(text, place)
        return (plain[1], plain.end()) if plain else None
    depth, position = 0, place
    end = min(len(text), place + MAX_ANSWER + 2)
    while position < end:
        character = text[position]
        if character == "\\":
            position += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[place + 1 : position], position + 1
        position += 1
    return None


def _tagged(text: str) -> str | None:
    """Text in the last `<answer>…</answer>`."""
    _, opened, rest = text.rpartition("<answer>")
    inside, closed, _ = rest.partition("</answer>")
    if not (opened and closed and inside.strip()):
        return None
    inside = inside.strip()
    return clean(inside) if "\n" not in inside and len(inside) <= MAX_ANSWER else last_line(inside)


def _after_hashes(text: str) -> str | None:
    """GSM8K's own last line: `#### 72`."""
    line = last_line(text)
    return clean(line.lstrip("#").strip(CLOSING)) if line.startswith("####") else None


def _after_phrase(text: str) -> str | None:
    lowered = text.lower()
    start = max(lowered.rfind(phrase) for phrase in _PHRASES)
    if start >= 0:
        phrase = _PHRASE.match(text, start)
        rest = text[phrase.end() : phrase.end() + LONGEST_LINE] if phrase else ""
    else:
        tail = text[-LONGEST_LINE:]
        short = list(_SHORT_PHRASE.finditer(tail))
        rest = tail[short[-1].end() :] if short else ""
    lines = [line for line in rest.split("\n") if line.strip(CLOSING + "$\\[]():-")]
    return answer_in(lines[0]) if lines else None
