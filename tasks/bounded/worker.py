"""The process that answers requests with a function; it may be killed at any moment.

Run as a program by `tasks.bounded.pool.BoundedPool`. A supervisor makes the function once (its imports may take
seconds) and forks a child that serves requests; when a child dies, by its deadline or by its own fault, the next one is
there within milliseconds. The deadline is a kernel timer whose default action is to kill, so it also ends code that
never returns to the interpreter; it counts processor time, so that a crowded machine condemns no answer that an idle
one would pass.

Lines of JSON on stdin and stdout. First a `Setup`, answered by `{"ready"}` or `{"problem"}`; then requests
`{"id", "request"}`, answered by `{"id", "value"}`, `{"id", "raised"}` or `{"id", "memory"}` from a child, or `{"died"}`
(a signal's number, or minus an exit code) from the supervisor. A child first sends `{"child"}`, its process id.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
_START_AFRESH = 75
_LONGEST_REASON = 300
_FORK_SECONDS = 60.0
"""Time for which a machine that is out of memory or of process ids may refuse a new child."""


@dataclass(frozen=True)
class Setup:
    """Settings of a worker.

    Attributes:
        parent: process id of who started it; the worker dies with it.
        seconds: processor time that one request may take.
        memory_mb: address space of a child, in MiB; None leaves it as it is.
        service: `module:function`; called once with the payload, it returns the function that answers requests.
        payload: bytes for that, in base 64.
        path: where modules are looked for, before the worker's own path.
    """

    parent: int
    seconds: float
    memory_mb: int | None
    service: str
    payload: str
    path: list[str]


def main() -> None:
    """Serve requests until stdin ends."""
    import resource  # Linux and macOS have it; the classes of tasks are also read where curves alone are wanted

    requests, replies = _own_pipes()
    setup = Setup(**json.loads(requests.readline()))
    _die_with_parent(setup.parent)
    try:
        function = _function(setup)
    except Exception as error:
        _send(replies, {"problem": reason(error)})
        return
    _send(replies, {"ready": os.getpid()})
    supervisor = os.getpid()
    while True:
        child = _fork()
        if child == 0:
            _die_with_parent(supervisor)
            _send(replies, {"child": os.getpid()})
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if setup.memory_mb is not None:
                resource.setrlimit(resource.RLIMIT_AS, (setup.memory_mb << 20, setup.memory_mb << 20))
            os._exit(_serve(requests, replies, setup.seconds, function))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return
        if status != _START_AFRESH:
            _send(replies, {"died": -status})


def _fork() -> int:
    """Fork; where the machine is out of memory or of process ids, wait until it is not."""
    until = time.monotonic() + _FORK_SECONDS
    while True:
        try:
            return os.fork()
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(0.1)


def _function(setup: Setup) -> Callable[[Any], Any]:
    # In the caller's order: what it appended late, such as setuptools' own copies of packages, stays at the end.
    sys.path[:] = [*setup.path, *(folder for folder in sys.path if folder not in setup.path)]
    module, _, name = setup.service.partition(":")
    make = getattr(importlib.import_module(module), name)
    function: Callable[[Any], Any] = make(base64.b64decode(setup.payload))
    return function


def _serve(requests: IO[bytes], replies: int, seconds: float, function: Callable[[Any], Any]) -> int:
    """Answer requests; returns the exit code of the child."""
    while line := requests.readline():
        request = json.loads(line)
        reply: dict[str, Any] = {"id": request["id"]}
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            reply["value"] = function(request["request"])
        except MemoryError:
            reply["memory"] = True
        except Exception as error:
            reply["raised"] = reason(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(replies, reply)
        if "memory" in reply:
            return _START_AFRESH
    return 0


def reason(error: Exception) -> str:
    """An exception in one line, with the line of code that raised it."""
    try:
        last = traceback.extract_tb(error.__traceback__)[-1:]
        where = "".join(f" ({os.path.basename(frame.filename)}:{frame.lineno})" for frame in last)
        return f"{type(error).__name__}: {error}"[:_LONGEST_REASON] + where
    except Exception:
        return type(error).__name__


def _own_pipes() -> tuple[IO[bytes], int]:
    """Take stdin and stdout for the protocol, so that nothing a library prints can get into it."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    return os.fdopen(requests, "rb"), replies


def _send(descriptor: int, reply: dict[str, Any]) -> None:
    left = memoryview(json.dumps(reply).encode() + b"\n")
    while left:
        left = left[os.write(descriptor, left) :]


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
