"""Broadcasts of weights through vLLM's engines for NCCL, with ranks of Megatron and an engine of vLLM in Ray actors.

NCCL's library is a stand-in over sockets (`tests.helpers.nccl_stand_in`); all else is what a cluster runs.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

from moe.train.config import Layout, TrainerConfig
from scalelab.rollout.config import GeneratorConfig
from scalelab.rollout.tokenizer import build_tokenizer, save_tokenizer
from scalelab.rollout.types import Request
from scalelab.run.cluster import trainer as room
from scalelab.run.cluster.actors import actor_class, end_ray, start_ray
from scalelab.run.cluster.engine_actor import Listener
from scalelab.run.cluster.receiving import Engines
from scalelab.run.cluster.trainer import ClusterTrainer
from scalelab.run.cluster.waiting import LateError
from scalelab.run.config import Cluster
from tests.helpers.moe_models import batch, weighted
from tests.helpers.nccl_stand_in import DyingPeer, StandInEngine, StandInRank, build
from tests.helpers.rollout_models import MOE, write_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(500),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs g++ or gcc"),
]

SHAPE = replace(MOE, vocab_size=320, num_attention_heads=4, num_key_value_heads=2)
TRAINER = TrainerConfig(layout=Layout(tensor=2, expert=2), expert_bias=0.25, deadline=200.0)
ENGINE = GeneratorConfig(max_model_len=256, max_sequences=8, block_size=32, kv_cache_gib=0.02, expert_bias=True)
CLUSTER = Cluster(trainers=2)


class Refuser:
    """An engine that joins no group, and does not even answer when it is to receive."""

    def join_broadcasts(self, way: str, init_info: dict[str, Any]) -> None:
        raise ValueError("no")

    def receive_weights(self, key: str, version: int, update_info: Any) -> None:
        threading.Event().wait()

    def leave_broadcasts(self) -> None:
        pass


class Lab:
    """A trainer of two ranks, and an engine."""

    def __init__(self, folder: Path) -> None:
        run: Any = SimpleNamespace(cluster=CLUSTER, model=SHAPE, trainer_config=TRAINER)
        self.trainer = ClusterTrainer(run, write_model(folder / "trainer", SHAPE, 1), 2)
        base = write_model(folder / "engines", SHAPE, 0)
        save_tokenizer(build_tokenizer(["1 + 2 = 3"], SHAPE.vocab_size), base)
        actor = actor_class(StandInEngine, CLUSTER, devices=1, concurrency=4)
        self.engine = actor.remote(str(base), ENGINE, (), (), 0)
        self.trainer.ready()
        ray.get(self.engine.up.remote(), timeout=300)
        self.listeners = [Listener("generator 0", self.engine, 1)]
        self.problems: list[str] = []
        self.trainer.on_unsent = self.problems.append
        self.trainer.listeners = lambda: self.listeners

    def publish(self, version: int) -> str:
        """Publish, and let the engine take the weights; returns the way they came."""

        async def go() -> Any:
            return await self.trainer.publish(version)

        before = self.stats()
        self.segments = asyncio.run(go())
        assert ray.get(self.engine.take_weights.remote(self.segments), timeout=300) is None
        after, size = self.stats(), sum(segment.size for segment in self.segments)
        assert after["update_bytes"] - before["update_bytes"] == size
        return {0: "files", size: "broadcast"}[int(after["fetched_bytes"] - before["fetched_bytes"])]

    def stats(self) -> dict[str, float]:
        return ray.get(self.engine.collect.remote(0, 0.0), timeout=300)[1]

    def parameters(self) -> dict[str, torch.Tensor]:
        return ray.get(self.engine.parameters.remote(), timeout=60)

    def step(self, number: int) -> None:
        async def go() -> Any:
            return await self.trainer.step(batch(number), weighted)

        asyncio.run(go())


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("VLLM_NCCL_SO_PATH", str(build(tmp_path)))
    monkeypatch.setattr(room, "TrainerRank", StandInRank)
    start_ray(CLUSTER, 3)
    try:
        yield Lab(tmp_path)
    finally:
        end_ray()


def test_broadcast_weights_equal_the_trainers_and_a_lost_engine_costs_one_broadcast(lab: Lab) -> None:
    requests = [Request(f"flying{n}", tuple(range(5, 45)), 200) for n in range(4)]
    ray.get(lab.engine.submit.remote(requests), timeout=60)

    lab.step(0)
    assert lab.publish(1) == "broadcast"
    broadcast = lab.parameters()
    lab.trainer.listeners = tuple
    assert lab.publish(2) == "files"
    from_files = lab.parameters()
    assert broadcast.keys() == from_files.keys()
    assert all(torch.equal(broadcast[name], from_files[name]) for name in broadcast)
    assert any(one.any() for name, one in broadcast.items() if name.endswith("expert_bias"))
    assert not lab.problems

    lab.trainer.listeners = lambda: lab.listeners
    lab.step(1)
    dying, refuser = (ray.remote(cls).options(num_cpus=0).remote() for cls in (DyingPeer, Refuser))
    lab.listeners.append(Listener("generator 1", dying, 1))
    assert lab.publish(3) in ("files", "broadcast")
    [problem] = lab.problems
    assert problem.startswith("weights 3 were not broadcast: ")

    lab.listeners[1] = Listener("generator 2", refuser, 1)
    assert lab.publish(4) == "files"
    assert lab.problems[1:] == ["weights 4 were not broadcast: generator 2 to join the group of the broadcast: no"]

    lab.listeners.pop()
    assert lab.publish(5) == "broadcast"
    assert len(lab.problems) == 2
    after = lab.parameters()
    assert any(not torch.equal(after[name], from_files[name]) for name in after)

    words = {"join": "", "receive": "receive weights {} by broadcast"}
    engines = Engines("nccl", [Listener("generator 2", refuser, 1)], 1.0, **words, place=lambda *_: {})
    engines.publication = lab.segments[0]
    with pytest.raises(LateError, match=r"^waited 1 s for generator 2 to receive weights 5 by broadcast$"):
        engines.update_weights({})

    done: list[Any] = []
    while len(done) < len(requests):
        done += ray.get(lab.engine.collect.remote(8, 5.0), timeout=60)[0]
    for completion in done:
        versions, starts, ends = zip(*completion.spans)
        assert list(versions) == sorted(set(versions))
        assert (starts, ends[-1]) == ((0, *ends[:-1]), len(completion.token_ids))
