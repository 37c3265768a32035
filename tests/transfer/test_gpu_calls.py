"""A worker on a GPU loads new weights on its own device, and goes on with them once they are there.

The order of the calls is held with stand-ins for torch's; that torch takes them is held on a simulated device.
"""

from __future__ import annotations

import os
import subprocess
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from scalelab.hardware import device
from scalelab.rehearse.environment import simulated_cuda
from scalelab.transfer import engine_side
from scalelab.transfer.engine_side import ShardTransfer, _Job

pytestmark = pytest.mark.slow

SIMULATED = simulated_cuda(device("h100"))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls of torch that a worker on a GPU makes, with what they are given and the thread that makes them."""
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(engine_side, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    for name in ("set_device_index", "synchronize"):

        def record(*given: Any, name: str = name) -> None:
            made.append((name, *given, threading.current_thread().name))

        monkeypatch.setattr(torch.accelerator, name, record)
    return made


def test_a_thread_that_loads_first_goes_to_its_workers_device(calls: list[tuple[Any, ...]]) -> None:
    mine = torch.device("cuda:3")
    before = _Job(lambda: calls.append(("the one before",)), mine)
    job = _Job(lambda: calls.append(("load",)), mine, after=before)
    job._thread.join(10)
    assert job.over
    assert job.problem is None
    there = ("set_device_index", mine, "load weights")
    assert calls == [there, ("the one before",), there, ("load",)]


def transfer(done: list[tuple[Any, ...]]) -> ShardTransfer:
    """A worker's transfer engine with version 3 loaded."""
    one = object.__new__(ShardTransfer)
    one._twin = SimpleNamespace(exchange=lambda: done.append(("exchange",)))  # type: ignore[assignment]
    one._twin_lock, one._version, one.model, one._biases = threading.Lock(), 3, nn.Module(), {}
    return one


def test_an_update_ends_once_the_copies_are_on_the_device(calls: list[tuple[Any, ...]]) -> None:
    transfer(calls).update_weights({"version": 3})
    assert calls == [("exchange",), ("synchronize", "MainThread")]


ON_SIMULATED = """
from types import SimpleNamespace

import torch
from scalelab.transfer import engine_side
from scalelab.transfer.engine_side import _Job
from tests.transfer.test_gpu_calls import transfer

engine_side.current_platform = SimpleNamespace(is_cpu=lambda: False)
there = []
job = _Job(lambda: there.append(torch.accelerator.current_device_index()), torch.device("cuda:1"))
job._thread.join(60)
assert (job.problem, there) == (None, [1]), (job.problem, there)
transfer(there).update_weights({"version": 3})
print("done", there)
"""


@pytest.mark.nightly
@pytest.mark.skipif(SIMULATED is None, reason="needs tools/rehearse/install.sh")
def test_torch_takes_the_calls_on_a_simulated_device() -> None:
    assert SIMULATED is not None
    python = {**os.environ, **dict(SIMULATED.environment)}
    done = subprocess.run(
        [SIMULATED.python, "-c", ON_SIMULATED], env=python, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["done [1, ('exchange',)]"], done.stderr[-2000:]
