"""A trainer of two ranks and an engine in Ray actors, for tests of weights on their way from one to the other."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import torch

from moe.settings import Layout, TrainerSetup
from scalelab.cluster.actors import actor_class
from scalelab.cluster.trainer_ranks import ClusterTrainer
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.tokenizer import build_tokenizer, save_tokenizer
from scalelab.run.settings import Cluster
from scalelab.transfer.listener import Listener
from tests.helpers.moe_models import batch, weighted
from tests.helpers.object_store import created
from tests.helpers.rollout_models import MOE, write_model

# Experts can be cut in two on a CPU, whose kernels want multiples of 32.
SHAPE = replace(MOE, vocab_size=320, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128)
TRAINER = TrainerSetup(layout=Layout(tensor=2, expert=2), expert_bias=0.25, deadline=900.0)
ENGINE = GeneratorSetup(max_model_len=256, max_sequences=8, block_size=32, kv_cache_gib=0.02, expert_bias=True)


def broadcasting(**settings: Any) -> Cluster:
    """A cluster on cores whose weights are broadcast, which a configuration refuses there."""
    cluster = Cluster(**settings)
    object.__setattr__(cluster, "publication", "nccl")
    return cluster


class Lab:
    """A trainer of two ranks, and an engine; `trainer.listeners` are `listeners`, `problems` what was not sent."""

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        engine: type,
        devices: int = 1,
        trainer: TrainerSetup = TRAINER,
        shape: Any = SHAPE,
    ) -> None:
        self.cluster = cluster
        run: Any = SimpleNamespace(cluster=cluster, model=shape, trainer_setup=trainer)
        self.trainer = ClusterTrainer(run, write_model(folder / "trainer", shape, 1), 2)
        self.base = write_model(folder / "engines", shape, 0)
        save_tokenizer(build_tokenizer(["1 + 2 = 3"], shape.vocab_size), self.base)
        self.settings = replace(ENGINE, tensor_parallel=devices, expert_bias=trainer.expert_bias > 0)
        self.engine = self.another_engine(engine)
        self.trainer.ready()
        self.listeners = [Listener("generator 0", self.engine, devices)]
        self.problems: list[str] = []
        self.trainer.on_unsent = self.problems.append
        self.trainer.listeners = lambda: self.listeners

    def another_engine(self, engine: type) -> Any:
        """An engine like the one that the lab has, once it is up."""
        actor = actor_class(engine, "engine", self.cluster, devices=self.settings.tensor_parallel, concurrency=4)
        made = actor.remote(str(self.base), self.settings, (), (), 0)
        ray.get(made.up.remote(), timeout=900)
        return made

    def publish(self, version: int) -> float:
        """Publish, and let the engine take the weights; returns the bytes that were sent to it over the model's."""

        async def go() -> Any:
            return await self.trainer.publish(version)

        before, stored = self.stats(), created()
        self.segments = asyncio.run(go())
        assert ray.get(self.engine.take_weights.remote(self.segments), timeout=900) is None
        after, size = self.stats(), sum(segment.size for segment in self.segments)
        assert created() - stored < size / 20, "weights went through Ray's object store"
        assert after["update_bytes"] - before["update_bytes"] == size
        return (after["fetched_bytes"] - before["fetched_bytes"]) / size

    def stats(self) -> dict[str, float]:
        return ray.get(self.engine.stats.remote(), timeout=900)

    def parameters(self) -> dict[str, torch.Tensor]:
        return ray.get(self.engine.parameters.remote(), timeout=900)

    def assert_as_from_files(self, version: int) -> dict[str, torch.Tensor]:
        """Publish without sending: no parameter of the engine may change by a bit; returns the parameters."""
        sent, self.trainer.listeners = self.parameters(), tuple
        assert self.publish(version) == 0
        self.trainer.listeners = lambda: self.listeners
        from_files = self.parameters()
        assert sent.keys() == from_files.keys()
        assert all(torch.equal(sent[name], from_files[name]) for name in sent)
        return from_files

    def step(self, number: int) -> None:
        async def go() -> Any:
            step: Any = SimpleNamespace(sequences=batch(number), loss=weighted, kept=False, records=[], held=False)
            return await self.trainer.step(step)

        asyncio.run(go())

    def completions(self, count: int) -> list[Any]:
        """Let completions that fly end, and wait; each token must have the version in place, and some have several."""
        ray.get(self.engine.land.remote(), timeout=900)
        done: list[Any] = []
        while len(done) < count:
            done += ray.get(self.engine.collect.remote(), timeout=900)[0][0]
        for completion in done:
            versions, starts, ends = zip(*completion.spans, strict=True)
            assert list(versions) == sorted(set(versions))
            assert (starts, ends[-1]) == ((0, *ends[:-1]), len(completion.token_ids))
        assert any(len(completion.spans) > 1 for completion in done), "weights were put in place in flight"
        return done


def come_up(*classes: type) -> list[Any]:
    """An actor of each class, once they are up: what a start takes beside load must not count towards a deadline."""
    actors = [ray.remote(cls).options(num_cpus=0).remote() for cls in classes]
    ray.get([actor.__ray_ready__.remote() for actor in actors], timeout=900)
    return actors


class Refuser:
    """An engine that joins no group, and does not even answer when it is to receive."""

    def join_broadcasts(self, init_info: dict[str, Any]) -> None:
        raise ValueError("no")

    def receive_weights(self, key: str, version: int, update_info: Any) -> None:
        import threading

        threading.Event().wait()

    def leave_broadcasts(self) -> None:
        pass


class DyingPeer:
    """An engine that joins, and dies while the others receive."""

    def join_broadcasts(self, init_info: dict[str, Any]) -> None:
        pass

    def receive_weights(self, key: str, version: int, update_info: Any) -> None:
        time.sleep(1.0)
        os._exit(1)

    def leave_broadcasts(self) -> None:
        pass
