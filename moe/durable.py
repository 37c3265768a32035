"""Files that a crash or a power cut leaves whole: the one place where this repository syncs and renames what it keeps.

A file is durable when its content *and* its name are on the disk. The content gets there by fsync of the file, the name
by fsync of its folder. So the order is always: write under a temporary name, sync the file, rename, sync the folder.

Every step raises an audit event (`sys.addaudithook`), so that a test can end the process between any two of them:
`durable.write` (path, content), `durable.sync` (path), and Python's own `os.rename` and `os.remove`.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

PARTIAL = ".partial"
"""Ending of the temporary name of a file that is not whole yet."""


def write_whole(path: Path, content: str | bytes, allowed: Callable[[], None] | None = None) -> None:
    """Write a file atomically: a reader, also after a crash, finds the old content or the new, never a part.

    Args:
        path: the file.
        content: its content.
        allowed: called before the file gets its name, and raises if it must not; its temporary name is then of this
            process alone, so that whoever forbids it can delete it.
    """
    with made_whole(path, side_by_side=allowed is not None) as partial:
        with FileIO(partial, "w") as file:
            _write(file, content.encode() if isinstance(content, str) else content)
        if allowed is not None:
            allowed()


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless they are there; their names are on the disk when this returns.

    So is the name of a folder that is there: whoever made it may have died before it was.
    """
    path = path.absolute()
    if path.is_dir():
        with suppress(PermissionError):  # a folder of somebody else, who made this one
            sync(path.parent)
    else:
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def own_partial(path: Path) -> Path:
    """A temporary name for a file that other processes and threads may be making, too."""
    return path.with_name(f"{path.name}.{os.getpid()}-{threading.get_native_id()}{PARTIAL}")


@contextmanager
def made_whole(path: Path, side_by_side: bool = False) -> Iterator[Path]:
    """Give a file or a folder its name once a block has made it under a temporary one.

    A block that fails leaves nothing behind: on a full disk the part would be in the way.

    Args:
        path: the name.
        side_by_side: whether several processes or threads may make it at the same time, each under a temporary name of
            its own.

    Yields:
        The temporary name.
    """
    partial = own_partial(path) if side_by_side else path.with_name(path.name + PARTIAL)
    try:
        yield partial
        put_in_place(partial, path)
    except BaseException:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
        raise


def append(file: FileIO, content: bytes) -> None:
    """Write at the end of an unbuffered file; after an error nothing of it is there."""
    before = os.fstat(file.fileno()).st_size
    try:
        _write(file, content)
        sys.audit("durable.sync", str(file.name))
        os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):  # a device has no length to be put back
            os.ftruncate(file.fileno(), before)
        raise


def put_in_place(fresh: Path, path: Path) -> None:
    """Give a finished file or folder its final name; its content is on the disk before, its name when this returns.

    A file that is there already is replaced. A folder that is there already must be empty.
    """
    sync_all(fresh)
    rename(fresh, path)


def rename(fresh: Path, path: Path) -> None:
    """Give a file or folder whose content is on the disk another name, as `put_in_place` does."""
    os.replace(fresh, path)
    sync(path.parent)


def sync_all(path: Path) -> None:
    """Put a file, or a folder with everything below it, on the disk."""
    if path.is_dir():
        for entry in path.iterdir():
            sync_all(entry)
    sync(path)


def sync(path: Path) -> None:
    """Put the content of a file, or the names in a folder, on the disk."""
    sys.audit("durable.sync", str(path))
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.EBADF)):  # some network disks sync no folders
            raise
    finally:
        os.close(handle)


def remove_tree(folder: Path, first: str) -> None:
    """Delete a folder that one file in it makes valid; that file is durably deleted before the others.

    Args:
        folder: what is to go.
        first: name of the file without which nobody takes the folder for whole.
    """
    (folder / first).unlink(missing_ok=True)
    sync(folder)
    shutil.rmtree(folder)


def _write(file: FileIO, content: bytes) -> None:
    sys.audit("durable.write", str(file.name), content)
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
