"""Ranks on different nodes meet by the interface that holds the address which the nodes know each other by."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from scalelab.cluster import interfaces
from scalelab.cluster.interfaces import VARIABLE, interface_of, name_interface


def held(*addresses: str) -> list[SimpleNamespace]:
    return [SimpleNamespace(address=one) for one in addresses]


NODE = {"lo": held("127.0.0.1", "::1"), "eth0": held("10.1.2.3", "fe80::1%eth0"), "ib0": held("192.168.0.7")}


def test_the_interface_is_the_one_that_holds_the_address() -> None:
    assert interface_of("10.1.2.3", NODE) == "eth0"
    assert interface_of("192.168.0.7", NODE) == "ib0"
    assert interface_of("fe80::1", NODE) == "eth0"
    assert interface_of("10.1.2.4", NODE) is None


def test_what_the_user_has_set_stays_and_a_loopback_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces.psutil, "net_if_addrs", lambda: NODE)
    monkeypatch.delenv(VARIABLE, raising=False)
    name_interface("127.0.0.1")
    assert VARIABLE not in os.environ
    monkeypatch.setenv(VARIABLE, "ib0")
    name_interface("10.1.2.3")
    assert os.environ[VARIABLE] == "ib0"
    monkeypatch.delenv(VARIABLE)
    name_interface("10.1.2.3")
    assert os.environ[VARIABLE] == "eth0"
    monkeypatch.delenv(VARIABLE)


@pytest.mark.timeout(120)
@pytest.mark.nightly
def test_gloo_takes_the_interface_that_is_named() -> None:
    """By an interface that does not exist gloo refuses to start, by every one that does it starts."""
    group = (
        "import torch.distributed as d; d.init_process_group('gloo', store=d.HashStore(), rank=0, world_size=1); "
        "d.all_reduce(__import__('torch').ones(1)); d.destroy_process_group()"  # whose threads outlive the interpreter
    )
    ended = {}
    for name in (*psutil.net_if_addrs(), "no_such_0"):
        environment = os.environ | {VARIABLE: name}
        ended[name] = subprocess.run([sys.executable, "-c", group], env=environment, capture_output=True).returncode
    assert ended.pop("no_such_0") != 0
    assert ended["lo"] == 0
