"""Rows of a file of problems, by their numbers; one that is damaged is an error of its own and ends nothing."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from tasks.errors import TaskError

Row = Mapping[str, Any]

# A row that is longer is no problem that anybody asks, and takes memory.
_LONGEST_LINE = 64 << 20
_BATCH = 64
_LARGEST_BATCH = 2 << 30


class RowError(ValueError):
    """A row that cannot be used; the message says why, after "row 7 …".

    Attributes:
        unclear: the row may be fine, but which column means what has to be said first.
    """

    def __init__(self, reason: str, unclear: bool = False) -> None:
        super().__init__(reason)
        self.unclear = unclear


def numbered_rows(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[int, Row | RowError]]:
    """The number, from 1, of every row of a JSON, JSON lines (gzipped or not) or Parquet file, and the row.

    Args:
        path: the file; its ending says what it is.
        columns: of Parquet, only these are read, where it has them; empty reads all.

    Raises:
        TaskError: there is no such file, or it is no such file as a whole.
    """
    if not path.is_file():
        raise TaskError(f"no file {path}: put the data there, or leave the folder out to download them")
    try:
        if path.suffix == ".parquet":
            yield from enumerate(_parquet_rows(path, columns), 1)
            return
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            start = file.read(1024)
            if b"\0" in start:
                raise ValueError("it is binary")
            file.seek(0)
            whole = path.suffix == ".json" and start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
            opened = cast(BinaryIO, file)
            yield from _list_rows(opened) if whole else _line_rows(opened)
    # pyarrow's and json's are ValueErrors, gzip's OSErrors
    except (ValueError, OSError, EOFError, RecursionError, MemoryError, zlib.error) as problem:
        if isinstance(problem, TaskError):
            raise
        kind, cause = path.suffix.lstrip("."), (str(problem).splitlines() or [type(problem).__name__])[0]
        raise TaskError(f"{path} is not {kind or 'JSON lines'} ({cause[:200]}): fetch it again") from None


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        wanted = [name for name in columns if name in names] or names
        for batch in file.iter_batches(_BATCH, columns=wanted):
            if batch.nbytes > _LARGEST_BATCH:
                raise ValueError(f"{_BATCH} rows take {batch.nbytes >> 20} MiB")
            yield from batch.to_pylist()


def _list_rows(file: BinaryIO) -> Iterator[tuple[int, Row | RowError]]:
    for number, row in enumerate(json.loads(file.read().decode("utf-8-sig")), 1):
        yield number, _checked(row)


def _line_rows(file: BinaryIO) -> Iterator[tuple[int, Row | RowError]]:
    for number in itertools.count(1):
        line = file.readline(_LONGEST_LINE)
        if not line:
            return
        if len(line) == _LONGEST_LINE:
            raise ValueError(f"line {number} has more than {_LONGEST_LINE >> 20} MiB")
        if line.strip(b" \t\r\n\xef\xbb\xbf"):
            yield number, _parsed(line)


def _parsed(line: bytes) -> Row | RowError:
    try:
        return _checked(json.loads(line.decode("utf-8-sig")))
    except UnicodeDecodeError:
        return RowError("is no UTF-8 text")
    except (ValueError, RecursionError) as problem:
        return RowError(f"is no JSON: {str(problem)[:100]}")


def _checked(row: Any) -> Row | RowError:
    return row if isinstance(row, dict) else RowError(f"is a {type(row).__name__}, no object")
