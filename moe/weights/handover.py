"""Hand published weights over to other machines.

The reader sends the key; the publisher answers with the size (8 bytes, big-endian) and the file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moe.errors import MoeError
from moe.regular import open_regular
from moe.weights.memory_file import no_room
from moe.weights.segments import Segment, SupersededError, UnavailableError

_CHUNK = 2**20


class Server:
    """Server that sends a file to clients that present its key."""

    def __init__(self, host: str, find: Callable[[str], Path | None]) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.settimeout(60.0)
                key = b""
                while len(key) < 64 and (more := self.request.recv(64 - len(key))):
                    key += more
                path = find(key.decode("ascii", "replace"))
                try:
                    file = open_regular(path) if path is not None else None
                except (FileNotFoundError, MoeError):
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
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)


def receive(segment: Segment, path: Path, ends: float) -> int:
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
            raise no_room(str(path.parent), shutil.disk_usage(path.parent).free, segment.size) from error
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
