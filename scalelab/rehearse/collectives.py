"""Check and count every collective operation of a rank; nothing is sent."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeWork
from torch.utils._pytree import tree_leaves

from scalelab.errors import LabError

_PLAIN = {
    "_allgather_base_": "all-gather",
    "allgather_": "all-gather",
    "allgather_coalesced_": "all-gather",
    "allgather_into_tensor_coalesced_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_": "reduce-scatter",
    "reduce_scatter_tensor_coalesced_": "reduce-scatter",
    "allreduce_": "all-reduce",
    "allreduce_coalesced_": "all-reduce",
    "alltoall_": "all-to-all",
    "alltoall_base_": "all-to-all",
    "broadcast_": "broadcast",
    "send": "send",
    "recv_": "receive",
    "recv_any_source_": "receive",
    "barrier": "barrier",
}
"""torch's names of what goes through a process group, in the field's words; any other keeps torch's."""


@dataclass(frozen=True)
class Exchange:
    """One kind of collective operation in an optimiser step of one rank.

    Attributes:
        group: the ranks that take part, such as "tensor × 4".
        op: what they do.
        calls: how often in a step.
        bytes: in a step, of the larger side: what an all-gather gives, what a reduce-scatter takes, what goes out of
            an all-to-all or comes in, whichever is more.
    """

    group: str
    op: str
    calls: int
    bytes: int


class Collectives:
    """A process group that checks sizes, counts calls and bytes, and returns at once.

    Attributes:
        per_micro_batch: whether what comes now happens in every micro-batch, rather than once in a step.
        groups: readers' names of the groups, by torch's.
    """

    def __init__(self) -> None:
        self.per_micro_batch = False
        self.groups: dict[str, str] = {}
        self._calls: Counter[tuple[str, str, bool]] = Counter()
        self._bytes: Counter[tuple[str, str, bool]] = Counter()

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Check and count an operator of a process group, in whose place nothing is done.

        Raises:
            LabError: NCCL would refuse its sizes.
        """
        if func._opname == "check_for_nan":
            return func(*args, **kwargs)
        given = {argument.name: value for argument, value in zip(func._schema.arguments, args)}
        group = dist.ProcessGroup.unbox(given["process_group"])
        _check(func._opname, given, group.size())
        op = _PLAIN.get(func._opname, func._opname.strip("_"))
        if group.size() > 1:
            key = f"{self.groups.get(group.group_name, 'other')} × {group.size()}", op, self.per_micro_batch
            self._calls[key] += 1
            self._bytes[key] += _size(op, given)
        returned = len(func._schema.returns)
        if returned == 0:
            return None
        work = FakeWork().boxed()
        return work if returned == 1 else (args[0], work)

    def of_a_step(self, rehearsed: int, micro_batches: int) -> list[Exchange]:
        """The exchanges of one optimiser step, those with most bytes first.

        Args:
            rehearsed: micro-batches that were run.
            micro_batches: micro-batches that a step of the run has.
        """
        calls: Counter[tuple[str, str]] = Counter()
        total: Counter[tuple[str, str]] = Counter()
        for (group, op, each), count in self._calls.items():
            scale = micro_batches / rehearsed if each else 1
            calls[group, op] += round(count * scale)
            total[group, op] += round(self._bytes[group, op, each] * scale)
        found = [Exchange(group, op, calls[group, op], total[group, op]) for group, op in calls]
        return sorted(found, key=lambda exchange: -exchange.bytes)

    def forget(self) -> None:
        """Start counting anew."""
        self._calls.clear()
        self._bytes.clear()


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _size(op: str, given: dict[str, Any]) -> int:
    """Bytes of the larger side; a barrier's tensor counts as 0."""
    if op == "barrier":
        return 0
    sides = [_tensors(value) for value in given.values()]
    return max(sum(tensor.nbytes for tensor in side) for side in sides)


def _check(op: str, given: dict[str, Any], ranks: int) -> None:
    """Refuse sizes with which NCCL would stop.

    Raises:
        LabError: naming the operation and its sizes.
    """
    if op in ("_allgather_base_", "_reduce_scatter_base_"):
        small, large = sorted(tensor.numel() for tensor in _tensors(list(given.values())))
        if large != small * ranks:
            raise LabError(f"{_PLAIN[op]} over {ranks} ranks of {small} elements into {large}")
    elif op == "alltoall_base_":
        for side, splits in (("output", "output_split_sizes"), ("input", "input_split_sizes")):
            rows, cut = given[side].shape[0] if given[side].dim() else 1, given[splits]
            if (sum(cut) != rows or len(cut) != ranks) if cut else rows % ranks:
                raise LabError(
                    f"all-to-all over {ranks} ranks cuts an {side} of {rows} rows into {cut or 'equal parts'}"
                )
    elif op == "allgather_":
        for out, part in zip(given["output_tensors"], given["input_tensors"]):
            if len(out) != ranks or any(tensor.numel() != part.numel() for tensor in out):
                raise LabError(f"all-gather over {ranks} ranks of {part.numel()} elements into {len(out)} parts")
