"""Time of one training step, from a stated performance model.

It says what the hardware allows at stated efficiencies, not what a given software reaches: stragglers and
restarts cost nothing in it. The assumptions are fields of `Assumptions`; the command line takes the important ones.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from moe.checkpoint.size import checkpoint_bytes
from moe.model.size import BYTES, Parameters, kv_bytes_per_token
from moe.settings import TrainerSetup
from scalelab.defaults import SIGMA
from scalelab.hardware import Device
from scalelab.plan.exchanges import exchange_seconds
from scalelab.plan.lengths import PROMPT, Moments
from scalelab.plan.preemption import computed_again, usual_context
from scalelab.plan.shape import parameter_counts, remembered, shape
from scalelab.plan.sizes import optimizer_elements
from scalelab.rollout.config import GeneratorSetup


@dataclass(frozen=True)
class Assumptions:
    """Assumptions of the performance model.

    Attributes:
        mfu: share of the peak that the trainer's products reach, what ranks exchange apart.
        expert_mfu: the same for mixtures of experts.
        narrow: width of an expert's feed-forward below which a GPU reaches less of it, by the square root of the two
            widths: Megatron's published share of Qwen3-30B-A3B, 768 wide, is 0.12 (`tools/bench/published.py`).
        imbalance: tokens of the busiest expert rank by its even share, for which the others wait.
        exchange: share of NVLink or network that an exchange among trainer ranks reaches.
        bandwidth: share of the memory bandwidth that decoding reaches.
        decode_mfu: share of the peak that the generators' products reach.
        iteration: seconds that an engine takes between two tokens beside the kernels.
        chunked: seconds more where layers attend in chunks: vLLM takes no whole CUDA graphs there (vllm#21761).
        link: seconds of one all-reduce of a decoding step among devices that share an engine, twice per layer.
        median: median length of a completion as a share of the most tokens (`scalelab.plan.lengths.LogNormal`).
        sigma: standard deviation of the logarithm of a length.
        prompt: tokens of a prompt.
        dropped: share of completions without a gradient, because all of their group have the same reward.
        staging: 10⁹ bytes/s at which a rank copies weights into shared memory.
        sockets: 10⁹ bytes/s that a machine sends or receives through sockets.
        loading: 10⁹ bytes/s at which an engine's process loads weights from shared memory, beside generation.
        copying: 10⁹ bytes/s from page-locked host memory to a GPU, or back.
        broadcast: share of a device's network that a broadcast over NCCL reaches.
        host_adam: 10⁹ parameters/s whose AdamW step one thread computes on the host.
    """

    mfu: float = 0.40
    expert_mfu: float = 0.30
    narrow: int = 2048
    imbalance: float = 1.0
    exchange: float = 0.7
    bandwidth: float = 0.6
    decode_mfu: float = 0.4
    iteration: float = 0.004
    chunked: float = 0.002
    link: float = 15e-6
    median: float = 0.5
    sigma: float = SIGMA
    prompt: int = PROMPT
    dropped: float = 0.0
    staging: float = 4.0
    sockets: float = 3.0
    loading: float = 4.0
    copying: float = 20.0
    broadcast: float = 0.4
    host_adam: float = 0.6


@remembered
def attention_flops(hf_config: dict[str, Any], tokens: float, square: float) -> float:
    """Forward pass of attention over a sequence, Q·Kᵀ and the sum over V: 2 · 2 · (L²/2) · heads · head size a layer.

    Half of the pairs are masked (FlashAttention-2, arXiv 2307.08691 §4.1); a layer that attends within chunks of c
    tokens has at most L·c pairs in place of L².
    """
    arch = shape(hf_config)
    width = arch.fields["num_attention_heads"] * arch.fields["kv_channels"]
    pairs = sum(min(square, tokens * (layer.attention.chunk or float("inf"))) for layer in arch.layers)
    return 2.0 * width * pairs


@remembered
def training_flops(
    hf_config: dict[str, Any],
    recompute: str,
    tokens: float,
    square: float,
    *,
    split_head: bool = False,
    reference: bool = False,
) -> float:
    """Products of one sequence's forward and backward pass.

    6·N a token for the N active parameters of the layers (Kaplan et al., arXiv 2001.08361 §2.1), 8·N where whole layers
    are computed twice, and what is between where only attention and feed-forwards are. The head's products are four
    instead of three, as its logits are computed again (`moe.model.head`): 8·V·H; or six, 12·V·H, where the gradient of
    fp32 logits goes as two bf16 numbers (`split_head`). Attention's backward pass takes 2.5 forward passes
    (FlashAttention-2 §4.1). A reference adds one forward pass.
    """
    counts, arch = parameter_counts(hf_config), shape(hf_config)
    layers = sum(layer.active - layer.norms for layer in counts.layers)
    inner = sum(layer.active - layer.norms - layer.attention for layer in counts.layers)
    again = {"none": 0.0, "selective": 2.0 * inner, "full": 2.0 * layers}[recompute]
    head = (12.0 if split_head else 8.0) * hf_config["vocab_size"] * arch.fields["hidden_size"]
    passes = _attention_passes(recompute, reference)
    again += reference * 2.0 * (layers + hf_config["vocab_size"] * arch.fields["hidden_size"])
    return tokens * (6.0 * layers + again + head) + passes * attention_flops(hf_config, tokens, square)


def _attention_passes(recompute: str, reference: bool) -> float:
    """Passes through attention of one sequence, by its forward pass."""
    return (3.5 if recompute == "none" else 4.5) + reference


def splits_head(config: TrainerSetup) -> bool:
    """True if the output product takes bf16 values and returns fp32 ones, as `moe.model.head.product` does on a GPU."""
    return config.fp32_head and config.dtype == "bfloat16"


def training_seconds(
    hf_config: dict[str, Any],
    config: TrainerSetup,
    ranks: int,
    completions: float,
    length: Moments,
    device: Device,
    assumed: Assumptions,
) -> float:
    """One optimiser step: products at the assumed MFU, what ranks exchange, more where a pipeline fills and empties.

    With p stages and m micro-batches each, a share (p − 1)/(m + p − 1) of the time is idle (arXiv 2104.04473 §2.2).
    The products of a mixture wait for its busiest expert rank (`Assumptions.imbalance`, of the experts' share of them),
    those of attention for the slowest context rank.
    """
    tokens, square = _sequence(length, assumed)
    layout, trained = config.layout, completions * (1 - assumed.dropped)
    slower = slowest_stretch(hf_config, config.tokens_per_micro_batch, tokens, square, layout.context) - 1
    passes = _attention_passes(config.recompute, config.reference)
    flops = step_flops(hf_config, config, completions, length, assumed)
    flops += trained * slower * passes * attention_flops(hf_config, tokens, square)
    rows = ranks / (layout.tensor * layout.pipeline * layout.context)
    micro_batches = max(1.0, completions * tokens / rows / config.tokens_per_micro_batch)
    fill = 1 + (layout.pipeline - 1) / micro_batches
    mixture = "num_moe_experts" in shape(hf_config).fields
    mfu = _mixture_mfu(hf_config, device, assumed) if mixture else assumed.mfu
    waits = 1 + (assumed.imbalance - 1) * _routed_share(hf_config) if mixture else 1.0
    own = trained * tokens / rows / layout.context
    exchanged = exchange_seconds(hf_config, config, ranks, own, device, assumed.exchange)
    return (flops / (ranks * device.tflops * 1e12 * mfu) * waits + exchanged) * fill


def step_flops(
    hf_config: dict[str, Any], config: TrainerSetup, completions: float, length: Moments, assumed: Assumptions
) -> float:
    """FLOP of one optimiser step, over all ranks; completions that filtering leaves out are not trained on."""
    split, reference = splits_head(config), config.reference
    each = training_flops(
        hf_config, config.recompute, *_sequence(length, assumed), split_head=split, reference=reference
    )
    return completions * (1 - assumed.dropped) * each


def _sequence(length: Moments, assumed: Assumptions) -> tuple[float, float]:
    """Mean tokens of a prompt with its completion, and the mean of their square."""
    prompt = assumed.prompt
    return length.mean + prompt, length.square + 2 * prompt * length.mean + prompt**2


@remembered
def slowest_stretch(hf_config: dict[str, Any], row: int, tokens: float, square: float, parts: int) -> float:
    """Pairs of attention on the context rank that has most of them, by the mean of all: the others wait for it.

    Every rank has an equal stretch of a row (`moe.model.packing`), and a token as many pairs as tokens before it in its
    sequence or chunk. Rows are filled with sequences of log-normal lengths, as long as another one fits.

    Args:
        hf_config: of the model; pairs are summed over its layers.
        row: tokens.
        tokens: of a sequence, the mean.
        square: mean square of that.
        parts: context ranks.
    """
    if parts == 1:
        return 1.0
    chunks = Counter(layer.attention.chunk or row for layer in shape(hf_config).layers)
    each_RP = [count * _pairs(row, round(tokens), round(square), parts, chunk) for chunk, count in chunks.items()]
    pairs_RP = np.sum(each_RP, axis=0)
    return float(pairs_RP.max(axis=1).sum() / pairs_RP.mean(axis=1).sum())


@cache
def _pairs(row: int, tokens: int, square: int, parts: int, chunk: int) -> np.ndarray:
    """Pairs of attention in every stretch of some rows, `[rows, parts]`."""
    spread = math.log(max(1.0, square / tokens**2))
    drawn = np.random.default_rng(0).lognormal(math.log(tokens) - spread / 2, spread**0.5, 400)
    rows, filled = list[list[float]]([[]]), 0.0
    for length in np.clip(drawn, 1, row).tolist():
        if filled + length > row:
            rows.append([])
            filled = 0.0
        rows[-1].append(length)
        filled += length

    def before(token: np.ndarray) -> np.ndarray:
        """Pairs of a sequence's tokens before some token."""
        whole, rest = np.divmod(token, chunk)
        return (whole * chunk**2 + rest**2) / 2

    found_RP = np.zeros((len(rows), parts))
    for lengths, pairs_P in zip(rows, found_RP):
        borders = np.linspace(0, sum(lengths), parts + 1)
        for begins, length in zip(np.cumsum([0.0, *lengths]), lengths):
            pairs_P += np.diff(before(np.clip(borders - begins, 0, length)))
    return found_RP


def _mixture_mfu(hf_config: dict[str, Any], device: Device, assumed: Assumptions) -> float:
    """Share of the peak that training a mixture of experts reaches."""
    width = shape(hf_config).fields["moe_ffn_hidden_size"]
    return assumed.expert_mfu * (min(1.0, width / assumed.narrow) ** 0.5 if device.gpu else 1.0)


@remembered
def _routed_share(hf_config: dict[str, Any]) -> float:
    """Share of the active parameters of the layers that is in routed experts."""
    counts, fields = parameter_counts(hf_config), shape(hf_config).fields
    routed = sum(layer.experts for layer in counts.layers) * fields["moe_router_topk"] / fields["num_moe_experts"]
    return routed / sum(layer.active for layer in counts.layers)


def host_step_seconds(hf_config: dict[str, Any], config: TrainerSetup, ranks: int, assumed: Assumptions) -> float:
    """Step of an optimiser in host memory (`OptimizerConfig.offload`), while the GPU waits; 0 for one on the GPU.

    For each parameter of the rank's share, 4 bytes of gradient come to the host and 4 of the new weight go back,
    beside AdamW in fp32 on one thread: the slower of the two counts, on the stage with the larger share.
    """
    if not config.optimizer.offload:
        return 0.0
    share = optimizer_elements(hf_config, config.layout, ranks)
    return max(share / (assumed.host_adam * 1e9), share * 8 / (assumed.copying * 1e9))


def copy_seconds(hf_config: dict[str, Any], config: TrainerSetup, ranks: int, assumed: Assumptions) -> float:
    """Seconds in which every rank copies its part of a checkpoint to host memory; writing goes on beside training."""
    return checkpoint_bytes(hf_config, config.dtype) / ranks / (assumed.copying * 1e9)


@dataclass(frozen=True)
class Decoding:
    """An engine in steady state.

    Attributes:
        sequences: generated side by side.
        seconds: between two tokens of each, with what prompts and preempted sequences take of the engine.
        bound: what takes the time: "memory" or "compute".
        prefill: seconds of them for prompts and for tokens that are computed again.
        again: tokens that are computed again after a preemption, by tokens that are made; an upper bound.
    """

    sequences: float
    seconds: float
    bound: str
    prefill: float
    again: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the engine."""
        return self.sequences / self.seconds


def decoding(
    hf_config: dict[str, Any],
    config: GeneratorSetup,
    available: float,
    length: Moments,
    device: Device,
    assumed: Assumptions,
) -> Decoding:
    """An engine's speed: every token reads all weights that any of its sequences needs, and every sequence's KV cache.

    Sequences are limited by the configuration, by the KV cache, and by how many the schedule has for this engine. A
    running sequence has on average E[L²]/2E[L] tokens behind it (renewal theory: long ones are met more often). Of E
    experts with k chosen by a token, B sequences touch E·(1 − (1 − k/E)^B). Of each completion, the prompt and what is
    computed again after preemptions are products at the same share of the peak, for which all sequences wait.
    """
    counts, fields = parameter_counts(hf_config), shape(hf_config).fields
    ranks, width = config.tensor_parallel, BYTES[config.dtype]
    context = usual_context(length, assumed.prompt)
    per_token = kv_bytes_per_token(hf_config, config.dtype, ranks)
    places = min(config.max_sequences, available)
    sequences = max(1.0, min(places, cache_sequences(hf_config, config, length, assumed)))
    read = _weights_read(counts, fields, sequences) * width / ranks + sequences * context * per_token
    memory = read / (device.bandwidth * 1e9 * assumed.bandwidth)
    attention = 4.0 * fields["num_layers"] * fields["num_attention_heads"] * fields["kv_channels"] * context
    products = 2.0 * (counts.active - counts.embedding)
    speed = ranks * device.tflops * 1e12 * assumed.decode_mfu
    compute = sequences * (products + attention) / speed
    links = 2 * fields["num_layers"] * assumed.link if ranks > 1 else 0.0
    chunked = assumed.chunked if any(layer.attention.chunk for layer in shape(hf_config).layers) else 0.0
    cache, block = int(config.kv_cache_gib * 2**30 / per_token), config.block_size
    again = computed_again(length, assumed.prompt, cache, max(1, int(places)), block)
    behind = assumed.prompt / context / 2  # of a prompt's token, by those of a running sequence
    prompts = assumed.prompt / length.mean * (products + attention * behind)
    prefill = sequences * (prompts + again * (products + attention / 2)) / speed
    seconds = max(memory, compute) + links + assumed.iteration + chunked + prefill
    return Decoding(sequences, seconds, "memory" if memory >= compute else "compute", prefill, again)


def cache_sequences(hf_config: dict[str, Any], config: GeneratorSetup, length: Moments, assumed: Assumptions) -> float:
    """Running sequences of the usual context for which an engine's KV cache has room."""
    per_token = kv_bytes_per_token(hf_config, config.dtype, config.tensor_parallel)
    return config.kv_cache_gib * 2**30 / (per_token * usual_context(length, assumed.prompt))


def _weights_read(counts: Parameters, fields: dict[str, Any], sequences: float) -> float:
    routed = sum(layer.experts for layer in counts.layers)
    if not routed:
        return counts.total - counts.embedding
    untouched = (1 - fields["moe_router_topk"] / fields["num_moe_experts"]) ** sequences
    return counts.total - counts.embedding - routed * untouched


@dataclass(frozen=True)
class PublicationTime:
    """Seconds of one publication of the weights.

    Attributes:
        standstill: of the trainer, while every rank copies its share into shared memory, and while it sends.
        transfer: until the last engine has loaded its part into host memory, beside training and generation.
        pause: of an engine, while each of its processes copies its part to its device.
    """

    standstill: float
    transfer: float
    pause: float

    @property
    def total(self) -> float:
        """From the trainer's first copy to the last engine's new weights."""
        return self.standstill + self.transfer + self.pause


def publication(
    hf_config: dict[str, Any],
    dtype: str,
    trainers: int,
    engines: tuple[int, int],
    device: Device,
    assumed: Assumptions,
    way: Literal["files", "nccl"] = "files",
) -> PublicationTime:
    """Estimate a publication from the bytes of the real path and the assumed speeds of memory and network.

    A rank stages 1/trainers of the model. Machines with engines fetch the model once each: a receiving machine is
    limited by its own sockets, the trainer's machines by those of all. Every process of an engine reads the whole
    model out of shared memory, keeps 1/devices of it, and copies that to its GPU while the engine stands still; on a
    CPU nothing is copied.

    A broadcast comes on top of the staging, in place of fetching and loading: one device sends the whole model, which
    passes from receiver to receiver, and each of these copies its part to its host. The slower of both counts.

    Args:
        hf_config: the model's.
        dtype: of its weights.
        trainers: ranks.
        engines: their number, and the devices of each.
        device: of all of them.
        assumed: the speeds.
        way: "nccl" for a broadcast.
    """
    count, devices = engines
    size = parameter_counts(hf_config).total * BYTES[dtype]
    senders, receivers = (-(-number // device.per_node) for number in (trainers, count * devices))
    apart = trainers + count * devices > device.per_node
    network = size * max(1.0, receivers / senders) / (assumed.sockets * 1e9) if apart else 0.0
    pause = size / devices / (assumed.copying * 1e9) if device.gpu else 0.0
    staging = size / trainers / (assumed.staging * 1e9)
    if way == "nccl":
        return PublicationTime(staging + max(size / (device.network * 1e9 * assumed.broadcast), pause), 0.0, pause)
    return PublicationTime(staging, network + size / (assumed.loading * 1e9), pause)
