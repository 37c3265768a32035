"""The pipe by which a run's process tells its parent that it is alive, where it writes, and why it fails."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

ATTENDED = "--attended"
"""Option by which a run's process knows that it has a parent: the number of the pipe."""

ALIVE, FOLDER, REASON = b"a", b"f", b"r"
"""First byte of a message; a zero byte ends it."""

ALIVE_SECONDS = 5.0
"""Time between two signs of life."""


class Told:
    """The parent's end of the pipe.

    Attributes:
        folder: the run's folder, once the process has told it.
        reason: why the process fails, if it told that.
    """

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe, self._rest = pipe, b""
        self.folder: Path | None = None
        self.reason: str | None = None

    def read(self) -> bool:
        """Take what has come; returns whether anything has."""
        new = b""
        with suppress(BlockingIOError):
            new = os.read(self._pipe, 1 << 20)
        *messages, self._rest = (self._rest + new).split(b"\0")
        for message in messages:
            if message[:1] == FOLDER:
                self.folder = Path(os.fsdecode(message[1:]))
            elif message[:1] == REASON:
                self.reason = message[1:].decode(errors="replace")
        return bool(new)

    def close(self) -> None:
        """Close this end."""
        os.close(self._pipe)


def show_life(pipe: int) -> None:
    """Tell the parent every few seconds that this process runs, from a thread that ends with it."""
    os.set_inheritable(pipe, False)
    os.set_blocking(pipe, False)  # a parent that is stopped does not hold this process up

    def show() -> None:
        while True:
            _write(pipe, ALIVE)
            time.sleep(ALIVE_SECONDS)

    threading.Thread(target=show, name="sign of life", daemon=True).start()


def tell(pipe: int | None, path: Path) -> None:
    """Tell the parent, if there is one, which folder this process writes into."""
    if pipe is not None:
        _write(pipe, FOLDER + os.fsencode(path.absolute()))


def tell_reason(pipe: int | None, error: Exception) -> None:
    """Tell the parent, if there is one, that this process says why it fails; its disk may not take that."""
    if pipe is not None:
        _write(pipe, REASON + str(error).replace("\0", " ").encode(errors="replace")[:4000])


def _write(pipe: int, message: bytes) -> None:
    with suppress(OSError):  # a full pipe, or a parent that has died
        os.write(pipe, message + b"\0")
