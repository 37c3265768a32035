"""Tiny models for the tests of the rollout room, and transformers as the reference for their log-probs.

Axes: `_T` tokens of one completion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from moe.model.decoder import YarnRope
from moe.model.families import DeepseekV3, Glm4Moe, Llama, Llama4Text, Mistral, Mixtral, Qwen2, Qwen3, Qwen3Moe
from moe.weights.links import links
from moe.weights.segments import Segment
from moe.weights.shards import Publisher
from scalelab.rollout.generator import Generator
from scalelab.rollout.types import Completion, Request

CHUNK = 32
"""Short enough that sequences cross several chunks of the attention."""
MOE = Llama4Text(
    vocab_size=96,
    hidden_size=64,
    num_attention_heads=2,
    num_key_value_heads=1,
    attention_chunk_size=CHUNK,
    floor_scale=16,
)
"""Every feature of Llama-4: 16 experts, a layer without RoPE, chunks, QK norm, temperature tuning."""
_SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
DENSE = Llama(**_SMALL)
MISTRAL = Mistral(**_SMALL)
QWEN2 = Qwen2(
    **_SMALL, rope_scaling=YarnRope(factor=4.0, original_max_position_embeddings=64), max_position_embeddings=256
)
QWEN3 = Qwen3(**_SMALL, tie_word_embeddings=True)
QWEN3_MOE = Qwen3Moe(**_SMALL, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2)
MIXTRAL = Mixtral(**_SMALL, intermediate_size=64, num_local_experts=4)
GLM4_MOE = Glm4Moe(**_SMALL, moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=2)
DEEPSEEK_V3 = DeepseekV3(
    **{**_SMALL, "num_key_value_heads": 2}, moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=2,
    n_group=4, topk_group=2, routed_scaling_factor=2.5, rms_norm_eps=1e-6, v_head_dim=24,
    rope_scaling=YarnRope(factor=4.0, original_max_position_embeddings=64, mscale=0.7, mscale_all_dim=1.0),
    max_position_embeddings=256,
)  # fmt: skip


def write_model(folder: Path, shape: Llama | Llama4Text, seed: int) -> Path:
    """A model with random weights, far enough from uniform that every layer matters."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(**shape.to_hf(), initializer_range=0.15)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    return folder


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


class Ranks:
    """Two trainer ranks that hold a half of every cut matrix each, one of them on another machine."""

    def __init__(self) -> None:
        self.publishers = [Publisher(), Publisher(machine="another")]

    def publish(self, version: int, folder: Path) -> list[Segment]:
        hf_config, held = json.loads((folder / "config.json").read_text()), weights_of(folder)
        parts: list[list[tuple]] = [[], []]
        for number, link in enumerate(links(hf_config)):
            whole = link.merge(held[name] for name in link.names)
            stretches = 2 if "fc1" in link.param else 1
            axis = 0 if not link.experts else 1
            if whole.dim() == 1 or "router" in link.param:
                parts[number % 2].append((link.param, (), whole))
                continue
            halves = whole.unflatten(axis, (stretches, 2, -1))
            for rank in range(2):
                half = halves.select(axis + 1, rank).flatten(axis, axis + 1)
                parts[rank].append((link.param, ((axis, stretches, rank, 2),), half.contiguous()))
        return [one.publish(version, rank, parts[rank]) for rank, one in enumerate(self.publishers)]

    def close(self) -> None:
        for publisher in self.publishers:
            publisher.close()


def reference(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def reference_logprobs(
    models: Mapping[int, PreTrainedModel], completion: Completion, prompt_version: int | None = None
) -> np.ndarray:
    """Log-probs of the tokens, each span by its own model on the KV cache that the earlier ones left behind.

    Args:
        models: the model of each version.
        completion: its spans name the versions.
        prompt_version: version whose KV cache the prompt (but for its last token) has; None for the first span's.

    Returns:
        float32[T].
    """
    ids = torch.tensor([[*completion.request.prompt_ids, *completion.token_ids.tolist()]])
    cache = DynamicCache(config=next(iter(models.values())).config)
    width, done, parts = len(completion.request.prompt_ids), 0, []
    if prompt_version is not None:
        done = width - 1
        models[prompt_version](ids[:, :done], past_key_values=cache)
    for version, start, end in completion.spans:
        logits = models[version](ids[:, done : width + end - 1], past_key_values=cache).logits[0, start - end :]
        targets = ids[0, width + start : width + end]
        parts.append(logits.log_softmax(-1).gather(1, targets[:, None])[:, 0])
        done = width + end - 1
    return torch.cat(parts).numpy()


def generate(generator: Generator, requests: Sequence[Request], timeout: float = 60.0) -> list[Completion]:
    """Completions in the order of the requests."""
    generator.submit(requests)
    done = {completion.request.id: completion for completion in take(generator, len(requests), timeout)}
    return [done[request.id] for request in requests]


def take(generator: Generator, count: int, timeout: float = 60.0) -> list[Completion]:
    completions: list[Completion] = []
    while len(completions) < count:
        batch = generator.collect(count, timeout)
        assert batch, f"no completion within {timeout} s"
        completions += batch
    return completions


def prompts(count: int, length: int, vocab_size: int, seed: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(5, vocab_size, length).tolist()) for _ in range(count)]
