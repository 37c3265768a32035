"""The process that compares two answers with Math-Verify and SymPy; it may be killed at any moment.

Run as a program by `ComparisonPool`. A supervisor imports the computer algebra once and forks a child that serves
requests; when a child dies, by its deadline or by its own fault, the next one is there within milliseconds. The
deadline is a kernel timer whose default action is to kill, so it also ends code that never returns to the interpreter;
it counts processor time, so that a crowded machine condemns no answer that an idle one would pass.

Requests and replies are lines of JSON on stdin and stdout: `{"id", "gold", "answer"}` → `{"id", "equal"}` or
`{"id", "memory"}` from a child, `{"died"}` (a signal's number) from the supervisor.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
_START_AFRESH = 75


def main(parent: int, deadline: float, memory_mb: int) -> None:
    """Serve requests until stdin ends.

    Args:
        parent: process id of who started this; the worker dies with it.
        deadline: seconds of processor time that one request may take.
        memory_mb: address space of a child, in MiB.
    """
    _die_with_parent(parent)
    requests, replies = _own_pipes()
    from tasks.math.compare import equal  # seconds of imports, shared by all children

    _send(replies, {"ready": os.getpid()})
    supervisor = os.getpid()
    while True:
        child = os.fork()
        if child == 0:
            _die_with_parent(supervisor)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
            os._exit(_serve(requests, replies, deadline, equal))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return
        if status != _START_AFRESH:
            _send(replies, {"died": -status})


def _serve(requests: IO[bytes], replies: int, deadline: float, equal: Any) -> int:
    """Answer requests; returns the exit code of the child."""
    while line := requests.readline():
        request = json.loads(line)
        reply: dict[str, Any] = {"id": request["id"]}
        signal.setitimer(signal.ITIMER_PROF, deadline)
        try:
            reply["equal"] = equal(request["gold"], request["answer"])
        except MemoryError:
            reply["memory"] = True
        except Exception:  # SymPy has met something that it cannot compute with
            reply["equal"] = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(replies, reply)
        if "memory" in reply:
            return _START_AFRESH
    return 0


def _own_pipes() -> tuple[IO[bytes], int]:
    """Take stdin and stdout for the protocol, so that nothing a library prints can get into it."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    return os.fdopen(requests, "rb"), replies


def _send(descriptor: int, reply: dict[str, Any]) -> None:
    os.write(descriptor, json.dumps(reply).encode() + b"\n")


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
