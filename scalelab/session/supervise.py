"""Restart a run that its machine has ended, so that no one has to type `--resume`."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scalelab.errors import BROKEN_OFF
from scalelab.session.signals import stops
from scalelab.store.folder import MANIFEST

PAUSES = (5.0, 30.0, 120.0)
"""Seconds before each new start without a step in between; after the last the supervisor gives up."""


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
        The last command's exit code; 128 and the signal's number if one ended it.
    """
    command, waiting, steps = begin, list(pauses), _steps(path)
    while True:
        code, asked = _wait_for_child(command)
        if asked or not (code < 0 or code == BROKEN_OFF) or not (path / MANIFEST).exists():
            return 128 - code if code < 0 else code
        if (now := _steps(path)) != steps:
            waiting, steps = list(pauses), now
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "was broken off"
        if not waiting:
            say(f"the run {how} and took no step since it was started {len(pauses)} times: see why, then --resume")
            return 128 - code if code < 0 else code
        pause = waiting.pop(0)
        say(f"the run {how}; going on with it in {pause:.0f} s")
        time.sleep(pause)
        command = resume


def _wait_for_child(command: Sequence[str]) -> tuple[int, bool]:
    """Run a command, pass signals on to it, and return its exit code and whether it was asked to stop."""
    asked = False
    # In a session of its own, so that Ctrl-C reaches it once.
    with subprocess.Popen(command, start_new_session=True) as process:

        def pass_on(number: int, _: Any) -> None:
            nonlocal asked
            asked = True
            process.send_signal(number)

        before = {number: signal.signal(number, pass_on) for number in stops()}
        try:
            return process.wait(), asked
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _steps(path: Path) -> int:
    """Number of the run's lines of steps, undone ones included."""
    files = (path / name for name in ("metrics.jsonl", "undone.jsonl"))
    return sum(file.read_bytes().count(b"\n") for file in files if file.exists())
