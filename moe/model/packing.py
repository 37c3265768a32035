"""Micro-batches in Megatron's form: sequences are dealt out, and laid end to end in one row without padding between.

Linear layers, norms and experts work on the packed row as it is. Only attention needs to know where a
sequence (or a chunk of one, for chunked attention) begins: `Segments` holds the indices that move packed
tokens into padded [segments, length] blocks and back, computed once per micro-batch.

Under context parallelism every rank holds an equal stretch of the row (`Share`). A stretch may begin within a segment:
those first tokens also attend to tokens of earlier ranks, all others only to tokens of their own rank.

Axes: _T packed tokens of this rank, _S segments, _P places of a padded block (segments × length, flattened).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from moe.errors import MoeError
from moe.sequences import TrainingSequence

LossFunction = Callable[[Tensor, Tensor, dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]
"""(logprobs_T, entropy_T, extras) → (sum of the loss over the tokens, metrics); see `Trainer.train_step`."""

LOSS = "_loss_sum"
"""Name of the loss among a micro-batch's metrics."""

LOGPROBS = "_logprobs"
"""Name of the log-probabilities that a step keeps, among a micro-batch's metrics."""


@dataclass(frozen=True)
class Share:
    """The part of every packed row that a rank holds.

    Attributes:
        rank: among those that share the row.
        ranks: how many share it.
        multiple: what each stretch's length must be a multiple of (the sequence-parallel ranks).
    """

    rank: int = 0
    ranks: int = 1
    multiple: int = 1


WHOLE = Share()


@dataclass(frozen=True)
class Segments:
    """Stretches of the packed row within which tokens attend to one another, gathered in padded blocks.

    The first ``entering`` tokens are in no block: they continue a segment of the ranks before.

    Attributes:
        shapes: (segments, length) of each block; a block's segments have similar lengths.
        packed_to_padded_P: for every place of all blocks, flattened, the packed token it holds; places
            behind a segment's end repeat its last token, which causal attention never looks at.
        padded_to_packed_T: for every packed token, its place.
        borders: where each segment begins and the last one ends, among the tokens in blocks; int32 [segments + 1].
        entering: tokens at the start that continue a segment begun on an earlier rank.
        before: that segment's tokens on earlier ranks.
        exchanged: whether any rank has entering tokens, so that all take part in handing over keys and values.
    """

    shapes: tuple[tuple[int, int], ...]
    packed_to_padded_P: Tensor
    padded_to_packed_T: Tensor
    borders: Tensor
    entering: int = 0
    before: int = 0
    exchanged: bool = False

    def to(self, device: torch.device | str) -> Segments:
        """Copy to another device."""
        return replace(
            self,
            packed_to_padded_P=self.packed_to_padded_P.to(device),
            padded_to_packed_T=self.padded_to_packed_T.to(device),
            borders=self.borders.to(device),
        )

    @property
    def even(self) -> bool:
        """True if all segments have one length, and so lie in their block as they do in the row."""
        return len(self.shapes) == 1 and self.shapes[0][0] * self.shapes[0][1] == len(self.padded_to_packed_T)

    @property
    def longest(self) -> int:
        """Tokens of the longest segment."""
        return max((length for _, length in self.shapes), default=0)


def segments(lengths: Sequence[int], chunk: int | None = None, waste: float = 0.15, share: Share = WHOLE) -> Segments:
    """Cut sequences at multiples of ``chunk`` and put pieces of similar length into one padded block.

    Args:
        lengths: tokens of each sequence, in packed order; with a share, their sum can be shared evenly.
        chunk: attention chunk in tokens, counted from the start of each sequence; None leaves them whole.
        waste: largest share of padding in a block.
        share: the stretch of the row that is wanted; tokens are counted from its start.
    """
    spans: list[tuple[int, int]] = []  # (first token, end) within the row
    first = 0
    for length in lengths:
        spans += [(first + at, first + min(at + (chunk or length), length)) for at in range(0, length, chunk or length)]
        first += length
    size = first // share.ranks
    start, stop = share.rank * size, (share.rank + 1) * size
    cut = [(begin, end) for begin, end in spans if begin < start < end]
    entering, before = (min(cut[0][1], stop) - start, start - cut[0][0]) if cut else (0, 0)
    borders = {begin for begin, _ in spans}
    pieces = [(min(end, stop) - begin, begin - start - entering) for begin, end in spans if start <= begin < stop]
    return replace(
        _blocks(pieces, size - entering, waste),
        entering=entering,
        before=before,
        exchanged=any(rank * size not in borders for rank in range(share.ranks)),
    )


def _blocks(pieces: list[tuple[int, int]], tokens: int, waste: float) -> Segments:
    """Pieces, (length, first token), that hold every token once, in padded blocks."""
    borders = torch.tensor([*sorted(start for _, start in pieces), tokens], dtype=torch.int32)
    pieces = sorted(pieces, key=lambda piece: (-piece[0], piece[1]))
    shapes: list[tuple[int, int]] = []
    gather = [np.empty(0, np.int64)]
    places_T = np.empty(tokens, np.int64)
    place = at = 0
    while at < len(pieces):
        longest, count = pieces[at][0], 0
        while at + count < len(pieces) and pieces[at + count][0] >= (1 - waste) * longest:
            count += 1
        sizes_S, starts_S = np.array(pieces[at : at + count]).T
        offsets = np.minimum(np.arange(longest), sizes_S[:, None] - 1)
        block = starts_S[:, None] + offsets
        held = np.arange(longest) < sizes_S[:, None]
        places_T[block[held]] = place + np.flatnonzero(held)
        shapes.append((count, longest))
        gather.append(block.ravel())
        place, at = place + block.size, at + count
    return Segments(tuple(shapes), torch.from_numpy(np.concatenate(gather)), torch.from_numpy(places_T), borders)


