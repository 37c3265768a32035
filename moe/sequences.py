"""Training sequences, and their distribution over ranks and micro-batches. NumPy only.

Axes: _T tokens of a sequence (or of a whole micro-batch, packed end to end).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from moe.errors import MoeError

REFERENCE = "reference"
"""Name of a token's log-probability under the first weights, among the extras that a loss is given."""


@dataclass
class TrainingSequence:
    """One token sequence (prompt and completion) with the values that the loss needs for each token.

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


def deal(lengths: Sequence[int], ranks: int, tokens_per_micro_batch: int) -> list[list[list[int]]]:
    """Deal sequences out so that all ranks run the same number of about equally full micro-batches within a budget.

    The longest sequence goes first, each to the emptiest micro-batch (LPT, Graham 1969); every rank computes the same
    plan from the same list. There are as many micro-batches as the tokens need, or more where sequences would not fit
    into these: none holds more than the budget, except for a sequence that is longer, which is alone.

    Args:
        lengths: tokens of each sequence.
        ranks: data-parallel ranks.
        tokens_per_micro_batch: the budget.

    Returns:
        ``plan[rank][micro_batch]``: indices into ``lengths``; a micro-batch may be empty when there are
        fewer sequences than micro-batches.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    needed = sum(min(length, tokens_per_micro_batch) for length in lengths)
    per_rank = max(1, -(-needed // (ranks * tokens_per_micro_batch)))
    while (bins := _spread(lengths, order, per_rank * ranks, tokens_per_micro_batch)) is None:
        per_rank += 1
    return [[sorted(bins[micro * ranks + rank]) for micro in range(per_rank)] for rank in range(ranks)]


def _spread(lengths: Sequence[int], order: Sequence[int], count: int, budget: int) -> list[list[int]] | None:
    """Put each sequence into the emptiest of ``count`` bins; None if several come to hold more than the budget."""
    bins: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for index in order:
        tokens, number = heapq.heappop(heap)
        if (tokens := tokens + lengths[index]) > budget and bins[number]:
            return None
        bins[number].append(index)
        heapq.heappush(heap, (tokens, number))
    return bins
