"""Bytes that the ranks of one copy of a model exchange, and the time that takes.

Counts are those of Megatron's tensor parallelism along sequences (arXiv 2205.05198 §4.2) and of its all-to-all
dispatcher; `tests/rehearse/test_trainer.py` holds them to what the lab's own trainer exchanges in a rehearsal. Left
out: gradients and weights among data ranks, once a step; keys and values between context ranks. In the big experiments
they are less than one part in fifty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moe.model.size import BYTES
from moe.settings import Layout, Recompute, TrainerSetup
from scalelab.hardware import Device
from scalelab.plan.shape import remembered, shape

_TENSOR = {"none": (3, 2), "selective": (3, 2), "full": (4, 3)}
"""All-gathers and reduce-scatters of the hidden states in an attention block: forward, backward, and once more."""
_FEED_FORWARD = {"none": (3, 2), "selective": (4, 3), "full": (4, 3)}
"""All-gathers and reduce-scatters in a dense feed-forward or a shared expert."""
_ROUTED = {"none": 2, "selective": 3, "full": 3}
"""Times that routed tokens go to their experts and back: forward, backward, and once more."""
_EXPERT_TENSOR = {"none": 6, "selective": 9, "full": 9}
"""Gathers and reductions of routed tokens among the ranks that share an expert."""


@dataclass(frozen=True)
class ExchangedBytes:
    """Bytes of a rank for each token of its rows, by group; of a gather the larger side.

    Attributes:
        tensor: among tensor ranks.
        expert: among expert ranks, in all-to-alls.
        expert_tensor: among the ranks that share an expert.
        pipeline: with the stages before and behind it: activations one way, gradients the other.
    """

    tensor: float
    expert: float
    expert_tensor: float
    pipeline: float


def exchanged_bytes(hf_config: dict[str, Any], config: TrainerSetup, stage: int = 0) -> ExchangedBytes:
    """Bytes that a rank exchanges for each token of its rows in forward and backward pass.

    Args:
        hf_config: the content of a Hugging Face ``config.json``.
        config: layout, type and recomputation.
        stage: the rank's pipeline stage, from the end if it is negative.
    """
    return _exchanged(hf_config, config.layout, config.recompute, config.dtype, stage % config.layout.pipeline)


@remembered
def _exchanged(hf_config: dict[str, Any], layout: Layout, again: Recompute, dtype: str, stage: int) -> ExchangedBytes:
    arch = shape(hf_config)
    state = arch.fields["hidden_size"] * BYTES[dtype]
    count = len(arch.layers) // layout.pipeline
    tensor = expert = expert_tensor = 0.0
    for plan in arch.layers[stage * count : (stage + 1) * count]:
        tensor += sum(_TENSOR[again]) * state
        if not plan.experts or arch.fields.get("moe_shared_expert_intermediate_size"):
            tensor += sum(_FEED_FORWARD[again]) * state
        if plan.experts:
            routed = arch.fields["moe_router_topk"] / layout.tensor  # tensor ranks share the tokens out
            expert += _ROUTED[again] * routed * (2 * state + 4)  # there and back, and each one's weight in fp32
            expert_tensor += _EXPERT_TENSOR[again] * routed * layout.expert_tensor * state
    tensor += 2 * state * (stage == 0)  # the embedding's sum, and its gradient
    tensor += state * (stage == layout.pipeline - 1)  # the head's input; the sums of its gradient are all-reduces
    neighbours = (stage > 0) + (stage < layout.pipeline - 1)
    return ExchangedBytes(
        tensor * (layout.tensor > 1),
        expert * (layout.expert > 1),
        expert_tensor * (layout.expert_tensor > 1),
        2 * state / layout.tensor * neighbours,
    )


def exchange_seconds(
    hf_config: dict[str, Any], config: TrainerSetup, ranks: int, tokens: float, device: Device, efficiency: float
) -> float:
    """Seconds in which a rank exchanges what `tokens` tokens of its rows need, while it computes nothing.

    In a group of n ranks a share (n − 1)/n of the bytes leaves a rank. Ranks of a group that NVLink does not join use
    the network. Megatron numbers tensor ranks first, then those of an expert, and stages last. A stage in the middle
    sends one way while it receives from the other, and so takes no longer than the first.

    Args:
        hf_config: the content of a Hugging Face ``config.json``.
        config: layout, type and recomputation.
        ranks: of the trainer.
        tokens: of the rank's rows, after their cut over context ranks.
        device: its links.
        efficiency: share of a link that an exchange reaches.
    """
    layout, found = config.layout, exchanged_bytes(hf_config, config)
    link, network = (speed * 1e9 * efficiency for speed in (device.link, device.network))

    def seconds(size: float, group: int, stride: int) -> float:
        near = min(group, max(1, device.joined // stride))
        return size * ((near - 1) / group / link + (group - near) / group / network)

    next_stage = link if ranks <= device.joined else network

    return tokens * (
        seconds(found.tensor, layout.tensor, 1)
        + seconds(found.expert_tensor, layout.expert_tensor, 1)
        + seconds(found.expert, layout.expert, layout.expert_tensor)
        + found.pipeline / next_stage
    )
