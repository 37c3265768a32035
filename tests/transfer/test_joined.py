"""Rows of a tensor that come apart are recorded by vLLM's transfer as those slices of each that a loader copies."""

from __future__ import annotations

import pytest
import torch
from vllm.distributed.weight_transfer.sharded_rdt_fake import BakeSink, FakeRDTTensor

from moe.weights.parcels import rows_name
from scalelab.transfer.joined import joined

pytestmark = pytest.mark.slow

NAME = "model.embed_tokens.weight"


@pytest.mark.parametrize(("first", "count"), [(0, 12), (0, 6), (6, 6), (4, 4), (3, 8), (11, 1)])
def test_a_loaders_rows_are_pulled_from_the_ranks_that_have_them(first: int, count: int) -> None:
    sink, layer = BakeSink(), torch.nn.Module()
    whole = torch.arange(24.0).view(12, 2)
    ranks = {rows_name(NAME, start): whole[start:end] for start, end in ((0, 4), (4, 7), (7, 12))}
    fakes = [
        (name, FakeRDTTensor(name, rows.shape, rows.dtype, torch.device("meta"), sink=sink))
        for name, rows in ranks.items()
    ]
    norm = ("model.norm.weight", torch.ones(2))
    [before, (name, tensor), after] = joined([norm, *fakes, norm])
    assert before[1] is after[1] is norm[1]
    assert (name, tensor.shape, tensor.dtype) == (NAME, whole.shape, whole.dtype)

    place = torch.empty(16, 2, device="meta")
    sink.current = layer, "weight"
    place[:count].data.copy_(tensor.narrow(0, first, count))  # as vLLM's loader of a vocabulary does
    loaded = torch.zeros(16, 2)
    for scatter in sink.copies_by_layer[layer]:
        assert scatter is not None
        name, chain = scatter.src
        pulled = ranks[name]
        for op, args, kwargs in chain:
            pulled = getattr(pulled, op)(*args, **dict(kwargs))
        loaded.as_strided(scatter.shape, scatter.stride, scatter.offset).copy_(pulled)
    assert torch.equal(loaded[:count], whole[first : first + count])
    assert not loaded[count:].any()


def test_what_cannot_be_taken_from_rows_is_refused() -> None:
    [(_, tensor)] = joined([(rows_name(NAME, 0), torch.ones(2, 3)), (rows_name(NAME, 2), torch.ones(2, 3))])
    with pytest.raises(NotImplementedError, match="that comes in pieces"):
        tensor + 1
    with pytest.raises(NotImplementedError, match="that comes in pieces"):
        tensor.narrow(1, 0, 1)
