"""Norm, activation and row weights with as little fresh memory as torch's operators allow.

On a CPU most of the time of such an operator goes into the pages of a new result, not into its arithmetic. On a GPU
they give the same values; Transformer Engine's norms replace this one there.

Axes: _T tokens, _F gate and up features side by side (2·I), _I inner size, _D features of a row.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import Parameter


@cache
def _kernels() -> ModuleType:
    """The kernels for one core; numba is imported where they are wanted."""
    from moe.cpu import kernels

    return kernels


def kernels_fit(*tensors: Tensor) -> bool:
    """True if the kernels take these: real tensors of one type on a CPU, where torch works on one core, too."""
    dtype = tensors[0].dtype
    return (
        torch.get_num_threads() == 1
        and dtype in (torch.float32, torch.bfloat16)
        and all(type(one) in (Tensor, Parameter) and one.is_cpu and one.dtype is dtype for one in tensors)
    )


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


class _RmsNorm(torch.autograd.Function):
    """x · w / rms(x) over the last axis in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        ctx.fused = kernels_fit(x) if weight is None else kernels_fit(x, weight)
        if ctx.fused:
            kernels, rows, ctx.weighted = _kernels(), x.reshape(-1, x.shape[-1]), weight is not None
            weight = torch.ones(x.shape[-1], dtype=x.dtype) if weight is None else weight
            out, scale = torch.empty_like(rows), torch.empty(len(rows))
            kernels.rms_forward(*kernels.arrays(rows, weight), eps, *kernels.arrays(out, scale))
            ctx.save_for_backward(rows, weight, scale)
            return out.view(x.shape)
        wide = x.float()
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        normed = (wide * scale).to(x.dtype)
        return normed if weight is None else normed.mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        if ctx.fused:
            kernels, to_x, to_weight = _kernels(), torch.empty_like(x), torch.zeros(x.shape[-1])
            given = kernels.arrays(grad.reshape(x.shape), x, weight, scale)
            kernels.rms_backward(*given, *kernels.arrays(to_x, to_weight))
            return to_x.view(grad.shape), to_weight.to(weight.dtype) if ctx.weighted else None, None
        normed = x * scale
        product = grad * normed  # fp32, as normed is
        grad_weight = None
        if weight is None:
            inner = product.sum(-1)
        else:
            wide_weight = weight.to(product.dtype)
            grad_weight = product.flatten(0, -2).sum(0).to(weight.dtype)
            inner = product @ wide_weight
            grad = torch.mul(grad, wide_weight, out=product)
        inner = inner.div_(-x.shape[-1]).unsqueeze(-1)
        return normed.mul_(inner).add_(grad).mul_(scale).to(x.dtype), grad_weight, None


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Normalise the last axis by its root mean square: w · x / √(mean(x²) + ε), computed in fp32."""
    return _RmsNorm.apply(x, weight, eps)


class _SwiGlu(torch.autograd.Function):
    """silu(gate) · up of both side by side; gradients overwrite the inputs, which nothing reads again.

    silu is computed twice, which costs less than memory for it.
    """

    @staticmethod
    def forward(ctx: Any, gate_up_TF: Tensor) -> Tensor:
        gate_TI, up_TI = gate_up_TF.chunk(2, dim=-1)
        ctx.save_for_backward(gate_up_TF)
        ctx.fused = gate_up_TF.is_contiguous() and kernels_fit(gate_up_TF)
        if ctx.fused:
            kernels, out_TI = _kernels(), torch.empty_like(gate_TI, memory_format=torch.contiguous_format)
            kernels.swiglu_forward(*kernels.arrays(_rows(gate_up_TF), _rows(out_TI)))
            return out_TI
        return F.silu(gate_TI).mul_(up_TI)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TI: Tensor) -> Tensor:
        gate_up_TF = ctx.saved_tensors[0].detach()
        if ctx.fused:
            kernels = _kernels()
            kernels.swiglu_backward(*kernels.arrays(_rows(grad_TI), _rows(gate_up_TF)))
            torch.autograd.graph.increment_version(gate_up_TF)  # whoever still wants the inputs is refused
            return gate_up_TF
        gate_TI, up_TI = gate_up_TF.chunk(2, dim=-1)
        to_open_TI = grad_TI * up_TI
        torch.ops.aten.silu(gate_TI, out=up_TI).mul_(grad_TI)
        torch.ops.aten.silu_backward(to_open_TI, gate_TI, grad_input=gate_TI)
        return gate_up_TF


def swiglu(gate_up_TF: Tensor) -> Tensor:
    """Gated activation of a feed-forward, silu(gate) · up, [..., 2·I] to [..., I].

    Raises:
        ValueError: for a leaf that requires a gradient, such as a parameter: the backward pass writes over its input.
    """
    if gate_up_TF.requires_grad and gate_up_TF.is_leaf:
        raise ValueError("swiglu writes its gradients over its input; give it an intermediate result")
    return _SwiGlu.apply(gate_up_TF)


class _Weigh(torch.autograd.Function):
    """Rows times fp32 weights, in the rows' type without a copy of them in fp32."""

    @staticmethod
    def forward(ctx: Any, rows_TD: Tensor, weights_T: Tensor) -> Tensor:
        ctx.save_for_backward(rows_TD, weights_T)
        return torch.mul(rows_TD, weights_T.unsqueeze(1), out=torch.empty_like(rows_TD))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor, Tensor]:
        rows_TD, weights_T = ctx.saved_tensors
        grad_T = torch.empty_like(weights_T)
        for at in range(0, len(rows_TD), _ROWS):
            part = slice(at, at + _ROWS)
            grad_T[part] = (grad_TD[part].to(weights_T.dtype) * rows_TD[part]).sum(1)
        return torch.mul(grad_TD, weights_T.unsqueeze(1), out=torch.empty_like(rows_TD)), grad_T


_ROWS = 4096  # rows of which fp32 copies exist at the same time


def weigh(rows_TD: Tensor, weights_T: Tensor) -> Tensor:
    """Multiply each row by its fp32 weight, rounding once: [T, D] in the rows' type."""
    return _Weigh.apply(rows_TD, weights_T)
