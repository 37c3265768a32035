"""Choice of the network interface by which ranks on different nodes meet."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

VARIABLE = "GLOO_SOCKET_IFNAME"
"""Variable by which gloo is told its interface; without it gloo takes the address that the host's name stands for."""


def name_interface(address: str) -> None:
    """Let gloo take the interface that other nodes reach this one by.

    On Debian and Ubuntu a host's name stands for 127.0.1.1, at which no other node finds it. A user's setting stays.

    Args:
        address: of this node, as the others know it; a loopback changes nothing.
    """
    if VARIABLE in os.environ or ipaddress.ip_address(address).is_loopback:
        return
    name = interface_of(address, psutil.net_if_addrs())
    if name is not None:
        os.environ[VARIABLE] = name


def interface_of(address: str, interfaces: Mapping[str, Sequence[Any]]) -> str | None:
    """Name of the interface that has an address; None if none has it.

    Args:
        address: of IPv4 or IPv6.
        interfaces: addresses by interface, as `psutil.net_if_addrs` gives them.
    """
    for name, held in interfaces.items():
        if any(one.address.partition("%")[0] == address for one in held):
            return name
    return None
