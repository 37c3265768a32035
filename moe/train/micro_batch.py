"""A micro-batch of one rank, and what is reported of it to Megatron's schedule.

Axes: _T tokens, packed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moe.errors import MoeError
from moe.model.packing import Share, pack
from moe.sequences import TrainingSequence

LossFunction = Callable[[Tensor, Tensor, dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]
"""(logprobs_T, entropy_T, extras) → (sum of the loss over the tokens, metrics); see `Trainer.train_step`."""

LOSS = "_loss_sum"
"""Name of the loss among a micro-batch's metrics."""

LOGPROBS = "_logprobs"
"""Name of the log-probabilities that a step keeps, among a micro-batch's metrics."""


class MicroBatch:
    """Packed sequences, of which this rank has its share, and the extras of all their tokens.

    A rank without sequences keeps step with the others by one token, like those of another sequence, without weight.
    """

    def __init__(
        self,
        sequences: list[TrainingSequence],
        like: TrainingSequence,
        chunks: set[int | None],
        device: torch.device,
        share: Share,
    ) -> None:
        idle = not sequences
        if idle:
            extras = {name: np.zeros_like(v[:1]) for name, v in like.extras.items()}
            routed_TLK = None if like.routed_TLK is None else like.routed_TLK[:1]
            sequences = [TrainingSequence(like.tokens_T[:1], extras, routed_TLK)]
        self.packed = pack(sequences, chunks, device, share, idle)
        self.extras = {
            name: torch.from_numpy(np.concatenate([s.extras[name] for s in sequences])).to(device)
            for name in sequences[0].extras
        }


def loss_report(
    loss_fn: LossFunction, keep: bool, batch: MicroBatch, output_2T: Tensor
) -> tuple[Tensor, int, dict[str, Any]]:
    """Loss, token count and report of a micro-batch, as Megatron's schedule expects them."""
    logprobs_T, entropy_T = batch.packed.align(output_2T)
    loss, metrics = loss_fn(logprobs_T, entropy_T.detach(), batch.extras)
    if not loss.requires_grad:
        # without a backward pass this rank would leave the others waiting for its experts
        raise MoeError("the loss carries no gradient; make it a sum over logprobs_T")
    kept = {LOGPROBS: _of_sequences(batch, logprobs_T.detach())} if keep else {}
    return loss, 0, {**metrics, **kept, LOSS: loss}


def logprobs_of(batch: MicroBatch, output_2T: Tensor, non_loss_data: bool = True) -> list[np.ndarray]:
    """The log-probabilities of each sequence of a micro-batch."""
    return _of_sequences(batch, batch.packed.align(output_2T)[0])


def _of_sequences(batch: MicroBatch, logprobs_T: Tensor) -> list[np.ndarray]:
    return [part.cpu().numpy() for part in logprobs_T.split(batch.packed.lengths)]
