"""Collective operations in the middle of a model, each with its adjoint for the gradient.

Axes: _T tokens of this rank, _U tokens of all ranks of the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gather_rows(rows_T: Tensor, sizes: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """The rows of all ranks of a group, in the order of the ranks.

    Args:
        rows_T: this rank's rows.
        sizes: every rank's number of rows; they may differ, which gloo's own collective does not allow.
        group: the ranks.
    """
    return _GatherRows.apply(rows_T, tuple(sizes), group)


def sum_rows(rows_U: Tensor, sizes: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """Sum all rows over a group, and keep this rank's rows; adjoint of `gather_rows`."""
    return _SumRows.apply(rows_U, tuple(sizes), group)


def earlier_rows(rows_T: Tensor, count: int, group: dist.ProcessGroup) -> Tensor:
    """The last ``count`` rows before this rank's own, of ranks that hold as many rows each (0 makes none)."""
    return _EarlierRows.apply(rows_T, count, group)


def whole_row(values_T: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Gather the last axis of all ranks, for a computation that every rank repeats.

    Each rank's gradient is that of the whole computation, so going back needs no exchange.
    """
    return values_T if group.size() == 1 else _WholeRow.apply(values_T, group)


def _gather(rows_T: Tensor, sizes: tuple[int, ...], group: dist.ProcessGroup) -> Tensor:
    longest = max(sizes)
    padded = rows_T.new_zeros(longest, *rows_T.shape[1:])
    padded[: len(rows_T)] = rows_T
    everyone = rows_T.new_empty(longest * len(sizes), *rows_T.shape[1:])
    dist.all_gather_into_tensor(everyone, padded, group=group)
    return torch.cat([part[:size] for part, size in zip(everyone.split(longest), sizes)])


def _sum(rows_U: Tensor, sizes: tuple[int, ...], group: dist.ProcessGroup) -> Tensor:
    longest = max(sizes)
    padded = rows_U.new_zeros(longest * len(sizes), *rows_U.shape[1:])
    for place, part in zip(padded.split(longest), rows_U.split(sizes)):
        place[: len(part)] = part
    mine = rows_U.new_empty(longest, *rows_U.shape[1:])
    dist.reduce_scatter_tensor(mine, padded, group=group)
    return mine[: sizes[group.rank()]]


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_T: Tensor, sizes: tuple[int, ...], group: dist.ProcessGroup) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        return _gather(rows_T, sizes, group)

    @staticmethod
    def backward(ctx: Any, grad_U: Tensor) -> tuple[Tensor, None, None]:
        return _sum(grad_U, ctx.sizes, ctx.group), None, None


class _SumRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_U: Tensor, sizes: tuple[int, ...], group: dist.ProcessGroup) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        return _sum(rows_U, sizes, group)

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None, None]:
        return _gather(grad_T, ctx.sizes, ctx.group), None, None


class _EarlierRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_T: Tensor, count: int, group: dist.ProcessGroup) -> Tensor:
        ctx.count, ctx.group, ctx.rows = count, group, len(rows_T)
        here = group.rank() * len(rows_T)
        return _gather(rows_T, (len(rows_T),) * group.size(), group)[here - count : here].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        here, sizes = ctx.group.rank() * ctx.rows, (ctx.rows,) * ctx.group.size()
        grad_U = grad.new_zeros(sum(sizes), *grad.shape[1:])
        grad_U[here - ctx.count : here] = grad
        return _sum(grad_U, sizes, ctx.group), None, None


class _WholeRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values_T: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, ctx.size = group, values_T.shape[-1]
        parts = [torch.empty_like(values_T) for _ in range(group.size())]
        dist.all_gather(parts, values_T.contiguous(), group=group)
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.split(ctx.size, dim=-1)[ctx.group.rank()], None
