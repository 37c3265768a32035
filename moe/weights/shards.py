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

import fcntl
import hashlib
import os
import secrets
import shutil
import socket
import socketserver
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moe.errors import MoeError
from moe.weights.links import EXPERT_BIAS, Link, expert_bias_names, links

MEMORY = Path("/dev/shm")
_PREFIX = "scalelab-weights-"
_ALIGNMENT = 64
_HEAD = 64
"""Bytes at the beginning of a file that say whose it is."""
_OLD = 5.0  # seconds after which a file that nobody has locked is a leftover
_CHUNK = 2**20

Cut = tuple[int, int, int, int]
"""(axis, stretches, part, parts). Stretches are stacked matrices, each of them cut for itself (gate and up: 2)."""


@dataclass(frozen=True)
class Piece:
    """A part of a parameter in a segment.

    Attributes:
        name: Megatron's name of the parameter, layers counted from the model's first; or a bias of experts'.
        dtype: torch's name of the type.
        shape: of the part.
        cuts: how it was cut from the whole, the outermost first.
        offset: first byte in the segment.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    cuts: tuple[Cut, ...]
    offset: int

    @property
    def whole(self) -> tuple[int, ...]:
        """Shape of the parameter that it is a part of."""
        shape = list(self.shape)
        for axis, _, _, parts in self.cuts:
            shape[axis] *= parts
        return tuple(shape)


@dataclass(frozen=True)
class Segment:
    """The share of one rank.

    Attributes:
        version: policy version.
        rank: who wrote it.
        machine: where the file can be mapped (`this_machine`).
        path: at which processes of the same user on that machine open the file.
        address: host and port that hand the file to other machines.
        key: what to ask for there; nobody else knows it.
        size: bytes.
        pieces: what is in it.
    """

    version: int
    rank: int
    machine: str
    path: str
    address: tuple[str, int]
    key: str
    size: int
    pieces: tuple[Piece, ...]


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
        self._held: tuple[str, _File] | None = None
        self._server = _Server(host, self._find)

    def publish(self, version: int, rank: int, parts: Sequence[tuple[str, tuple[Cut, ...], Tensor]]) -> Segment:
        """Copy parts of parameters into a new segment, in place of the last one.

        Raises:
            MoeError: there is no room for it.
        """
        self._drop()
        pieces, size = [], _HEAD
        for name, cuts, tensor in parts:
            pieces.append(Piece(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), cuts, size))
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        key = secrets.token_hex(32)
        file = _File.create(size, _name(key))
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
        self._files = files = list[_File]()
        try:
            for segment in segments:
                files.append(
                    _File.open(Path(segment.path), segment)
                    if segment.machine == here
                    else self._fetched(segment, folder, here, ends)
                )
        except BaseException:
            self.close()
            raise
        self.segments = [
            replace(segment, machine=here, path=file.lasting) for segment, file in zip(segments, files, strict=True)
        ]

    def _fetched(self, segment: Segment, folder: Path, here: str, ends: float) -> _File:
        """Open the copy of a segment that readers of this machine share; the first of them fetches it."""
        path = folder / f"{_PREFIX}{_name(f'{segment.key} on {here}')}"
        with open(f"{path}.lock", "a") as lock:
            _lock(lock.fileno(), ends, f"another reader to fetch the weights of rank {segment.rank}")
            try:
                file = _File.open(path, segment, named=True)
            except SupersededError:  # nobody has fetched it yet
                sweep(folder)
                self.fetched += _receive(segment, path, ends)
                file = _File.open(path, segment, named=True)
        Path(lock.name).unlink(missing_ok=True)
        return file

    def weights(self, hf_config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
        """See `weights`."""
        yield from weights(hf_config, self.segments, [file.view for file in self._files])

    def close(self) -> None:
        """Release the files; fetched ones are deleted with their last reader."""
        for file in self._files:
            file.close()
        self._files.clear()


class UnavailableError(MoeError):
    """The weights cannot be had from who published them, who may be gone: newer ones will come, or none."""


class SupersededError(UnavailableError):
    """The weights were replaced by newer ones."""


def check(hf_config: dict[str, Any], segments: Sequence[Segment]) -> dict[str, list[tuple[int, Piece]]]:
    """Find the pieces of every parameter: by name, (segment, piece).

    Raises:
        MoeError: a parameter is missing, incomplete, unknown, or of another model.
    """
    found: dict[str, list[tuple[int, Piece]]] = {}
    for number, segment in enumerate(segments):
        for piece in segment.pieces:
            found.setdefault(piece.name, []).append((number, piece))
    if len({segment.version for segment in segments}) != 1:
        raise MoeError(f"the segments are of versions {sorted({s.version for s in segments})}: publish them together")
    shapes = {link.param: link.shape for link in links(hf_config)}
    biases = [name for name in found if name.endswith(EXPERT_BIAS)]
    for name in biases:
        if name not in expert_bias_names(hf_config).values():
            raise MoeError(f"the published weights hold {name}, which this model has no place for")
    if other := sorted(found.keys() - shapes.keys() - set(biases)):
        raise MoeError(f"the published weights hold {other[0]}, which this model has no place for")
    for name, shape in shapes.items():
        _check_whole(name, shape, [piece for _, piece in found.get(name, [])])
    return found


def _check_whole(name: str, shape: tuple[int, ...], pieces: list[Piece]) -> None:
    if wrong := next((piece for piece in pieces if piece.whole != tuple(shape)), None):
        raise MoeError(f"the published {name} has shape {wrong.whole}, but this model needs {tuple(shape)}")
    wanted = 1
    for _, _, _, parts in pieces[0].cuts if pieces else ():
        wanted *= parts
    places = {tuple(part for _, _, part, _ in piece.cuts) for piece in pieces}
    if not pieces or not len(pieces) == len(places) == wanted:
        raise MoeError(f"the published weights hold {len(places)} of {wanted} parts of {name}: a rank is missing")


def weights(
    hf_config: dict[str, Any], segments: Sequence[Segment], views: Sequence[Callable[[Piece], Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield every Hugging Face tensor, then every bias of experts; one parameter is put together at a time.

    Args:
        hf_config: the model's.
        segments: of all ranks.
        views: for every segment what gives a piece's tensor.

    Raises:
        MoeError: see `check`; before the first tensor.
    """
    found = check(hf_config, segments)
    for link in links(hf_config):
        yield from zip(link.names, link.split(_assemble(link, found[link.param], views)), strict=True)
    for name in expert_bias_names(hf_config).values() if any(n.endswith(EXPERT_BIAS) for n in found) else ():
        (number, piece), *_ = found[name]
        yield name, views[number](piece)


