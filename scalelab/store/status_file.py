"""`status.json`: the state of a run and what every actor of it is doing, rewritten every few seconds.

It holds nothing that a run needs to go on, so a disk that refuses it does not end the run.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from moe.durable import write_whole
from moe.errors import printable
from scalelab.errors import LabError
from scalelab.guarded import read_whole

log = logging.getLogger(__name__)

STATUS = "status.json"
WRITE_SECONDS = 5.0
"""Seconds between two writes; if the file is several times older, the run hangs or has died."""


class StatusFile:
    """Writer of a run's state.

    Args:
        folder: the run's folder.
        clock: seconds on a clock that only goes forward.
        check: called before a write; raises if another process has taken the run over.
        epoch: of this process; see `scalelab.store.lease`.
    """

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        check: Callable[[], None] = lambda: None,
        epoch: int = 1,
    ) -> None:
        self._path, self._clock, self._check = folder / STATUS, clock, check
        self._written: float | None = None
        self._process = {"node": socket.gethostname(), "pid": os.getpid(), "started": process_started(os.getpid())}
        self._process["epoch"] = epoch

    @property
    def due(self) -> bool:
        """True if it is time to write again."""
        return self._written is None or self._clock() - self._written >= WRITE_SECONDS

    def write(self, doing: str, **facts: Any) -> None:
        """Write the file now.

        Args:
            doing: what the run does, in a few words.
            facts: what else is known: `step`, `actors`, …
        """
        self._check()
        self._written = self._clock()
        content = {"time": time.time(), "doing": doing, **self._process, **facts}
        try:
            write_whole(self._path, json.dumps(content, indent=1) + "\n")
        except OSError as error:
            log.warning("%s cannot be written (%s); the run goes on", self._path, printable(error))

    def note(self, doing: str, **facts: Any) -> None:
        """Write the file if it is time to."""
        if self.due:
            self.write(doing, **facts)


def read_note(path: Path, most: int) -> dict[str, Any]:
    """Facts that a process wrote of itself; none if the file is missing, or is no JSON object of so many bytes."""
    with suppress(OSError, ValueError, RecursionError, LabError):
        content = json.loads(read_whole(path, most))
        if isinstance(content, dict):
            return content
    return {}


def process_started(pid: int) -> str | None:
    """Start of a process of this machine, in the kernel's own units; None if it has ended, or nobody can tell."""
    with suppress(OSError, IndexError):
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if facts[0] in "ZX" else facts[19]  # a dead one stays until its parent has looked
    return None
