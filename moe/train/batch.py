"""Sequences to learn from, and how they are dealt out to ranks and micro-batches. NumPy only.

Axes: _T tokens of a sequence (or of a whole micro-batch, packed end to end).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from moe.errors import MoeError


@dataclass
class Sequence:
    """One token sequence (prompt and completion) and what the loss needs to know of each of its tokens.

    Value ``t`` of an extra belongs to token ``t`` as a *target*, that is to the log-probability of token
    ``t`` given the tokens before it. Token 0 is never predicted: its log-probability is 0, and any weight
    among the extras must be 0 there.

    Attributes:
        tokens_T: token ids, int32 [T], T ≥ 1.
        extras: named values per token, each [T], float32 or integer.
        routed_TLK: experts that each token is sent through (router replay), integers [T, layers, experts per token],
            −1 where the router chooses itself; None: everywhere. All sequences of a step have it, or none.
    """

    tokens_T: np.ndarray
    extras: dict[str, np.ndarray] = field(default_factory=dict)
    routed_TLK: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.tokens_T.ndim != 1 or len(self.tokens_T) == 0:
            raise MoeError(f"a sequence needs at least one token, got an array of shape {self.tokens_T.shape}")
        for name, values in self.extras.items():
            if values.shape != self.tokens_T.shape:
                raise MoeError(
                    f"extra {name!r} has shape {values.shape}, but its sequence has {len(self.tokens_T)} tokens"
                )

        if self.routed_TLK is not None and (self.routed_TLK.ndim != 3 or len(self.routed_TLK) != len(self)):
            raise MoeError(
                f"routed experts have shape {self.routed_TLK.shape}, but their sequence has {len(self)} tokens; give "
                "[tokens, layers, experts per token]"
            )

    def __len__(self) -> int:
        return len(self.tokens_T)


def deal(lengths: Items[int], ranks: int, tokens_per_micro_batch: int) -> list[list[list[int]]]:
    """Deal sequences out so that all ranks run the same number of about equally full micro-batches.

    The longest sequence goes first, each to the emptiest micro-batch; every rank computes the same plan
    from the same list. Micro-batches are only as many as the tokens need, so one may exceed the budget by
    less than the shortest sequence put last into it, or by a single sequence longer than the budget.

    Args:
        lengths: tokens of each sequence.
        ranks: data-parallel ranks.
        tokens_per_micro_batch: the budget.

    Returns:
        ``plan[rank][micro_batch]``: indices into ``lengths``; a micro-batch may be empty when there are
        fewer sequences than micro-batches.
    """
    per_rank = max(1, -(-sum(lengths) // (ranks * tokens_per_micro_batch)))
    bins: list[list[int]] = [[] for _ in range(per_rank * ranks)]
    heap = [(0, number) for number in range(len(bins))]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        tokens, number = heapq.heappop(heap)
        bins[number].append(index)
        heapq.heappush(heap, (tokens + lengths[index], number))
    return [[sorted(bins[micro * ranks + rank]) for micro in range(per_rank)] for rank in range(ranks)]
