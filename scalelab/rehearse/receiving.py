"""Receive new weights as an engine of many does: vLLM's own transfer over a stand-in for NCCL that sends nothing.

What is replaced: NCCL's group, streams and the current device, memory of the host, and threads. Names, types, shapes,
the cut into messages, vLLM's unpacking and its loaders are those of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, WeightTransferConfig
from vllm.distributed.weight_transfer import nccl_engine, packed_tensor
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo

from scalelab.rehearse.ranks import all_replaced
from scalelab.run.config import Run
from scalelab.transfer import engine_side, twin
from scalelab.transfer.broadcast import declared
from scalelab.transfer.engine_side import BACKEND, ShardInit, ShardTransfer
from scalelab.transfer.sizes import MESSAGE


class SilentGroup:
    """A group of trainer and engines over which nothing comes.

    Attributes:
        sizes: bytes of each message.
    """

    disabled = False

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def broadcast(self, tensor: Tensor, src: int) -> None:
        """Note a message.

        Raises:
            ValueError: NCCL would refuse it.
        """
        if src != 0 or not tensor.is_contiguous() or tensor.dtype != torch.uint8:
            raise ValueError(f"a message from rank {src} of {tensor.dtype}, contiguous: {tensor.is_contiguous()}")
        self.sizes.append(tensor.numel())

    def destroy(self) -> None:
        """Do nothing."""


class _Stream:
    def synchronize(self) -> None:
        """Do nothing."""


class _AtOnce:
    """Work that is done when it begins, on a device without memory."""

    problem: str | None = None
    over = True

    def __init__(self, work: Callable[[], None], device: torch.device, after: object = None) -> None:
        with torch.device("meta"):
            work()


def receive(run: Run, config: VllmConfig, model: nn.Module) -> list[int]:
    """Meet the trainer, and receive and load a version; what breaks is raised.

    Args:
        run: whose trainer sends.
        config: of one device of an engine.
        model: vLLM's, on the meta device.

    Returns:
        Bytes of each message.
    """
    group, hf = SilentGroup(), run.model.to_hf()
    sent = declared(hf, run.trainer_setup)
    devices = run.cluster.generators * run.generator.tensor_parallel
    where = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 1 + devices}
    init_info = NCCLWeightTransferInitInfo(**where, packed=True, packed_buffer_size_bytes=MESSAGE)
    update_info = NCCLWeightTransferUpdateInfo(
        names=[one.name for one in sent],
        dtype_names=[str(one.dtype).removeprefix("torch.") for one in sent],
        shapes=[list(one.shape) for one in sent],
    )
    replacements: list[tuple[Any, str, Any]] = [
        (nccl_engine, "worker_init_process_group", lambda *arguments: group),
        (packed_tensor, "_get_streams", lambda device, buffers: (_Stream(),) * buffers),
        (torch.accelerator, "current_device_index", lambda: 0),
        (torch.accelerator, "synchronize", lambda *arguments: None),
        (torch.cuda, "stream", lambda stream: nullcontext()),
        (twin, "materialize_meta_tensor", lambda form: form),
        (twin, "_process", lambda layer: None),  # a GPU's twin is put into its kernels' form when it is exchanged
        (engine_side, "_Job", _AtOnce),
    ]
    with all_replaced(replacements):
        transfer = ShardTransfer(WeightTransferConfig(backend=BACKEND), config, torch.device("meta"), model)
        transfer.init_transfer_engine(ShardInit(hf))
        transfer.join(worker_init_payload(init_info))
        transfer.receive(1, asdict(update_info))
        transfer.leave()
    if transfer.received() != 1:
        raise ValueError("the weights were received, and the engine has none")
    return group.sizes
