"""A trainer with context ranks is planned by the slowest of them, which has most pairs of attention."""

from __future__ import annotations

import numpy as np
import pytest

from moe.model.families import Llama, Llama4Text
from moe.model.packing import Share, segments
from scalelab.plan.speed import slowest_stretch

ROW = 16384


def by_hand(lengths: list[int], parts: int, chunk: int | None) -> np.ndarray:
    """Pairs of each rank from what the trainer itself lays out for attention: its segments, and those that enter."""
    pairs = []
    for rank in range(parts):
        mine = segments(lengths, chunk, share=Share(rank, parts))
        sizes = np.diff(mine.borders.numpy()).astype(float)
        entering = mine.before * mine.entering + mine.entering**2 / 2
        pairs.append((sizes**2 / 2).sum() + entering)
    return np.array(pairs)


@pytest.mark.parametrize("parts", [2, 4, 8])
@pytest.mark.parametrize(("median", "chunk"), [(2000, None), (6000, None), (6000, 2048)])
def test_the_slowest_stretch_is_that_of_the_trainer_s_own_rows(parts: int, median: int, chunk: int | None) -> None:
    rng = np.random.default_rng(7)
    drawn = np.clip(rng.lognormal(np.log(median), 0.6, 1500), 200, ROW).astype(int).tolist()
    most = mean = 0.0
    row: list[int] = []
    for length in drawn:
        if sum(row) + length > ROW:
            whole = [*row[:-1], row[-1] - sum(row) % parts]
            pairs = by_hand(whole, parts, chunk)
            most, mean, row = most + pairs.max(), mean + pairs.mean(), []
        row.append(length)
    model = Llama() if chunk is None else Llama4Text(attention_chunk_size=chunk, no_rope_layer_interval=10**6)
    square = float(np.square(drawn, dtype=float).mean())
    assert slowest_stretch(model.to_hf(), ROW, float(np.mean(drawn)), square, parts) == pytest.approx(
        most / mean, rel=0.06
    )


def test_without_context_ranks_nobody_waits() -> None:
    assert slowest_stretch(Llama().to_hf(), ROW, 5000.0, 4e7, 1) == 1.0
