"""Text made fit for a terminal: nothing from a file moves the cursor, draws a link or turns the writing around."""

from __future__ import annotations

import unicodedata
from typing import Any, TextIO


def plain_text(text: object, lines: bool = False) -> str:
    """Text with nothing in it that a terminal would act on: escapes and unseen characters become `⟨001b⟩`.

    Args:
        text: what somebody wrote.
        lines: whether line feeds and tabs stay; without, runs of white space become one space.
    """
    shown = str(text)
    if not shown.isprintable():
        shown = "".join(one if one.isprintable() else _shown(one) for one in shown)
    return shown if lines else " ".join(shown.split())


def _shown(one: str) -> str:
    """Show one character that is not printable: control, format and private ones, surrogates, and odd spaces."""
    if one in "\n\t":
        return one
    return " " if unicodedata.category(one) == "Zs" else f"⟨{ord(one):04x}⟩"


class PlainStream:
    """A text stream that passes on nothing but plain text; everything else is the stream's own.

    Args:
        stream: where the text goes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text, without what a terminal would act on."""
        self._stream.write(plain_text(text, lines=True))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