def _assemble(link: Link, parts: list[tuple[int, Piece]], views: Sequence[Callable[[Piece], Tensor]]) -> Tensor:
    """The whole parameter: the part itself where there is one, a new tensor where there are several."""
    number, first = parts[0]
    if len(parts) == 1:
        return views[number](first)
    whole = torch.empty(link.shape, dtype=getattr(torch, first.dtype))
    for number, piece in parts:
        place, part = whole, views[number](piece)
        for axis, stretches, index, count in piece.cuts[:-1]:
            assert stretches == 1
            place = place.chunk(count, dim=axis)[index]
        axis, stretches, index, count = piece.cuts[-1]
        place.unflatten(axis, (stretches, count, -1)).select(axis + 1, index).copy_(
            part.unflatten(axis, (stretches, -1))
        )
    return whole


# Files in memory.


class _File:
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
    def create(cls, size: int, name: str) -> _File:
        """Make one without a name, which goes with its last process."""
        if size > (free := available()):
            raise _no_room("the machine", free, size)
        handle = os.memfd_create("scalelab weights", os.MFD_CLOEXEC)
        os.posix_fallocate(handle, 0, size)
        file = cls(handle, size, shared=True)
        file._data[:_HEAD] = torch.frombuffer(bytearray(_head(name)), dtype=torch.uint8)
        return file

    @classmethod
    def open(cls, path: Path, segment: Segment, named: bool = False) -> _File:
        """Open a segment's file: the one of its rank, or a named copy."""
        gone = SupersededError(f"the weights of version {segment.version} are gone: newer ones replace them")
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise gone from None
        if named:
            fcntl.flock(handle, fcntl.LOCK_SH)
        if os.pread(handle, _HEAD, 0) != _head(_name(segment.key)):  # the number of a closed file is given to another
            os.close(handle)
            raise gone
        return cls(handle, segment.size, shared=False, name=path if named else None)

    def view(self, piece: Piece) -> Tensor:
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
    return name.encode().ljust(_HEAD, b"\0")


