"""Choices about generation, checked without importing torch or vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GeneratorConfig:
    """One vLLM engine."""

    max_model_len: int
    """Most tokens of a prompt and its completion together."""
    max_sequences: int = 128
    """Sequences generated side by side; more is faster in all and slower for each."""
    tensor_parallel: int = 1
    """Devices that share one engine, each with a part of every matrix; as few as hold the model. Weight updates then go
    through `/dev/shm`, which needs room for the model."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and KV cache."""
    fp32_head: bool = True
    """Compute the logits in float32 whatever `dtype` is (ScaleRL §3.2); do the same in the trainer."""
    kv_cache_gib: float = 0.5
    """Memory for the KV cache in GiB, on a CPU and on a GPU alike. Where it cannot hold `max_sequences` of full
    length, vLLM drops sequences now and then and computes their cache again, with the weights of the day."""
    block_size: int = 64
    """Tokens in a block of KV cache; a multiple of 32 on a CPU. Only whole blocks of a prompt are shared."""
    prefix_caching: bool = True
    """Completions of one group share the KV cache of their prompt; forgotten at every weight update."""
    record_routing: bool = False
    """Record the experts of every token, for router replay in the trainer; bound through Recipe.router_replay."""
    expert_bias: bool = False
    """Take biases of experts along with weights, which rules out compilation and CUDA graphs; bound through
    TrainerConfig.expert_bias."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What the engine must run on; "auto" takes what its vLLM was built for. Bound through Cluster.device."""
    start_timeout: float = 600.0
    """Seconds an engine may take to start."""
    update_timeout: float = 300.0
    """Seconds a weight update may take, the engine step before it included."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) in (int, float) and value <= 0:
                raise ValueError(f"{name} must be positive, got {value}: raise it")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype must be 'float32' or 'bfloat16', got {self.dtype!r}: choose one of them")
        if self.device not in ("auto", "cpu", "gpu"):
            raise ValueError(f"device must be 'auto', 'cpu' or 'gpu', got {self.device!r}: choose one of them")
        if self.max_model_len < 2:
            raise ValueError(f"max_model_len must hold a prompt and a token, got {self.max_model_len}: raise it")
