"""JSON as the lab writes it: plain values, and files of one object per line whose last line may be torn."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Mapping, Sequence
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

BLOCK = 256
"""Lines that are decoded at once, which takes half of the time."""

BETWEEN = b"-Infinity"
"""Constant between lines that are decoded at once: nothing else in JSON is decoded as it is."""

_MARK = object()
_BLOCKS = json.JSONDecoder(
    parse_constant={BETWEEN.decode(): _MARK, "Infinity": math.inf, "NaN": math.nan}.__getitem__  # type: ignore[arg-type]
)


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
    collects = gc.isenabled()
    gc.disable()  # it would walk all objects again and again, and there are no cycles among them
    try:
        return _objects(path, content, longest)
    finally:
        if collects:
            gc.enable()


def _objects(path: Path, content: bytes, longest: int) -> tuple[list[tuple[int, dict[str, Any]]], bool]:
    lines: list[Any] = content.split(b"\n")  # the line that is no text is found below
    with suppress(UnicodeDecodeError):
        lines = content.decode().split("\n")
    objects: list[tuple[int, dict[str, Any]]] = []
    together = isinstance(lines[0], str) and BETWEEN not in content
    end = len(lines) - (not lines[-1].strip())
    for start in range(0, end, BLOCK):
        some = lines[start : min(start + BLOCK, end)]
        found = _block(some) if together and max(map(len, some)) <= longest else None
        if found is not None:
            objects += zip(range(start + 1, end + 1), found)
        elif not _one_by_one(path, some, start, len(lines), longest, objects):
            return objects, True
    return objects, False


def _block(lines: Sequence[str]) -> list[Any] | None:
    """The objects of some lines, decoded at once; None if any is none.

    No line holds a mark, so each is by itself what lies between two marks of the list.
    """
    try:
        found, at = _BLOCKS.raw_decode(text := f"[{f',{BETWEEN.decode()},'.join(lines)}]")
    except (ValueError, RecursionError):
        return None
    objects, marks = found[::2], found[1::2]
    apart = at == len(text) and len(objects) == len(lines) and marks.count(_MARK) == len(marks)
    return objects if apart and all(type(one) is dict for one in objects) else None


def _one_by_one(
    path: Path, some: Sequence[Any], start: int, count: int, longest: int, objects: list[tuple[int, dict[str, Any]]]
) -> bool:
    """Add the objects of lines from `start` on; False if the last of all `count` is torn."""
    for number, line in enumerate(some, start + 1):
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
        elif number < count:
            raise LabError(f"{path}, line {number}: not a JSON object; mend or remove that line")
        else:
            return False
    return True
