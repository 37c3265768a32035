"""`Table`: the cells of one log by column, whatever its format, each row with its place in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalelab.errors import LabError
from scalelab.guarded import check_table

DEEPEST = 4
"""Levels of nested objects that become columns; what lies deeper is left out."""


@dataclass(frozen=True)
class Table:
    """The cells of one log.

    Attributes:
        path: the file or folder.
        kind: what it was recognised as, in the words of people who have such logs.
        cells: column → its cells, one for each row; None where a row lacks the column.
        rows: number of each row in its file.
        run: name of the run where no column says it.
        counted: what `rows` count: `row` (a CSV's header is row 1), `line` or `step`.
        facts: what is known of the whole file: `fit_window`, `compute_unit`, `seed`, `clock`, `recipe`, `places`,
            `repeated` (names that two columns have).
        notes: what was left out or converted while the file was read.
        folder: the log is the lab's own run folder.
    """

    path: Path
    kind: str
    cells: Mapping[str, Sequence[Any]]
    rows: Sequence[int]
    run: str
    counted: str = "row"
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    folder: bool = False

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.cells)

    def place(self, row: int, column: str) -> str:
        """File, row and column of a cell, for a message."""
        return f"{self.path}, {self.counted} {self.rows[row]}, column {column}"

    def refuse_repeated(self, names: Sequence[str]) -> None:
        """Refuse to read a column whose name another one with different cells has.

        Raises:
            LabError: one of the names is such a one.
        """
        repeated = [name for name in names if name in self.facts.get("repeated", ())]
        if repeated:
            raise LabError(f"{self.path}: two columns are called {repeated[0]!r:.80}: give each a name of its own")


def from_records(
    path: Path, kind: str, records: Sequence[tuple[int, Mapping[str, Any]]], run: str, **more: Any
) -> Table:
    """A table of objects, whose inner objects become columns such as `eval/pass_rate`.

    Args:
        path: the file.
        kind: what it is.
        records: number of each object in its file, and the object.
        run: name of the run.
        **more: other fields of the table.

    Raises:
        LabError: there are more rows, columns or cells than the limits.
    """
    rows = [record for _, record in records]
    cells = _columns(path, rows)
    if any(dict in set(map(type, column)) for column in cells.values()):
        cells = _columns(path, [dict(_leaves(record)) for record in rows])
    return Table(path, kind, cells, [number for number, _ in records], run, **more)


def _columns(path: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names: dict[str, None] = {}
    for row in rows:
        if not row.keys() <= names.keys():
            names |= dict.fromkeys(row)
    check_table(path, len(rows), len(names))
    return {name: [row.get(name) for row in rows] for name in names}


def _leaves(record: Mapping[str, Any], before: str = "", depth: int = 1) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in record.items():
        if not isinstance(value, dict):
            found.append((f"{before}{name}", value))
        elif depth < DEEPEST:
            found += _leaves(value, f"{before}{name}/", depth + 1)
    return found


def dozen(columns: Sequence[str]) -> str:
    """The first dozen names, for a message."""
    return ", ".join(list(columns)[:12]) + (", …" if len(columns) > 12 else "") if columns else "no columns"
