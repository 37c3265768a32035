"""Devices that join late are waited for; those that are gone break a run off, so that it is queued again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from scalelab.cluster import engines, placement, trainer_ranks, world
from scalelab.cluster.actors import join_cluster
from scalelab.cluster.placement import await_devices
from scalelab.cluster.world import ClusterRun
from scalelab.errors import BrokenOffError
from scalelab.experiment import resolve
from scalelab.run.ports import TrainerLostError
from scalelab.run.settings import Cluster
from scalelab.waiting import LateError, LostError

CLUSTER = Cluster(trainers=8, generators=8, device="gpu")


class Nodes:
    """Counts of nodes that Ray tells, look by look; the last for good."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *counts: int) -> None:
        self.counts = list(counts)
        monkeypatch.setattr(placement, "ray", SimpleNamespace(nodes=self.nodes))
        monkeypatch.setattr(placement, "LOOK_SECONDS", 0.001)
        monkeypatch.setattr(placement, "JOIN_SECONDS", 0.3)

    def nodes(self) -> list[dict[str, Any]]:
        count = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        gone = {"Alive": False, "Resources": {"GPU": 8.0}}
        return [gone, *({"Alive": True, "Resources": {"GPU": 8.0, "CPU": 64.0}} for _ in range(count))]


def test_a_cluster_that_is_still_being_built_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    Nodes(monkeypatch, 0, 1, 1, 2)
    await_devices(CLUSTER, 16, True, said.append)
    assert said == [f"waiting for GPUs: {there} of 16 have joined Ray" for there in (0, 8)]
    said.clear()
    await_devices(CLUSTER, 16, True, said.append)
    assert said == [], "nothing is said, and no time lost, where all are there"


def test_devices_that_do_not_come_break_a_resumed_run_off_and_are_left_to_the_check_of_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Nodes(monkeypatch, 0, 1)
    await_devices(CLUSTER, 16, False, lambda line: None)
    with pytest.raises(BrokenOffError, match="waited 0 s for another device; of the run's 16 GPUs 8 are left: go on"):
        await_devices(CLUSTER, 16, True, lambda line: None)


def test_a_trainer_that_lacks_a_device_breaks_the_run_off_and_any_other_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    causes: list[Exception] = [LateError("waited 1800 s"), LateError("waited 1800 s"), LostError("rank 3 died")]

    def ready() -> None:
        raise TrainerLostError("the first trainer rank did not come up") from causes.pop(0)

    trainer = SimpleNamespace(restart=lambda: None, ready=ready)
    world: Any = SimpleNamespace(trainer=trainer, run=SimpleNamespace(cluster=CLUSTER, devices=16))
    Nodes(monkeypatch, 2)
    with pytest.raises(TrainerLostError, match="did not come up"):
        ClusterRun._restart(world)
    Nodes(monkeypatch, 1)
    with pytest.raises(BrokenOffError, match="of the run's 16 GPUs 8 are left: go on with --resume"):
        ClusterRun._restart(world)
    with pytest.raises(TrainerLostError):  # a death is no lack: an engine's node may be gone, and the trainer's not
        ClusterRun._restart(world)


@pytest.fixture
def uneven_nodes() -> Iterator[None]:
    import ray
    from ray.cluster_utils import Cluster as RayCluster

    nodes = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for cpus in (2, 1):
            nodes.add_node(num_cpus=cpus)
        join_cluster(nodes.address)
        yield
    finally:
        ray.shutdown()
        nodes.shutdown()


class PlacedError(Exception):
    pass


@pytest.mark.slow
def test_engines_start_first_but_leave_the_trainer_the_only_node_that_is_large_enough(
    uneven_nodes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = resolve("quickstart").run
    cluster = replace(run.cluster, trainers=2, generators=1, devices_per_node=2, startup_seconds=20.0)
    run = replace(run, cluster=cluster)
    started: list[str] = []

    def start(cls: type, role: str, *_: object, **__: object) -> MagicMock:
        started.append(role)
        return MagicMock()

    for module in (engines, trainer_ranks):
        monkeypatch.setattr(module, "actor_class", start)
    monkeypatch.setattr(world, "ClusterGraders", MagicMock(side_effect=PlacedError))
    with pytest.raises(PlacedError):
        ClusterRun(run, Path(), MagicMock(), None, [], None, MagicMock(), MagicMock())
    assert started == ["engine", "trainer", "trainer"]
