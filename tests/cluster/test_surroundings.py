"""A run refuses to start where its engines would fail later, and says what to do."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from scalelab.cluster.surroundings import check_surroundings, settle
from scalelab.errors import LabError


def test_a_home_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_surroundings()
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    with pytest.raises(LabError, match=r"home directory .*nowhere is not there or cannot be written.*set HOME"):
        check_surroundings()
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    check_surroundings()


def test_a_limit_of_the_address_space_is_named() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))

    source = "from scalelab.cluster.surroundings import check_surroundings; check_surroundings()"
    done = subprocess.run([sys.executable, "-c", source], preexec_fn=limit, capture_output=True, text=True, timeout=900)
    assert "limits the address space to 3.0 GiB" in done.stderr


def test_only_a_ray_of_its_own_is_kept_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_DEDUP_LOGS_SKIP_REGEX")
    for name in names:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "x")  # so that it is put back as it was
        monkeypatch.delenv(name)
    import os

    settle(own_ray=False)
    assert [name in os.environ for name in names] == [False, True]
    settle(own_ray=True)
    assert os.environ[names[0]] == "0"


@pytest.mark.slow
@pytest.mark.nightly
def test_ray_ends_although_one_of_its_processes_is_stopped() -> None:
    source = """
import psutil, signal
from scalelab.cluster.surroundings import settle
settle(own_ray=True)
from scalelab.cluster.actors import end_ray, start_ray
from scalelab.run.settings import Cluster
start_ray(Cluster())
for process in psutil.Process().children():
    if process.name() == "raylet":
        process.send_signal(signal.SIGSTOP)
        end_ray()
        print("ended")
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=900)
    assert done.stdout == "ended\n", done.stderr
