"""The ranks' meeting place: a store that listens at one address of one network, not at all of them.

The store asks nobody for a password. torch's own ``tcp://`` listens on every network of the machine, so that whoever
reaches any of them can read and change what the ranks tell each other; here rank 0 listens at the given address alone.
"""

from __future__ import annotations

import datetime
import socket
from urllib.parse import urlsplit

import torch.distributed as dist

from moe.errors import MoeError


def meet(rendezvous: str, rank: int, world: int, deadline: float) -> dist.Store:
    """Open the store through which the ranks find each other.

    Args:
        rendezvous: ``tcp://host:port``, of an address of rank 0's machine, or ``file:///path`` on a shared disk.
        rank: this process.
        world: number of processes.
        deadline: seconds to wait for rank 0, and for every answer of the store.

    Raises:
        MoeError: if it is no such address, or rank 0 cannot listen there.
        dist.DistError: if rank 0 does not answer.
    """
    parts = urlsplit(rendezvous)
    timeout = datetime.timedelta(seconds=deadline)
    if parts.scheme == "file" and parts.path:
        return dist.FileStore(parts.path, world)
    if parts.scheme != "tcp" or parts.hostname is None or parts.port is None:
        raise MoeError(f"{rendezvous!r} is no place to meet at: give tcp://HOST:PORT or file:///PATH")
    if rank:
        return dist.TCPStore(parts.hostname, parts.port, world, False, timeout, wait_for_workers=False)
    listening = _listen(parts.hostname, parts.port)
    return dist.TCPStore(
        parts.hostname, parts.port, world, True, timeout, wait_for_workers=False, master_listen_fd=listening.detach()
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except OSError as error:
        raise MoeError(f"rank 0 cannot listen at {host}:{port}: {error.strerror or error}") from error
    return listening
