"""Runs for rehearsals: real models at full width with few layers, in any layout."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from moe.model.decoder import DecoderConfig
from moe.model.families import DeepseekV3, Glm4Moe, Llama, Llama4Text, Mixtral, Model, Qwen2, Qwen3, Qwen3Moe
from moe.settings import Layout
from scalelab.experiment import resolve
from scalelab.run.config import Run
from tests.helpers.real_models import (
    DEEPSEEK_V3,
    GLM_45_AIR,
    LLAMA_8B,
    MIXTRAL_8X7B,
    QWEN3_8B,
    QWEN3_30B,
    QWEN25_7B,
    SCOUT,
)

LENGTH = 2048
ModelT = TypeVar("ModelT", bound=DecoderConfig)


def full_width(kind: type[ModelT], config: dict[str, Any], layers: int) -> ModelT:
    """A model of the hub with fewer layers; how rotary embedding is stretched has no part in sizes."""
    known = {field.name for field in fields(kind)} - {"rope_scaling"}
    values = {name: value for name, value in config.items() if name in known}
    values.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return kind(**{**values, "num_hidden_layers": layers, "eos_token_id": 2})


DEEPSEEK = {**DEEPSEEK_V3, "head_dim": 64, "first_k_dense_replace": 1}
MODELS: dict[str, Any] = {
    "llama": full_width(Llama, LLAMA_8B, 2),
    "qwen2": full_width(Qwen2, QWEN25_7B, 2),
    "qwen3": full_width(Qwen3, QWEN3_8B, 2),
    "qwen3_moe": replace(full_width(Qwen3Moe, QWEN3_30B, 2), num_experts=32),  # of 128, each of which takes its time
    "glm4_moe": replace(full_width(Glm4Moe, GLM_45_AIR, 2), n_routed_experts=32),
    "deepseek_v3": replace(full_width(DeepseekV3, DEEPSEEK, 2), n_routed_experts=32),
    "mixtral": full_width(Mixtral, MIXTRAL_8X7B, 2),
    "llama4": full_width(Llama4Text, SCOUT, 4),
}


def run_of(model: Model, layout: Layout, world: int, recompute: str = "none", length: int = LENGTH) -> Run:
    """ScaleRL's run with another model, layout and length."""
    run = resolve("scalerl_8b").run
    return replace(
        run,
        model=model,
        trainer=replace(run.trainer, layout=layout, recompute=recompute, tokens_per_micro_batch=length),
        generator=replace(run.generator, max_model_len=length),
        recipe=replace(run.recipe, max_tokens=length - 256, length_control=None),
        cluster=replace(run.cluster, trainers=world),
        sft=replace(run.sft, trainers=world),
    )
