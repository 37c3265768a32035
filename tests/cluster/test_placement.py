"""Placement: ranks that talk most share a node, and devices that are not there are named."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.cluster.actors import actor_class, draining_nodes, join_cluster, this_node
from scalelab.cluster.placement import Reservation, shared
from scalelab.errors import LabError
from scalelab.hardware import packed
from scalelab.run.settings import Cluster


@given(st.integers(1, 200), st.integers(1, 16))
def test_packing_keeps_every_device_and_fills_nodes_first(devices: int, per_node: int) -> None:
    bundles = packed(devices, per_node)
    assert sum(bundles) == devices
    assert all(count == per_node for count in bundles[:-1])
    assert 1 <= bundles[-1] <= per_node


def test_an_address_where_nobody_listens_is_named_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening: nobody else can take it meanwhile
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LabError, match=f"no Ray cluster at {address}: .*; start one, or mend Cluster.address"):
            join_cluster(address)


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[str]:
    import ray
    from ray.cluster_utils import Cluster as RayCluster

    nodes = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for gpus in (0, 2):
            nodes.add_node(num_cpus=2, num_gpus=gpus)
        join_cluster(nodes.address)
        yield nodes.address
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.mark.slow
@pytest.mark.nightly
def test_actors_come_up_in_a_cluster_whose_python_is_below_a_path_with_a_space(tmp_path: Path) -> None:
    (tmp_path / "the lab").symlink_to(sys.prefix)
    source = """
import sys, ray
from ray.cluster_utils import Cluster
from scalelab.cluster.actors import join_cluster
node = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
join_cluster(node.address)
far = ray.remote(lambda: sys.executable).options(runtime_env={"env_vars": {"A": "1"}})  # as the lab's actors have some
print(ray.get(far.remote(), timeout=60) == sys.executable)
ray.shutdown()
node.shutdown()
"""
    python = str(tmp_path / "the lab/bin/python")
    done = subprocess.run([python, "-c", source], capture_output=True, text=True, timeout=900)
    assert done.stdout.endswith("True\n"), done.stderr


@pytest.mark.slow
def test_ranks_of_a_bundle_share_a_node(three_nodes: str) -> None:
    import ray

    @ray.remote(num_cpus=1)
    class Rank:
        def node(self) -> str:
            return ray.get_runtime_context().get_node_id()

    reservation = Reservation(Cluster(startup_seconds=60), packed(4, per_node=2), "the trainer")
    actor: Any = Rank  # as Ray's decorator made it
    ranks = [actor.options(scheduling_strategy=reservation.strategy(rank)).remote() for rank in range(4)]
    nodes = ray.get([rank.node.remote() for rank in ranks], timeout=900)
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    reservation.release()


class Seeing:
    """An actor that says which GPUs it may use."""

    def gpus(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.slow
def test_each_engine_shares_its_gpu_with_one_rank_and_so_does_the_one_that_replaces_it(three_nodes: str) -> None:
    import ray

    cluster = Cluster(device="gpu", share_devices=True, generators=2, trainers=2, startup_seconds=60)
    reservation = shared(cluster)
    assert reservation is not None

    def on(device: int) -> Any:
        return actor_class(
            Seeing, "engine", cluster, devices=reservation.share, strategy=reservation.strategy(device)
        ).remote()

    engines, ranks = [on(0), on(1)], [on(0), on(1)]
    seen = ray.get([one.gpus.remote() for one in (*engines, *ranks)], timeout=900)
    assert seen[:2] == seen[2:]
    assert {*seen} == {"0", "1"}
    ray.kill(engines[0])
    assert ray.get(on(0).gpus.remote(), timeout=900) == seen[0]
    reservation.release()
    reservation.release()


@pytest.mark.slow
def test_devices_that_the_cluster_lacks_are_named(three_nodes: str) -> None:
    with pytest.raises(LabError, match=r"waited 1 s for 4 CPUs on one node each, for the trainer; .* 2 \+ 2 \+ 0"):
        Reservation(Cluster(startup_seconds=1), [4], "the trainer")


@pytest.mark.slow
def test_a_node_that_somebody_says_is_about_to_go_is_seen_while_it_still_works(three_nodes: str) -> None:
    import ray

    reservation = Reservation(Cluster(startup_seconds=60), [1], "a generator")
    up = ray.remote(num_cpus=1)(this_node).options(scheduling_strategy=reservation.strategy(0))
    node = ray.get(up.remote(), timeout=900)
    assert draining_nodes() == {}
    command = [Path(sys.executable).with_name("ray"), "drain-node", "--address", three_nodes, "--node-id", node]
    why = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test", "--deadline-remaining-seconds"]
    before = time.time()
    subprocess.run([*command, *why, "600"], check=True, timeout=900, capture_output=True)
    draining = draining_nodes()
    assert list(draining) == [node]
    assert before + 599 < draining[node] < time.time() + 601, "when it is to be gone"
    assert any(one["NodeID"] == node and one["Alive"] for one in ray.nodes())
    reservation.release()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "package", "file"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "torch", "include/c10/cuda/CUDAAllocatorConfig.h"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "torch", "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "megatron.core", "parallel_state.py"),
        ("worker_niceness", "ray", "core/src/ray/raylet/raylet"),
        ("RAY_AUTH_MODE", "ray", "core/src/ray/raylet/raylet"),
    ],
)
def test_the_pinned_packages_know_the_variables_that_nodes_get(variable: str, package: str, file: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert variable.encode() in (Path(spec.origin).parent / file).read_bytes()
