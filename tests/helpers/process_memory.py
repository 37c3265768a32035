"""Memory that processes take together, with a page that several share counted once."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SECONDS = 0.5
"""Between two looks."""


@contextmanager
def most_gib(variable: str) -> Iterator[list[float]]:
    """Look again and again at all processes that have a variable in their environment.

    Yields:
        The most that they took at a look, GiB; complete when this is left.
    """
    most, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(SECONDS):
            most[0] = max(most[0], _gib(f"{variable}=".encode()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def _gib(mark: bytes) -> float:
    kib = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if any(one.startswith(mark) for one in (process / "environ").read_bytes().split(b"\0")):
                found = re.search(r"^Pss: +(\d+) kB", (process / "smaps_rollup").read_text(), re.MULTILINE)
                kib += int(found[1]) if found else 0
    return kib / 2**20
