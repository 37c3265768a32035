"""One process group for all that a single rank would have alone.

On gloo (torch 2.13) every process group has a thread that wakes a hundred times a second, and two more that sleep.
megatron-core 0.16.1 forms about twenty groups and vLLM 0.32 about twelve; in a small layout most of them have one rank.
Measured in a process that trains and generates: 33 such threads took 5.4 % of its processor time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from moe.cpu.host import replaced


@contextlib.contextmanager
def shared_when_alone() -> Iterator[None]:
    """Share one group among all that are formed of the same single rank, while this is entered; with CUDA do nothing.

    A rank alone exchanges nothing, so sharing changes no result. Groups of several ranks stay apart, because operations
    of one must not wait for those of another. A shared group that is destroyed several times is destroyed once.
    """
    if torch.cuda.is_available():
        yield
        return
    form, destroy = dist.new_group, dist.destroy_process_group
    formed: dict[int, Any] = {}
    gone: list[object] = []

    def new_group(ranks: Sequence[int] | None = None, *args: Any, **kwargs: Any) -> Any:
        members = range(dist.get_world_size()) if ranks is None else ranks
        if len(members) > 1:
            return form(ranks, *args, **kwargs)
        if members[0] not in formed:
            formed[members[0]] = form(ranks, *args, **kwargs)
        return formed[members[0]]

    def destroy_process_group(group: Any = None) -> None:
        if group is None or not any(group is other for other in gone):
            destroy(group)
            gone.append(group)

    with replaced(dist, new_group=new_group, destroy_process_group=destroy_process_group):
        yield
