"""Lease of a run's folder: one process at a time, and one that lost it stops at its next write.

Whoever begins or goes on with a run makes the file `lease.N` by exclusive creation, where N, the *epoch*, is one more
than any before, and removes those of earlier epochs. A process checks that its own file is there before and after each
write. So it works on any file system that has exclusive creation, without locks, and also when somebody removes the
file: its holder makes it again, unless there is a later one.

Whether the holder of an earlier lease lives is seen from its process where it is on the same machine. On another one it
is seen from the beats that it writes into its file.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalelab.errors import LabError
from scalelab.guarded import read_whole
from scalelab.store.status_file import process_started, read_note

BEAT_SECONDS = 5.0
"""Seconds between two beats of a holder."""

LATE_SECONDS = 20.0
"""Seconds without a beat after which a holder on another machine is taken to be gone."""

_NAME = re.compile(r"lease\.(\d{1,9})")
_LONGEST = 10_000
"""Bytes of a lease above which it is none."""


class FencedError(LabError):
    """Another process has taken the run over: this one must write nothing more."""


def leases(folder: Path) -> dict[int, Path]:
    """The leases in a folder, by epoch."""
    found = ((_NAME.fullmatch(entry.name), entry) for entry in folder.iterdir())
    return {int(match[1]): path for match, path in found if match}


def this_process() -> dict[str, Any]:
    """Facts by which another process can tell that this one lives."""
    return {
        "node": socket.gethostname(),
        "place": _place(),
        "pid": os.getpid(),
        "started": process_started(os.getpid()),
    }


def _place() -> str | None:
    """Name of the machine's start and of the container, in which a process's number means the same process."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return None


class Lease:
    """The lease of this process.

    Args:
        folder: the run's folder.
        least: an epoch that is known to be over, from the journal.
        holder: facts of this process.
        say: takes lines for people.
        late: seconds without a beat of a holder on another machine.
        written: gives the epoch of the journal's last line, by which a process is known that came and has ended.

    Raises:
        LabError: another process holds the folder.
    """

    def __init__(
        self,
        folder: Path,
        least: int = 0,
        holder: dict[str, Any] | None = None,
        say: Callable[[str], None] = lambda line: None,
        late: float = LATE_SECONDS,
        written: Callable[[], int] = lambda: 0,
    ) -> None:
        self._written = written
        self._folder, self._holder = folder, this_process() if holder is None else holder
        self._beats = 0
        there = leases(folder)
        if there and _lives(there[max(there)], say, late):
            raise LabError(f"{folder} is still running in another process{_who(there[max(there)])}: stop it first")
        self.epoch = max([least, *there]) + 1
        self._path = folder / f"lease.{self.epoch}"
        if not self._make():
            raise LabError(f"{folder} was just taken over by another process{_who(self._path)}: leave it to that one")
        self._remove_earlier()

    def _make(self) -> bool:
        """Make the file of this epoch; False if another process was first."""
        try:
            handle = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps({**self._holder, "beat": self._beats}))
        return True

    def _remove_earlier(self) -> None:
        for epoch, path in leases(self._folder).items():
            if epoch < self.epoch:
                path.unlink(missing_ok=True)

    def check(self) -> None:
        """Make sure that this process still holds the folder.

        Raises:
            FencedError: it does not.
        """
        with suppress(FileNotFoundError):
            # opened, for network disks remember names, but look at an open
            os.close(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK))
            return
        if not self._folder.is_dir():
            raise FencedError(f"{self._folder} is gone: this process stops")
        self._make()  # somebody removed it
        later = [epoch for epoch in leases(self._folder) if epoch > self.epoch]
        if later:
            self._path.unlink(missing_ok=True)
            who = _who(self._folder / f"lease.{max(later)}")
            raise FencedError(
                f"{self._folder} was taken over by another process{who} while this one stood still: this one stops, "
                "and the run goes on there"
            )
        if self._written() > self.epoch:
            self._path.unlink(missing_ok=True)
            raise FencedError(f"another process has gone on with {self._folder} meanwhile, and ended: this one stops")

    def beat(self) -> None:
        """Show other machines that this process lives."""
        self._beats += 1
        with suppress(OSError), open(self._path, "r+", encoding="utf-8") as file:
            file.write(json.dumps({**self._holder, "beat": self._beats}))

    def keep(self) -> Callable[[], None]:
        """Beat from a thread; what is returned ends it and gives the lease back."""
        ended = threading.Event()

        def beats() -> None:
            while not ended.wait(BEAT_SECONDS):
                self.beat()

        threading.Thread(target=beats, name="lease", daemon=True).start()

        def release() -> None:
            ended.set()
            self.release()

        return release

    def release(self) -> None:
        """Give the lease back."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _who(path: Path) -> str:
    holder = read_note(path, _LONGEST)
    node, pid = holder.get("node"), holder.get("pid")
    return f" (process {pid} on {node})" if isinstance(node, str) and isinstance(pid, int) else ""


def _lives(path: Path, say: Callable[[str], None], late: float) -> bool:
    """True if the holder of a lease lives; on another machine this waits for a beat."""
    holder = read_note(path, _LONGEST)
    pid = holder.get("pid")
    if holder.get("place") is not None and holder["place"] == _place() and isinstance(pid, int):
        return process_started(pid) is not None and process_started(pid) == holder.get("started")
    say(f"{path.parent} was begun by another machine{_who(path)}: waiting {late:.0f} s for a sign of life of it")
    before, ends = read_whole(path, _LONGEST) if path.exists() else b"", time.monotonic() + late
    while time.monotonic() < ends:
        time.sleep(min(1.0, late / 10))
        if not path.exists():
            return False
        if read_whole(path, _LONGEST) != before:
            return True
    return False
