"""Dispatch of tokens to experts without a GPU: gloo exchanges plain numbers and equal rows, NCCL needs neither.

A model on GPUs has Megatron's own dispatcher (`moe.model.kernels` chooses).
"""

from __future__ import annotations

import torch
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.moe_utils import get_default_pg_collection, sort_chunks_by_idxs
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch import Tensor

from moe.exchange import gather_rows, sum_rows


class HostDispatcher(MoEAlltoAllTokenDispatcher):
    """All-to-all dispatch with counts on the host: gloo needs plain numbers, not tensors."""

    def _maybe_dtoh_and_synchronize(self, point: str, tokens_per_expert: Tensor | None = None) -> Tensor | None:
        if point == self.cuda_dtoh_point:
            for name in ("input_splits", "output_splits", "output_splits_tp"):
                splits = getattr(self, name)
                setattr(self, name, splits.numpy() if torch.is_tensor(splits) else splits)
        return tokens_per_expert

    def dispatch_postprocess(self, tokens: Tensor, probs: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Sort rows received from several ranks by expert; those of one rank are sorted already."""
        if self.tp_size > 1:
            sizes = self.output_splits_tp.tolist()
            tokens, probs = (gather_rows(x, sizes, self.tp_group) for x in (tokens, probs))
        if self._from_several and self.num_local_experts > 1:
            counts = self.num_global_tokens_per_local_expert.ravel()
            tokens, probs = sort_chunks_by_idxs(tokens, counts, self.sort_input_by_local_experts, probs=probs)
        return tokens, self.tokens_per_expert, probs

    def combine_preprocess(self, tokens: Tensor) -> Tensor:
        """Inverse of `dispatch_postprocess`: back in the order of the ranks that the tokens came from."""
        if self._from_several and self.num_local_experts > 1:
            counts = self.num_global_tokens_per_local_expert.T.ravel()
            tokens, _ = sort_chunks_by_idxs(tokens, counts, self.restore_output_by_local_experts)
        if self.tp_size > 1:
            tokens = sum_rows(tokens, self.output_splits_tp.tolist(), self.tp_group)
        return tokens

    @property
    def _from_several(self) -> bool:
        return self.ep_size * self.tp_size > 1


def dispatch_on_host(layer: MoELayer) -> None:
    """Replace the dispatcher that Megatron has just built for an MoE layer."""
    built = layer.token_dispatcher
    layer.token_dispatcher = HostDispatcher(
        built.num_local_experts,
        built.local_expert_indices,
        config=layer.config,
        pg_collection=get_default_pg_collection(),
    )
