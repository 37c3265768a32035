"""Number of a model's parameters, and bytes of its numbers, from its config alone; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moe.model.architectures import LayerPlan, architecture, head_dim, kv_heads, latent_matrices, latent_norms

BYTES = {"float32": 4, "bfloat16": 2}
"""Bytes of a number of each type that weights, activations and caches have."""


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one layer.

    Attributes:
        attention: its projections.
        dense: a feed-forward without experts, or the shared expert.
        router: the router.
        experts: all routed experts together.
        chosen: those of the routed experts that one token passes through.
        norms: all norm weights, and the biases of queries, keys and values, and of the router.
    """

    attention: int
    dense: int
    router: int
    experts: int
    chosen: int
    norms: int

    @property
    def total(self) -> int:
        """Sum of all kinds."""
        return self.attention + self.dense + self.router + self.experts + self.norms

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self.total - self.experts + self.chosen


@dataclass(frozen=True)
class Parameters:
    """Parameters of a model.

    Attributes:
        embedding: the embedding.
        head: the output matrix; 0 where it is the embedding.
        layers: layer by layer.
        norm: the last norm.
    """

    embedding: int
    head: int
    layers: tuple[LayerParameters, ...]
    norm: int

    @property
    def total(self) -> int:
        """Parameters of all layers, embedding and head."""
        return self.embedding + self.head + self.norm + sum(layer.total for layer in self.layers)

    @property
    def active(self) -> int:
        """Parameters that one token uses, embedding and head counted whole (Scout's 17B, ScaleRL §3)."""
        return self.embedding + self.head + self.norm + sum(layer.active for layer in self.layers)


def parameters(hf_config: dict[str, Any]) -> Parameters:
    """Count the parameters of a model.

    Args:
        hf_config: the content of a Hugging Face ``config.json``.

    Raises:
        MoeError: if the trainer does not have this architecture.
    """
    arch = architecture(hf_config)
    hidden = arch.fields["hidden_size"]
    embedding = hf_config["vocab_size"] * hidden
    layers = tuple(_layer(arch.fields, plan) for plan in arch.layers)
    return Parameters(embedding, 0 if arch.tied else embedding, layers, hidden)


def _layer(fields: dict[str, Any], plan: LayerPlan) -> LayerParameters:
    hidden, head = fields["hidden_size"], fields["kv_channels"]
    heads, groups = fields["num_attention_heads"], fields["num_query_groups"]
    expert = router = experts = 0
    bias = head * (heads + 2 * groups) if fields.get("add_qkv_bias") else 0
    inner = fields["ffn_hidden_size"]
    if plan.experts:
        experts = fields["num_moe_experts"]
        expert = 3 * hidden * fields["moe_ffn_hidden_size"]
        router = experts * hidden
        bias += experts if plan.corrected else 0
        inner = fields.get("moe_shared_expert_intermediate_size", 0)
    attention, inside = 2 * hidden * head * (heads + groups), 0
    if "kv_lora_rank" in fields:
        attention = sum(rows * columns for rows, columns in latent_matrices(fields).values())
        attention += hidden * heads * fields["v_head_dim"]
        inside = sum(latent_norms(fields).values())
    return LayerParameters(
        attention=attention,
        dense=3 * hidden * inner,
        router=router,
        experts=experts * expert,
        chosen=fields.get("moe_router_topk", 0) * expert,
        norms=2 * hidden + {"rms": 2 * head, "wide": head * (heads + groups)}.get(plan.qk_norm, 0) + bias + inside,
    )


def kv_bytes_per_token(hf_config: dict[str, Any], dtype: str, ranks: int = 1, latent: bool = True) -> float:
    """Keys and values of one token on one of the devices that share an engine, in all layers.

    Engines run families that the trainer does not have, so this reads the config and no `Architecture`.

    Args:
        hf_config: the model's.
        dtype: of the engine.
        ranks: devices that share it.
        latent: of latent attention, keep only what keys and values come from, as vLLM does on GPUs alone.
    """
    layers = hf_config["num_hidden_layers"]
    if latent and "kv_lora_rank" in hf_config:  # whole on every device
        return float(layers * (hf_config["kv_lora_rank"] + hf_config["qk_rope_head_dim"]) * BYTES[dtype])
    groups = max(kv_heads(hf_config) / ranks, 1.0)
    return float(2 * layers * groups * head_dim(hf_config) * BYTES[dtype])
