"""A process that works on a simulated run, and two of them that take turns."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.simulated_faults import Fault


class DiedError(BaseException):
    """The process is dead: nothing that it does reaches the disk any more."""


class PowerCutError(BaseException):
    """The parent died with the process."""


@dataclass(eq=False)
class Life:
    """One process that works on the run."""

    number: int
    faults: Sequence[Fault]
    events: int = 0
    renames: int = 0
    dead: bool = False
    full: bool = False
    read_only: bool = False
    slow: float = 0.0
    pending: Path | None = None
    """File that is being synced until the next event."""
    told: Path | None = None
    """Folder that it has told its parent."""
    reason: str | None = None
    """Reason for its failure that it has told its parent."""

    def at(self, kind: str) -> int | None:
        """Moment at which a kind of fault comes in this life; None if it does not."""
        return next((fault.at for fault in self.faults if fault.kind == kind), None)


class Turns:
    """Two drivers of which one runs at a time, and which change over at drawn events of the disk."""

    def __init__(self, draw: random.Random) -> None:
        self._left = draw.choice((1, 3, 10, 30, 100, 10**6))
        self._counts = [draw.choice((1, 1, 2, 5, 20, 80)) for _ in range(draw.randint(0, 8))]
        self._go = {True: threading.Semaphore(0), False: threading.Semaphore(0)}
        self._both = True
        self._main = threading.get_ident()
        self.problem: BaseException | None = None

    def run(self, work: Callable[[], None]) -> threading.Thread:
        """Begin the second driver; returns when it is the first one's turn again."""

        def second() -> None:
            try:
                work()
            except BaseException as error:
                self.problem = error
            self._both = False
            self._go[True].release()

        thread = threading.Thread(target=second, daemon=True)
        thread.start()
        self._go[True].acquire()
        return thread

    def event(self) -> None:
        """Count an event of the driver whose turn it is, and change over if it has had its share."""
        self._left -= 1
        if self._left > 0 or not self._both:
            return
        first = threading.get_ident() == self._main
        self._left = self._counts.pop() if self._counts else 10**6
        if self._left == 10**6 and not first:
            return  # the second goes on to its end
        self._go[not first].release()
        self._go[first].acquire()

    def finish(self, thread: threading.Thread) -> None:
        """Let the second driver go on to its end."""
        self._left = 10**9
        self._go[False].release()
        thread.join()
