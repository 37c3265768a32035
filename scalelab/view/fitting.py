"""A process of its own for fits and comparisons, so that the page answers while they are made.

It is asked one thing at a time and keeps what it fitted, since comparisons need it again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from scalelab.curves import Curve, Options
from scalelab.errors import LabError
from scalelab.kept import Kept
from scalelab.view.judge import Judge

LONGEST = 900.0
"""Seconds that one answer may take; a comparison of 64 recipes takes about 15."""

STARTS = 2
"""Starts that end in an error before any answer, after which there is no other: each begins the page's program anew."""


class FittingProcess:
    """A process that is begun at the first question, and again after it was lost.

    Args:
        options: how to fit.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._one_at_a_time = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._closed = False
        self._answered, self._failed_starts = False, 0

    def ask(self, what: str, curves: Sequence[Curve]) -> Any:
        """The record that `Judge.make` gives for a question.

        Raises:
            LabError: as `Judge.make`; the process was lost, closed, or took longer than `LONGEST`.
        """
        with self._one_at_a_time:
            names = f"{what} of {', '.join(dict.fromkeys(item.name for item in curves[:2]))}"
            connection = self._begun()
            try:
                connection.send((what, list(curves)))
                deadline = time.monotonic() + LONGEST
                while not connection.poll(0.1):
                    if self._closed or time.monotonic() > deadline:
                        raise LabError(f"{names}: no answer within {LONGEST:.0f} s from the process that fits")
                answer, error = connection.recv()
                self._answered = True
            except (EOFError, OSError):
                raise self._lost(names) from None
            except LabError:
                self._end()
                raise
        if error is not None:
            raise LabError(error)
        return answer

    def close(self) -> None:
        """End the process, whatever it is at: whoever asks sees it within a tenth of a second."""
        self._closed = True
        with self._one_at_a_time:
            self._end()

    def _begun(self) -> Connection:
        """The connection to the process, which is begun if there is none."""
        if self._closed:
            raise LabError("the process that fits was closed")
        if self._failed_starts >= STARTS:
            raise LabError(
                f"the process that fits ended {STARTS} times before it answered: a script that serves a page needs "
                'if __name__ == "__main__": around what it does'
            )
        if self._connection is None:
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(
                target=_serve, args=(theirs, self.options), name="scalelab-fits", daemon=True
            )
            self._process.start()
            theirs.close()
        return self._connection

    def _lost(self, names: str) -> LabError:
        process = self._process
        if process is not None:
            process.join(1)  # its exit code comes a moment after its end of the pipe
        if process is not None and process.exitcode == 1:  # by an error; one that was killed may have better luck
            self._failed_starts += not self._answered
        code = "" if process is None or process.exitcode is None else f" with code {process.exitcode}"
        self._end()
        return LabError(f"{names}: the process that fits ended{code}; too little memory? It begins anew with the next")

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process.join(10)
            self._process = None


def _serve(connection: Connection, options: Options) -> None:
    """Answer questions until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which closes this process
    os.nice(5)  # the page comes first
    judge = Judge(options, Kept(None))
    while True:
        try:
            what, curves = connection.recv()
        except (EOFError, OSError):
            return
        answer: tuple[Any, str | None]
        try:
            answer = judge.make(what, curves), None
        except LabError as error:
            answer = None, str(error)
        except Exception as error:  # a mistake of ours in one curve must not cost the others their fits
            answer = None, f"{what} of {curves[0].name} failed: {type(error).__name__}: {error}"
        connection.send(answer)
