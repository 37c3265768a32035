"""Signals that end a run in order at any time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Literal

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SAME_SECONDS = 1.0
"""Time in which a second signal is the first once more: a terminal sends it, and so does a parent that passes it on."""


def stops() -> list[signal.Signals]:
    """The signals that ask a run to stop: Ctrl-C, a batch system's, and a closed terminal's unless `nohup` is used."""
    return [number for number in _STOPS if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]


def heed_signals() -> None:
    """Make every signal of `stops` raise `KeyboardInterrupt`, also where a shell or a library set another handler.

    A shell makes what it starts in the background ignore SIGINT; a run is to end in order all the same.
    """
    if threading.current_thread() is threading.main_thread():
        for number in stops():
            signal.signal(number, signal.default_int_handler)


class StopSignals:
    """Signals to stop that have come to one piece of work."""

    def __init__(self) -> None:
        self._first: float | None = None

    def note(self) -> Literal["first", "same", "later"]:
        """Note a signal, and tell whether it is the first, the first once more, or a later one."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
            return "first"
        return "same" if now - self._first < SAME_SECONDS else "later"


def finishing(number: signal.Signals) -> str:
    """Answer to the first signal that asks to stop."""
    return f"{number.name}: finishing the step and saving; again to stop at once"


@contextmanager
def first_asks() -> Iterator[threading.Event]:
    """Let the first signal of `stops` set the event that is given, and later ones raise `KeyboardInterrupt`.

    Who waits for the event finishes what is under way. In another thread than the main one nothing changes.
    """
    asked, signals = threading.Event(), StopSignals()

    def ask(number: int, frame: FrameType | None) -> None:
        which = signals.note()
        if which == "first":
            asked.set()
            with suppress(OSError):  # a handler may come in the middle of a print, so it does without
                os.write(2, f"{finishing(signal.Signals(number))}\n".encode())
        elif which == "later":
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, ask) for number in stops()}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
