"""Two Ray nodes: weights are fetched over a socket from the other one and mapped on one's own; GPUs are checked."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moe.model.families import Llama
from moe.settings import TrainerSetup
from scalelab import signals
from scalelab.cluster import gpu_nodes
from scalelab.cluster.actors import join_cluster, this_node
from scalelab.cluster.gpu_nodes import check_gpu_nodes
from scalelab.cluster.trainer_ranks import ClusterTuner, TrainerRank
from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.run.settings import Cluster
from scalelab.session import only_sft
from scalelab.sweep.sweep import cluster_devices
from scalelab.watch.progress import Progress
from tests.helpers.object_store import created

pytestmark = pytest.mark.slow

MODEL = Llama(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
HF = MODEL.to_hf()


class Rank:
    """A trainer rank that holds a whole model, full of the version's number."""

    def publish(self, version: int) -> Any:
        import torch

        from moe.weights.links import links
        from moe.weights.shards import Publisher

        self.publisher = Publisher(machine=this_node())
        parts = [(link.param, (), torch.full(link.shape, float(version))) for link in links(HF)]
        return self.publisher.publish(version, 0, parts)


class Reader:
    """An engine's machine."""

    def read(self, segment: Any, hf: dict[str, Any]) -> tuple[int, float, float]:
        """Bytes that were fetched, and the smallest and the largest of the weights."""
        from moe.weights.shards import Snapshot

        snapshot = Snapshot([segment], machine=this_node())
        ends = [end.item() for _, tensor in snapshot.weights(hf) for end in tensor.aminmax()]
        snapshot.close()
        return snapshot.fetched, min(ends), max(ends)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two nodes on loopback, each with a GPU by its count, this process beside the first."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1, "include_dashboard": False})
    try:
        other = cluster.add_node(num_cpus=1, num_gpus=1)
        join_cluster(cluster.address)
        yield [ray.get_runtime_context().get_node_id(), other.node_id]
    finally:
        ray.shutdown()
        cluster.shutdown()


def _on(node: str, cls: type) -> Any:
    """An actor on a node."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(cls).options(num_cpus=1, scheduling_strategy=strategy).remote()


def test_a_node_fetches_the_bytes_of_the_model_from_another_and_none_from_itself(nodes: list[str]) -> None:
    import ray

    here, there = nodes
    rank = _on(here, Rank)
    segment = ray.get(rank.publish.remote(7), timeout=900)
    read = {node: ray.get(_on(node, Reader).read.remote(segment, HF), timeout=900) for node in nodes}
    assert read[here] == (0, 7.0, 7.0)
    assert read[there] == (segment.size, 7.0, 7.0)


def test_nothing_of_a_trainers_weights_goes_through_rays_object_store(nodes: list[str]) -> None:
    """The trainer of a run publishes; a node maps its weights, and another one fetches them."""
    import ray

    from moe.weights.links import shapes

    hf = replace(MODEL, vocab_size=16384).to_hf()
    size = 4 * sum(shape.numel() for shape in shapes(hf).values())
    rank = ray.remote(TrainerRank).options(num_cpus=0).remote(hf, TrainerSetup(), 0, 1)
    ray.get(rank.start.remote(ray.get(rank.address.remote(True), timeout=900), None), timeout=900)
    before = created()
    segment, problem = ray.get(rank.publish.remote(1, Cluster()), timeout=900)
    assert problem is None
    assert 8e6 < size <= segment.size
    assert len(pickle.dumps(segment)) < size / 100
    read = [ray.get(_on(node, Reader).read.remote(segment, hf), timeout=900)[0] for node in nodes]
    assert sorted(read) == [0, segment.size]
    assert created() - before < size / 100


def test_a_node_whose_torch_or_driver_has_no_cuda_is_named_before_an_actor_starts(nodes: list[str]) -> None:
    why = r"torch .*\+cpu is built without CUDA: .*make install-gpu|there is no NVIDIA driver here"  # by torch's build
    with pytest.raises(LabError, match=rf"^node [\d.]+ \(and 1 more of 2 nodes\): ({why})"):
        check_gpu_nodes({}, 200, print)
    needed = TrainerSetup(kernels="transformer_engine").packages
    with pytest.raises(LabError, match="needs the package transformer_engine, which is not"):
        check_gpu_nodes(needed, 200, print)


def test_nodes_whose_drivers_differ_are_told_once_and_the_smallest_gpu_counts(
    nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node answers with the version that is put in its place here, which has no GPU."""
    import ray

    first = nodes[0]

    def look(packages: dict[str, str]) -> tuple[None, float, str]:
        here = ray.get_runtime_context().get_node_id() == first
        return None, 80.0 if here else 79.1, "580.65.06" if here else "581.15"

    monkeypatch.setattr(gpu_nodes, "look_here", look)
    told: list[str] = []
    assert check_gpu_nodes({}, 200, told.append) == 79.1
    [line] = told
    assert re.fullmatch(r"nodes differ in their NVIDIA drivers: 580.65.06 on \S+; 581.15 on \S+\. If only .*", line)


@pytest.fixture
def apart(nodes: list[str]) -> Iterator[str]:
    """The cluster's address, while this process is no part of it."""
    import ray

    address = ray.get_runtime_context().gcs_address
    ray.shutdown()
    try:
        yield address
    finally:
        ray.shutdown()
        join_cluster(address)


def test_a_sweep_counts_the_devices_that_its_runs_take(apart: str) -> None:
    assert cluster_devices(apart, "gpu") == 2
    assert cluster_devices(apart, "cpu") == 3


@pytest.mark.parametrize(("ranks", "gib"), [(2, 80.0), (2, 100.0), (1, 80.0)])
def test_a_fine_tuning_asks_the_gpus_drivers_before_an_actor_starts(
    ranks: int, gib: float, apart: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks take 91 GiB each, one takes more; what stands for the drivers says how much the GPUs have."""
    own = [
        f"Cluster.address='{apart}'",
        f"SFT.trainers={ranks}",
        "Cluster.devices_per_node=1",
        f"Layout.tensor={ranks}",
    ]
    run = resolve("sft/scalerl_8b", own).run
    monkeypatch.setattr(signals, "heed_signals", lambda: None)
    monkeypatch.setattr(gpu_nodes, "look_here", lambda packages: (None, gib, "580.65.06"))
    refused = pytest.raises(LabError, match=r"does not fit: \d+ GiB of 80 on") if gib < 91 else nullcontext()
    with ExitStack() as ending, refused:
        tuner, _ = only_sft._tuner(run, tmp_path, Progress(), ending)
        assert tuner is ClusterTuner
