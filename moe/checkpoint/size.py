"""Size of a checkpoint, and the time that writing it may take."""

from __future__ import annotations

from typing import Any

from moe.model.size import BYTES, parameters
from moe.settings import TrainerConfig

OPTIMIZER_BYTES = 12
"""Bytes of a parameter's fp32 weight and two moments of Adam."""

SLOWEST_DISK = 2e8
"""Bytes a second that all ranks together write at least, where a disk is well."""


def checkpoint_bytes(hf_config: dict[str, Any], dtype: str) -> int:
    """Bytes of a checkpoint: the weights in the trainer's precision, and the optimiser's state."""
    return parameters(hf_config).total * (BYTES[dtype] + OPTIMIZER_BYTES)


def save_seconds(hf_config: dict[str, Any], config: TrainerConfig) -> float:
    """Seconds that writing a checkpoint may take: ``save_deadline``, and those of its bytes on a slow disk."""
    return config.save_deadline + checkpoint_bytes(hf_config, config.dtype) / SLOWEST_DISK
