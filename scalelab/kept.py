"""Keep what is slow to compute by the content it was computed from: fits, comparisons, configurations.

An entry is a file named by a SHA-256 over the content, the options and the code that computes from it. It is never
wrong, only absent: an entry that cannot be read, or a folder that cannot be written, costs the time of doing it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tasks.cache import cache_folder

MOST_ENTRIES = 4000
"""Entries above which the oldest quarter is removed."""


class Kept:
    """Results by key, in memory and in a folder.

    Args:
        folder: where the entries lie; None keeps them in memory alone.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._memory = folder, dict[str, Any]()

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """The entry of a key; computed and written if there is none yet."""
        found = self.peek(key)
        if found is None:
            found = compute()
            self._memory[key] = found
            self._write(key, found)
        return found

    def peek(self, key: str) -> Any | None:
        """The entry of a key, or None."""
        if key not in self._memory and self._folder is not None:
            try:
                self._memory[key] = json.loads((self._folder / f"{key}.json").read_bytes())
            except (OSError, ValueError):
                return None
        return self._memory.get(key)

    def _write(self, key: str, value: Any) -> None:
        content = json.dumps(value, allow_nan=False).encode()
        if self._folder is not None and not write_entry(self._folder / f"{key}.json", content, MOST_ENTRIES):
            self._folder = None  # a full or read-only disk: go on in memory


def write_entry(path: Path, content: bytes, most: int) -> bool:
    """Write an entry whole; the oldest quarter of its kind goes where there are too many. False if it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_bytes(content)
        os.replace(partial, path)
        entries = [name for name in os.listdir(path.parent) if name.endswith(path.suffix)]
        if len(entries) > most:
            whole = [path.with_name(name) for name in entries]
            for old in sorted(whole, key=lambda entry: entry.stat().st_mtime)[: most // 4]:
                old.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def user_folder() -> Path:
    """Folder of a user's fits: under `SCALELAB_CACHE`, by default `~/.cache/scalelab`."""
    return cache_folder() / "fits"


def key_of(*parts: object) -> str:
    """A key over some content: bytes as they are, all else by its `repr`, and the code that computes from it."""
    digest = hashlib.sha256(_code())
    for part in parts:
        content = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


@cache
def _code() -> bytes:
    """A fingerprint of the modules that compute what is kept, and of the libraries below them."""
    here = Path(__file__).resolve().parent
    folders = (here / "curves", here / "reading", here / "experiment")
    names = ("guarded.py", "hardware.py", "jsonl.py", "numbers.py", "packed.py", "view/judge.py")
    sources = [*(file for folder in folders for file in sorted(folder.rglob("*.py"))), *(here / name for name in names)]
    versions = [_version(name).encode() for name in ("numpy", "scipy", "gin_config")]
    return hashlib.sha256(b"\0".join([*(source.read_bytes() for source in sources), *versions])).digest()


def _version(name: str) -> str:
    """The version of a package by the name of its folder of metadata, which takes no time to read."""
    for folder in sys.path:
        with suppress(OSError):
            for entry in os.listdir(folder):
                if entry.startswith(f"{name}-") and entry.endswith(".dist-info"):
                    return entry
    from importlib.metadata import version

    return version(name)
