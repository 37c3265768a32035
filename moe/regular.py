"""Open files that anybody may have written: regular files alone, for a pipe or a device has no end."""

from __future__ import annotations

import os
import stat
from io import BufferedReader, FileIO

from moe.errors import MoeError


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file to be read; a link is followed.

    Raises:
        MoeError: it is a pipe, a device or a folder.
        OSError: it cannot be opened.
    """
    # Without O_NONBLOCK the call itself would wait for somebody to write into a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):  # `FileIO` refuses a folder's, and does not close it
        return BufferedReader(FileIO(descriptor))
    os.close(descriptor)
    raise MoeError(f"{path} is not a regular file and was not opened: give a file, not a folder, a pipe or a device")


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file.

    Raises:
        MoeError: it is a pipe, a device or a folder.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        return file.read()
