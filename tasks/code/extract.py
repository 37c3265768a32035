"""The program in a model's answer."""

from __future__ import annotations

import re

# A fence opens at the start of a line, perhaps indented inside a list; what follows on its line names the language.
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([^\n`]*)$", re.MULTILINE)
_PYTHON = {"", "python", "python3", "py", "py3"}


def extract_code(answer: str) -> str:
    """The last Python code block of an answer.

    The last fenced block that is marked as Python or not at all; else the last block in any language; else, where
    there is no fence, the whole answer. A block that is never closed ends with the answer.
    """
    blocks = _blocks(answer)
    if not blocks:
        return answer
    python = [code for language, code in blocks if language in _PYTHON]
    return (python or [code for _, code in blocks])[-1]


def _blocks(answer: str) -> list[tuple[str, str]]:
    """(language, code) of every fenced block, in order."""
    blocks: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(answer):
        if opened is None:
            opened = fence
        elif fence[1].startswith(opened[1]) and not fence[2].strip():
            blocks.append((_language(opened), answer[opened.end() + 1 : fence.start()]))
            opened = None
    if opened is not None:
        # Cut off, or closed at the end of its last line of code.
        code = answer[opened.end() + 1 :].rstrip()
        blocks.append((_language(opened), code.removesuffix(opened[1])))
    return blocks


def _language(fence: re.Match[str]) -> str:
    words = fence[2].lower().split()
    return words[0] if words else ""
