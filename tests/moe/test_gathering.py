"""A matrix that ranks cut between them is put together alike by both back-ends, whatever the cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from moe.weights import cuts
from moe.weights.cuts import RankCut, gather

RANKS = 3


class _Group:
    """The ranks, of which this is the second."""

    def size(self) -> int:
        """Count the ranks."""
        return RANKS

    def rank(self) -> int:
        """Number this rank."""
        return 1


@pytest.mark.parametrize(("backend", "most"), [("gloo", 2**20), ("gloo", 24), ("nccl", 0)])
@pytest.mark.parametrize(
    ("axis", "stretches", "shape"),
    [(0, 1, (4, 6)), (0, 2, (4, 6)), (1, 1, (4, 6)), (1, 2, (3, 4, 8)), (2, 1, (2, 4, 6)), (0, 1, (4, 3, 5))],
)
def test_a_matrix_is_put_together_whatever_its_cut(
    backend: str, most: int, axis: int, stretches: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    group: Any = _Group()
    cut = RankCut(axis, stretches, group)
    whole = torch.randn([size * (RANKS if here == axis else 1) for here, size in enumerate(shape)])
    slices = [part.flatten(axis, axis + 1).contiguous() for part in cut.slices(whole)]

    def all_gather(parts: Tensor, part: Tensor, group: Any) -> None:
        assert torch.equal(part, slices[group.rank()])
        parts.copy_(torch.stack(slices))

    rest = [slice_.flatten() for slice_ in slices]

    def broadcast(sent: Tensor, source: int, group: Any) -> None:
        assert sent.is_contiguous()
        block, rest[source] = rest[source].tensor_split([sent.numel()])
        assert source != group.rank() or torch.equal(sent.flatten(), block)
        sent.copy_(block.view(sent.shape))

    monkeypatch.setattr(cuts, "_BLOCK", most)
    monkeypatch.setattr(dist, "get_backend", lambda group: backend)
    monkeypatch.setattr(dist, "get_global_rank", lambda group, rank: rank)
    monkeypatch.setattr(dist, "all_gather_into_tensor", all_gather)
    monkeypatch.setattr(dist, "broadcast", broadcast)
    assert torch.equal(gather(slices[1].clone(), [cut]), whole)
    assert torch.equal(cut.mine(whole), slices[1])
