"""Read rows of a Parquet file that may be anybody's: its sizes are checked before anything is unpacked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from scalelab.errors import LabError
from scalelab.guarded import check_table, open_whole, read_whole

TEXT = ("task", "prompt_id", "prompt", "completion", "outcome", "detail", "gold", "parts")
"""Columns of text, which repeats: it stays dictionary-encoded until a row is asked for."""

MOST_ROWS = 2_000_000
MOST_VALUES = 50_000_000
MOST_BYTES = 1 << 29
"""Limits of what is read of a file: rows, values of a column in a group of rows, bytes once unpacked."""

PIECE_ROWS = 1 << 16
"""Rows that are unpacked at a time."""

COUNT_SECONDS = 60.0
"""Limit of the process that reads what a file says of its columns."""


def take_rows(path: Path, at: Sequence[int] | None, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Some rows of some columns; columns that the file lacks are left out. Only row groups that are needed are read.

    Args:
        path: the file.
        at: row numbers in rising order; None for all rows.
        columns: names of columns.

    Raises:
        LabError: it is not Parquet, or larger than the limits.
    """
    import pyarrow  # a tenth of a second, which only those pay who read completions
    from pyarrow import parquet

    try:
        with open_whole(path) as opened:
            names = [name for name in columns if name in parquet.read_schema(opened).names]
            file = parquet.ParquetFile(opened, read_dictionary=[name for name in names if name in TEXT])
            lists = any(one.type.num_fields for one in file.schema_arrow if one.name in names)
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            large = sum(group.total_byte_size for group in groups) > MOST_BYTES
            now = os.fstat(opened.fileno())
            stamp = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
            told = _counts(path, tuple(names), stamp) if names and (lists or large) else ((0, 0),) * len(groups)
            if names and at is None:
                values, unpacked = max((one for one, _ in told), default=0), sum(size for _, size in told)
                _check_size(path, file.metadata.num_rows, values, unpacked)
            found: dict[str, list[Any]] = {name: [] for name in names}
            first = 0
            for number, (group, (values, unpacked)) in enumerate(zip(groups, told, strict=True)):
                last = first + group.num_rows
                if names and (at is None or any(first <= row < last for row in at)):
                    _check_size(path, last - first, values, unpacked)
                    for name, cells in _cells_of(path, file, number, names, at, first):
                        found[name] += cells
                first = last
            return found
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        reason = " ".join(str(error).split())[:120]
        raise LabError(f"{path.name}: not a Parquet file that can be read ({reason})") from None


def _cells_of(
    path: Path, file: Any, group: int, names: Sequence[str], at: Sequence[int] | None, first: int
) -> Iterator[tuple[str, list[Any]]]:
    """Cells of a group of rows by column, piece by piece.

    Args:
        path: the file, for messages.
        file: the opened file.
        group: number of the group.
        names: columns.
        at: row numbers of the file in rising order; None for all rows.
        first: number of the group's first row.

    Raises:
        LabError: it unpacks to more than the limit.
    """
    unpacked = 0
    for piece in file.iter_batches(PIECE_ROWS, row_groups=[group], columns=names, use_threads=False):
        unpacked += piece.nbytes
        if unpacked > MOST_BYTES:
            raise LabError(f"{path.name}: more than {MOST_BYTES:,} bytes unpacked, so it is not read")
        piece.validate(full=True)
        last = first + piece.num_rows
        mine = piece if at is None else piece.take([row - first for row in at if first <= row < last])
        for name in names:
            yield name, _shared(mine.column(name))
        first = last


@lru_cache(maxsize=4096)
def _counts(path: Path, names: tuple[str, ...], stamp: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Values of the longest of some columns, and bytes of all, by row group, as the file says.

    Columns without lists have a value for each row. See `scalelab/parquet_counts.py` for why a process is asked: that
    takes a sixth of a second, and a page asks for rows of one file many times.

    Args:
        path: the file.
        names: columns.
        stamp: what changes with the file.

    Raises:
        LabError: the file cannot be read.
    """
    program = Path(__file__).with_name("parquet_counts.py")
    command = [sys.executable, "-P", str(program), str(path.absolute()), *names]  # beside it is another `numbers`
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COUNT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LabError(f"{path.name}: its counts were not read in {COUNT_SECONDS:.0f} s") from None
    if done.returncode:
        damaged = f"its counts of {', '.join(names)} are damaged"
        reason = damaged if done.returncode < 0 else done.stderr.strip().rpartition("\n")[2][:120]
        raise LabError(f"{path.name}: not a Parquet file that can be read ({reason})")
    return tuple((values, unpacked) for values, unpacked in json.loads(done.stdout))


def _check_size(path: Path, rows: int, values: int, unpacked: int) -> None:
    """Refuse to unpack more than the limits, by what the file says of itself: columns have a value a row, or more."""
    values = max(rows, values)
    if rows > MOST_ROWS or values > MOST_VALUES or unpacked > MOST_BYTES:
        raise LabError(
            f"{path.name}: {rows:,} rows, {values:,} values in a column, {unpacked:,} bytes unpacked: more "
            f"than {MOST_ROWS:,}, {MOST_VALUES:,} or {MOST_BYTES:,}, so it is not read"
        )


def read_columns(path: Path) -> dict[str, list[Any]]:
    """All columns of a table of numbers and texts; columns of lists and structures are left out.

    A text that repeats is one object however often it stands there, so that a small file stays small.

    Raises:
        LabError: it is no regular file or not Parquet, or is larger than the limits.
    """
    import pyarrow
    from pyarrow import parquet

    content = pyarrow.BufferReader(read_whole(path))
    try:
        schema = parquet.read_schema(content)
        names = [one.name for one in schema if not pyarrow.types.is_nested(one.type)]
        texts = [one.name for one in schema if pyarrow.types.is_string(one.type) or pyarrow.types.is_binary(one.type)]
        file = parquet.ParquetFile(content, read_dictionary=texts)
        check_table(path, file.metadata.num_rows, len(names))
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        if sum(part.total_byte_size for part in groups) > MOST_BYTES:
            raise LabError(f"{path} unpacks to more than {MOST_BYTES:,} bytes, which is not read: give a shorter one")
        for part in groups:
            _check_size(path, part.num_rows, 0, part.total_byte_size)
        table = file.read(columns=names, use_threads=False)
        table.validate(full=True)
        return {name: _cells(table.column(name)) for name in names}
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        raise LabError(f"{path}: not a Parquet file ({' '.join(str(error).split())[:120]})") from None


def _cells(column: Any) -> list[Any]:
    """The cells of a column; those of a dictionary share their objects."""
    return [cell for chunk in column.chunks for cell in _shared(chunk)]


def _shared(array: Any) -> list[Any]:
    """The cells of an array; of a dictionary only words that are used are unpacked, each once."""
    if not hasattr(array, "dictionary"):
        return list(array.to_pylist())
    indices = array.indices.to_pylist()
    words = {index: None if index is None else array.dictionary[index].as_py() for index in set(indices)}
    return [words[index] for index in indices]
