"""Folders in shared memory; those of killed processes are removed when the next one is made.

A folder belongs to a process as long as that holds a lock on it, which the system takes back however the process ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MEMORY = Path("/dev/shm")
_YOUNG = 60.0
"""Seconds in which a folder that is not locked may be one whose maker is about to lock it."""


@contextmanager
def shared_folder(prefix: str, memory: Path = _MEMORY) -> Iterator[Path]:
    """Make a folder in memory for the duration of a block, or on the disk where there is no shared memory.

    Args:
        prefix: what its name begins with. Folders of that prefix whose process is gone are removed first.
        memory: where to make it.
    """
    place = memory if memory.is_dir() else Path(tempfile.gettempdir())
    remove_abandoned(prefix, place)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=place) as name:
        handle = os.open(name, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(handle)


def remove_abandoned(prefix: str, place: Path) -> None:
    """Delete the folders whose process has ended, and leave those of others and of other users."""
    for folder in place.glob(f"{prefix}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime < _YOUNG:
                continue
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(handle)
