"""Count FLOPs with torch's counter, extended by stacked experts and attention on packed tokens.

torch counts attention in full. Half of the pairs of causal attention are masked, and neither the kernels compute them
nor does `scalelab plan` count them, so they are left out here, too (FlashAttention-2, arXiv 2307.08691 §4.1).

Axes: _T packed tokens, _D head size; heads are written h.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.attention.varlen  # registers the operators named below
from torch.utils.flop_counter import FlopCounterMode

_ATEN, _VARLEN = torch.ops.aten, torch.ops.torch_attn
TensorShape = tuple[int, ...]


def counter() -> FlopCounterMode:
    """torch's FLOP counter with the operators below."""
    return FlopCounterMode(
        display=False,
        custom_mapping={
            _ATEN._grouped_mm: _grouped,
            _VARLEN._varlen_attn: _varlen,
            _VARLEN._varlen_attn_backward: _varlen_backward,
        },
    )


def _grouped(a: TensorShape, b: TensorShape, *args: Any, out_shape: TensorShape, **kwargs: Any) -> int:
    """2·T·K·N: rows [T, K] by stacked matrices [E, K, N], or the two gradients of that."""
    if len(b) == 3:
        return 2 * a[0] * a[1] * b[2]
    return 2 * a[0] * a[1] * b[1]


def _varlen(
    query: TensorShape,
    key: TensorShape,
    value: TensorShape,
    borders: TensorShape,
    borders_of_keys: TensorShape,
    longest: int,
    longest_keys: int,
    *args: Any,
    **kwargs: Any,
) -> int:
    """Q·Kᵀ and the sum over V, as if all sequences were as long as the longest: 4 · pairs · h · D."""
    return 2 * 2 * _pairs(query[0], longest, longest_keys) * query[1] * query[2]


def _varlen_backward(
    grad: TensorShape,
    query: TensorShape,
    key: TensorShape,
    value: TensorShape,
    out: TensorShape,
    sums: TensorShape,
    borders: TensorShape,
    borders_of_keys: TensorShape,
    longest: int,
    longest_keys: int,
    *args: Any,
    **kwargs: Any,
) -> int:
    """FLOPs of the backward pass: five products where the forward pass has two."""
    return 5 * 2 * _pairs(query[0], longest, longest_keys) * query[1] * query[2]


def _pairs(tokens: int, longest: int, longest_keys: int) -> int:
    """Pairs of query and key of ``tokens`` queries: of L queries the last sees all K keys, the first K − L of them."""
    return tokens * (2 * longest_keys - longest) // 2
