r"""Find the one answer in what a model wrote: the last `\boxed{}`, else `<answer>`, else a final line.

Linear in the length of the text, so that it may run in the caller's process.
"""

from __future__ import annotations

import re

from tasks.math.nodes import UnitQuantity
from tasks.math.read import MAX_ANSWER, read

__all__ = ["MAX_ANSWER", "extract_answer"]

_LONGEST_LINE = 4 * MAX_ANSWER
_MOST_BOXES = 16

_BOX = re.compile(r"\\(?:boxed|fbox) ?")
_PHRASES = (
    *("final answer", "answer is", "answers are", "answer:", "answers:", "answer**:", "answer ="),
    *("answer would be", "answer should be"),
)
_PHRASE = re.compile(r"(?:final )?answers?[*_]{0,4}(?: (?:is|are|would be|should be)\b)?[ :*_=]{0,8}", re.IGNORECASE)
_SHORT_PHRASE = re.compile(r"(?:^|\n)[>*_ ]{0,8}(?:A|Ans|Result)\b[*_ ]{0,4}:[*_ ]{0,8}")
_JOINER = re.compile(r"\s*(?:[,;]\s*(?:and|or)\b|[,;]|and\b|or\b)\s*", re.IGNORECASE)
_BETWEEN_BOXES = re.compile(r"[\s$]*(?:\\[)\]])?\s*(?:[,;]?\s*(?:and|or)\b|[,;])\s*(?:\\[(\[])?[\s$]*", re.IGNORECASE)
_HEDGE = re.compile(r"[\s$*,]{0,6}(?:\\[)\]])?[\s$*,]{0,6}\b(?:or|and)\b(?P<rest>[^\n]{1,200})", re.IGNORECASE)
_REASON = re.compile(
    r"[,;]?\s(?:because|since|as (?:shown|above|required|desired|we)|due to|when rounded)\b.*", re.IGNORECASE
)
_FORMULA = re.compile(
    r"(?<![\\$])\$\$?(?! ?\d[\d,.]* [a-z])(?:\\.|[^$\\])+\$\$?"
    r"|\\\(.{1,1000}?\\\)|\\\[.{1,1000}?\\\]|\*\*[^*\n]+\*\*"
)
_NUMBER = r"[$€£]?\s?[-−+]?[$€£]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
_VALUE = re.compile(rf"(?<![\w.]){_NUMBER}(?:\s?(?:[-+*/^=×·:]|\\times|\\cdot)\s?{_NUMBER})*%?")
_DOUBT = re.compile(
    r"\b(?:not|maybe|perhaps|possibly|probably|either|neither|nor|between|unless|except|wrong|incorrect|cannot|never|about|"
    r"at least|at most|more than|less than|fewer than|or more|or less|or fewer)\b|n't\b",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"(?<![\\A-Za-z])(?:is|are|was|were|has|have|had|makes?|takes?|gives?|gets?|got|earns?|needs?|equals?|of|so|thus|hence|after|"
    r"then|will|can|spends?|pays?|there|left)(?![A-Za-z])",
    re.IGNORECASE,
)
_CLOSING = " \t\r\n*_"


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
        answer = _tagged(text) or _after_hashes(text) or _after_phrase(text) or _stated(_last_line(text))
    if answer is None or not answer.strip() or len(answer) > MAX_ANSWER:
        return None
    return answer.strip()


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
    hedge = _HEDGE.match(text, end)
    if hedge and (other := _alternative(hedge["rest"])) and other.strip("$ .") != contents[-1].strip("$ ."):
        contents.append(other)
    return " or ".join(contents)


def _alternative(rest: str) -> str | None:
    """A second answer behind a box: `or 9`, `or $9$`; None for other words."""
    formula = _FORMULA.match(rest.strip())
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
    return _clean(inside) if "\n" not in inside and len(inside) <= MAX_ANSWER else _last_line(inside)


def _after_hashes(text: str) -> str | None:
    """GSM8K's own last line: `#### 72`."""
    line = _last_line(text)
    return _clean(line.lstrip("#").strip(_CLOSING)) if line.startswith("####") else None


