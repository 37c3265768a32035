"""Weights through the memory of a shared GPU, with vLLM's engines, ranks of Megatron and an engine of vLLM in actors.

`tests.helpers.ipc_stand_in` says what is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import torch

from scalelab.cluster import trainer as room
from scalelab.cluster.actors import end_ray, start_ray
from scalelab.rollout.types import Request
from scalelab.transfer.listener import Listener
from tests.helpers.weights_lab import DyingPeer, Lab, Refuser, come_up, sending

pytestmark = pytest.mark.slow

CLUSTER = sending("ipc", trainers=2, generators=2)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    from tests.helpers.ipc_stand_in import SecondReadingEngine, StandInRank

    monkeypatch.setattr(room, "TrainerRank", StandInRank)
    start_ray(CLUSTER, 3)
    try:
        yield Lab(tmp_path, CLUSTER, SecondReadingEngine)
    finally:
        end_ray()


def test_weights_in_a_gpus_memory_equal_the_trainers_and_a_lost_engine_costs_one_transfer(lab: Lab) -> None:
    requests = [Request(f"flying{n}", tuple(range(5, 45)), 200) for n in range(4)]
    ray.get(lab.engine.fly.remote(requests), timeout=900)

    lab.step(0)
    assert lab.publish(1) == 1
    assert not lab.problems
    found = lab.assert_as_from_files(2)
    assert any(one.any() for name, one in found.items() if name.endswith("expert_bias"))

    lab.step(1)
    dying, refuser = come_up(DyingPeer, Refuser)
    lab.listeners.append(Listener("generator 1", dying, 1))
    assert lab.publish(3) == 0  # the first part had arrived
    [problem] = lab.problems
    said = "weights 3 were not passed through the GPU's memory: an actor died while the run waited for generator 1 to"
    assert problem.startswith(said)

    lab.listeners[1] = Listener("generator 2", refuser, 1)
    assert lab.publish(4) == 0
    said = "generator 2 to be ready for weights in the GPU's memory: no"
    assert lab.problems[1:] == [f"weights 4 were not passed through the GPU's memory: {said}"]

    lab.listeners.pop()
    lab.step(2)
    assert lab.publish(5) == 1
    after = lab.assert_as_from_files(6)
    assert any(not torch.equal(after[name], found[name]) for name in after)
    assert len(lab.problems) == 2
    lab.completions(len(requests))
