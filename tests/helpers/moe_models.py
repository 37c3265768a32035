"""Small models and batches for the tests of the trainer.

Axes: `_T` tokens of one sequence.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from moe.model.decoder import Llama3Rope, YarnRope
from moe.model.families import (
    DeepseekV3,
    Glm4Moe,
    Llama,
    Llama4Text,
    Mistral,
    Mixtral,
    Model,
    Olmo2,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    SmolLM3,
    routed_experts,
)
from moe.sequences import TrainingSequence
from moe.settings import OptimizerConfig, TrainerSetup
from moe.train.trainer import Trainer

MOE = Llama4Text(
    vocab_size=96, hidden_size=48, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
    intermediate_size=32, attention_chunk_size=16, floor_scale=8,
)  # fmt: skip
"""Every feature of Scout: 16 experts, shared expert, a layer without RoPE, chunks, QK norm, temperature."""
DENSE = Llama(
    vocab_size=96, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, intermediate_size=80,
)  # fmt: skip
MISTRAL = Mistral(
    vocab_size=96, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, intermediate_size=80,
)  # fmt: skip
QWEN2 = Qwen2(
    vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, intermediate_size=80,
    rope_scaling=YarnRope(factor=4.0, original_max_position_embeddings=16), max_position_embeddings=64,
)  # fmt: skip
QWEN3 = Qwen3(
    vocab_size=96, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, intermediate_size=80, tie_word_embeddings=True,
)  # fmt: skip
OLMO2 = Olmo2(
    vocab_size=96, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, intermediate_size=80,
)  # fmt: skip
SMOLLM3 = SmolLM3(
    vocab_size=96, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    head_dim=12, intermediate_size=80, tie_word_embeddings=True, no_rope_layer_interval=2,
)  # fmt: skip
QWEN3_MOE = Qwen3Moe(
    vocab_size=96, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, intermediate_size=80, moe_intermediate_size=24, num_experts=8, num_experts_per_tok=3,
)  # fmt: skip
MIXTRAL = Mixtral(
    vocab_size=96, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
    head_dim=16, intermediate_size=40, num_local_experts=4,
    rope_scaling=Llama3Rope(factor=4.0, original_max_position_embeddings=64),
)  # fmt: skip
GLM4_MOE = Glm4Moe(
    vocab_size=96, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, intermediate_size=80, moe_intermediate_size=24, n_routed_experts=8, num_experts_per_tok=3,
    n_shared_experts=2, routed_scaling_factor=1.5,
)  # fmt: skip
DEEPSEEK_V3 = DeepseekV3(
    vocab_size=96, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
    head_dim=8, intermediate_size=80, moe_intermediate_size=24, n_routed_experts=8, num_experts_per_tok=3,
    n_group=4, topk_group=2, routed_scaling_factor=2.5, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=16,
    v_head_dim=12, rms_norm_eps=1e-6,
    rope_scaling=YarnRope(factor=4.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=1.0),
    max_position_embeddings=64,
)  # fmt: skip
OPTIMIZER = OptimizerConfig(lr=2e-3, warmup_steps=3, clip_grad=0.5)


def rendezvous() -> str:
    """An address nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def trainer(
    model: Model, rank: int = 0, world: int = 1, at: str | None = None, weights: Any = None, **kwargs: Any
) -> Trainer:
    """A trainer with small micro-batches, so that every step has several."""
    settings = {"optimizer": OPTIMIZER, "tokens_per_micro_batch": 150, "head_chunk": 64, "deadline": 60, **kwargs}
    return Trainer(model.to_hf(), TrainerSetup(**settings), rank, world, at or rendezvous(), weights)


def batch(seed: int, count: int = 12, longest: int = 60) -> list[TrainingSequence]:
    """Random sequences with random weights, some of a single token."""
    rng = np.random.default_rng(seed)
    sequences = []
    for length in [1, longest, *rng.integers(1, longest, count - 2)]:
        weight_T = rng.normal(size=length).astype(np.float32) / 100
        weight_T[0] = 0
        sequences.append(TrainingSequence(rng.integers(0, 96, length, dtype=np.int32), {"weight": weight_T}))
    return sequences


def routed(sequences: list[TrainingSequence], model: Model) -> list[TrainingSequence]:
    """Copies of sequences with random experts prescribed for most tokens, different ones for each token."""
    hf, rng = model.to_hf(), np.random.default_rng(len(sequences))
    experts, chosen = routed_experts(model), hf["num_experts_per_tok"]
    given = []
    for sequence in sequences:
        shape = (len(sequence), hf["num_hidden_layers"])
        routed_TLK = rng.random((*shape, experts)).argsort(-1)[..., :chosen].astype(np.int16)
        routed_TLK[rng.random(shape) < 0.2] = -1
        given.append(replace(sequence, routed_TLK=routed_TLK))
    return given


def weighted(
    logprobs_T: torch.Tensor, entropy_T: torch.Tensor, extras: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """−Σ weight · log-probability."""
    return -(logprobs_T * extras["weight"]).sum(), {
        "weight_sum": extras["weight"].sum(),
        "entropy_max": entropy_T.max(),
        "logprob_min": logprobs_T.min(),
    }


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """A copy of all weights."""
    return {name: tensor.clone() for name, tensor in trainer.export_weights()}
