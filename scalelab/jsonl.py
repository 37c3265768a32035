"""JSON as the lab writes it: plain values, and files of one object per line whose last line may be torn."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalelab.errors import LabError
from scalelab.guarded import LONGEST_FILE, read_whole


def plain(value: Any) -> Any:
    """A value as strict JSON has it: NaN and infinities become None, keys text, tuples and NumPy's arrays lists."""
    kind = type(value)  # most values are one of these, and `isinstance` of an abstract class is slow
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


DECODER = json.JSONDecoder()


def _object(line: str) -> Any:
    """The value of a line; the decoder itself takes two thirds of the time of `json.loads` for short lines."""
    text = line.strip(" \t\r\n")
    found, end = DECODER.raw_decode(text)
    return found if end == len(text) else None


def read_objects(path: Path) -> tuple[list[tuple[int, dict[str, Any]]], bool]:
    """Read the objects of a JSON-lines file.

    Returns:
        The number of each line that is not blank, from 1, with its object; and True if the last line is torn, which
        leaves it out.

    Raises:
        LabError: it is no regular file, or a line other than the last is no JSON object or too long.
    """
    return objects_in(path, read_whole(path))


def objects_in(
    path: Path, content: bytes, longest: int = LONGEST_FILE
) -> tuple[list[tuple[int, dict[str, Any]]], bool]:
    """The objects in the bytes of a JSON-lines file, as `read_objects` returns them.

    Args:
        path: the file, for messages.
        content: its bytes.
        longest: bytes of a line above which it is refused.

    Raises:
        LabError: a line other than the last is no JSON object, or too long.
    """
    lines: list[Any] = content.split(b"\n")  # the line that is no text is found below
    with suppress(UnicodeDecodeError):
        lines = content.decode().split("\n")
    objects: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if len(line) > longest:
            raise LabError(f"{path}, line {number}: {len(line):,} bytes; lines of up to {longest:,} are read")
        try:
            found = _object(line) if isinstance(line, str) else json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            objects.append((number, found))
        elif number < len(lines):
            raise LabError(f"{path}, line {number}: not a JSON object; mend or remove that line")
        else:
            return objects, True
    return objects, False
