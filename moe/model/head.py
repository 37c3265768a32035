"""A model's forward pass, which ends in log-probabilities and entropies without ever holding [tokens, vocabulary].

The output product and the softmax are computed chunk by chunk and computed again in the backward pass, so
that memory is bounded by ``chunk × vocabulary / ranks`` whatever the number of tokens; where the vocabulary is
large, a chunk takes fewer tokens. With a vocabulary cut over tensor-parallel ranks, each rank holds its slice and
only sums of [chunk] values are exchanged.

Axes: _T tokens, _C tokens of one chunk, _V this rank's slice of the vocabulary, _B a block of it, _H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import tensor_parallel
from megatron.core.models.gpt import GPTModel
from torch import Tensor

from moe.exchange import whole_row
from moe.model.layers import Router
from moe.model.packing import Packed
from moe.settings import LOGITS_AT_ONCE

_BLOCK = 2**14
"""Words whose exponentials exist beside the logits."""


def forward(model: torch.nn.Module, batch: Packed, labels: bool = True) -> Tensor:
    """Run a micro-batch through a `LogProbModel`, or through Megatron's wrapper of one.

    Returns:
        With labels [2, T] fp32 for all tokens of the row, whoever holds them: log-probability and entropy, both of the
        token *after* each token (`Packed.align` moves them to that token); without, logits [1, T, vocabulary].
        Before the last pipeline stage, hidden states.
    """
    targets_1T = batch.targets_T.unsqueeze(0) if labels else None
    return model(
        batch.tokens_1T,
        batch.positions_T,
        None,
        labels=targets_1T,
        packed_seq_params=batch,
        padding_mask=batch.padding_1T,
    )


class LogProbModel(GPTModel):
    """A GPT model that ends in log-probabilities and entropies instead of logits.

    See `forward`. Entropies carry no gradient.
    """

    def __init__(self, *args: Any, fp32_head: bool, head_chunk: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fp32_head, self.head_chunk = fp32_head, head_chunk

    def _postprocess(self, hidden_states: Tensor, *, labels: Tensor | None, **kwargs: Any) -> Tensor:
        if not self.post_process or labels is None:
            return super()._postprocess(hidden_states, labels=labels, **kwargs)
        if self.config.sequence_parallel:
            hidden_states = tensor_parallel.gather_from_sequence_parallel_region(
                hidden_states, tensor_parallel_output_grad=False
            )
        here_2T = torch.stack(
            token_logprobs(
                hidden_states.squeeze(1),
                self.output_matrix,
                labels.squeeze(0),
                chunk=self.head_chunk,
                fp32=self.fp32_head,
                group=self.pg_collection.tp,
            )
        )
        return whole_row(here_2T, self.pg_collection.cp)

    def forward(self, *args: Any, padding_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Run Megatron's forward pass, which cuts the mask over sequence-parallel ranks on the first stage only."""
        if padding_mask is not None and self.config.sequence_parallel and not self.pre_process:
            ranks = self.pg_collection.tp
            padding_mask = padding_mask.chunk(ranks.size(), dim=1)[ranks.rank()]
        return super().forward(*args, padding_mask=padding_mask, **kwargs)

    @property
    def output_matrix(self) -> Tensor:
        """This rank's share of the matrix that gives the logits; the last stage has one."""
        tied = self.share_embeddings_and_output_weights
        return self.shared_embedding_or_output_weight() if tied else self.output_layer.weight

    @property
    def routers(self) -> list[Router]:
        """The routers of this stage, in the order of its layers."""
        return [module for module in self.modules() if isinstance(module, Router)]


@dataclass(frozen=True)
class Product:
    """A way to compute the output product; see `product`.

    Attributes:
        name: "fp32", "low precision", or "bf16 to fp32".
        why: the reason, for a reader.
    """

    name: str
    why: str


def product(device: str, dtype: torch.dtype, fp32: bool) -> Product:
    """Choose the output product for a device, with the reason.

    Args:
        device: "cpu" or "cuda".
        dtype: of hidden states and output matrix.
        fp32: whether logits are to be exact to fp32 (ScaleRL §3.2).
    """
    if not fp32:
        return Product("low precision", f"the FP32 head is off: the product is in {dtype}, the softmax in fp32")
    if dtype is torch.bfloat16 and device == "cuda":
        why = "bf16 values multiplied on tensor cores, summed and returned in fp32, which is exact for bf16 inputs"
        return Product("bf16 to fp32", why)
    if dtype is torch.float32:
        return Product("fp32", "the weights are fp32")
    return Product("fp32", f"{dtype} inputs are widened first: {device} has no product that returns a wider type")


