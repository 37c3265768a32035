"""The parent of a run: a small process without torch and Ray, which sees how the run's process ends.

No end is silent: where the process ends without having written why, as Ray ends it at its first call to a dead node
process, the parent writes it, and says it. A process that stands still is killed. No process of the run is left behind.
Asked to, the parent starts the run again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalelab.errors import BROKEN_OFF, FAILED, INTERRUPTED, USAGE_ERROR, LabError
from scalelab.guarded import read_whole
from scalelab.session.told import ATTENDED, Told
from scalelab.signals import stops
from scalelab.terminal import shell_path

PAUSES = (5.0, 30.0, 120.0)
"""Seconds before each new start without a step in between; after the last the supervisor gives up."""

LEFT_SECONDS = 10.0
"""Time that processes of a run have to end after it, before they are killed."""

LOOK_SECONDS, SILENT_SECONDS = 1.0, 120.0
"""Time between two looks at the run's process, and time without a sign of life after which it is killed."""

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
"""Options of prctl(2)."""


def supervise(
    begin: Sequence[str],
    resume: Sequence[str],
    path: Path,
    say: Callable[[str], None],
    pauses: Sequence[float] = PAUSES,
) -> int:
    """Run a command; while its process is killed or its machine fails, continue with another command.

    What the user can mend (a wrong configuration, a monitor's alarm) ends it at once, as do signals to this process,
    which are passed on.

    Args:
        begin: the command that begins the run.
        resume: the command that goes on with it.
        path: the run's folder.
        say: takes lines for people.
        pauses: seconds before each start in a row that brings no new step.

    Returns:
        The last command's exit code; 75 if it ended without a word.
    """
    command, waiting, steps = begin, list(pauses), _steps(path)
    while True:
        code, asked = attend(command, say, begun=(path / "manifest.json").exists)
        if asked or code != BROKEN_OFF:
            return code
        if (now := _steps(path)) != steps:
            waiting, steps = list(pauses), now
        if not waiting:
            say(f"the run took no step since it was started {len(pauses)} times: see why, then --resume")
            return code
        pause = waiting.pop(0)
        say(f"going on with the run in {pause:.0f} s")
        time.sleep(pause)
        command = resume if (path / "manifest.json").exists() else begin


def attend(
    command: Sequence[str], say: Callable[[str], None], begun: Callable[[], bool] = lambda: False
) -> tuple[int, bool]:
    """Run a command in a process of its own, and write how it ended if it did not.

    Args:
        command: the command.
        say: takes lines for people.
        begun: tells whether there is a run to go on with, where the process has not told its folder yet.

    Returns:
        Its exit code, 75 if it ended without a word; and whether it was asked to stop.
    """
    code, asked, told, hung = _run(command)
    folder, reason = told.folder, told.reason
    if code == FAILED and reason is not None:
        if folder is not None:  # the process could not where its disk was full, and perhaps there is room now
            _write_ending(folder, reason)
        return code, asked
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    why = f"{how} without a word, as when it is killed or Ray ends it"
    if hung:
        why = f"gave no sign of life for {SILENT_SECONDS:.0f} s, as when it is stopped, and was killed"
    elif not (code < 0 or (folder is not None and _unsaid(code, folder))):
        return code, asked
    if folder is None and not begun():
        return 128 - code, asked
    silent = f"the run's process {why}: go on with --resume"
    if folder is not None and _write_ending(folder, silent):
        report = f"scalelab report {shell_path(folder)}"
        say(f"scalelab: the run is finished; then its process {why}: `{report}` shows it")
        return 0, asked
    say(f"scalelab: {silent}")
    return BROKEN_OFF, asked


