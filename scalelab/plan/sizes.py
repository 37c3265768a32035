"""Bytes of weights, gradients and optimiser state on a trainer rank, exactly as Megatron's buffers have them.

Every rank keeps its weights and gradients in flat buffers, one for the experts and one for the rest, and its share of
AdamW's state for them (ZeRO-1, arXiv 1910.02054; Megatron's DistributedOptimizer). Buffers pad: a parameter begins at
a multiple of 64 elements, a bucket ends at a common multiple of 128 and the data-parallel ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moe.model.architectures import Architecture, LayerPlan, latent_matrices, latent_norms
from moe.model.size import BYTES
from moe.settings import Layout, OptimizerConfig
from scalelab.plan.shape import remembered, shape

_PARAM, _BUCKET = 64, 128
_MOMENTS = 8  # first and second moment, fp32
_STEP = 4  # AdamW's count of steps, one number for each parameter


@dataclass(frozen=True)
class Parameter:
    """One parameter of a rank.

    Attributes:
        name: for a reader.
        size: its elements on this rank.
        expert: it belongs to routed experts.
        shared: it is an embedding that two pipeline stages hold, which gets a bucket of its own.
    """

    name: str
    size: int
    expert: bool = False
    shared: bool = False


@dataclass(frozen=True)
class RankBytes:
    """Bytes on one rank.

    Attributes:
        weights: in the model's type.
        gradients: in fp32.
        optimizer: moments, and for bf16 models the fp32 weights, of this rank's share; 0 where they are on the host.
    """

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Sum of all kinds."""
        return self.weights + self.gradients + self.optimizer


def data_ranks(layout: Layout, world: int) -> tuple[int, int]:
    """Ranks that share the optimiser's state of (everything outside the experts, the experts)."""
    return (
        world // (layout.tensor * layout.pipeline),
        world // (layout.pipeline * layout.expert * layout.expert_tensor),
    )


def held(
    hf_config: dict[str, Any],
    layout: Layout,
    world: int,
    dtype: str,
    stage: int = 0,
    places: tuple[int, int] = (0, 0),
    settings: OptimizerConfig | None = None,
) -> RankBytes:
    """Bytes that a rank allocates for weights, gradients and optimiser.

    Args:
        hf_config: the content of a Hugging Face ``config.json``.
        layout: how the model is cut.
        world: trainer ranks.
        dtype: type of the weights.
        stage: its pipeline stage.
        places: its place among the ranks that share the optimiser's state, outside the experts and of the experts.
        settings: where and in which type the optimiser keeps its state; None for fp32 on the device.
    """
    settings = settings or OptimizerConfig()
    weights = gradients = optimizer = 0
    for elements, own, tensors in _buffers(hf_config, layout, world, stage, places):
        weights += elements * BYTES[dtype]
        gradients += elements * 4
        optimizer += _optimizer_bytes(own, tensors, dtype, settings)
    return RankBytes(weights, gradients, optimizer)


def optimizer_elements(hf_config: dict[str, Any], layout: Layout, world: int) -> int:
    """Parameters whose optimiser step is a rank's own, where its share of what data-parallel ranks hold is largest."""
    stages = [_buffers(hf_config, layout, world, stage, (0, 0)) for stage in {0, layout.pipeline - 1}]
    return max(sum(own for _, own, _ in buffers) for buffers in stages)


def _optimizer_bytes(elements: int, tensors: int, dtype: str, settings: OptimizerConfig) -> int:
    """Bytes that AdamW keeps on the device for its share of a buffer.

    In bf16, both moments take two bytes, and so does what the fp32 weight has beyond the bf16 one; Transformer Engine
    counts steps for all parameters together.
    """
    if settings.offload:
        return 0
    if settings.moments == "bfloat16":
        return elements * (2 + 2 + 2)
    return elements * (_MOMENTS + (4 if dtype == "bfloat16" else 0)) + tensors * _STEP


@remembered
def _buffers(
    hf_config: dict[str, Any], layout: Layout, world: int, stage: int, places: tuple[int, int]
) -> tuple[tuple[int, int, int], ...]:
    """Elements of a rank's two buffers; and of its share of each, elements and parameters that reach into it."""
    outside, experts = _spans(hf_config, replace(layout, context=1), stage)  # context ranks cut no parameter
    (ranks, ranks_of_experts), (place, place_of_experts) = data_ranks(layout, world), places
    return _shared(outside, ranks, place), _shared(experts, ranks_of_experts, place_of_experts)


