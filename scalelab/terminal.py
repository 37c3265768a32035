"""Text made fit for a terminal: nothing from a file moves the cursor, draws a link or turns the writing around."""

from __future__ import annotations

import shlex
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

_BREAKS = str.maketrans("", "", "\n\t")

RESET = "\033[0m"
"""Reset of colours that colorama, which Ray brings, writes to the terminal when the process ends."""


def plain_text(text: object, lines: bool = False) -> str:
    """Text with nothing in it that a terminal would act on: escapes and unseen characters become `⟨001b⟩`.

    Args:
        text: what somebody wrote.
        lines: whether line feeds and tabs stay; without, runs of white space become one space.
    """
    shown = str(text)
    if not shown.translate(_BREAKS).isprintable():
        shown = "".join(one if one.isprintable() else _shown(one) for one in shown)
    return shown if lines else " ".join(shown.split())


def plain_line(text: object) -> str:
    """Plain text with its spaces as they are, and with `⟨000a⟩` for line feeds, so that it stays one line."""
    return plain_text(text, lines=True).replace("\n", _mark("\n")).replace("\t", " ")


def shell_path(path: Path | str) -> str:
    """A path as a command takes it that is pasted into a shell: quoted if it has to be, and no option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def _shown(one: str) -> str:
    """Show one character that is not printable: control, format and private ones, surrogates, and odd spaces."""
    if one in "\n\t":
        return one
    return " " if unicodedata.category(one) == "Zs" else _mark(one)


def _mark(one: str) -> str:
    return f"⟨{ord(one):04x}⟩"


class PlainStream:
    """A text stream that passes on nothing but plain text; everything else is the stream's own.

    Args:
        stream: where the text goes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text, without what a terminal would act on; a bare reset of colours is no text."""
        if text != RESET:
            self._stream.write(plain_text(text, lines=True))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def plain_output() -> Iterator[None]:
    """Let everything that is printed to standard output meanwhile be plain text."""
    before = sys.stdout
    sys.stdout = cast(TextIO, PlainStream(before))
    try:
        yield
    finally:
        sys.stdout = before
