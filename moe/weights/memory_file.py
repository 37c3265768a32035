"""Files in memory that hold published weights: made, mapped, locked by their readers, and removed with the last."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
import weakref
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from moe.errors import MoeError
from moe.weights.segments import Piece, Segment, SupersededError

MEMORY = Path("/dev/shm")
PREFIX = "scalelab-weights-"
HEAD = 64
"""Bytes at the beginning of a file that identify its segment."""
_OLD = 5.0  # seconds after which a file that nobody has locked is a leftover


class MemoryFile:
    """A file in memory that this process maps; where it has a name, it is locked as long as it is mapped.

    Attributes:
        lasting: where processes of the same user open it, whatever becomes of its name.
        close: lets go of it; the last reader of a named file removes it.
    """

    def __init__(self, handle: int, size: int, *, shared: bool, name: Path | None = None) -> None:
        self.lasting = f"/proc/{os.getpid()}/fd/{handle}"
        self.close = weakref.finalize(self, _let_go, handle, name)
        self._data = torch.from_file(f"/proc/self/fd/{handle}", shared=shared, size=size, dtype=torch.uint8)

    @classmethod
    def create(cls, size: int, name: str) -> MemoryFile:
        """Make a memory file without a name; it is freed when the last process that holds it ends."""
        if size > (free := available()):
            raise no_room("the machine", free, size)
        handle = os.memfd_create("scalelab weights", os.MFD_CLOEXEC)
        os.posix_fallocate(handle, 0, size)
        file = cls(handle, size, shared=True)
        file._data[:HEAD] = torch.frombuffer(bytearray(_head(name)), dtype=torch.uint8)
        return file

    @classmethod
    def open(cls, path: Path, segment: Segment, named: bool = False) -> MemoryFile:
        """Open a segment's file: the one of its rank, or a named copy."""
        gone = SupersededError(f"the weights of version {segment.version} are gone: newer ones replace them")
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise gone from None
        if named:
            fcntl.flock(handle, fcntl.LOCK_SH)
        if os.pread(handle, HEAD, 0) != _head(
            file_name(segment.key)
        ):  # the number of a closed file is given to another
            os.close(handle)
            raise gone
        return cls(handle, segment.size, shared=False, name=path if named else None)

    def view(self, piece: Piece) -> Tensor:
        """The tensor of a piece, in the memory of the file."""
        dtype, count = getattr(torch, piece.dtype), 1
        for size in piece.shape:
            count *= size
        return self._data[piece.offset : piece.offset + count * dtype.itemsize].view(dtype).view(piece.shape)


def _let_go(handle: int, name: Path | None) -> None:
    if name is not None:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while there is another reader
            name.unlink()
    os.close(handle)


def _head(name: str) -> bytes:
    return name.encode().ljust(HEAD, b"\0")


def available() -> int:
    """Bytes of memory that this machine can still give, without the swap."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def sweep(folder: Path = MEMORY) -> None:
    """Remove fetched files that no process has locked: their readers were killed."""
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime < _OLD:
                continue
            handle = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(handle)


def no_room(where: str, free: int, size: int) -> MoeError:
    """The error of a machine or folder without room for a file."""
    return MoeError(
        f"{where} has {free / 2**30:.2f} GiB of memory free, and a share of the weights takes {size / 2**30:.2f}: give "
        "it more"
    )


def file_name(key: str) -> str:
    """Name of a file, which all may see; it does not reveal the key."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def wait_for_lock(handle: int, ends: float, what: str) -> None:
    """Lock an open file, which must be free by a point in time; `what` is waited for, in messages."""
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > ends:
            raise MoeError(f"waited too long for {what}: raise the deadline if the network is only slow")
        time.sleep(0.01)
