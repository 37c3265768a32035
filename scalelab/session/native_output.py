"""Ray's own messages, kept apart from the lab's.

Ray's C++ code writes its errors to descriptor 2 of the process, whatever Python's `sys.stderr` is.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def python_stderr_apart() -> Iterator[None]:
    """Give Python's standard error a descriptor of its own, so that descriptor 2 can lead elsewhere."""
    before = sys.stderr
    if not _on_descriptor_2():
        yield
        return
    before.flush()
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding=before.encoding, errors="backslashreplace")
    try:
        yield
    finally:
        sys.stderr.close()
        sys.stderr = before


@contextmanager
def native_stderr_to(path: Path) -> Iterator[None]:
    """Let descriptor 2 lead to the end of a file, unless Python writes there too; a file that stays empty is deleted.

    C++ code writes to it, as do processes that are started meanwhile.
    """
    if _on_descriptor_2():
        yield
        return
    before = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, 2)
    os.close(file)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        if path.exists() and not path.stat().st_size:
            path.unlink()


def _on_descriptor_2() -> bool:
    """True if Python's standard error writes to descriptor 2."""
    try:
        return sys.stderr.fileno() == 2
    except (AttributeError, io.UnsupportedOperation):  # a notebook's, or a test's
        return False
