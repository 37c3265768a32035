"""End a process before every write, sync, rename and deletion of what it keeps on its disk, one after the other.

`moe.durable` announces writes and syncs as audit events, Python announces renames, deletions and the opening of files.
A child process counts them below one folder, and ends itself at the n-th in one of three ways:

- killed: what was written stays, a write under way is there by half;
- power cut, orderly: of everything that was not synced, neither content nor name is there;
- power cut, disorderly: the names are there, the content is not, as a disk may have it that writes names first.

Files that nobody needs after a crash (TensorBoard's) are left out. Children are forked, so that a thousand take
seconds: the process that forks them must have no threads.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Ending = Literal["killed", "orderly", "disorderly"]
ENDINGS: tuple[Ending, ...] = ("killed", "orderly", "disorderly")
LEFT_OUT = ("tensorboard", "lock")


@dataclass
class Disk:
    """Content of a folder after a power cut, followed event by event.

    Attributes:
        root: the folder.
        beside: a folder for copies of what is renamed over or deleted.
        synced: length of each file that was on the disk at its last sync.
        names: how to take back each change of a name that is not on the disk yet, with the folder it is in.
    """

    root: Path
    beside: Path
    synced: dict[Path, int] = field(default_factory=dict)
    names: list[tuple[Path, Callable[[], None]]] = field(default_factory=list)
    changed: set[Path] = field(default_factory=set)
    _copies: int = 0

    def written(self, path: Path) -> None:
        """A file is about to be written, or to be made."""
        if path not in self.changed and path not in self.synced:
            self.synced[path] = path.stat().st_size if path.exists() else 0
            if not path.exists():
                self.names.append((path.parent, lambda: path.unlink(missing_ok=True)))
        self.changed.add(path)

    def made(self, path: Path) -> None:
        """A folder is about to be made."""
        self.names.append((path.parent, lambda: shutil.rmtree(path, ignore_errors=True)))

    def sync(self, path: Path) -> None:
        """A file's content, or the names in a folder, are on the disk."""
        if path.is_dir():
            self.names = [one for one in self.names if one[0] != path]
        elif path.exists():
            self.synced[path] = path.stat().st_size
            self.changed.discard(path)

    def rename(self, source: Path, target: Path) -> None:
        """A file or folder is about to get another name."""
        copy = self._copy(target)

        def back() -> None:
            if target.exists():
                target.rename(source)
            if copy is not None:
                copy.rename(target)

        self.names.append((target.parent, back))
        if source.is_dir():
            for path in list(self.synced):
                if path.is_relative_to(source):
                    self._move(path, target / path.relative_to(source))
            self.names = [(_moved(folder, source, target), undo) for folder, undo in self.names]
        else:
            # A file that was written by other means than Python's, and not synced, is empty after a power cut.
            self.synced.setdefault(source, 0)
            if self.synced[source] < source.stat().st_size:
                self.changed.add(source)
            self._move(source, target)

    def follow(self, event: str, paths: list[Path], arguments: tuple[Any, ...]) -> None:
        """Follow an event that is no sync."""
        if event == "os.rename":
            self.rename(paths[0], paths[1])
        elif event == "os.remove":
            self.remove(paths[0])
        elif event == "os.mkdir":
            self.made(paths[0])
        elif event == "durable.write" or _writes(arguments):
            self.written(paths[0])

    def remove(self, path: Path) -> None:
        """A file is about to be deleted."""
        copy = self._copy(path)

        def back() -> None:
            if copy is not None and path.parent.is_dir():
                copy.rename(path)

        self.names.append((path.parent, back))
        self.synced.pop(path, None)
        self.changed.discard(path)

    def cut(self, orderly: bool) -> None:
        """Leave what a power cut leaves."""
        for path in self.changed:
            if path.exists():
                os.truncate(path, self.synced.get(path, 0))
        for _, undo in reversed(self.names) if orderly else ():
            undo()

    def _move(self, source: Path, target: Path) -> None:
        self.synced[target] = self.synced.pop(source)
        if source in self.changed:
            self.changed.discard(source)
            self.changed.add(target)
        else:
            self.changed.discard(target)

    def _copy(self, path: Path) -> Path | None:
        if not path.is_file():
            return None
        self._copies += 1
        copy = self.beside / f"{os.getpid()}-{self._copies}"
        os.link(path, copy)
        return copy


def _moved(path: Path, source: Path, target: Path) -> Path:
    return target / path.relative_to(source) if path.is_relative_to(source) else path


