"""Result of a training step; apart from the trainer, so that a driver reads it without loading Megatron."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class StepResult:
    """Result of one training step, the same on every rank.

    Attributes:
        loss: summed over all tokens of all ranks.
        grad_norm: of the summed gradient, before clipping; not finite if the step was skipped.
        metrics: the loss function's, reduced, and ``moe_imbalance`` / ``moe_imbalance_max``: tokens of the
            busiest expert over the mean, averaged over the layers and in the worst layer.
        tokens: of all sequences.
        seconds: on this rank's clock.
        skipped: a gradient was not finite, so the weights are unchanged.
        logprobs: what `Trainer.logprobs` would have given before the step; None if not asked for.
        peak_gib: most memory that any rank has held so far, in GiB: of its GPU, or of its process on a CPU.
    """

    loss: float
    grad_norm: float
    metrics: dict[str, float]
    tokens: int
    seconds: float
    skipped: bool
    peak_gib: float
    logprobs: list[np.ndarray] | None = None
