"""Signals that end a run in order at any time."""

from __future__ import annotations

import signal
import threading

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
