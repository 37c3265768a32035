"""Print results: aligned tables for people, one JSON object for machines."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence

NUMBER = re.compile(r"[-−+]?[\d.,]+%?|–|")


def print_json(value: object) -> None:
    """Print the one machine-readable object of a `--json` call (strict JSON: NaN and infinities are refused)."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    print(text.encode(errors="replace").decode())  # half a surrogate pair, which a file may hold, cannot be printed


def print_table(rows: Sequence[Sequence[str]], header: Sequence[str] | None = None) -> None:
    """Print rows of text in columns two spaces apart, under a header if there is one; numbers stand to the right."""
    lines = [list(header), ["-" * len(title) for title in header], *rows] if header else list(rows)
    columns = list(zip(*rows, strict=True)) or [() for _ in header or ()]
    right = [bool(column) and all(NUMBER.fullmatch(cell) for cell in column) for column in columns]
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        cells = zip(line, widths, right, strict=True)
        print("  ".join(cell.rjust(width) if ends else cell.ljust(width) for cell, width, ends in cells).rstrip())


def print_cut(line: str) -> None:
    """Print a line, cut with an ellipsis at the width of a terminal; pipes get it whole."""
    width = shutil.get_terminal_size().columns
    print(f"{line[: width - 1]}…" if sys.stdout.isatty() and len(line) > width else line)
