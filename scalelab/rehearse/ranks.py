"""Stand-ins for absent ranks and devices: process groups of the right sizes, answers, a device that forks may use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from moe.cpu.host import replaced

Replacement = tuple[Any, str, Any]
"""An owner, the name of an attribute of its, and what takes its place."""


@contextlib.contextmanager
def all_replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Give attributes other values within a block."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in replacements:
            stack.enter_context(replaced(owner, **{name: value}))
        yield


def keep_device_in_forks() -> None:
    """Initialise the simulated CUDA device, and let forks use it.

    torch 2.13 refuses CUDA in a fork as soon as anything has asked for the number of GPUs, as imports do: a real
    driver's state does not survive a fork. A simulated one has no state.
    """
    torch.cuda.init()
    torch.cuda._is_in_bad_fork = lambda: False


def other_ranks(report: dict[str, float] | None = None) -> list[Replacement]:
    """Form groups of the right sizes without other ranks; their answers are copies of this rank's.

    Args:
        report: what the last pipeline stage tells the others of a step, of which they have nothing themselves.
    """
    start, group = dist.init_process_group, dist.new_group

    def single_process(*args: Any, rank: int, world_size: int, **kwargs: Any) -> None:
        start("fake", store=FakeStore(), rank=rank, world_size=world_size)

    def everyone_says(answers: list[Any], mine: Any, group: Any = None) -> None:
        answers[:] = [mine] * len(answers)

    def last_says(box: list[Any], *args: Any, **kwargs: Any) -> None:
        box[:] = [dict(report) if value is None and report is not None else value for value in box]

    return [
        (dist, "init_process_group", single_process),
        (dist, "new_group", lambda *args, **kwargs: group(*args, **{**kwargs, "backend": "fake"})),
        (dist, "all_gather_object", everyone_says),
        (dist, "broadcast_object_list", last_says),
    ]