@dataclass
class Packed(PackedSeqParams):
    """This rank's share of packed sequences, in the place where Megatron passes such things down to the attention.

    Attributes:
        tokens_1T: token ids, int64.
        targets_T: the token after each token; 0 after the last one of a sequence.
        positions_T: position of each token in its sequence.
        padding_1T: True on tokens that only fill the row up; None where there are none.
        first: True on the first token of each sequence, for all tokens of the row without the padding.
        routed_TLK: the experts prescribed for each token, int64 [T, layers, experts per token], −1 for none.
        lengths: tokens of each sequence, without the padding.
        layouts: the `Segments` for each attention chunk in use (None: whole sequences).
        turns: what `turn` has computed.
    """

    tokens_1T: Tensor = field(default_factory=lambda: torch.empty(0))
    targets_T: Tensor = field(default_factory=lambda: torch.empty(0))
    positions_T: Tensor = field(default_factory=lambda: torch.empty(0))
    padding_1T: Tensor | None = None
    first: Tensor = field(default_factory=lambda: torch.empty(0))
    routed_TLK: Tensor | None = None
    lengths: tuple[int, ...] = ()
    layouts: dict[int | None, Segments] = field(default_factory=dict)
    turns: dict[tuple[tuple[float, ...], bool, float], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def turn(self, inv_freq: tuple[float, ...], interleaved: bool, magnitude: float = 1.0) -> tuple[Tensor, Tensor]:
        """Rotary embedding of every token, as `moe.model.attention.rotate` takes it, computed once."""
        key = inv_freq, interleaved, magnitude
        if key not in self.turns:
            frequencies = torch.tensor(inv_freq, device=self.positions_T.device)
            angles_T1F = (self.positions_T.unsqueeze(1) * frequencies).unsqueeze(1)
            cos_T1D, sin_T1F = turn_of(angles_T1F, interleaved)
            self.turns[key] = (cos_T1D, sin_T1F) if magnitude == 1 else (cos_T1D * magnitude, sin_T1F * magnitude)
        return self.turns[key]

    def align(self, values: Tensor) -> Tensor:
        """Move values of each token's successor to the successor itself; 0 on the first of a sequence.

        Args:
            values: along the last axis one for each token of the whole row, padding included.
        """
        real = values[..., : len(self.first)]
        moved = torch.cat([torch.zeros_like(real[..., :1]), real[..., :-1]], dim=-1)
        return moved.masked_fill(self.first, 0)


def turn_of(angles_T1F: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """The cosine of every feature, [T, 1, D], and the sine of every pair, [T, 1, D/2], of angles of the pairs."""
    cos_T1F = angles_T1F.cos()
    both = cos_T1F.repeat_interleave(2, dim=-1) if interleaved else torch.cat([cos_T1F, cos_T1F], dim=-1)
    return both, angles_T1F.sin()


def pack(
    sequences: Sequence[TrainingSequence],
    chunks: set[int | None],
    device: torch.device | str = "cpu",
    share: Share = WHOLE,
    idle: bool = False,
) -> Packed:
    """Lay sequences end to end and take a rank's share; at most ``share.ranks · share.multiple − 1`` tokens fill up.

    Args:
        sequences: at least one.
        chunks: the attention chunk sizes that the model's layers use (None: whole sequences).
        device: where the model is.
        share: the stretch of the row that is wanted.
        idle: the tokens only keep this rank in step with others: all are padding.
    """
    lengths = [len(s) for s in sequences]
    total = sum(lengths)
    fill = -total % (share.ranks * share.multiple)
    filled = [*lengths, fill] if fill else lengths
    tokens_U = np.concatenate([s.tokens_T for s in sequences] + [np.zeros(fill, np.int64)]).astype(np.int64)
    positions_U = np.concatenate([np.arange(n) for n in filled])
    targets_U = np.where(np.roll(positions_U == 0, -1), 0, np.roll(tokens_U, -1))
    size = len(tokens_U) // share.ranks
    mine = slice(share.rank * size, (share.rank + 1) * size)
    padding_U = np.arange(len(tokens_U)) >= (0 if idle else total)

    routed_ULK = _routed(sequences, fill)

    def here(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(device)

    return Packed(
        qkv_format="sbhd",
        tokens_1T=here(tokens_U[mine]).unsqueeze(0),
        targets_T=here(targets_U[mine]),
        positions_T=here(positions_U[mine]),
        padding_1T=here(padding_U[mine]).unsqueeze(0) if fill or idle else None,
        first=here(positions_U[:total] == 0),
        routed_TLK=None if routed_ULK is None else here(routed_ULK[mine]),
        lengths=tuple(lengths),
        layouts={chunk: segments(filled, chunk, share=share).to(device) for chunk in chunks},
    )


def _routed(sequences: Sequence[TrainingSequence], fill: int) -> np.ndarray | None:
    """The experts prescribed for the row's tokens; the padding has none."""
    parts = [s.routed_TLK for s in sequences if s.routed_TLK is not None]
    if not parts:
        return None
    return np.concatenate([*parts, np.full((fill, *parts[0].shape[1:]), -1)]).astype(np.int64)


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
