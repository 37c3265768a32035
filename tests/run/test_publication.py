"""Two Ray nodes: weights are fetched over a socket from the other one and mapped on one's own; GPUs are checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from moe.model.config import Llama
from moe.train.config import TrainerConfig
from scalelab.errors import LabError
from scalelab.run.cluster.actors import this_node
from scalelab.run.cluster.gpu_nodes import check_gpu_nodes

pytestmark = pytest.mark.slow

HF = Llama(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1).to_hf()


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

    def read(self, segment: Any) -> tuple[int, set[float]]:
        """Bytes that were fetched, and the numbers that the weights are full of."""
        from moe.weights.shards import Snapshot

        snapshot = Snapshot([segment], machine=this_node())
        found = {value for _, tensor in snapshot.weights(HF) for value in tensor.unique().tolist()}
        snapshot.close()
        return snapshot.fetched, found


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two nodes of one core each on loopback, this process beside the first."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        other = cluster.add_node(num_cpus=1, num_gpus=1)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield [ray.get_runtime_context().get_node_id(), other.node_id]
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_node_fetches_the_bytes_of_the_model_from_another_and_none_from_itself(nodes: list[str]) -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def on(node: str, cls: type) -> Any:
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        return ray.remote(cls).options(num_cpus=1, scheduling_strategy=strategy).remote()

    here, there = nodes
    rank = on(here, Rank)
    segment = ray.get(rank.publish.remote(7), timeout=900)
    read = {node: ray.get(on(node, Reader).read.remote(segment), timeout=900) for node in nodes}
    assert read[here] == (0, {7.0})
    assert read[there] == (segment.size, {7.0})


@pytest.mark.slow
def test_a_node_whose_torch_has_no_cuda_is_named_before_an_actor_starts(nodes: list[str]) -> None:
    with pytest.raises(LabError, match=r"^node [\d.]+: torch .*\+cpu is built without CUDA: .*make install-gpu"):
        check_gpu_nodes({}, 200)
    needed = TrainerConfig(dispatch="deepep").packages
    with pytest.raises(LabError, match=r"TrainerConfig.dispatch = 'deepep' needs the package deep_ep, which is not"):
        check_gpu_nodes(needed, 200)
