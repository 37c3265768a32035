"""Read the files of a run that goes on, line by line as they come: no line is trusted."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from scalelab.errors import LabError
from scalelab.guarded import LONGEST_FILE, LONGEST_TEXT, inside, open_whole


class GrowingFile:
    """The records of a JSON-lines file that grows: each call reads only what was added since the last.

    A file that shrank or was replaced (a resumed run takes back what was undone) is read again from its start.

    Attributes:
        records: the records so far.
        broken: number of lines that are no JSON object, or too long.
        changed: how often the records changed; the same number means the same records.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.records: list[dict[str, Any]] = []
        self.broken = 0
        self.changed = 0
        self._end = 0
        self._file: tuple[int, int] | None = None

    def update(self) -> list[dict[str, Any]]:
        """Read what is new, and return all records.

        Raises:
            LabError: the file is not to be opened, or longer than `LONGEST_FILE`.
        """
        path = inside(self.folder, self.name)
        if path is None:
            self._restart(None)
            return self.records
        with open_whole(path) as file:
            facts = os.fstat(file.fileno())
            if (facts.st_dev, facts.st_ino) != self._file or facts.st_size < self._end:
                self._restart((facts.st_dev, facts.st_ino))
            if facts.st_size > LONGEST_FILE:
                raise LabError(f"{path} has {facts.st_size:,} bytes; files of up to {LONGEST_FILE:,} are shown")
            file.seek(self._end)
            fresh = file.read(facts.st_size - self._end)
        whole = fresh[: fresh.rfind(b"\n") + 1]  # a torn last line is read once it is whole
        for line in whole.splitlines():
            self._add(line)
        if whole:
            self._end += len(whole)
            self.changed += 1
        return self.records

    def _add(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            record = json.loads(line) if len(line) <= LONGEST_TEXT else None
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            self.records.append(record)
        else:
            self.broken += 1

    def _restart(self, file: tuple[int, int] | None) -> None:
        if self.records or self._end:
            self.changed += 1
        self.records, self.broken, self._end, self._file = [], 0, 0, file


def short_text(value: object) -> str:
    """The beginning of a text; none for whatever else a file holds in its place."""
    return value[:300] if isinstance(value, str) else ""


def number(value: Any) -> float | None:
    """A finite number, or None for whatever else a file holds in its place."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
