"""Sharded transfers through vLLM's engines, with ranks of Megatron and an engine of two processes in Ray actors.

NIXL and Ray's transport are the real ones, on host memory; `tests.helpers.rdt_stand_in` says what is replaced.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest
import ray
import torch

from moe.train.config import Layout
from scalelab.cluster import trainer as room
from scalelab.cluster.actors import end_ray, start_ray
from scalelab.rollout.types import Request
from scalelab.transfer.listener import Listener
from tests.helpers.rollout_models import QWEN3
from tests.helpers.weights_lab import TRAINER, DyingPeer, Lab, Refuser, come_up, sending

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="needs nixl (tools/install_nixl.sh)"),
]

takes_minutes = pytest.mark.skipif("SCALELAB_LONG" not in os.environ, reason="takes minutes: set SCALELAB_LONG")
CLUSTER = sending("sharded_rdt", trainers=2, generators=2)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """Ray, with ranks of a stand-in; gives the class of engines."""
    from tests.helpers.rdt_stand_in import ShardEngine, StandInRank

    monkeypatch.setattr(room, "TrainerRank", StandInRank)
    start_ray(CLUSTER, 4)
    try:
        yield ShardEngine
    finally:
        end_ray()


@takes_minutes
def test_pipeline_stages_and_a_tied_head_give_all_that_an_engine_needs(tmp_path: Path, cluster: type) -> None:
    config = replace(TRAINER, layout=Layout(pipeline=2), expert_bias=0.0, deadline=900.0)
    lab = Lab(tmp_path, CLUSTER, cluster, trainer=config, shape=replace(QWEN3, vocab_size=320))
    lab.step(0)
    assert lab.publish(1) == pytest.approx(1, rel=0.01)
    lab.assert_as_from_files(2)
    assert not lab.problems


def test_shards_equal_the_trainers_weights(tmp_path: Path, cluster: type) -> None:
    lab = Lab(tmp_path, CLUSTER, cluster, devices=2, trainer=replace(TRAINER, deadline=900.0))
    requests = [Request(f"flying{n}", tuple(range(5, 45)), 200) for n in range(4)]
    ray.get(lab.engine.fly.remote(requests), timeout=900)

    lab.step(0)
    share = lab.publish(1)
    assert not lab.problems
    assert 1 < share <= 1.05  # both processes together, each with norms, routers and biases of its own
    assert all(1 <= part <= 1.05 for part in ray.get(lab.engine.pulled.remote(), timeout=900))
    found = lab.assert_as_from_files(2)
    assert any(one.any() for name, one in found.items() if name.endswith("expert_bias"))
    assert not lab.problems
    lab.completions(len(requests))


@takes_minutes
def test_whoever_is_lost_costs_one_transfer(tmp_path: Path, cluster: type) -> None:
    lab = Lab(tmp_path, CLUSTER, cluster, devices=2, trainer=replace(TRAINER, deadline=900.0))
    lab.step(0)
    share = lab.publish(1)
    assert share > 1
    assert not lab.problems
    before = lab.parameters()

    lab.step(1)
    dying, refuser = come_up(DyingPeer, Refuser)
    lab.listeners.append(Listener("generator 1", dying, 2))
    assert lab.publish(3) == 0
    [problem] = lab.problems
    assert problem.startswith(
        "weights 3 were not sent in shards: an actor died while the run waited for generator 1 to"
    )

    lab.listeners[1] = Listener("generator 2", refuser, 2)
    assert lab.publish(4) == 0
    assert lab.problems[1:] == ["weights 4 were not sent in shards: generator 2 to connect to the trainer's shards: no"]

    lab.listeners.pop()
    assert lab.publish(5) == share
    assert len(lab.problems) == 2
    after = lab.parameters()
    assert any(not torch.equal(after[name], before[name]) for name in after)

    ray.get(lab.trainer.actors()["trainer rank 1"].kill_server.remote(), timeout=900)
    assert lab.publish(6) == 0
    assert lab.problems[2].startswith("weights 6 were not sent in shards: ")
    assert lab.publish(7) == share
    assert len(lab.problems) == 3
    lab.assert_as_from_files(8)


@takes_minutes
def test_an_engine_that_is_killed_or_stopped_in_mid_pull_costs_one_transfer(tmp_path: Path, cluster: type) -> None:
    lab = Lab(tmp_path, CLUSTER, cluster, trainer=replace(TRAINER, deadline=400.0))
    other = lab.another_engine(cluster)
    lab.listeners.append(Listener("generator 1", other, 1))
    lab.step(0)
    share = lab.publish(1)
    assert share == pytest.approx(1, rel=0.01)
    assert not lab.problems
    before = lab.parameters()
    ray.get(other.take_weights.remote(lab.segments), timeout=900)
    theirs = ray.get(other.parameters.remote(), timeout=900)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in before.items())

    ray.get(other.signal_in_pull.remote(signal.SIGKILL), timeout=900)
    lab.step(1)
    assert lab.publish(2) == 0  # the first engine gets these weights another way
    [problem] = lab.problems
    assert problem.startswith(
        "weights 2 were not sent in shards: an actor died while the run waited for generator 1 to"
    )
    lab.listeners.pop()
    lab.step(2)
    assert lab.publish(3) == share
    after = lab.parameters()
    assert any(not torch.equal(after[name], before[name]) for name in after)

    [stopped] = ray.get(lab.engine.signal_in_pull.remote(signal.SIGSTOP), timeout=900)
    lab.step(3)
    Timer(130.0, os.kill, (stopped, signal.SIGCONT)).start()  # the trainer waits for 100 seconds
    assert lab.publish(4) == 0
    assert lab.problems[1].startswith(
        "weights 4 were not sent in shards: waited 100 s for generator 0 to pull its shards"
    )
    lab.step(4)
    assert lab.publish(5) == share
    assert len(lab.problems) == 2
    lab.assert_as_from_files(6)


@takes_minutes
def test_an_engine_gives_up_a_server_that_registers_no_memory_and_nothing_of_it_stays_behind(
    tmp_path: Path, cluster: type
) -> None:
    """vLLM's engine would wait for the server without an end."""
    lab = Lab(tmp_path, CLUSTER, cluster, trainer=replace(TRAINER, deadline=240.0))
    lab.step(0)
    share = lab.publish(1)
    assert not lab.problems
    other = lab.another_engine(cluster)
    lab.listeners.append(Listener("generator 1", other, 1))
    hold = lab.trainer.actors()["trainer rank 1"].hold_server
    ray.get(hold.remote(True), timeout=900)
    lab.step(1)
    assert lab.publish(2) == 0
    assert lab.problems == [
        "weights 2 were not sent in shards: waited 60 s for generator 1 to connect to the trainer's shards"
    ]
    ends = time.monotonic() + 30
    while any("load weights" in left for left in ray.get(other.threads.remote(), timeout=900)):
        assert time.monotonic() < ends, "a thread still waits for the server"
        time.sleep(0.5)
    ray.get(hold.remote(False), timeout=900)
    lab.step(2)
    assert lab.publish(3) == share
    assert len(lab.problems) == 1
    lab.assert_as_from_files(4)
