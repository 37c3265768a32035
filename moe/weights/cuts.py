"""Cuts of a parameter among ranks, and how its parts come together again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from moe.weights.links import Link

_BLOCK = 2**21
"""Bytes of rows that gloo receives at once where they have to be copied to their place."""


@dataclass(frozen=True)
class RankCut:
    """A cut of a parameter along one axis.

    Attributes:
        axis: of the parameter.
        stretches: stacked matrices along this axis (gate and up: 2), each of them cut for itself.
        group: the ranks that hold the slices, in order.
    """

    axis: int
    stretches: int
    group: dist.ProcessGroup

    def join(self, slices: list[Tensor]) -> Tensor:
        """Join the ranks' slices."""
        apart = [part.unflatten(self.axis, (self.stretches, -1)) for part in slices]
        return torch.cat(apart, dim=self.axis + 1).flatten(self.axis, self.axis + 1)

    def slices(self, whole: Tensor) -> tuple[Tensor, ...]:
        """Views of all ranks' slices, whose stretches are an axis of their own."""
        return whole.unflatten(self.axis, (self.stretches, -1)).chunk(self.group.size(), dim=self.axis + 1)

    def mine(self, whole: Tensor) -> Tensor:
        """Cut out this rank's slice."""
        return self.slices(whole)[self.group.rank()].flatten(self.axis, self.axis + 1)


def cuts_of(param: Tensor, link: Link) -> list[RankCut]:
    """The cuts of a parameter, that among the experts' ranks first."""
    cuts = []
    if link.experts:
        cuts.append(RankCut(0, 1, parallel_state.get_expert_model_parallel_group()))
    if getattr(param, "tensor_model_parallel", False):
        group = (
            parallel_state.get_expert_tensor_parallel_group()
            if link.experts
            else parallel_state.get_tensor_model_parallel_group()
        )
        cuts.append(RankCut(param.partition_dim, param.partition_stride, group))
    return [cut for cut in cuts if cut.group.size() > 1]


def within_experts(cuts: Iterable[RankCut]) -> list[RankCut]:
    """The cuts but that among the experts' ranks."""
    return [cut for cut in cuts if cut.group is not parallel_state.get_expert_model_parallel_group()]


def gather(part: Tensor, cuts: Iterable[RankCut]) -> Tensor:
    """Gather what this rank and others hold of a parameter, cut by cut; collective over the ranks of the cuts."""
    part = part.detach()
    for cut in cuts:
        part = _gathered(part.contiguous(), cut)
    return part


def cut_out(whole: Tensor, cuts: Iterable[RankCut]) -> Tensor:
    """This rank's slice of a parameter."""
    for cut in cuts:
        whole = cut.mine(whole)
    return whole


def _gathered(part: Tensor, cut: RankCut) -> Tensor:
    """Gather a contiguous part from the ranks that hold the others, with as few copies as the back-end allows."""
    ranks = cut.group.size()
    if dist.get_backend(cut.group) == "gloo":  # whose all-gather makes another copy of the whole
        shape = list(part.shape)
        shape[cut.axis] *= ranks
        whole = part.new_empty(shape)
        for rank, slice_ in enumerate(cut.slices(whole)):
            here, source = rank == cut.group.rank(), dist.get_global_rank(cut.group, rank)
            most = max(1, _BLOCK // slice_[0].nbytes)
            room = torch.empty_like(part.view(slice_.shape)[:most])
            for mine, place in zip(part.view(slice_.shape).split(most), slice_.split(most)):
                sent = mine if here else place if place.is_contiguous() else room[: len(mine)]
                dist.broadcast(sent, source, group=cut.group)
                if sent is not place:
                    place.copy_(sent)
        return whole
    parts = part.new_empty((ranks, *part.shape))
    dist.all_gather_into_tensor(parts, part, group=cut.group)
    if (cut.axis, cut.stretches) == (0, 1):  # one behind the other, for a layer's experts take GiB
        return parts.flatten(0, 1)
    return cut.join(list(parts))
