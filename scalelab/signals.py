"""Signals that end a run in order at any time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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


@contextmanager
def first_asks() -> Iterator[threading.Event]:
    """Let the first signal of `stops` set the event that is given, and later ones raise `KeyboardInterrupt`.

    Who waits for the event finishes what is under way. In another thread than the main one nothing changes.
    """
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, ask) for number in stops()}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