class _Hook:
    """Counter of the events below a folder that ends the process at one of them."""

    def __init__(self, root: Path, last: int, ending: Ending, beside: Path) -> None:
        self.root, self.last, self.ending = root, last, ending
        self.disk = Disk(root, beside)
        self.count, self.busy = 0, False
        self.pending: Path | None = None
        """File that is being synced until the next event."""

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.busy or event not in _EVENTS:
            return
        self.busy = True
        try:
            paths = [self._below(path) for path in _EVENTS[event](arguments)]
            if paths and all(path is not None for path in paths):
                self._happens(event, [path for path in paths if path is not None], arguments)
        finally:
            self.busy = False

    def _happens(self, event: str, paths: list[Path], arguments: tuple[Any, ...]) -> None:
        if self.pending is not None:
            self.disk.sync(self.pending)
            self.pending = None
        if event != "open":
            self.count += 1
            if self.count == self.last:
                self._end(event, paths, arguments)
        if event == "durable.sync":
            self.pending = paths[0]
        else:
            self.disk.follow(event, paths, arguments)

    def _end(self, event: str, paths: list[Path], arguments: tuple[Any, ...]) -> None:
        if self.ending != "killed":
            self.disk.cut(orderly=self.ending == "orderly")
        elif event == "durable.write":
            content = bytes(arguments[1])
            with open(paths[0], "ab", buffering=0) as file:
                file.write(content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    def _below(self, path: Any) -> Path | None:
        """The path, if it is of the folder and counts."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        whole = Path(os.path.abspath(os.fsdecode(path)))
        if not whole.is_relative_to(self.root) or set(whole.relative_to(self.root).parts) & set(LEFT_OUT):
            return None
        return whole


def _writes(arguments: tuple[Any, ...]) -> bool:
    """True if an `open` event is of a file that is written."""
    return len(arguments) > 2 and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _at(path: Any, folder: Any) -> Any:
    """A path that may be relative to an open folder, as in `shutil.rmtree`."""
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(path):
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
    return path


_EVENTS: dict[str, Callable[[tuple[Any, ...]], list[Any]]] = {
    "durable.write": lambda arguments: [arguments[0]],
    "durable.sync": lambda arguments: [arguments[0]],
    "os.rename": lambda arguments: [arguments[0], arguments[1]],
    "os.remove": lambda arguments: [_at(arguments[0], arguments[1])],
    "os.mkdir": lambda arguments: [_at(arguments[0], arguments[2])],
    "open": lambda arguments: [arguments[0]] if _writes(arguments) else [],
}


def in_child(work: Callable[[], None]) -> tuple[bool, str]:
    """Run something in a forked process; returns whether it came to its end, and its error if it had one."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            os.write(writing, traceback.format_exc()[-4000:].encode())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    return status == 0, said


def crash(root: Path, work: Callable[[], None], at: int, ending: Ending, beside: Path) -> bool:
    """Let a child work below a folder and end it at its n-th event; returns whether it had ended by itself before.

    Raises:
        RuntimeError: the work failed by itself.
    """

    def watched() -> None:
        sys.addaudithook(_Hook(root, at, ending, beside))
        work()

    whole, said = in_child(watched)
    if said:
        raise RuntimeError(f"at event {at}: {said}")
    return whole


def every_crash(
    work: Callable[[Path], None],
    check: Callable[[Path, str], None],
    endings: tuple[Ending, ...] = ENDINGS,
    share: tuple[int, int] = (0, 1),
    within: Path | None = None,
) -> int:
    """Crash a piece of work at every event in every way, and check what it leaves.

    Args:
        work: works below a folder; called in a child.
        check: raises if the folder is not as it should be; called in a child, with a name of the crash.
        endings: ways to end.
        share: (which, of how many): every so many events only, for processes that share the work.
        within: where folders are made; memory by default.

    Returns:
        Number of crashes.
    """
    place = within or (Path("/dev/shm") if Path("/dev/shm").is_dir() else None)
    crashes, at = 0, 1 + share[0]
    while not all([_one_crash(work, check, at, ending, place) for ending in endings]):
        crashes += len(endings)
        at += share[1]
    return crashes


def _one_crash(
    work: Callable[[Path], None], check: Callable[[Path, str], None], at: int, ending: Ending, place: Path | None
) -> bool:
    """Crash at one event and check what is left; returns whether the work had ended before."""
    with tempfile.TemporaryDirectory(dir=place) as name:
        root, beside = Path(name) / "disk", Path(name) / "beside"
        root.mkdir()
        beside.mkdir()
        if crash(root, lambda: work(root), at, ending, beside):
            return True
        whole, said = in_child(lambda: check(root, f"{ending} at event {at}"))
        if not whole:
            raise AssertionError(f"{ending} at event {at}: {said}")
        return False


def in_process(script: str, *arguments: str, seconds: float = 100) -> subprocess.CompletedProcess[str]:
    """Run a test's own file as a program, so that children are forked from a process without threads."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=environment)
