"""Process groups of one rank."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from moe.cpu.groups import shared_when_alone

pytestmark = pytest.mark.slow


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def check_one_rank(rank: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    before = threads()
    with shared_when_alone():
        first, *others = groups = [dist.new_group([0]), dist.new_group(), dist.new_group([0], backend="gloo")]
        assert all(group is first for group in others)
    shared = threads()
    assert dist.new_group([0]) is not first  # outside, torch's own function is back
    assert shared - before <= threads() - shared  # three groups have the threads of one
    value = torch.ones(3)
    dist.all_reduce(value, group=first)
    assert value.tolist() == [1, 1, 1]
    with shared_when_alone():
        for group in groups:
            dist.destroy_process_group(group)
    dist.destroy_process_group()


def check_two_ranks(rank: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    with shared_when_alone():
        own_groups = [[dist.new_group([one]) for one in range(2)] for _ in range(2)]
        pair, another = dist.new_group([0, 1]), dist.new_group()
    assert own_groups[0][rank] is own_groups[1][rank]
    assert own_groups[0][1 - rank] == dist.GroupMember.NON_GROUP_MEMBER
    assert pair is not another
    for group, expected in ((pair, 3), (another, 3), (own_groups[1][rank], rank + 1)):
        value = torch.tensor(rank + 1)
        dist.all_reduce(value, group=group)
        assert int(value) == expected
    dist.destroy_process_group()


@pytest.mark.parametrize(("check", "world"), [(check_one_rank, 1), (check_two_ranks, 2)])
def test_groups_of_one_rank_are_shared_and_groups_of_several_are_not(
    check: Callable[[int, str], None], world: int, tmp_path: Path
) -> None:
    mp.start_processes(check, (f"file://{tmp_path}/meet",), nprocs=world, start_method="spawn")
