"""Keep what is slow to compute by the content it was computed from: fits, comparisons, parallelism tests.

An entry is a JSON file named by a SHA-256 over the points, the options and the code of the curves. It is never wrong,
only absent: an entry that cannot be read, or a folder that cannot be written, costs the time of computing it again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

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
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial = self._folder / f".{key}.{os.getpid()}"
            partial.write_text(json.dumps(value, allow_nan=False), encoding="utf-8")
            os.replace(partial, self._folder / f"{key}.json")
            self._prune()
        except OSError:
            self._folder = None  # a full or read-only disk: go on in memory

    def _prune(self) -> None:
        assert self._folder is not None
        entries = list(self._folder.glob("*.json"))
        if len(entries) > MOST_ENTRIES:
            for old in sorted(entries, key=lambda entry: entry.stat().st_mtime)[: MOST_ENTRIES // 4]:
                old.unlink(missing_ok=True)


def user_folder() -> Path:
    """Folder of a user's fits: under `SCALELAB_CACHE`, by default `~/.cache/scalelab`."""
    return Path(os.environ.get("SCALELAB_CACHE", Path.home() / ".cache" / "scalelab")) / "fits"


def key_of(*parts: object) -> str:
    """A key over some content: bytes as they are, all else by its `repr`, and the code that computes from it."""
    digest = hashlib.sha256(_code())
    for part in parts:
        content = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


@cache
def _code() -> bytes:
    """A fingerprint of the modules that compute what is kept."""
    here = Path(__file__).resolve().parent
    sources = [*sorted((here.parent / "curves").rglob("*.py")), here / "judge.py"]
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).digest()
