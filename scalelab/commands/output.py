"""Print results: aligned tables for people, one JSON object for machines."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

from scalelab.numbers import compact
from scalelab.terminal import plain_line

NUMBER = re.compile(r"[-−+]?[\d.,]+%?|–|")


def print_json(value: object) -> None:
    """Print the one machine-readable object of a `--json` call (strict JSON: NaN and infinities are refused).

    Characters that a terminal would act on are written as JSON's `\\u001b`, which reads back as they were.
    """
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    if not text.replace("\n", "").isprintable():
        text = "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)
    print(text)


def print_table(rows: Sequence[Sequence[str]], header: Sequence[str] | None = None) -> None:
    """Print rows of text in columns two spaces apart, under a header if there is one; numbers stand to the right."""
    rows = [[plain_line(cell) for cell in row] for row in rows]
    lines = [list(header), ["-" * len(title) for title in header], *rows] if header else rows
    columns = list(zip(*rows, strict=True)) or [() for _ in header or ()]
    right = [bool(column) and all(NUMBER.fullmatch(cell) for cell in column) for column in columns]
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        cells = zip(line, widths, right, strict=True)
        print("  ".join(cell.rjust(width) if ends else cell.ljust(width) for cell, width, ends in cells).rstrip())


def paid(cost: float | None) -> str:
    """A clause that says a cost in the user's currency; empty where none is known."""
    return "" if cost is None else f", which cost {compact(cost)}"


def print_filled(text: str, after: str = "") -> None:
    """Print a sentence, broken between words where it is longer than a terminal is wide; pipes get it in one line.

    Args:
        text: the sentence.
        after: what stands before its second and later lines.
    """
    width = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and len(text) > width:
        text = textwrap.fill(text, width, subsequent_indent=after, break_long_words=False, break_on_hyphens=False)
    print(text)
