"""Choices about generation, checked without importing torch or vLLM."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from moe.checked import CHECKED


@dataclass(frozen=True, config=CHECKED)
class GeneratorConfig:
    """Settings of a vLLM engine that belong to nothing else."""

    max_model_len: Annotated[int, Field(ge=2)]
    """Most tokens of a prompt and its completion together."""
    max_sequences: PositiveInt = 128
    """Sequences generated side by side; more is faster in all and slower for each."""
    max_batched_tokens: PositiveInt | None = None
    """Most tokens that a step computes, those of prompts included; None leaves it to vLLM. What exceeds it waits."""
    tensor_parallel: PositiveInt = 1
    """Devices that share one engine, each with a part of every matrix; as few as hold the model, within one node."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and KV cache."""
    kv_cache_gib: PositiveFloat = 0.5
    """Memory for the KV cache in GiB, on a CPU and on a GPU alike. Where it cannot hold `max_sequences` of full
    length, vLLM drops sequences now and then and computes their cache again, with the weights that it then has."""
    block_size: PositiveInt = 64
    """Tokens in a block of KV cache; a multiple of 32 on a CPU, 16 on a GPU. Only whole blocks are shared."""
    prefix_caching: bool = True
    """Completions of one group share the KV cache of their prompt; forgotten at every weight update."""
    start_timeout: PositiveFloat = 600.0
    """Seconds an engine may take to start."""
    update_timeout: PositiveFloat = 300.0
    """Seconds a weight update may take, the engine step before it included."""


@dataclass(frozen=True, config=CHECKED)
class GeneratorSetup(GeneratorConfig):
    """Settings that an engine is built with: its own, and those that other parts of a run decide."""

    fp32_head: bool = True
    """Compute the logits in float32 whatever `dtype` is (ScaleRL §3.2); do the same in the trainer."""
    record_routing: bool = False
    """Record the experts of every token, for router replay in the trainer."""
    expert_bias: bool = False
    """Take biases of experts along with weights, which rules out compilation and CUDA graphs."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Device that the engine must run on; "auto" takes the one its vLLM was built for."""
    shares_device: bool = False
    """Leave room on the device for a trainer rank."""
