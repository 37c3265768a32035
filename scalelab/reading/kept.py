"""Curves of run folders, kept on disk with the digests of the files they were read from.

An entry belongs to a folder and the settings of the reading. It counts as long as every file that was asked for has the
content that it had; else, and where it is damaged, the folder is read anew and the entry replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalelab.errors import LabError
from scalelab.guarded import LONGEST_FILE, read_below
from scalelab.kept import key_of, user_folder, write_entry
from scalelab.packed import Packing
from scalelab.reading.curve import Curve

MOST_ENTRIES = 4000
"""Kept folders, of about 15 KB each, above which the oldest quarter is removed."""

ENTRIES = Packing(Curve)

REFUSED = "refused"
"""In place of the digest of a file that could not be read, so that it is read again next time."""


class RunContent:
    """The files of a run's folder.

    Attributes:
        digests: name of each file that was asked for → SHA-256 of the content that it had, "" where there was none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.digests = folder, dict[str, str]()

    def read(self, name: str, most: int = LONGEST_FILE) -> bytes | None:
        """The content of a file, None if there is none; errors as of `read_below`."""
        self.digests[name] = REFUSED
        content = read_below(self._folder, name, most)
        self.digests[name] = "" if content is None else hashlib.sha256(content).hexdigest()
        return content

    def digest(self, name: str) -> str:
        """The digest of a file."""
        self.read(name)
        return self.digests[name]


def kept_reading(path: Path, settings: object, read: Callable[[RunContent], tuple[Any, ...]]) -> tuple[Any, ...]:
    """The result of `read` on a run folder, curves, texts and numbers, from the user's cache where that has it.

    Args:
        path: the run's folder.
        settings: all that the result depends on beside the content of the files that `read` asks for.
        read: reads the folder.
    """
    entry = user_folder() / f"{key_of('reading', str(path), str(path.resolve()), settings)}.curves"
    try:
        digests, found = ENTRIES.value(entry.read_bytes())
        files = RunContent(path)
        if all(files.digest(name) == digest for name, digest in digests.items()):
            return tuple(found)
    except (LabError, OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        pass  # what is wrong with the folder is said below
    made = read(files := RunContent(path))
    write_entry(entry, ENTRIES.entry((files.digests, made)), MOST_ENTRIES)
    return made
