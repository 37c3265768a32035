"""One worker's end of a transfer of whole weights: vLLM's own engine, which loads into the twin (vLLM 0.32.0).

vLLM's engines receive into the layers that generate, so they would hold generation up for a whole transfer, and leave
a mixture of two versions behind if the transfer breaks. Here they get another target: a transfer that breaks costs
nothing but itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, WeightTransferConfig
from vllm.distributed.weight_transfer import WeightTransferEngineFactory

from scalelab.errors import LabError

_ENDED = "the group that weights are sent to was ended"


class Receiver:
    """vLLM's engine for NCCL in one worker.

    Args:
        vllm_config: of the worker.
        device: of the worker.
        model: of the worker.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, model: nn.Module) -> None:
        self._arguments = WeightTransferConfig(backend="nccl"), vllm_config, device, model
        self._model_config = vllm_config.model_config
        self._group: Any = None
        """vLLM's engine, if this worker is in a group."""
        self._joins = 0

    def join(self, init_info: dict[str, Any]) -> None:
        """Meet the sender and the other receivers in a new group, in place of the last one.

        Raises:
            LabError: NCCL cannot be loaded here, or the group was ended meanwhile.
        """
        self.leave()
        mine = self._joins
        group: Any = WeightTransferEngineFactory.create_engine(*self._arguments)
        group.init_transfer_engine(group.parse_init_info(init_info))
        # Without a word, and whatever it receives then is noise.
        if group.model_update_group.disabled:
            raise LabError("NCCL's library cannot be loaded by this engine: install the GPU packages")
        if mine != self._joins:
            group.shutdown()
            raise LabError(_ENDED)
        self._group = group

    def receive(self, update_info: dict[str, Any], add: Callable[[list[tuple[str, Tensor]]], None]) -> None:
        """Receive weights of a version; `add` gets them chunk by chunk, and may not keep them.

        Args:
            update_info: fields of vLLM's update info.
            add: takes a chunk.

        Raises:
            LabError: the group was ended meanwhile.
        """
        group = self._group

        def check() -> None:
            if group is None or group is not self._group:  # vLLM's buffers hold noise then
                raise LabError(_ENDED)

        def load(weights: list[tuple[str, Tensor]]) -> None:
            check()
            add(weights)

        check()
        group.set_weight_update_target(_Target(load), self._model_config)
        group.update_weights(update_info)
        check()

    def leave(self) -> None:
        """Leave the group; from another thread, that ends a transfer under way."""
        group, self._group = self._group, None
        self._joins += 1
        if group is not None:
            group.shutdown()


class _Target(nn.Module):
    """The only part of a model that vLLM's engine uses here."""

    def __init__(self, load_weights: Callable[[list[tuple[str, Tensor]]], None]) -> None:
        super().__init__()
        self.load_weights = load_weights
