"""Weights from trainers to engines through vLLM's own weight transfer (`vllm.distributed.weight_transfer`, 0.32.0).

`ShardTransfer` is a transfer engine of ours in vLLM's registry, for CPUs and for any GPUs: it reads what
`moe.weights.shards` published. vLLM drives it in every worker of an engine by start, update and finish.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.worker.worker_base import WorkerBase

from moe.errors import MoeError
from moe.weights.links import EXPERT_BIAS
from moe.weights.shards import Segment, Snapshot, SupersededError, check
from scalelab.errors import LabError
from scalelab.rollout import expert_bias

BACKEND = "scalelab_shards"
"""Name of our engine in vLLM's registry."""


@dataclass
class ShardInit(WeightTransferInitInfo):
    """Data that a worker needs before the first update: the model's Hugging Face config."""

    hf_config: dict[str, Any]


@dataclass
class ShardUpdate(WeightTransferUpdateInfo):
    """One version: the segments of all ranks, all of them files of this machine."""

    segments: list[Segment] = field(default_factory=list)


class ShardTransfer(WeightTransferEngine[ShardInit, ShardUpdate]):
    """Load a version from segments in shared memory into the model of one worker.

    vLLM collects the tensors of a layer, loads them, and writes over the old values. What it does not do on a reload
    is done here: pack experts for the CPU's kernel, and tie a head to its embedding.
    """

    init_info_cls = ShardInit
    update_info_cls = ShardUpdate

    def init_transfer_engine(self, init_info: ShardInit) -> None:
        """Remember the model's config."""
        self._hf_config = init_info.hf_config

    def start_weight_update(self) -> None:
        """Make the model's layers ready for new tensors."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load a version, and wait until it is on the device."""
        self.receive_weights(self.parse_update_info(update_info))
        if not current_platform.is_cpu():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: ShardUpdate) -> None:
        """Load all tensors, one parameter at a time; biases of experts go to their gates."""
        snapshot = Snapshot(update_info.segments)
        try:
            biases: dict[str, torch.Tensor] = {}
            self.model.load_weights(_without_biases(snapshot.weights(self._hf_config), biases))
            expert_bias.set_biases(self.model, biases)
        finally:
            snapshot.close()

    def finish_weight_update(self) -> None:
        """Put the new values where the engine's kernels read them."""
        finalize_layerwise_reload(self.model, self.model_config)
        if self._hf_config.get("tie_word_embeddings"):
            tie_head(self.model)
        if current_platform.is_cpu():
            pack_experts(self.model)

    def shutdown(self) -> None:
        """Do nothing: no state is kept between updates."""


def _without_biases(weights: Any, biases: dict[str, torch.Tensor]) -> Any:
    for name, tensor in weights:
        if name.endswith(EXPERT_BIAS):
            biases[name] = tensor
        else:
            yield name, tensor


def install(worker: WorkerBase, backend: str, init_info: dict[str, Any]) -> None:
    """Give a worker a transfer engine by its name in vLLM's registry; runs in the worker's process."""
    if backend == BACKEND and BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, ShardTransfer)
    worker = getattr(worker, "worker", worker)  # vLLM hands a wrapper over, which passes on what is read of it only
    worker.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
        WeightTransferConfig(backend=backend), worker.vllm_config, worker.device, worker.model_runner.get_model()
    )
    worker.init_weight_transfer_engine(init_info)


def fetch(hf_config: dict[str, Any], segments: Sequence[Segment], deadline: float) -> Snapshot:
    """Bring a published version to this machine, while engines go on generating; close it when it is loaded.

    Raises:
        SupersededError: a newer version takes its place: fetch that one.
        LabError: it is of another model, incomplete, or cannot be had in time.
    """
    try:
        check(hf_config, segments)
        return Snapshot(segments, deadline=deadline)
    except SupersededError:
        raise
    except MoeError as error:
        raise LabError(str(error)) from error


def update(engine: LLMEngine, segments: Sequence[Segment]) -> None:
    """Drive one update of all workers of an engine, between two of its steps."""
    engine.collective_rpc("start_weight_update")
    engine.collective_rpc("update_weights", kwargs={"update_info": {"segments": list(segments)}})
    engine.collective_rpc("finish_weight_update")


def tie_head(model: torch.nn.Module) -> None:
    """Give a tied head the new embedding.

    vLLM 0.32.0 reloads the embedding alone and leaves the head as it was; on a CPU that is a packed copy of the first
    weights, from which all later log-probs would come, without an error.
    """
    head = model.lm_head.tie_weights(model.model.embed_tokens)
    head.quant_method.process_weights_after_loading(head)


def pack_experts(model: torch.nn.Module) -> None:
    """Pack the weights of routed experts for the CPU kernel again.

    vLLM 0.32.0 packs them when a model is first loaded and skips that on a reload
    (`UnquantizedFusedMoEMethod._setup_kernel`), so the kernel would read unpacked weights: without an error, and
    with log-probs that are off by 2-3.
    """
    for module in model.modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        if kernel is not None and hasattr(module, "w13_weight"):
            kernel.fused_experts.process_weights_after_loading(module)
