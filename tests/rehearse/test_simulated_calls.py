"""Calls of torch that only a process with a GPU makes run on a simulated one: names, random numbers, groups."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from moe.model.kernels import Host, choose
from scalelab.hardware import device
from scalelab.rehearse.environment import simulated_cuda

SIMULATED = simulated_cuda(device("h100"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(SIMULATED is None, reason="needs tools/rehearse/install.sh"),
]

CODE = """
import json
import sys
from dataclasses import asdict

import torch
import torch.distributed as dist
from moe.model.kernels import this_host

host = asdict(this_host())
sys.modules["transformer_engine"] = None  # its Python is here, which Megatron would import, without its libraries
from moe.checkpoint.distributed import _random_state, _set_random_state
from moe.ranks.parallel import join, leave
from moe.settings import Layout

torch.cuda.manual_seed(2**40 + 5)
state = _random_state()
torch.cuda.manual_seed(6)
_set_random_state(state)
kept = state["cuda"]
seeds = [torch.cuda.initial_seed(), str(kept.device), str(kept.dtype), kept.dim()]
torch.cuda.set_device(1)  # of a device that is not counted
join(Layout(), 0, 1, "file://" + sys.argv[1], 30.0)
group = [dist.get_backend(), torch.cuda.current_device()]
leave()
print(json.dumps({"host": host, "random": seeds, "group": group}))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Answers of a process with a simulated H100."""
    assert SIMULATED is not None
    meeting = tmp_path_factory.mktemp("ranks") / "meeting"
    done = subprocess.run(
        [SIMULATED.python, "-c", CODE, str(meeting)],
        env={**os.environ, **dict(SIMULATED.environment)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_host_with_a_gpu_is_seen_with_its_packages_and_gets_their_kernels(said: dict[str, Any]) -> None:
    host = said["host"]
    assert (host["cuda"], host["capability"]) == ("simulated", [9, 0])
    [[package, version]] = host["packages"]
    assert package == "transformer_engine"
    found = Host(host["cuda"], tuple(host["capability"]), ((package, version),))
    assert choose("auto", "bfloat16", found).layers == "transformer_engine"
    assert choose("auto", "bfloat16", found).attention == "torch_varlen"


def test_a_gpus_random_state_is_kept_on_the_host_and_comes_back(said: dict[str, Any]) -> None:
    assert said["random"] == [2**40 + 5, "cpu", "torch.uint8", 1]


def test_ranks_meet_over_nccl_each_on_its_own_device(said: dict[str, Any]) -> None:
    assert said["group"] == ["nccl", 0]
