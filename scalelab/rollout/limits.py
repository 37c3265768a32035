"""Limits of what engines and trainers compute; importable without either, so that a run is refused early."""

from __future__ import annotations

from typing import Any, Literal

from moe.model.architectures import head_dim

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of a head that vLLM's attention on a CPU computes (`CPUAttentionBackend.get_supported_head_sizes`)."""
GPU_LARGEST, GPU_STEP = 256, 8
"""Largest head of flash attention on a GPU, in engine and trainer, and the number that divides each."""
BLOCK_STEP = {"cpu": 32, "gpu": 16}
"""Number that divides the size of a block of KV cache (`get_supported_kernel_block_sizes` of the two backends)."""
GPU_COOLEST, GPU_HOTTEST = 0.01, 2.0
"""Temperatures between which vLLM draws on a GPU: it refuses a hotter one at the request, and takes the first for a
cooler one without a word (`SamplingParams`, vLLM 0.32.0)."""


def attention_problem(hf_config: dict[str, Any], device: Literal["cpu", "gpu"]) -> str | None:
    """Say why an engine on a device cannot run a model's attention; None if it can."""
    size = head_dim(hf_config)
    if device == "cpu" and size not in CPU_HEAD_SIZES:
        known = ", ".join(map(str, CPU_HEAD_SIZES))
        return f"head_dim is {size}, and vLLM on a CPU runs heads of {known}: take a model with one of them, or GPUs"
    if device == "gpu" and (size > GPU_LARGEST or size % GPU_STEP):
        return f"head_dim is {size}, and flash attention runs multiples of {GPU_STEP} up to {GPU_LARGEST}"
    return None


def temperature_problem(temperature: float, device: Literal["cpu", "gpu"]) -> str | None:
    """Say why an engine on a device does not draw at a temperature; None if it does."""
    if device == "gpu" and temperature and not GPU_COOLEST <= temperature <= GPU_HOTTEST:
        return f"vLLM on a GPU draws at temperatures from {GPU_COOLEST:g} to {GPU_HOTTEST:g}, and takes the best at 0"
    return None
