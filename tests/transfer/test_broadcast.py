"""Broadcasts of weights through vLLM's engines for NCCL, with ranks of Megatron and an engine of vLLM in Ray actors.

NCCL's library is a stand-in over sockets (`tests.helpers.nccl_stand_in`); all else is what a cluster runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray
import torch

from moe.model.families import Model
from moe.settings import Layout
from scalelab.cluster import trainer_ranks as room
from scalelab.cluster.actors import end_ray, start_ray
from scalelab.rollout.types import Request
from scalelab.transfer.listener import Listener
from scalelab.transfer.listeners import ListeningEngines
from scalelab.waiting import LateError
from tests.helpers.nccl_stand_in import DyingPeer, StandInEngine, StandInRank, build
from tests.helpers.rollout_models import DENSE, QWEN3
from tests.helpers.weights_lab import TRAINER, Lab, Refuser, broadcasting, come_up

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs g++ or gcc"),
]

CLUSTER = broadcasting(trainers=2)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ray, with ranks that send without a GPU."""
    monkeypatch.setenv("VLLM_NCCL_SO_PATH", str(build(tmp_path)))
    monkeypatch.setattr(room, "TrainerRank", StandInRank)
    start_ray(CLUSTER, 3)
    try:
        yield
    finally:
        end_ray()


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("shape", "layout"),
    [(replace(DENSE, num_key_value_heads=2), Layout(tensor=2)), (QWEN3, Layout(pipeline=2))],
    ids=["Llama, tensor 2", "tied, stages"],
)
def test_a_dense_models_rows_arrive_whether_its_head_is_its_embedding_or_not(
    shape: Model, layout: Layout, tmp_path: Path
) -> None:
    config = replace(TRAINER, layout=layout, expert_bias=0.0)
    lab = Lab(tmp_path, CLUSTER, StandInEngine, trainer=config, shape=replace(shape, vocab_size=320))
    lab.step(0)
    assert lab.publish(1) == 1
    lab.assert_as_from_files(2)
    assert not lab.problems


@pytest.mark.usefixtures("cluster")
def test_broadcast_weights_equal_the_trainers_and_a_lost_engine_costs_one_broadcast(tmp_path: Path) -> None:
    lab = Lab(tmp_path, CLUSTER, StandInEngine)
    requests = [Request(f"flying{n}", tuple(range(5, 45)), 200) for n in range(4)]
    ray.get(lab.engine.fly.remote(requests), timeout=900)

    lab.step(0)
    assert lab.publish(1) == 1
    from_files = lab.assert_as_from_files(2)
    assert any(one.any() for name, one in from_files.items() if name.endswith("expert_bias"))
    assert not lab.problems

    lab.step(1)
    dying, refuser = come_up(DyingPeer, Refuser)
    lab.listeners.append(Listener("generator 1", dying, 1))
    assert lab.publish(3) in (0, 1)
    [problem] = lab.problems
    assert problem.startswith("weights 3 were not broadcast: ")

    lab.listeners[1] = Listener("generator 2", refuser, 1)
    assert lab.publish(4) == 0
    assert lab.problems[1:] == ["weights 4 were not broadcast: generator 2 to join the group of the broadcast: no"]

    lab.listeners.pop()
    assert lab.publish(5) == 1
    assert len(lab.problems) == 2
    after = lab.parameters()
    assert any(not torch.equal(after[name], from_files[name]) for name in after)

    engines = ListeningEngines([Listener("generator 2", refuser, 1)], 1.0)
    engines.publication = lab.segments[0]
    with pytest.raises(LateError, match=r"^waited 1 s for generator 2 to receive weights 5 by broadcast$"):
        engines.update_weights({})

    lab.completions(len(requests))