def available() -> int:
    """Bytes of memory that this machine can still give, without the swap."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def sweep(folder: Path = MEMORY) -> None:
    """Remove fetched files that no process has locked: their readers were killed."""
    for path in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime < _OLD:
                continue
            handle = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(handle)


def _no_room(where: str, free: int, size: int) -> MoeError:
    return MoeError(
        f"{where} has {free / 2**30:.2f} GiB of memory free, and a share of the weights takes {size / 2**30:.2f}: give "
        "it more"
    )


def _name(key: str) -> str:
    """Name of a file, which all may see; it does not reveal the key."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _lock(handle: int, ends: float, what: str) -> None:
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > ends:
            raise MoeError(f"waited in vain for {what}: raise the deadline if the network is only slow")
        time.sleep(0.01)


# From machine to machine: the reader sends the key, the publisher the size (8 bytes, big-endian) and the file.


class _Server:
    """Server that sends a file to whoever knows its key."""

    def __init__(self, host: str, find: Callable[[str], Path | None]) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.settimeout(60.0)
                key = b""
                while len(key) < 64 and (more := self.request.recv(64 - len(key))):
                    key += more
                path = find(key.decode("ascii", "replace"))
                try:
                    file = path.open("rb") if path is not None else None
                except FileNotFoundError:
                    file = None
                if file is None:
                    self.request.sendall(bytes(8))
                    return
                with file:
                    self.request.sendall(os.fstat(file.fileno()).st_size.to_bytes(8, "big"))
                    self.request.sendfile(file)

        class Quiet(socketserver.ThreadingTCPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Ignore a reader that disconnected."""

        self._server = Quiet((host, 0), Handler)
        self.address: tuple[str, int] = (host, self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="weights", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)


def _receive(segment: Segment, path: Path, ends: float) -> int:
    """Fetch a file from its publisher; returns its bytes."""
    partial = Path(f"{path}.{os.getpid()}.partial")
    what = f"rank {segment.rank} at {segment.address[0]}:{segment.address[1]}"
    try:
        with socket.create_connection(segment.address, timeout=max(0.1, ends - time.monotonic())) as connection:
            connection.sendall(segment.key.encode())
            size = int.from_bytes(_exactly(connection, 8), "big")
            if size == 0:
                raise SupersededError(f"{what} no longer has the weights of version {segment.version}")
            if size < segment.size:
                raise MoeError(f"{what} offers {size} bytes, and the weights take {segment.size}: its file was cut off")
            with partial.open("xb") as out:
                fcntl.flock(out.fileno(), fcntl.LOCK_SH)  # else another process may take it for a leftover
                os.posix_fallocate(out.fileno(), 0, size)
                for _ in range(0, size, _CHUNK):
                    connection.settimeout(max(0.1, ends - time.monotonic()))
                    out.write(_exactly(connection, min(_CHUNK, size - out.tell())))
        os.replace(partial, path)
        return size
    except (OSError, EOFError) as error:
        if isinstance(error, OSError) and error.errno == 28:
            raise _no_room(str(path.parent), shutil.disk_usage(path.parent).free, segment.size) from error
        raise UnavailableError(f"{what} did not hand over the weights of version {segment.version}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if not (more := connection.recv(count - len(parts))):
            raise EOFError("the connection ended early")
        parts += more
    return bytes(parts)
