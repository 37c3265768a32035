"""Files as tables: CSV, JSON lines, JSON, Parquet, each plain or compressed by gzip, in UTF-8 or UTF-16."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import threading
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from scalelab.errors import LabError
from scalelab.guarded import (
    LONGEST_TABLE,
    LONGEST_TEXT,
    check_table,
    gunzip,
    read_whole,
)
from scalelab.jsonl import objects_in
from scalelab.reading import console
from scalelab.reading.cells import comma_meaning
from scalelab.reading.table import Table, from_records

TABLES = (".csv", ".tsv")
LINES = (".jsonl", ".ndjson")
CONSOLE = (".log", ".txt", ".out")

POINTED = re.compile(r"[-+]?\d*\.\d+")
"""Number with a decimal point; in a file with such numbers, commas part thousands."""

SEPARATOR = re.compile(r"sep=([,;\t|])", re.IGNORECASE)
"""First line with which spreadsheets tell the sign between cells."""

FEW_ROWS = 256
"""Rows that are taken at a time: so few that the garbage collector, which would walk the whole table, is not woken."""

_FIELDS = threading.Lock()
"""Held while the field limit of `csv`, which is one for the whole process, is another."""


def read_file(path: Path) -> Table:
    """The table in a file, whose kind its name says.

    Raises:
        LabError: an unknown kind of file, or one that cannot be read; the message names the place.
    """
    name = path.name[:-3] if path.suffix == ".gz" else path.name
    suffix, run = Path(name).suffix.lower(), Path(name).stem
    if suffix == ".parquet":
        return _parquet(path)
    if suffix not in (*TABLES, *LINES, *CONSOLE, ".json"):
        raise LabError(
            f"{path}: unknown kind of file; give a run folder, .csv, .tsv, .json, .jsonl, .parquet, the .log or .txt "
            "of a console (each perhaps with .gz), or TensorBoard events"
        )
    content = read_whole(path, LONGEST_TABLE)
    if content[:2] == b"\x1f\x8b":
        content = gunzip(content, path)
    if suffix in TABLES:
        return _csv(path, run, _text(path, content))
    if suffix in CONSOLE:
        return console.read_console(path, run, _text(path, content, errors="replace"))
    if suffix == ".json":
        return _json(path, run, content)
    return _json_lines(path, run, content)


def _text(path: Path, content: bytes, errors: str = "strict") -> str:
    """Text in the encoding that its first bytes tell."""
    encoding = "utf-8-sig"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif len(content) > 3 and content[1:4:2] == b"\0\0" and content[0]:
        encoding = "utf-16-le"
    try:
        return content.decode(encoding, errors)
    except UnicodeDecodeError as error:
        row = content[: error.start].count(b"\n") + 1
        raise LabError(f"{path}, row {row}: byte {content[error.start]:#x} is not UTF-8; save it as that") from None


def _utf8(path: Path, content: bytes) -> bytes:
    """JSON in UTF-8; some write it in UTF-16."""
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return _text(path, content).encode() if wide else content.removeprefix(codecs.BOM_UTF8)


def _csv(path: Path, run: str, text: str) -> Table:
    lines = text.lstrip("\n\r")
    skipped, above, told = 0, "", None
    while True:
        first, _, rest = lines.partition("\n")
        separator = SEPARATOR.fullmatch(first.rstrip("\r"))
        if not separator and not first.startswith("#"):
            break
        if separator:
            told = separator[1]
        else:  # a header that begins with the sign of a comment is kept for what follows
            above = first
        lines, skipped = rest, skipped + 1
    delimiter = told or max(",;\t", key=first.count)
    chunks = _chunks(path, lines, delimiter, skipped)
    begun = next(chunks, ([], []))
    header, commented = _header(path, begun[1], above, delimiter, skipped)
    if not commented:
        begun = (begun[0][1:], begun[1][1:])
    numbers: list[int] = []
    columns: list[list[str]] = [[] for _ in header]
    left = skipped - commented - bool(told)
    for some, rows in chain([begun], chunks):
        kept, evaluations = _evaluations(path, header, delimiter, some, rows)
        left += len(rows) - len(evaluations)
        numbers += kept
        check_table(path, len(numbers), len(header))
        for column, fields in zip(columns, zip(*evaluations)):
            column += map(str.strip, fields)
    cells = dict(zip(header, columns))
    facts = {"comma": _comma(cells, delimiter, text), "repeated": _repeated(header, columns)}
    notes = (f"comments and repeated headers left out: {left}",) if left else ()
    return Table(path, "table (CSV)", cells, numbers, run, facts=facts, notes=notes)


def _repeated(header: list[str], columns: list[list[str]]) -> list[str]:
    """Names that two columns with different cells have."""
    first: dict[str, list[str]] = {}
    return [name for name, column in zip(header, columns) if first.setdefault(name, column) != column]


def _header(path: Path, rows: list[list[str]], above: str, delimiter: str, skipped: int) -> tuple[list[str], bool]:
    """Names of the columns, and True if a comment above the numbers holds them.

    Raises:
        LabError: the file is empty, or has no names.
    """
    header = [name.strip() for name in rows[0]] if rows else []
    if not header:
        raise LabError(f"{path}: the file is empty; it needs a header and a row for each evaluation")
    if not all(map(_is_number, header)):
        return header, False
    named = [name.strip() for name in above.lstrip("#").split(delimiter)]
    if len(named) != len(header):
        raise LabError(f"{path}, row {skipped + 1}: numbers where names of columns should stand; add a header")
    return named, True


def _evaluations(
    path: Path, header: list[str], delimiter: str, numbers: list[int], rows: list[list[str]]
) -> tuple[list[int], list[list[str]]]:
    """The rows that are neither comments nor, as a run that is resumed writes it, the header again; and their numbers.

    Raises:
        LabError: a row has more or fewer fields than the header.
    """
    odd = {at for at, row in enumerate(rows) if len(row) != len(header) or row[0][:1] == "#" or row[0] == header[0]}
    for at in sorted(odd):
        if rows[at][0].startswith("#") or [cell.strip() for cell in rows[at]] == header:
            continue
        if len(rows[at]) == len(header):
            odd.discard(at)
            continue
        raise LabError(
            f"{path}, row {numbers[at]}: {len(rows[at])} fields under {len(header)} columns; put fields with "
            f"{delimiter!r} in them into quotes, or mend the row"
        )
    if odd:
        numbers = [number for at, number in enumerate(numbers) if at not in odd]
        rows = [row for at, row in enumerate(rows) if at not in odd]
    return numbers, rows


def _chunks(path: Path, text: str, delimiter: str, before: int) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Rows of a CSV that are not empty, some hundreds at a time, with their numbers in the file.

    Args:
        path: the file.
        text: its text.
        delimiter: character between fields.
        before: lines of the file before `text`.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    while True:
        with _FIELDS:
            usual = csv.field_size_limit(LONGEST_TEXT)
            try:
                some = [(reader.line_num + before, row) for row in islice(reader, FEW_ROWS)]
            except csv.Error as error:
                reason = str(error)
                if "field limit" in reason:
                    reason = f"a field of more than {LONGEST_TEXT:,} characters; close its quotes, or leave it out"
                raise LabError(f"{path}, row {reader.line_num + before + 1}: {reason}") from None
            finally:
                csv.field_size_limit(usual)
        if not some:
            return
        some = [(number, row) for number, row in some if row and (row[0] or any(map(str.strip, row)))]
        yield [number for number, _ in some], [row for _, row in some]


def _is_number(cell: str) -> bool:
    try:
        return float(cell) == float(cell)
    except ValueError:
        return False


def _comma(cells: Mapping[str, list[str]], delimiter: str, text: str) -> str:
    """Meaning of commas inside numbers; only cells in quotes have some where commas part the fields."""
    if ('"' if delimiter == "," else ",") not in text:
        return ""
    meaning = comma_meaning([cell for column in cells.values() for cell in column if "," in cell])
    pointed = meaning == "either" and any(POINTED.fullmatch(cell) for column in cells.values() for cell in column)
    return "thousands" if pointed else meaning


def _json_lines(path: Path, run: str, content: bytes) -> Table:
    records, torn = objects_in(path, _utf8(path, content), LONGEST_TEXT)
    notes = (f"{path.name}: the last line is torn and was left out",) if torn else ()
    return from_records(path, "JSON lines", records, run, notes=notes)


def _json(path: Path, run: str, content: bytes) -> Table:
    """A list of objects, an object of lists of one length, or an object with one such list in it."""
    try:
        found = json.loads(_utf8(path, content))
    except (ValueError, RecursionError):
        raise LabError(f"{path}: not JSON; mend it, or give one object per line as .jsonl") from None
    kind = "JSON"
    if isinstance(found, dict) and isinstance(found.get("log_history"), list):
        kind, found = "trainer_state.json of Hugging Face (Trainer, TRL)", found["log_history"]
        run = path.resolve().parent.name if run == "trainer_state" else run
    elif isinstance(found, dict):
        found = _inner_list(path, found)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise LabError(f"{path}: neither a list of objects nor an object of lists; every object is one evaluation")
    return from_records(path, kind, list(enumerate(found, 1)), run)


def _inner_list(path: Path, found: dict[str, Any]) -> Any:
    """The list of objects in an object: its only one, or its lists of one length, one value for each evaluation."""
    if found and all(isinstance(item, list) for item in found.values()):
        lists = [item for item in found.values() if item and isinstance(item[0], dict)]
        if len(found) == 1 and lists:
            return lists[0]
        if len({len(item) for item in found.values()}) > 1:
            raise LabError(f"{path}: its lists differ in length; every column needs a value for every evaluation")
        return [dict(zip(found, values)) for values in zip(*found.values())]
    inner = [item for item in found.values() if isinstance(item, list) and item and isinstance(item[0], dict)]
    return inner[0] if len(inner) == 1 else found


def _parquet(path: Path) -> Table:
    from scalelab.parquet import read_columns

    cells = read_columns(path)
    count = len(next(iter(cells.values()), ()))
    return Table(path, "Parquet", cells, range(1, count + 1), path.stem)
