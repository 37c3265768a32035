"""Latent attention of DeepSeek-V2 and V3 (arXiv 2405.04434, §2.1) for packed rows.

Keys and values of all heads are computed from one small vector per token, and queries perhaps from another. Megatron's
module holds the matrices and norms; queries, keys and values are made here, since its own rotation of packed sequences
loops over them. Axes: T packed tokens, h heads, D size of a head's queries and keys, V of its values.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from torch import Tensor


class LatentAttention(MLASelfAttention):
    """Megatron's latent attention, whose queries and keys its core rotates; without tensor parallelism only."""

    def get_query_key_value_tensors(
        self, hidden_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Queries and keys [T, 1, h, D], before they are rotated, and values [T, 1, h, V]; then nothing."""
        config, heads = self.config, self.num_attention_heads_per_partition
        if config.q_lora_rank is None:
            queries, _ = self.linear_q_proj(hidden_states)
        else:
            narrow, _ = self.linear_q_down_proj(hidden_states)
            queries, _ = self.linear_q_up_proj(self.q_layernorm(narrow))
        latent, turning = self.linear_kv_down_proj(hidden_states)[0].split(
            [config.kv_lora_rank, config.qk_pos_emb_head_dim], dim=-1
        )
        both, _ = self.linear_kv_up_proj(self.kv_layernorm(latent))
        still, values = both.unflatten(-1, (heads, -1)).split([config.qk_head_dim, config.v_head_dim], dim=-1)
        keys = torch.cat([still, turning.unsqueeze(-2).expand(-1, -1, heads, -1)], dim=-1)
        return queries.unflatten(-1, (heads, -1)), keys, values, None, None