def _after_phrase(text: str) -> str | None:
    lowered = text.lower()
    start = max(lowered.rfind(phrase) for phrase in _PHRASES)
    if start >= 0:
        phrase = _PHRASE.match(text, start)
        rest = text[phrase.end() : phrase.end() + _LONGEST_LINE] if phrase else ""
    else:
        tail = text[-_LONGEST_LINE:]
        short = list(_SHORT_PHRASE.finditer(tail))
        rest = tail[short[-1].end() :] if short else ""
    lines = [line for line in rest.split("\n") if line.strip(_CLOSING + "$\\[]():-")]
    return _answer_in(lines[0]) if lines else None


def _answer_in(line: str) -> str | None:
    """The answer in what stands behind "the answer is"."""
    line = _inner(line)
    if joined := _joined_formulas(line):
        return joined
    line = _REASON.sub("", line)
    sentence = _clean(re.split(r"(?<![\s.]\w)\.\s|\.$", line, maxsplit=1)[0])
    if not sentence or read(sentence).is_readable or _DOUBT.search(sentence):
        return sentence or None
    return _stated(sentence)


def _joined_formulas(line: str) -> str | None:
    """`$5$ or $9$` whole; `$5$ cm` whole; `$5$. I hope …` its formula; None where no formula comes first."""
    first = _FORMULA.match(line)
    if not first:
        return None
    end = first.end()
    while (joiner := _JOINER.match(line, end)) and (following := _FORMULA.match(line, joiner.end())):
        end = following.end()
    if joiner and (number := _VALUE.match(line, joiner.end())):
        end = number.end()
    behind = re.match(r"\s*[A-Za-z%°][^.,;:()$\n]{0,60}", line[end:])
    if behind and (_DOUBT.search(behind[0]) or read(line[:end] + behind[0]).is_readable):
        end += behind.end()
    return _clean(line[:end])


def _clean(text: str) -> str:
    text = text.strip(_CLOSING)
    return text if text.endswith("..") else text.removesuffix(".").strip(_CLOSING)


def _inner(line: str) -> str:
    """A line without the signs of displayed formulas, lists and bold type around it."""
    line = line.strip(_CLOSING + ">").lstrip(":").strip(_CLOSING)
    displayed = re.fullmatch(r"\\[\[(](.*)\\[\])]\.?", line)
    return displayed[1].strip() if displayed and "\\]" not in displayed[1] and "\\)" not in displayed[1] else line


def _last_line(text: str) -> str:
    line = text.rstrip()[-_LONGEST_LINE - 1 :].rsplit("\n", 1)[-1].strip()
    return line if len(line) <= _LONGEST_LINE else ""


def _stated(line: str) -> str | None:
    """The answer of a last line: itself if it is an answer, else the last formula or number in its sentence."""
    line = _clean(_inner(line))
    if not line or len(line) > MAX_ANSWER:
        return None
    if not re.search(r"[A-Za-z]{2}", line) or _DOUBT.search(line) or _is_plain(line):
        return line
    formulas = list(_FORMULA.finditer(line))
    if formulas and not re.search(r"\d", line[formulas[-1].end() :]):
        start = formulas[-1].start()
        for formula in reversed(formulas[:-1]):
            if not _JOINER.fullmatch(line[formula.end() : start]):
                break
            start = formula.start()
        return _joined_formulas(line[start:])
    return line if "\\" in line else _last_numbers(line) or line


def _is_plain(line: str) -> bool:
    """True if a line is an answer as it stands, without a verb."""
    return not _VERB.search(line) and read(line).is_readable


def _last_numbers(line: str) -> str | None:
    """The last number of a sentence with its unit, and those that "and", "or", a comma or a unit join to it."""
    values = list(_VALUE.finditer(line))
    if not values:
        return None
    start, end = values[-1].span()
    words = re.match(r"(?: [A-Za-z°²³/]+){0,5}", line[end:])
    behind = words[0].split() if words else []
    while behind and not read(f"{line[start:end]} {' '.join(behind)}").is_readable:
        behind.pop()
    last = " ".join([line[start:end].rstrip(","), *behind])
    for value in reversed(values[:-1]):
        between = line[value.end() : start]
        longer = line[value.start() : start] + last
        if not _JOINER.fullmatch(between) and not isinstance(read(longer).readings[0], UnitQuantity):
            break
        start, last = value.start(), longer
    return last