def token_logprobs(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    targets_T: Tensor,
    *,
    chunk: int,
    fp32: bool = True,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of each distribution, both fp32 (ScaleRL §3.2, FP32 head).

    Args:
        hidden_TH: final hidden states; the gradient comes back in their type, summed over ``group``.
        weight_VH: this rank's rows of the output matrix; rank r of n holds rows [r·V, (r+1)·V).
        targets_T: token ids over the whole vocabulary, int64.
        chunk: tokens whose logits exist at the same time, at most; fewer where they would take over 256 MiB.
        fp32: compute the product in fp32; otherwise in the type of the inputs, only the softmax in fp32.
        group: the tensor-parallel group that shares the vocabulary; None when it is whole.

    Returns:
        (logprobs_T, entropy_T), nats; the entropy carries no gradient.
    """
    if group is not None and group.size() == 1:
        group = None
    tokens = min(chunk, max(1, LOGITS_AT_ONCE // len(weight_VH)))
    kind = product(hidden_TH.device.type, weight_VH.dtype, fp32).name
    return _TokenLogprobs.apply(hidden_TH, weight_VH, targets_T, tokens, _PRODUCTS[kind], group)


class _Fp32:
    """Products in fp32 of inputs in any type."""

    @staticmethod
    def inputs(tensor: Tensor) -> Tensor:
        """Convert an input once for all chunks of a pass."""
        return tensor.float()

    @staticmethod
    def logits(hidden_CH: Tensor, weight_VH: Tensor) -> Tensor:
        """[C, V] in fp32, fresh: it may be overwritten."""
        return hidden_CH @ weight_VH.t()

    @staticmethod
    def back(grad_CV: Tensor, other: Tensor, onto: Tensor | None = None) -> Tensor:
        """A gradient of logits (or its transpose) times the other factor, fp32; added in place to ``onto``."""
        return grad_CV @ other if onto is None else onto.addmm_(grad_CV, other)


class _LowPrecision:
    """Products in the type of the inputs."""

    @staticmethod
    def inputs(tensor: Tensor) -> Tensor:
        return tensor

    @staticmethod
    def logits(hidden_CH: Tensor, weight_VH: Tensor) -> Tensor:
        return (hidden_CH @ weight_VH.t()).float()

    @staticmethod
    def back(grad_CV: Tensor, other: Tensor, onto: Tensor | None = None) -> Tensor:
        result = grad_CV.to(other.dtype) @ other
        return result if onto is None else onto.add_(result)


class _Widening:
    """Products of bf16 values that sum and return fp32, on tensor cores.

    A gradient is an fp32 value, not a bf16 one: it goes as the sum of two, which keeps 16 of its 24 bits and costs a
    product more, still a fraction of what fp32 would.
    """

    @staticmethod
    def inputs(tensor: Tensor) -> Tensor:
        return tensor

    @staticmethod
    def logits(hidden_CH: Tensor, weight_VH: Tensor) -> Tensor:
        return torch.mm(hidden_CH, weight_VH.t(), out_dtype=torch.float32)

    @staticmethod
    def back(grad_CV: Tensor, other: Tensor, onto: Tensor | None = None) -> Tensor:
        result = onto
        for part in two_bf16(grad_CV):
            summand = torch.mm(part, other, out_dtype=torch.float32)
            result = summand if result is None else result.add_(summand)
            del summand  # as large as the gradient of the output matrix: before the next one is made
        return result


_PRODUCTS = {"fp32": _Fp32, "low precision": _LowPrecision, "bf16 to fp32": _Widening}


def two_bf16(values: Tensor) -> tuple[Tensor, Tensor]:
    """Two bf16 tensors whose sum is the fp32 one to 16 bits."""
    high = values.bfloat16()
    return high, (values - high).bfloat16()


def _sum(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    if group is not None:
        dist.all_reduce(values, group=group)
    return values


class _TokenLogprobs(torch.autograd.Function):
    """The chunked forward and its recomputing backward; see `token_logprobs`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        weight_VH: Tensor,
        targets_T: Tensor,
        chunk: int,
        how: type[_Fp32],
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, Tensor]:
        first = 0 if group is None else group.rank() * weight_VH.shape[0]
        weight = how.inputs(weight_VH)
        logprobs, entropies, log_sums = [], [], []
        for hidden_CH, targets_C in zip(how.inputs(hidden_TH).split(chunk), targets_T.split(chunk)):
            logits_CV = how.logits(hidden_CH, weight)
            picked_C = _sum(_pick(logits_CV, targets_C - first), group)
            log_sum_C, entropy_C = _log_sum_exp_and_entropy(logits_CV, group)
            del logits_CV  # before the next chunk's are made
            logprobs.append(picked_C - log_sum_C)
            entropies.append(entropy_C)
            log_sums.append(log_sum_C)
        entropy_T, log_sum_T = torch.cat(entropies), torch.cat(log_sums)
        ctx.save_for_backward(hidden_TH, weight_VH, targets_T, log_sum_T)
        ctx.chunk, ctx.how, ctx.group, ctx.first = chunk, how, group, first
        ctx.mark_non_differentiable(entropy_T)
        return torch.cat(logprobs), entropy_T

    @staticmethod
    def backward(ctx: Any, grad_logprobs_T: Tensor, _: Tensor) -> tuple:
        hidden_TH, weight_VH, targets_T, log_sum_T = ctx.saved_tensors
        weight, hidden = ctx.how.inputs(weight_VH), ctx.how.inputs(hidden_TH)
        grad_hidden_TH = torch.empty_like(hidden_TH)
        # fp32 whatever the weights' type: this is a sum over all tokens
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=torch.float32)
        for start in range(0, len(targets_T), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            grad_CV = _grad_logits(
                ctx.how.logits(hidden[part], weight),
                targets_T[part] - ctx.first,
                log_sum_T[part],
                grad_logprobs_T[part],
            )
            grad_hidden_TH[part] = _sum(ctx.how.back(grad_CV, weight), ctx.group)
            ctx.how.back(grad_CV.t(), hidden[part], onto=grad_weight_VH)
            del grad_CV  # before the next chunk's logits are made
        return grad_hidden_TH, grad_weight_VH.to(weight_VH.dtype), None, None, None, None


def _places(local_targets_C: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The targets that this rank holds among its `size` columns, and their places there; any place for the others."""
    held_C = (local_targets_C >= 0) & (local_targets_C < size)
    return held_C, local_targets_C.clamp(0, size - 1).unsqueeze(1)


def _pick(logits_CV: Tensor, local_targets_C: Tensor) -> Tensor:
    """Each token's target logit where this rank holds the target, else 0."""
    held_C, index_C1 = _places(local_targets_C, logits_CV.shape[1])
    return logits_CV.gather(1, index_C1).squeeze(1) * held_C


def _log_sum_exp_and_entropy(logits_CV: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """log Σ exp(logit) and the entropy over the whole vocabulary, each [C]; overwrites ``logits_CV``."""
    top_C = logits_CV.amax(1)
    if group is not None:
        dist.all_reduce(top_C, op=dist.ReduceOp.MAX, group=group)
    logits_CV.sub_(top_C.unsqueeze(1))
    sums_2C = logits_CV.new_zeros(2, len(logits_CV))
    for below_CB in logits_CV.split(_BLOCK, dim=1):
        exp_CB = below_CB.exp()
        sums_2C[0] += exp_CB.sum(1)
        sums_2C[1] += below_CB.mul_(exp_CB).sum(1)
    total_C, weighted_C = _sum(sums_2C, group)
    log_total_C = total_C.log()
    return log_total_C + top_C, log_total_C - weighted_C / total_C


def _grad_logits(logits_CV: Tensor, local_targets_C: Tensor, log_sum_C: Tensor, grad_logprobs_C: Tensor) -> Tensor:
    """Gradient [C, V] of the logits from that of the log-probabilities, in the place of ``logits_CV``.

    d logprob / d logit_v = 1[v = target] − p_v.
    """
    grad_CV = logits_CV.sub_(log_sum_C.unsqueeze(1)).exp_().mul_(-grad_logprobs_C.unsqueeze(1))
    held_C, index_C1 = _places(local_targets_C, logits_CV.shape[1])
    return grad_CV.scatter_add_(1, index_C1, (grad_logprobs_C * held_C).unsqueeze(1))
