"""Device memory of trainer and generator ranks, by kind.

Weights, gradients and optimiser are exact (`sizes`); activations follow from what each operator keeps for its backward
pass (Korthikanti et al., arXiv 2205.05198, §4, redone for gated feed-forwards, grouped queries, flash attention and
experts); the reserve is an assumption.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from moe.model.architectures import LayerPlan
from moe.model.size import BYTES
from moe.settings import LOGITS_AT_ONCE, TrainerSetup
from scalelab.plan.shape import remembered, shape
from scalelab.plan.sizes import held
from scalelab.rollout.config import GeneratorSetup
from scalelab.transfer.sizes import MESSAGE, PARCEL

GIB = 2**30
RESERVE = 5.0
"""GiB assumed for CUDA context, NCCL buffers, workspaces and fragmentation on a GPU."""
ENGINE_RESERVE = 6.0
"""GiB assumed for the same, CUDA graphs and vLLM's activations."""
_BUCKET = 0.25  # GiB of weights that are on their way at a time


@dataclass(frozen=True)
class TrainerMemory:
    """GiB on the fullest trainer rank."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    reserve: float
    reference: float = 0.0
    """Copy of the first weights, for a loss that sees them."""
    export: float = 0.0
    """Whole tensors on their way out, as far as they exceed activations and logits, which are not there then."""

    @property
    def total(self) -> float:
        """Sum of all kinds."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class GeneratorMemory:
    """GiB on a generator's device."""

    weights: float
    kv_cache: float
    update: float
    reserve: float

    @property
    def total(self) -> float:
        """Sum of all kinds."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class SendMemory:
    """Bytes that a broadcast of weights takes at most.

    Attributes:
        passing: on the device of a trainer rank during a transfer.
        engine: on each device of an engine.
    """

    passing: float
    engine: float


def trainer_memory(
    hf_config: dict[str, Any],
    config: TrainerSetup,
    world: int,
    longest: int,
    gpu: bool,
    sending: SendMemory | None = None,
) -> TrainerMemory:
    """Memory of the fullest rank: the first or the last pipeline stage.

    Args:
        hf_config: the model.
        config: layout, precision, micro-batch, recompute.
        world: trainer ranks.
        longest: tokens of the longest sequence; a micro-batch holds at least that many.
        gpu: reserve what a GPU needs.
        sending: for weights that are sent; None if they come as files.
    """
    layout = config.layout
    stages = {0, layout.pipeline - 1}
    parts = {stage: held(hf_config, layout, world, config.dtype, stage, settings=config.optimizer) for stage in stages}
    kept = {stage: activation_bytes(hf_config, config, longest, stage) for stage in stages}
    head = {stage: head_bytes(hf_config, config) * (stage == layout.pipeline - 1) for stage in stages}
    whole = max(export_bytes(hf_config, config.dtype), sending.passing if sending else 0.0)
    stage = max(stages, key=lambda s: parts[s].total + max(kept[s] + head[s], whole))
    return TrainerMemory(
        weights=parts[stage].weights / GIB,
        gradients=parts[stage].gradients / GIB,
        optimizer=parts[stage].optimizer / GIB,
        activations=kept[stage] / GIB,
        logits=head[stage] / GIB,
        reserve=RESERVE if gpu else 0.0,
        reference=parts[stage].weights / GIB if config.reference else 0.0,
        export=max(0.0, whole - kept[stage] - head[stage]) / GIB,
    )


def export_bytes(hf_config: dict[str, Any], dtype: str) -> float:
    """Most bytes on a device while weights are exported whole (`moe.weights.hf_weights.export`).

    One tensor at a time is gathered from the ranks and put into the order of its file: there are two copies of the
    largest, an embedding or the gates and inputs of a layer's experts. Weights that are published are not gathered.
    """
    fields, hidden = shape(hf_config).fields, hf_config["hidden_size"]
    largest = [hf_config["vocab_size"] * hidden, 2 * fields["ffn_hidden_size"] * hidden]
    largest.append(fields.get("num_moe_experts", 0) * 2 * fields.get("moe_ffn_hidden_size", 0) * hidden)
    return 2.0 * max(largest) * BYTES[dtype]


def activation_bytes(hf_config: dict[str, Any], config: TrainerSetup, longest: int, stage: int = 0) -> float:
    """Activations that a rank keeps of its micro-batches in flight for the backward pass.

    The first of p pipeline stages has p micro-batches in flight (1F1B, arXiv 2104.04473 §2.2), the last has one. A rank
    holds 1/context of a row. With recomputation, one layer at a time is there in full, too.
    """
    arch = shape(hf_config)
    layout, hidden = config.layout, arch.fields["hidden_size"]
    row = max(config.tokens_per_micro_batch, longest) / layout.context
    plans = _layers(hf_config, layout.pipeline, stage)
    kept = sum(count * layer_elements(arch.fields, plan, config, config.recompute) for plan, count in plans.items())
    if stage == layout.pipeline - 1:
        kept += hidden / layout.tensor + hidden  # the last norm's input, and the head's, which every rank has whole
    working = 0.0
    if config.recompute != "none":
        working = max(layer_elements(arch.fields, plan, config, "none") for plan in plans)
    return row * BYTES[config.dtype] * ((layout.pipeline - stage) * kept + working)


@remembered
def _layers(hf_config: dict[str, Any], pipeline: int, stage: int) -> Counter[LayerPlan]:
    """Layers of a stage by kind."""
    layers = shape(hf_config).layers
    count = len(layers) // pipeline
    return Counter(layers[stage * count : (stage + 1) * count])


def layer_elements(fields: dict[str, Any], plan: LayerPlan, config: TrainerSetup, recompute: str) -> float:
    """Elements that one layer keeps per token, on one rank.

    Outside the matrices, tensors are cut over the tensor-parallel ranks along the tokens (sequence parallel), inside
    along the features. Where sequences have different lengths, a CPU's attention keeps copies in padded blocks, too.
    """
    cut = config.layout.tensor
    whole = fields["hidden_size"] / cut  # a token's whole hidden state
    if recompute == "full":
        return whole
    head, heads, groups = fields["kv_channels"], fields["num_attention_heads"], fields["num_query_groups"]
    queries, qkv, turned = (head * n / cut for n in (heads, heads + 2 * groups, heads + groups))
    normed, rope = plan.qk_norm != "none", plan.attention.inv_freq is not None
    copied = queries if groups > cut else 0  # taking the queries of several groups out of their product copies them
    # input and output of two norms; what attention puts out; the product that values, at least, are a view of
    kept = 4 * whole + queries + qkv
    if recompute == "selective":
        return kept + copied + (turned if normed else 0)
    kept += copied if normed else 0
    kept += turned if rope or normed else queries  # rotated or normed; or, without either, queries sharpened
    kept += heads / cut * 4 / BYTES[config.dtype]  # log Σ exp, fp32
    if not plan.experts:
        return kept + 3 * fields["ffn_hidden_size"] / cut  # gate, up, and the product
    return kept + _experts(fields, config) + 3 * fields.get("moe_shared_expert_intermediate_size", 0) / cut


def _experts(fields: dict[str, Any], config: TrainerSetup) -> float:
    """Router and routed experts: rows sorted by expert, gate, up, product; weighted before or behind."""
    hidden, inner = fields["hidden_size"], fields["moe_ffn_hidden_size"] / config.layout.expert_tensor
    row = 2 * hidden + 3 * inner if fields.get("moe_apply_probs_on_input") else hidden + 4 * inner
    # tokens of a tensor-parallel group are shared out to the experts; expert-tensor ranks all get the same
    share = config.layout.expert_tensor / config.layout.tensor
    scores = fields["num_moe_experts"] * 5 / BYTES[config.dtype] / config.layout.tensor  # and the map, a byte each
    widened = hidden * 4 / BYTES[config.dtype] / config.layout.tensor if config.dtype != "float32" else 0
    return fields["moe_router_topk"] * row * share + scores + widened  # the router's input in fp32


def head_bytes(hf_config: dict[str, Any], config: TrainerSetup) -> float:
    """The output product of one chunk of tokens and its backward pass (`moe.model.head`).

    Logits in fp32 and their gradient in the type of the product, for at most 2²⁶ logits; the gradient of the output
    matrix is summed over the chunks in fp32. Where fp32 gradients go as two bf16 numbers, both are there beside them,
    and a product of the output matrix's size before it is added. Independent of the tokens of a micro-batch.
    """
    words = hf_config["vocab_size"] / config.layout.tensor
    tokens = min(config.head_chunk, max(1, LOGITS_AT_ONCE // words))
    matrix = words * hf_config["hidden_size"] * 4
    if config.fp32_head and config.dtype == "bfloat16":
        return tokens * words * (4 + 2 * BYTES["bfloat16"]) + 2 * matrix
    return tokens * words * (4 + BYTES[config.dtype]) + matrix


def message_memory(hf_config: dict[str, Any], dtype: str) -> SendMemory:
    """Memory for broadcasts.

    A message ends with the tensor that fills it (`MESSAGE`). A sender and a receiver hold two; the sender has the
    tensors of the second beside it while it packs them.
    """
    message = MESSAGE + largest_sent(hf_config, dtype)
    return SendMemory(passing=3 * message, engine=2 * message)


def largest_sent(hf_config: dict[str, Any], dtype: str) -> int:
    """Bytes of the largest tensor that is sent: a matrix of a layer or of one expert, or rows of the vocabulary."""
    arch = shape(hf_config)
    fields, hidden = arch.fields, hf_config["hidden_size"]
    rows = [fields["num_attention_heads"] * fields["kv_channels"]]
    rows += [fields["ffn_hidden_size"] for layer in arch.layers if not layer.experts]
    if fields.get("num_moe_experts"):
        rows += [fields["moe_ffn_hidden_size"], fields.get("moe_shared_expert_intermediate_size") or 0]
    vocabulary = min(max(PARCEL, hidden * BYTES[dtype]), hf_config["vocab_size"] * hidden * BYTES[dtype])
    return max(max(rows) * hidden * BYTES[dtype], vocabulary)


def generator_memory(
    parameters: int, config: GeneratorSetup, gpu: bool, messages: float | None = None
) -> GeneratorMemory:
    """Memory of one of the devices that share an engine.

    Args:
        parameters: of the model.
        config: the engine.
        gpu: reserve what a GPU needs.
        messages: bytes that a broadcast of weights takes; None if they come as files.
    """
    return GeneratorMemory(
        weights=parameters * BYTES[config.dtype] / config.tensor_parallel / GIB,
        kv_cache=config.kv_cache_gib,
        update=min(_BUCKET if messages is None else messages / GIB, parameters * BYTES[config.dtype] / GIB),
        reserve=ENGINE_RESERVE if gpu else 0.0,
    )
