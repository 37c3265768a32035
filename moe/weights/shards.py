"""Publication of weights shard by shard: every trainer rank writes its own share, and readers fetch it.

A rank copies the parameters that it holds, or its part of those that several ranks hold alike, into a file in memory
(a `Segment`), and goes on training. Nothing is gathered, and nobody waits for a reader. Engines on the same machine map
the files; a machine without them fetches each file over a socket, once for all of its engines that read at that time.
Readers put the pieces together one parameter at a time (`weights`), so that no process ever holds a whole model for it.

A file has no name and goes with its rank, or as soon as a newer one is to be written; a reader that has opened it keeps
it. A fetched file goes with its last reader; one that a killed reader left is removed with the next fetch. Needs no
Megatron, so that a generator can read.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from moe.weights.assembly import weights
from moe.weights.handover import Server, receive
from moe.weights.memory_file import HEAD, MEMORY, PREFIX, MemoryFile, file_name, sweep, wait_for_lock
from moe.weights.segments import Cut, Piece, Segment, SupersededError

_ALIGNMENT = 64


def this_machine(folder: Path = MEMORY) -> str:
    """Name of the machine or container; processes with the same name share files."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text().strip() if boot.exists() else socket.gethostname()}-{folder.stat().st_dev}"


class Publisher:
    """A rank's side of the publication: holds the newest segment, and serves it to other machines.

    Args:
        host: address at which other machines reach this one.
        machine: name of this machine, where it is not `this_machine`; readers there say the same.
    """

    def __init__(self, host: str = "127.0.0.1", machine: str | None = None) -> None:
        self._machine = machine or this_machine()
        self._held: tuple[str, MemoryFile] | None = None
        self._server = Server(host, self._find)

    def publish(self, version: int, rank: int, parts: Sequence[tuple[str, tuple[Cut, ...], Tensor]]) -> Segment:
        """Copy parts of parameters into a new segment, in place of the last one.

        Raises:
            MoeError: there is no room for it.
        """
        self._drop()
        pieces, size = [], HEAD
        for name, cuts, tensor in parts:
            pieces.append(Piece(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), cuts, size))
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        key = secrets.token_hex(32)
        file = MemoryFile.create(size, file_name(key))
        for piece, (_, _, tensor) in zip(pieces, parts, strict=True):
            file.view(piece).copy_(tensor)
        self._held = key, file
        return Segment(version, rank, self._machine, file.lasting, self._server.address, key, size, tuple(pieces))

    def close(self) -> None:
        """Give the memory back and stop listening."""
        self._server.close()
        self._drop()

    def _drop(self) -> None:
        if self._held is not None:
            self._held[1].close()
            self._held = None

    def _find(self, key: str) -> Path | None:
        held = self._held
        return Path(held[1].lasting) if held is not None and held[0] == key else None


class Snapshot:
    """A reader's side of the publication: all segments of one version, on this machine.

    It lasts as long as this object, whatever is published meanwhile.

    Args:
        segments: of all ranks.
        folder: where fetched files lie.
        machine: name of this machine, where it is not `this_machine`.
        deadline: seconds that fetching may take.

    Attributes:
        version: policy version.
        segments: as other processes of this machine can open them, as long as this one holds them.
        size: bytes of the weights.
        fetched: bytes that came from other machines by this reader.

    Raises:
        SupersededError: a newer version is being written: take that one.
        UnavailableError: a machine does not answer.
        MoeError: there is no room.
    """

    def __init__(
        self, segments: Sequence[Segment], folder: Path = MEMORY, machine: str | None = None, deadline: float = 300.0
    ) -> None:
        here, ends = machine or this_machine(folder), time.monotonic() + deadline
        self.version, self.size, self.fetched = segments[0].version, sum(one.size for one in segments), 0
        self._files = files = list[MemoryFile]()
        try:
            for segment in segments:
                files.append(
                    MemoryFile.open(Path(segment.path), segment)
                    if segment.machine == here
                    else self._fetched(segment, folder, here, ends)
                )
        except BaseException:
            self.close()
            raise
        self.segments = [
            replace(segment, machine=here, path=file.lasting) for segment, file in zip(segments, files, strict=True)
        ]

    def _fetched(self, segment: Segment, folder: Path, here: str, ends: float) -> MemoryFile:
        """Open the copy of a segment that readers of this machine share; the first of them fetches it."""
        path = folder / f"{PREFIX}{file_name(f'{segment.key} on {here}')}"
        with open(f"{path}.lock", "a") as lock:
            wait_for_lock(lock.fileno(), ends, f"another reader to fetch the weights of rank {segment.rank}")
            try:
                file = MemoryFile.open(path, segment, named=True)
            except SupersededError:  # nobody has fetched it yet
                sweep(folder)
                self.fetched += receive(segment, path, ends)
                file = MemoryFile.open(path, segment, named=True)
        Path(lock.name).unlink(missing_ok=True)
        return file

    def weights(self, hf_config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
        """See `moe.weights.assembly.weights`."""
        yield from weights(hf_config, self.segments, [file.view for file in self._files])

    def close(self) -> None:
        """Release the files; fetched ones are deleted with their last reader."""
        for file in self._files:
            file.close()
        self._files.clear()
