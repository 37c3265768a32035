"""Run one submission in a child process: fork, confine, run, supervise, kill."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import select
import signal
import time
from dataclasses import replace
from typing import NoReturn

from tasks.sandbox import harness, scripts
from tasks.sandbox.channel import receive, send
from tasks.sandbox.confine import Confinement, confine
from tasks.sandbox.job import CONFINED, Ending, Job, Limits, job_from_parts, result_head

# What a child holds: 0 its input, 1 its output, 2 nothing, 3 the report pipe.
_REPORT = 3
# Where its descriptors are parked while the low numbers are taken.
_PARKED = 64
_HIGHEST = os.sysconf("SC_OPEN_MAX")
_CORES = os.cpu_count() or 1
# Milliseconds in which most programs end.
_SOON_MS = 5


def run_child(jobs: int, limits: Limits, confinement: Confinement, results: int) -> None:
    """Fork a confined child, let it read its job, see it through to its end, send the result.

    The calling process must have a single thread.

    Args:
        jobs: descriptor from which the child reads one message.
        limits: what the child may use.
        confinement: how it is held.
        results: descriptor to which the result is sent.
    """
    report, report_end = os.pipe()
    stdout, stdout_end = os.pipe()
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_child(jobs, limits, confinement, server, stdout_end, report_end)
    os.close(report_end)
    os.close(stdout_end)
    with _Recording(report, limits.output_bytes) as said, _Recording(stdout, limits.output_bytes) as printed:
        meter = _Meter(pid)
        ending = _watch(pid, said, printed, limits, meter)
        if ending != "exited":
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if ending == "exited":
            # Nobody else holds the pipes' other ends, so what is left ends by itself.
            ending, code = ("signalled", -code) if code < 0 else ("exited", code)
            over = [recording for recording in (said, printed) if not recording.finish()]
            ending = "output" if over else ending
        head = result_head(ending, code, usage.ru_utime + usage.ru_stime + meter.waited)
        send(results, [head, said.view(), printed.view()])


class _Meter:
    """Timer of a child: the processor time it uses, and whole windows in which it uses next to none.

    A program that sleeps is charged for it; one that waits for a processor gets a little of it in every window.
    """

    _WINDOW = 1.0
    _IDLE = 0.01

    def __init__(self, pid: int) -> None:
        self._clock = ((~pid) << 3) | 2  # the kernel's number for the processor clock of another process
        self._used = self._begin_used = 0.0
        self._begin = time.monotonic()
        self.waited = 0.0

    def charged(self) -> float:
        """Seconds so far."""
        now = time.monotonic()
        with contextlib.suppress(OSError):  # it has just ended
            self._used = time.clock_gettime(self._clock)
        if now - self._begin >= self._WINDOW:
            if self._used - self._begin_used < self._IDLE * (now - self._begin):
                self.waited += now - self._begin
            self._begin, self._begin_used = now, self._used
        return self._used + self.waited

    def patience(self, left: float) -> float:
        """Seconds to wait before the next look, with `left` seconds to go; all cores may be used at once."""
        return min(max(left / _CORES, 0.005), self._begin + self._WINDOW - time.monotonic() + 0.001)


class _Recording:
    """Output of a pipe, up to a limit, in memory that goes back to the kernel in the end."""

    def __init__(self, pipe: int, limit: int) -> None:
        self.pipe = pipe
        # One byte more than allowed tells too much from just enough. Private: a later child must not share it.
        self._memory = mmap.mmap(-1, limit + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._used = 0

    def __enter__(self) -> _Recording:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.pipe)
        self._memory.close()

    @property
    def full(self) -> bool:
        """True if the limit is exceeded."""
        return self._used == len(self._memory)

    def read(self) -> bool:
        """Take what is there, waiting for it; False at the end of the pipe, or when full."""
        with memoryview(self._memory) as memory, memory[self._used :] as free:
            count = os.readv(self.pipe, [free])
        self._used += count
        return count > 0

    def finish(self) -> bool:
        """Read to the end; False if that exceeds the limit."""
        while not self.full and self.read():
            pass
        return not self.full

    def view(self) -> memoryview:
        """The bytes that were read."""
        return memoryview(self._memory)[: self._used]


def _be_child(jobs: int, limits: Limits, confinement: Confinement, server: int, stdout: int, report: int) -> NoReturn:
    """Read the job, do it and exit; runs in the child and never returns."""
    code = 1
    try:
        job = job_from_parts(receive(jobs))
        executable = _sealed("program", job.binary) if job.kind == "binary" else confinement.interpreter
        source = _sealed("source", job.code.encode("utf-8", "replace")) if job.kind == "script" else None
        confinement, executable, source = _keep_only(job, stdout, report, confinement, executable, source)
        if executable is None:
            code = _live(job, confinement, limits, server)
        else:
            code = _become(executable, source, confinement, limits, server)
    finally:
        os._exit(code)


def _live(job: Job, confinement: Confinement, limits: Limits, server: int) -> int:
    """Confine, say so before any untrusted code runs, and do the job; returns the exit code."""
    try:
        confine(confinement, limits, server)
    except (OSError, ValueError) as error:
        return _give_up("unconfined", error)
    try:
        module = harness.prepare(job)
    except BaseException as error:
        return _give_up("prelude", error)
    os.write(_REPORT, CONFINED + b"\n")
    harness.run(job, module, _REPORT)
    return 0


def _become(executable: int, source: int | None, confinement: Confinement, limits: Limits, server: int) -> int:
    """Confine, say so, and turn into a machine program, or a script's interpreter; returns the exit code if that fails.

    The program does not get the report pipe, so what is in it can be believed.
    """
    for descriptor in (*range(_REPORT), *([] if source is None else [source])):
        os.set_inheritable(descriptor, True)
    command = ["program"] if source is None else scripts.arguments(source, limits.memory_mb)
    try:
        confine(replace(confinement, filter=confinement.native), limits, server)
    except (OSError, ValueError) as error:
        return _give_up("unconfined", error)
    os.write(_REPORT, CONFINED + b"\n")
    try:
        os.execve(executable, command, {})
    except OSError as error:
        return _give_up("unstarted", error)


def _give_up(kind: str, error: BaseException) -> int:
    os.write(_REPORT, json.dumps([kind, harness.describe(error)]).encode() + b"\n")
    return 1


def _keep_only(
    job: Job, stdout: int, report: int, confinement: Confinement, executable: int | None, source: int | None
) -> tuple[Confinement, int | None, int | None]:
    """Close every descriptor but 0 to 3, rule set, executable and source; returns these three by their new numbers."""
    nothing, ruleset = confinement.nothing, confinement.ruleset
    prints = job.kind in ("program", "binary", "script")
    stdin = _sealed("stdin", job.stdin.encode("utf-8", "surrogatepass")) if job.stdin else nothing
    wanted = [stdin, stdout if prints else nothing, nothing, report]
    kept: list[int | None] = []
    for descriptor in (ruleset, executable, source):
        kept.append(None if descriptor is None else len(wanted))
        wanted += [] if descriptor is None else [descriptor]
    parked = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _PARKED) for descriptor in wanted]
    for number, descriptor in enumerate(parked):
        os.dup2(descriptor, number, inheritable=False)
    os.closerange(len(parked), _HIGHEST)
    return (confinement if kept[0] == ruleset else replace(confinement, ruleset=kept[0])), kept[1], kept[2]


def _sealed(name: str, content: bytes) -> int:
    """A descriptor of memory that is sealed against writing."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return descriptor


