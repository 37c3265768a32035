"""Stand-ins for Parquet and for threads in simulated runs: rows as JSON, and work done at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any


class InlineThread:
    """An executor that does everything at once, so that a seed is the same each time."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Do the work now."""
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self, **_: Any) -> None:
        """Do nothing."""

    def map(self, work: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
        """Do all the work."""
        return map(work, parts)

    def __enter__(self) -> InlineThread:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


class Rows:
    """A table of completions in the seeds that write none as Parquet."""

    schema = None

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    @classmethod
    def of(cls, rollouts: Sequence[Any], trainer: Any = None, seconds: float = 0.0) -> Rows:
        """The columns that an audit reads."""
        names = ("task", "prompt_id", "reward", "outcome")
        return cls([{name: getattr(one, name) for name in names} for one in rollouts])

    @classmethod
    def read(cls, path: Path, **_: Any) -> Rows:
        """Read a file."""
        return cls([json.loads(line) for line in Path(path).read_text().splitlines()])

    @classmethod
    def columns(cls, path: Path, _: Any, names: Sequence[str]) -> dict[str, list[Any]]:
        """Read some columns, as `scalelab.parquet.take_rows` does."""
        rows = cls.read(path).to_pylist()
        return {name: [row[name] for row in rows] for name in names}

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows."""
        return self._rows


class RowsFile:
    """Writer of such a table, part by part."""

    def __init__(self, path: Path, _: Any = None) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115

    def write_table(self, table: Rows) -> None:
        """Add rows."""
        self._file.write("".join(json.dumps(row) + "\n" for row in table.to_pylist()))

    def close(self) -> None:
        """End the file."""
        self._file.close()

    @classmethod
    def write(cls, table: Rows, path: Path) -> None:
        """Write a whole file."""
        file = cls(path)
        file.write_table(table)
        file.close()