@remembered
def _spans(hf_config: dict[str, Any], layout: Layout, stage: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Begin and end of parameters in the buckets, `int64[2, parameters]`, outside the experts and of the experts."""
    mine = list(rank_parameters(hf_config, layout, stage))
    outside, experts = (_laid_out([one for one in mine if one.expert == expert]) for expert in (False, True))
    return outside, experts


def _laid_out(params: list[Parameter]) -> list[np.ndarray]:
    found = []
    for bucket in _buckets(params):
        spans, at = [], 0
        for param in bucket:
            start = _up(at, _PARAM)
            spans.append((start, at := start + param.size))
        found.append(np.array(spans, np.int64).T)
    return found


def _shared(buckets: list[np.ndarray], ranks: int, place: int) -> tuple[int, int, int]:
    """Elements of a buffer; and of one rank's share of it, elements and parameters that reach into it."""
    total = own = tensors = 0
    for start_P, end_P in buckets:
        size = _up(int(end_P[-1]), math.lcm(ranks, _BUCKET))
        first, last = place * size // ranks, (place + 1) * size // ranks
        cut_P = np.minimum(end_P, last) - np.maximum(start_P, first)
        inside = cut_P > 0
        total, own, tensors = total + size, own + int(cut_P[inside].sum()), tensors + int(inside.sum())
    return total, own, tensors


def _buckets(params: list[Parameter]) -> Iterator[list[Parameter]]:
    """Group parameters into Megatron's buckets, in about the order of the backward pass."""
    bucket: list[Parameter] = []
    for param in reversed(params):
        if param.shared and bucket:
            yield bucket
            bucket = []
        bucket.append(param)
        if param.shared:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def rank_parameters(hf_config: dict[str, Any], layout: Layout, stage: int = 0) -> Iterator[Parameter]:
    """The parameters of a rank of one pipeline stage, in Megatron's order."""
    arch = shape(hf_config)
    hidden, vocabulary = arch.fields["hidden_size"], hf_config["vocab_size"] // layout.tensor
    count = len(arch.layers) // layout.pipeline
    last = stage == layout.pipeline - 1
    shared = arch.tied and layout.pipeline > 1
    if stage == 0:
        yield Parameter("embedding", vocabulary * hidden, shared=shared)
    for number in range(stage * count, (stage + 1) * count):
        yield from _layer(arch, arch.layers[number], layout, f"layer {number}")
    if last:
        yield Parameter("norm", hidden)
        if not arch.tied or shared:
            yield Parameter("head", vocabulary * hidden, shared=shared)


def _layer(arch: Architecture, plan: LayerPlan, layout: Layout, name: str) -> Iterator[Parameter]:
    fields, cut = arch.fields, layout.tensor
    hidden, head = fields["hidden_size"], fields["kv_channels"]
    heads, groups = fields["num_attention_heads"], fields["num_query_groups"]
    yield Parameter(f"{name} norm", hidden)
    if "kv_lora_rank" in fields:
        yield Parameter(f"{name} attention out", hidden * heads * fields["v_head_dim"])
        for matrix, (rows, columns) in latent_matrices(fields).items():
            yield Parameter(f"{name} {matrix}", rows * columns)
        for norm, width in latent_norms(fields).items():
            yield Parameter(f"{name} {norm}", width)
    else:
        yield Parameter(f"{name} attention out", hidden * heads * head // cut)
        yield Parameter(f"{name} qkv", hidden * head * (heads + 2 * groups) // cut)
    if fields.get("add_qkv_bias"):
        yield Parameter(f"{name} qkv bias", head * (heads + 2 * groups) // cut)
    if plan.qk_norm in ("rms", "wide"):
        yield Parameter(f"{name} q norm", head * heads if plan.qk_norm == "wide" else head)
        yield Parameter(f"{name} k norm", head * groups if plan.qk_norm == "wide" else head)
    yield Parameter(f"{name} feed-forward norm", hidden)
    if not plan.experts:
        yield from _feed_forward(hidden, fields["ffn_hidden_size"] // cut, name)
        return
    experts, inner = fields["num_moe_experts"], fields["moe_ffn_hidden_size"]
    mine = experts // layout.expert * inner // layout.expert_tensor * hidden
    yield Parameter(f"{name} router", experts * hidden)
    yield Parameter(f"{name} experts in", 2 * mine, expert=True)
    yield Parameter(f"{name} experts out", mine, expert=True)
    if shared := fields.get("moe_shared_expert_intermediate_size"):
        yield from _feed_forward(hidden, shared // cut, f"{name} shared expert")


def _feed_forward(hidden: int, inner: int, name: str) -> Iterator[Parameter]:
    yield Parameter(f"{name} in", 2 * hidden * inner)
    yield Parameter(f"{name} out", hidden * inner)