def _run(command: Sequence[str]) -> tuple[int, bool, Told, bool]:
    """Run a command to its end, and end what it leaves behind.

    Returns:
        Its exit code, negative for a signal; whether it was asked to stop; what it told; whether it hung.
    """
    _prctl(_SET_CHILD_SUBREAPER, 1)  # what the process leaves behind becomes a child of this one
    reading, writing = os.pipe()
    told = Told(reading)
    os.set_inheritable(writing, True)
    asked, before_it = False, set(_below(os.getpid()))
    # In a session of its own, so that Ctrl-C reaches it once.
    with subprocess.Popen(
        [*command, ATTENDED, str(writing)], start_new_session=True, pass_fds=[writing], preexec_fn=_end_with_parent
    ) as process:
        os.close(writing)

        def pass_on(number: int, _: Any) -> None:
            nonlocal asked
            asked = True
            process.send_signal(number)

        before = {number: signal.signal(number, pass_on) for number in stops()}
        try:
            code, hung = _end_of(process, told)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    _end_what_is_left(before_it)
    _prctl(_SET_CHILD_SUBREAPER, 0)  # nobody would reap what others leave
    told.read()
    told.close()
    return code, asked, told, hung


def _end_of(process: subprocess.Popen[bytes], told: Told) -> tuple[int, bool]:
    """Wait until a process ends, and kill one that gives no sign of life.

    Returns:
        Its exit code, and whether it was killed for its silence.
    """
    heard = looked = time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(LOOK_SECONDS), False
        now = time.monotonic()
        if told.read() or now - looked > 10 * LOOK_SECONDS:  # then this process was stopped itself
            heard = now
        looked = now
        if now - heard > SILENT_SECONDS:
            process.kill()
            return process.wait(), True


def _unsaid(code: int, folder: Path) -> bool:
    """True if the process ended with this code and its manifest says that it still runs."""
    from scalelab.store.manifest import read_run_manifest

    if code in (0, USAGE_ERROR, INTERRUPTED, BROKEN_OFF):
        return False
    with suppress(LabError, OSError):
        return code != FAILED or read_run_manifest(folder).get("status") == "running"
    return False


def _write_ending(folder: Path, reason: str) -> bool:
    """Write down that a run ended, if its process did not; another process may have taken it over.

    Returns:
        True if the run was finished.
    """
    from scalelab.store.earlier import last_epoch, read_account
    from scalelab.store.folder import RunFolder
    from scalelab.store.lease import Lease
    from scalelab.store.manifest import read_run_manifest

    with suppress(LabError, OSError):
        shown = read_run_manifest(folder).get("status")  # none: the run had not begun, and is begun anew
        account = read_account(folder)
        status = account.manifest.get("status") if account is not None else None
        if status == shown != "running":
            return status == "finished"
        lease = Lease(folder, last_epoch(folder), late=0.0)
        try:
            ended = RunFolder(folder, lease)  # writes a manifest that the process did not come to write
            if status == "running":
                ended.describe(status="failed", reason=reason)
            ended.close()
            return status == "finished"
        finally:
            lease.release()
    return False


def _end_what_is_left(others: set[int]) -> None:
    """End the processes that outlived the run: they are children of this one now.

    Args:
        others: processes below this one that are not the run's.
    """
    ends = time.monotonic() + LEFT_SECONDS
    while left := _left(others):
        for pid in left if time.monotonic() > ends else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)


def _left(others: set[int]) -> list[int]:
    """Processes below this one that have not ended; those that have are reaped."""
    for pid in set(_below(os.getpid())) - others:
        with suppress(ChildProcessError):  # a child of one that is left
            os.waitpid(pid, os.WNOHANG)
    return [pid for pid in _below(os.getpid()) if pid not in others]


def _below(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from _below(int(child))


def _end_with_parent() -> None:
    """Ask for SIGTERM when the parent dies; runs in the new process."""
    _prctl(_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _steps(path: Path) -> int:
    """Number of the run's lines of steps, undone ones included."""
    files = (path / name for name in ("metrics.jsonl", "undone.jsonl"))
    return sum(read_whole(file).count(b"\n") for file in files if file.exists())
