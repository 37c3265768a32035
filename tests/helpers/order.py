"""Deal test files to the workers of pytest-xdist: which begin, which one worker alone gets, which come last."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

MANY_PROCESSES = ("cluster", "launcher", "transfer", "moe/test_ranks.py", "run/test_loop.py")
"""Folders and files of tests whose processes wait for one another: several such tests at once starve each other's."""

LONG_AND_LATE = ("store", "view", "virtual")
"""Folders with long files, which the alphabet would begin too late."""


def of_many_processes(file: str) -> bool:
    """True for a file below `tests/` that one worker runs, after all others of this kind."""
    return file.removeprefix("tests/").startswith(MANY_PROCESSES)


def in_good_order(items: list[pytest.Item], root: Path) -> None:
    """Sort tests: those of many processes, files with slow tests, then others, with which all workers end together."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def rank(item: pytest.Item) -> tuple[bool, bool, bool]:
        late = item.path.parent.name in LONG_AND_LATE
        return not of_many_processes(item.path.relative_to(root).as_posix()), item.path not in slow, not late

    items.sort(key=rank)


class ManyProcessesInTurn(LoadFileScheduling):
    """Whole files to each worker, and all files of many processes to one."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "many processes" if of_many_processes(file) else file
