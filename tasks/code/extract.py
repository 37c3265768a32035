"""The program in a model's answer; linear in its length."""

from __future__ import annotations

import re
from dataclasses import dataclass

LANGUAGES = ("python", "cpp", "javascript")
"""Languages of whole programs."""

_MARKS = {
    "python": ("python", "python3", "py", "py3"),
    "cpp": ("cpp", "c++", "cc", "cxx", "c"),
    "javascript": ("javascript", "js", "node", "nodejs", "cjs", "mjs"),
}
_DEFINITION = r"^[ \t]*(?:async[ \t]+def|def|class)[ \t]+{0}\b|^{0}[ \t]*[:=]"
_WHOLE = {
    "python": re.compile(r"\binput\s?\(|\bstdin\b|\bopen\s?\(\s?0|\bfileinput\b|\bos\.read\b"),
    "cpp": re.compile(r"\bmain\s?\("),
    "javascript": re.compile(r"\bstdin\b|\breadFileSync\s?\(|\breadline\b"),
}


@dataclass(frozen=True)
class Block:
    """A fenced block: the language that it is marked with (lower case, may be empty) and its text."""

    language: str
    text: str


def extract_code(answer: str, defines: str = "", language: str = "python") -> str:
    """The code block that holds the program.

    Blocks marked with the language come first, then unmarked ones, then any; of these the last that defines `defines`,
    or is a whole program where that is empty (reads its input, has a `main`), so that a block which only shows usage or
    output does not count; else simply the last. Without a fence, the whole answer. A block that is never closed ends
    with the answer.

    Args:
        answer: what the model wrote after its thinking.
        defines: function or class that the tests use; empty for a whole program.
        language: one of `LANGUAGES`.
    """
    found = blocks(answer)
    if not found:
        return answer
    looked_for = re.compile(_DEFINITION.format(re.escape(defines)), re.MULTILINE) if defines else _WHOLE[language]
    marked = [block.text for block in found if block.language in _MARKS[language]]
    unmarked = [block.text for block in found if not block.language]
    kinds = [texts for texts in (marked, unmarked, [block.text for block in found]) if texts]
    for texts in kinds:
        whole = [text for text in texts if looked_for.search(text)]
        if whole:
            return whole[-1]
    return kinds[0][-1]


def blocks(answer: str) -> list[Block]:
    """Every fenced block, in order.

    A fence is three or more backticks or tildes at the start of a line, perhaps indented inside a list.
    """
    found: list[Block] = []
    fence, language, indent, lines = "", "", "", list[str]()
    for line in answer.split("\n"):
        text = line.strip(" \t\r")
        mark = _fence(text)
        rest = text[len(mark) :].strip()
        if not fence:
            if mark and "`" not in rest:
                fence, language, lines = mark, (rest.lower().split() or [""])[0], []
                indent = line[: len(line) - len(line.lstrip(" \t"))]
        elif mark.startswith(fence) and not rest:
            found.append(Block(language, "\n".join(lines)))
            fence = ""
        else:
            lines.append(line.removeprefix(indent))
    if fence:
        # Cut off, or closed at the end of its last line of code.
        found.append(Block(language, "\n".join(lines).rstrip().removesuffix(fence)))
    return found


def _fence(text: str) -> str:
    """The run of three or more backticks or tildes at the start of a stripped line."""
    for character in "`~":
        length = len(text) - len(text.lstrip(character))
        if length >= 3:
            return text[:length]
    return ""