def _ended_soon(exited: int) -> bool:
    """True if a child ends at once; until then its pipes are not watched: each line would wake this process."""
    poll = select.poll()
    poll.register(exited, select.POLLIN)
    return bool(poll.poll(_SOON_MS))


def _watch(pid: int, said: _Recording, printed: _Recording, limits: Limits, meter: _Meter) -> Ending:
    """Record both pipes until the child ends (`exited`), or until it must be killed."""
    deadline = time.monotonic() + limits.wall_seconds
    exited = os.pidfd_open(pid)
    recordings = {recording.pipe: recording for recording in (said, printed)}
    poll = select.poll()
    for descriptor in (exited, *recordings):
        poll.register(descriptor, select.POLLIN)
    left = limits.seconds
    try:
        if _ended_soon(exited):
            return "exited"
        while True:
            ready = [descriptor for descriptor, _ in poll.poll(max(0.0, meter.patience(left)) * 1000)]
            for pipe in recordings.keys() & ready:
                if not recordings[pipe].read():
                    poll.unregister(pipe)
            if said.full or printed.full:
                return "output"
            if exited in ready:
                return "exited"
            left = limits.seconds - meter.charged()
            if left <= 0 or time.monotonic() >= deadline:
                return "timeout"
    finally:
        os.close(exited)
