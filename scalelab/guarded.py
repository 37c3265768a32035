"""Read files that anybody may have written: regular files alone, within bounds of size, growth and time."""

from __future__ import annotations

import os
import stat
import time
import zlib
from io import BufferedReader
from pathlib import Path

from moe.errors import MoeError
from moe.regular import open_regular
from scalelab.errors import LabError

LONGEST_FILE = 1 << 30
"""Bytes of a file above which it is not read."""

LONGEST_TABLE = 1 << 28
"""Bytes of a table above which it is not read, and to which a compressed one may grow: some millions of rows."""

LONGEST_TEXT = 1 << 20
"""Bytes of one line, of one field of a table, and of a small file such as `manifest.json`."""

MOST_ROWS = 5_000_000
MOST_CELLS = 20_000_000
MOST_COLUMNS = 20_000
"""Limits of one table; together with that of its bytes they bound the memory that it takes."""

SECONDS = 120.0
"""Time within which a file has to arrive; a disk, or a file system of somebody's own, may answer ever so slowly."""

_CHUNK = 1 << 22


def inside(folder: Path, name: str) -> Path | None:
    """A regular file of a folder, or None if there is none.

    Args:
        folder: the folder of a run.
        name: path below it.

    Raises:
        LabError: the path leads out of the folder, or to something that is no regular file (a pipe has no end).
    """
    path = folder / name
    try:
        real, root = path.resolve(strict=True), folder.resolve(strict=True)
        mode = real.stat().st_mode
    except (OSError, RuntimeError):
        return None
    if not real.is_relative_to(root):
        raise LabError(f"{path} leads out of the run's folder and was not opened: copy the file into it")
    if not stat.S_ISREG(mode):
        raise LabError(f"{path} is not a regular file and was not opened: remove it")
    return real


def open_whole(path: Path) -> BufferedReader:
    """Open a regular file of which only parts are read; a link is followed.

    Raises:
        LabError: it is a pipe, a device or a folder.
        OSError: it cannot be opened.
    """
    try:
        return open_regular(path)
    except MoeError as error:
        raise LabError(str(error)) from None


def read_whole(path: Path, most: int = LONGEST_FILE, seconds: float = SECONDS) -> bytes:
    """The bytes of a regular file.

    A file that grows meanwhile is read up to the length that it had.

    Args:
        path: the file; a link is followed.
        most: bytes above which it is refused.
        seconds: time within which it has to arrive.

    Raises:
        LabError: it is a pipe, a device or a folder, is longer than `most`, or does not arrive in time.
        OSError: it cannot be opened.
    """
    with open_whole(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise LabError(f"{path} has {size:,} bytes; files of up to {most:,} are read: give a shorter one")
        parts, left, end = [], size, time.monotonic() + seconds
        while left and (part := file.raw.read(min(left, _CHUNK))):
            parts.append(part)
            left -= len(part)
            if left and time.monotonic() > end:
                raise LabError(f"{path}: {left:,} bytes had not arrived after {seconds:g} s: copy it to a faster disk")
    return b"".join(parts)


def read_below(folder: Path, name: str, most: int = LONGEST_FILE) -> bytes | None:
    """The bytes of a regular file of a folder, None if there is none.

    Raises:
        LabError: it leads out of the folder, is no regular file, is longer than `most`, or does not arrive in time.
    """
    path = inside(folder, name)
    return None if path is None else read_whole(path, most)


def read_text(folder: Path, name: str) -> str:
    """The first `LONGEST_TEXT` bytes of a file of a folder as text, "" if there is none.

    Bytes that are not UTF-8 become U+FFFD.

    Raises:
        LabError: it leads out of the folder, is no regular file, or does not arrive in time.
    """
    content = read_below(folder, name)
    return "" if content is None else content[:LONGEST_TEXT].decode("utf-8", "replace")


def gunzip(content: bytes, path: Path, most: int = LONGEST_TABLE) -> bytes:
    """The bytes that a gzip file holds; several of them may follow one another.

    Args:
        content: its bytes.
        path: what messages call it.
        most: bytes above which it is refused, before they are unpacked.

    Raises:
        LabError: it is damaged or cut off, or unpacks to more than `most`.
    """
    parts, size = [], 0
    while content:
        stream = zlib.decompressobj(wbits=31)
        try:
            parts.append(stream.decompress(content, most - size + 1))
        except zlib.error as error:
            raise LabError(f"{path}: damaged ({error}); copy it again") from None
        size += len(parts[-1])
        if size > most:
            raise LabError(f"{path} unpacks to more than {most:,} bytes, which is not read: give a shorter one")
        if not stream.eof:
            raise LabError(f"{path}: the compressed file is cut off; copy it again")
        content = stream.unused_data.lstrip(b"\0")  # tar and tapes pad with zeros
    return b"".join(parts)


def check_table(path: Path, rows: int, columns: int) -> None:
    """Refuse a table with more rows, columns or cells than the limits.

    Raises:
        LabError: it has.
    """
    if rows > MOST_ROWS or columns > MOST_COLUMNS or rows * columns > MOST_CELLS:
        raise LabError(
            f"{path}: {rows:,} rows of {columns:,} columns; up to {MOST_ROWS:,} rows, {MOST_COLUMNS:,} columns and "
            f"{MOST_CELLS:,} cells are read: keep the columns and evaluations that matter"
        )
