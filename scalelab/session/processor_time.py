"""Processor time of a run on this machine, by the role of the processes that took it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

ROLES = {"ray::TrainerRank": "trainer", "ray::EngineActor": "generators", "ray::GraderActor": "verifiers"}
"""Role of a Ray actor, by the beginning of its process's title."""

DRIVER, REST = "driver", "ray"
"""Roles of this process, and of those below it that no actor has started: Ray's own."""


def seconds_by_role() -> dict[str, float]:
    """Processor time so far of this process and of all below it on this machine, by role, ended ones included.

    A process without a role of its own has that of the one that started it. What an ended process took counts as its
    parent's, which waited for it.
    """
    import psutil

    this = psutil.Process()
    spent: dict[int, float] = {this.pid: _spent(this)}
    parents, titles = {this.pid: 0}, {this.pid: ""}
    for process in this.children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it ended since it was listed
            parents[process.pid], titles[process.pid] = process.ppid(), " ".join(process.cmdline()[:1])
            spent[process.pid] = _spent(process)
    total: dict[str, float] = defaultdict(float)
    for pid, seconds in spent.items():
        total[DRIVER if pid == this.pid else role_of(pid, parents, titles)] += seconds
    return dict(total)


def role_of(pid: int, parents: Mapping[int, int], titles: Mapping[int, str]) -> str:
    """Role of a process: that of the nearest above it, itself included, that has one.

    Args:
        pid: of the process.
        parents: of each process, by its number.
        titles: of each process.
    """
    while pid in parents:
        for beginning, role in ROLES.items():
            if titles[pid].startswith(beginning):
                return role
        pid = parents[pid]
    return REST


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)
