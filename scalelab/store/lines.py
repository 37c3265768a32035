"""Files of JSON lines, one record a line, appended and synced; any reader may follow while a run goes on."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from moe.durable import append, write_whole
from scalelab.guarded import read_whole
from scalelab.jsonl import plain, read_objects

log = logging.getLogger(__name__)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read all records of a JSON-lines file; a torn last line (of a killed run) is left out with a warning.

    Raises:
        LabError: a line other than the last is not JSON.
    """
    objects, torn = read_objects(path)
    if torn:
        log.warning("%s: the last line is torn and was left out", path)
    return [record for _, record in objects]


class Lines:
    """An append-only JSON-lines file; a torn end left by a crash is cut off before the first new line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_file():
            content = read_whole(path)
            if content and not content.endswith(b"\n"):
                os.truncate(path, content.rfind(b"\n") + 1)
                log.warning("%s: cut off a torn last line", path)
        self._open()

    def _open(self) -> None:
        # Unbuffered, so that a line refused by a full disk is not written later in part.
        self._file = FileIO(self.path, "a")

    @property
    def size(self) -> int:
        """Bytes so far."""
        return os.fstat(self._file.fileno()).st_size

    def write(self, *records: dict[str, Any]) -> None:
        """Append records; they are on disk when this returns. NaN and infinities are written as null."""
        if records:
            append(self._file, "".join(as_text(records)).encode())

    def cut(self, size: int) -> None:
        """Take back what was appended since the file had this size."""
        os.ftruncate(self._file.fileno(), size)

    def replace(self, records: Sequence[dict[str, Any]], allowed: Callable[[], None]) -> None:
        """Put other records in place of all; whoever has the file open goes on with the old one, which has no name.

        Args:
            records: the lines.
            allowed: raises if another process has taken the run over.
        """
        self.close()
        write_whole(self.path, "".join(as_text(records)), allowed)
        self._open()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def as_text(records: Iterable[dict[str, Any]]) -> Iterable[str]:
    """Records as lines, each with its end."""
    return (json.dumps(plain(record), ensure_ascii=False, allow_nan=False) + "\n" for record in records)
