"""Sequences are dealt out completely and evenly, and packed so that attention sees what it should."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from moe.errors import MoeError
from moe.model.packing import Share, deal, pack, segments
from moe.sequences import TrainingSequence

pytestmark = pytest.mark.slow

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=30)
about_a_budget_of_10 = st.lists(st.one_of(st.integers(5, 7), st.integers(11, 30)), min_size=2, max_size=8)


@given(lengths, st.integers(1, 4), st.integers(1, 100))
def test_every_sequence_is_dealt_once_and_ranks_keep_step(lengths: list[int], ranks: int, budget: int) -> None:
    plan = deal(lengths, ranks, budget)
    assert len(plan) == ranks
    assert len({len(micro_batches) for micro_batches in plan}) == 1
    assert sorted(i for rank in plan for micro in rank for i in micro) == list(range(len(lengths)))
    assert deal(lengths, ranks, budget) == plan


@given(lengths, st.integers(1, 4), st.integers(1, 200))
@example([15, 6, 6, 6, 6, 6], 1, 10)
def test_micro_batches_keep_their_budget_and_differ_by_less_than_the_longest_sequence(
    lengths: list[int], ranks: int, budget: int
) -> None:
    plan = [micro for rank in deal(lengths, ranks, budget) for micro in rank]
    loads = [sum(lengths[i] for i in micro) for micro in plan]
    assert max(loads) - min(loads) <= max(lengths)
    assert all(load <= budget or len(micro) == 1 for load, micro in zip(loads, plan))


@given(about_a_budget_of_10, st.integers(1, 2))
def test_a_sequence_beyond_the_budget_lifts_it_for_no_other(lengths: list[int], ranks: int) -> None:
    plan = [micro for rank in deal(lengths, ranks, 10) for micro in rank]
    assert all(len(micro) <= 1 or sum(lengths[i] for i in micro) <= 10 for micro in plan)


@pytest.mark.parametrize("shortest", [256, 8192, 10240, 12288])
def test_a_step_of_long_completions_keeps_its_budget(shortest: int) -> None:
    """Packing as few micro-batches as the tokens need would overfill them by a half, and a GPU's memory with them."""
    lengths = np.random.default_rng(0).integers(shortest, 14336, 768).tolist()
    plan = deal(lengths, 8, 16384)
    loads = [sum(lengths[i] for i in micro) for rank in plan for micro in rank]
    assert max(loads) <= 16384
    assert len(plan[0]) <= 1.6 * sum(lengths) / (8 * 16384) + 1


@given(lengths, st.sampled_from([None, 1, 4, 16]))
def test_segments_hold_each_token_once_in_its_chunk(lengths: list[int], chunk: int | None) -> None:
    layout = segments(lengths, chunk)
    total = sum(lengths)
    gather, places = layout.packed_to_padded_P, layout.padded_to_packed_T
    assert torch.equal(gather[places], torch.arange(total))  # there and back
    assert len(gather) == sum(count * length for count, length in layout.shapes)
    owner = np.concatenate([[(n, t // (chunk or length)) for t in range(length)] for n, length in enumerate(lengths)])
    row_of_place = np.concatenate(
        [1000 * b + np.repeat(np.arange(count), length) for b, (count, length) in enumerate(layout.shapes)]
    )
    rows = row_of_place[places.numpy()]
    together = {tuple(o) for o in owner}
    assert len({(tuple(o), r) for o, r in zip(owner, rows)}) == len(together) == len(set(rows))


@given(lengths)
def test_packed_targets_are_the_next_tokens_and_align_undoes_the_shift(lengths: list[int]) -> None:
    sequences = [TrainingSequence(np.arange(n, dtype=np.int32) + 10 * i) for i, n in enumerate(lengths)]
    packed = pack(sequences, {None})
    moved = packed.align(packed.targets_T.float())
    expected = np.concatenate([np.concatenate([[0], s.tokens_T[1:]]) for s in sequences])
    assert np.array_equal(moved.numpy(), expected)
    assert packed.targets_T[np.cumsum(lengths) - 1].eq(0).all()


@given(lengths, st.sampled_from([None, 1, 4, 16]), st.integers(1, 4), st.integers(1, 3))
def test_ranks_that_share_a_row_see_together_what_one_sees(
    lengths: list[int], chunk: int | None, ranks: int, multiple: int
) -> None:
    """By the definition: a token sees those before it in its own chunk of its own sequence."""
    sequences = [TrainingSequence(np.arange(1, n + 1, dtype=np.int32)) for n in lengths]
    shares = [pack(sequences, {chunk}, share=Share(rank, ranks, multiple)) for rank in range(ranks)]
    total = sum(lengths)
    size = shares[0].tokens_1T.shape[1]
    assert size % multiple == 0
    assert 0 <= size * ranks - total < ranks * multiple
    tokens = torch.cat([share.tokens_1T[0] for share in shares])
    assert tokens[:total].tolist() == [token for s in sequences for token in s.tokens_T]
    wanted = [t % chunk if chunk else t for n in lengths for t in range(n)]
    for rank, share in enumerate(shares):
        layout = share.layouts[chunk]
        seen = list(range(layout.before, layout.before + layout.entering))
        places: dict[int, int] = {}
        place = 0
        for count, length in layout.shapes:
            places.update((place + i, i % length) for i in range(count * length))
            place += count * length
        seen += [places[p] for p in layout.padded_to_packed_T.tolist()]
        mine = slice(rank * size, min((rank + 1) * size, total))
        assert seen[: max(0, mine.stop - mine.start)] == wanted[mine]
        assert layout.exchanged == any(other.layouts[chunk].entering for other in shares)
        padding = torch.zeros(size, dtype=torch.bool) if share.padding_1T is None else share.padding_1T[0]
        assert padding.tolist() == [rank * size + t >= total for t in range(size)]


def test_a_token_that_keeps_a_rank_in_step_counts_as_padding() -> None:
    packed = pack([TrainingSequence(np.ones(1, np.int32))], {None}, share=Share(0, 1, 2), idle=True)
    assert packed.padding_1T is not None
    assert packed.padding_1T.tolist() == [[True, True]]


def test_a_sequence_and_its_extras_must_fit() -> None:
    with pytest.raises(MoeError, match="at least one token"):
        TrainingSequence(np.zeros(0, np.int32))
    with pytest.raises(MoeError, match="'weight' has shape"):
        TrainingSequence(np.zeros(3, np.int32), {"weight": np.zeros(2, np.float32)})


def test_config_batch_and_results_load_without_torch() -> None:
    modules = "moe.model.architectures, moe.sequences, moe.settings, moe.errors, moe.model.families, moe.train.result"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
