"""Count FLOPs with torch's counter, extended by stacked experts and attention on packed tokens.

torch counts attention in full. Half of the pairs of causal attention are masked, and neither the kernels compute them
nor does `scalelab plan` count them, so they are left out here, too (FlashAttention-2, arXiv 2307.08691 §4.1).

Axes: _T packed tokens, _D head size; heads are written h.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.attention.varlen  # registers the operators named below
from torch.utils.flop_counter import FlopCounterMode

_ATEN, _VARLEN = torch.ops.aten, torch.ops.torch_attn
TensorShape = tuple[int, ...]


def counter(row: Sequence[int] = ()) -> FlopCounterMode:
    """torch's FLOP counter with the operators below.

    Args:
        row: lengths of the packed sequences, which fake tensors do not tell; where they do not add up to the tokens
            of an attention, all of its sequences are taken to be as long as its longest.
    """
    return FlopCounterMode(
        display=False,
        custom_mapping={
            _ATEN._grouped_mm: _grouped,
            _VARLEN._varlen_attn: partial(_varlen, row),
            _VARLEN._varlen_attn_backward: partial(_varlen_backward, row),
        },
    )


class Flops:
    """Sum of the FLOPs of operators, by the formulas of `counter`.

    Args:
        row: as there.

    Attributes:
        total: of all that were counted.
    """

    def __init__(self, row: Sequence[int] = ()) -> None:
        self._formulas = counter(row).flop_registry
        self.total = 0

    def count(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Add an operator's FLOPs; those without a formula have none.

        Args:
            func: the operator.
            args: its arguments.
            kwargs: its arguments by name.
            made: its result.
        """
        formula = self._formulas.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=made)


def _grouped(a: TensorShape, b: TensorShape, *args: Any, out_shape: TensorShape, **kwargs: Any) -> int:
    """2·T·K·N: rows [T, K] by stacked matrices [E, K, N], or the two gradients of that."""
    if len(b) == 3:
        return 2 * a[0] * a[1] * b[2]
    return 2 * a[0] * a[1] * b[1]


def _varlen(
    row: Sequence[int],
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
    """Q·Kᵀ and the sum over V: 4 · pairs · h · D."""
    return 2 * 2 * _pairs(row, query[0], longest, longest_keys) * query[1] * query[2]


def _varlen_backward(
    row: Sequence[int],
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
    return 5 * 2 * _pairs(row, query[0], longest, longest_keys) * query[1] * query[2]


def _pairs(row: Sequence[int], tokens: int, longest: int, longest_keys: int) -> int:
    """Pairs of query and key of ``tokens`` queries: of L queries the last sees all K keys, the first K − L of them.

    Sequences longer than L are cut into chunks of it.
    """
    if longest == longest_keys and sum(row) == tokens:
        return sum(length // longest * longest**2 + (length % longest) ** 2 for length in row) // 2
    return tokens * (2 * longest_keys - longest) // 2
