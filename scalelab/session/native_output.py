"""Messages of libraries, kept apart from the lab's.

Ray's and vLLM's C++ code writes to descriptor 2 of the process, whatever Python's `sys.stderr` is. Warnings of Python
code that pip installed are about that code, and some return with every step.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TextIO

from moe import durable

_LIBRARIES = (
    *(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")),
    os.path.dirname(durable.__file__) + os.sep,  # in whose frames torch warns of calls that Megatron makes
)
"""Folders of code that is not the user's: where pip installs, and the trainer's."""


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
def libraries_to(path: Path) -> Iterator[None]:
    """Let descriptor 2 lead to the end of a file, unless Python writes there too; a file that stays empty is deleted.

    C++ code writes to it, as do processes that are started meanwhile. Warnings of installed Python code go there, too,
    each once; those of the user's own code stay.
    """
    if _on_descriptor_2():
        yield
        return
    before = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, 2)
    os.close(file)
    shown = warnings.showwarning
    warnings.showwarning = partial(_show, shown, set())
    try:
        yield
    finally:
        warnings.showwarning = shown
        os.dup2(before, 2)
        os.close(before)
        if path.exists() and not path.stat().st_size:
            path.unlink()


@contextmanager
def without_library_warnings() -> Iterator[None]:
    """Hide warnings of installed Python code, which nobody who runs a command can mend."""
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # warns that a CPU has no Triton
    shown = warnings.showwarning
    warnings.showwarning = partial(_show, shown, None)
    try:
        yield
    finally:
        warnings.showwarning = shown


def append_error(path: Path, error: BaseException) -> Path:
    """Add an error with its traceback and those of its causes, in other processes too, to the end of a file."""
    with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(traceback.format_exception(error))
    return path


def _show(
    shown: Callable[..., None],
    told: set[str] | None,
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Write a warning of installed code to descriptor 2, each once, and leave others to who showed them before.

    Without a set of those that were told, nothing is written.
    """
    if file is None and filename.startswith(_LIBRARIES):
        text = warnings.formatwarning(message, category, filename, lineno, line)
        if told is not None and text not in told:  # some return with every step
            told.add(text)
            os.write(2, text.encode(errors="replace"))
    else:
        shown(message, category, filename, lineno, file, line)


def _on_descriptor_2() -> bool:
    """True if Python's standard error writes to descriptor 2."""
    try:
        return sys.stderr.fileno() == 2
    except (AttributeError, io.UnsupportedOperation):  # a notebook's, or a test's
        return False
