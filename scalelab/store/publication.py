"""Checkpoints on their way to their names: ranks write each under a name of one process alone, which gives it its own.

Ranks of the trainer know no lease, and may outlive the process that they work for. So they write into
`step_000004.EPOCH-NUMBER`, and the process renames that to `step_000004` once it is whole, after a look at its lease.
Whoever takes the run over moves away all such folders first: what a process that lost the run renames later is gone.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from moe.checkpoint.folder import MANIFEST, WRITING, CheckpointPolicy, prune, read_state, set_aside, step_folder
from moe.durable import rename
from moe.errors import MoeError
from scalelab.errors import LabError
from scalelab.store.account import Account

LINE = "line"
"""Key in a checkpoint's state: hash of the journal's line of its step; None before the first step.

A step that was undone and taken again has another line.
"""

_FRESH = re.compile(rf"(step_(\d{{6,}}))\.\d+-\d+|\.step_\d{{6,}}(\.\d+-\d+)?{re.escape(WRITING)}")
_GONE = "gone."


class CheckpointNames:
    """Names that this process gives to its checkpoints.

    Args:
        root: the folder of all checkpoints.
        epoch: of this process.
        check: raises if another process has taken the run over.
    """

    def __init__(self, root: Path, epoch: int, check: Callable[[], None]) -> None:
        self.root = root
        self._epoch, self._check = epoch, check
        self._pending: dict[Path, CheckpointPolicy | None] = {}
        self._begun = 0
        self._one_at_a_time = threading.Lock()

    def begin(self, step: int, keep: CheckpointPolicy | None) -> Path:
        """Path at which the ranks write a checkpoint.

        Args:
            step: its step.
            keep: which checkpoints stay once it is whole; None keeps all.
        """
        self._begun += 1
        path = self.root / f"{step_folder(self.root, step).name}.{self._epoch}-{self._begun}"
        self._pending[path] = keep
        return path

    def unfinished(self) -> list[Path]:
        """Paths of the checkpoints that have no name of their own yet."""
        return list(self._pending)

    def forget(self) -> None:
        """Give no name to what is not whole yet: its trainer is lost, or its steps are undone."""
        self._pending.clear()

    def publish(self, instead: bool = False) -> None:
        """Give its name to each checkpoint that has become whole, and delete those that it replaces.

        Args:
            instead: set aside what has the name already.

        Raises:
            FencedError: another process has taken the run over.
            LabError: something else has the name.
        """
        with self._one_at_a_time:
            for path in [path for path in self.unfinished() if (path / MANIFEST).exists()]:
                self._check()
                target = path.with_name(path.name.partition(".")[0])
                try:
                    if target.exists() and instead:
                        set_aside(target)
                    if target.exists():
                        raise LabError(f"{target} is there already, and this process did not write it: move it away")
                    rename(path, target)
                except (LabError, OSError):
                    self._check()  # another process may have taken the run over, and this folder away
                    raise
                keep = self._pending.pop(path, None)
                if keep is not None:
                    self._check()
                    prune(self.root, keep, target, unfinished=False)
                    self._remove_others()

    def _remove_others(self) -> None:
        """Delete what ranks that were lost had begun."""
        for path in self.root.iterdir():
            own = path.name.removeprefix(".").removesuffix(WRITING)
            if path.name.startswith(_GONE) or (_FRESH.fullmatch(path.name) and self.root / own not in self._pending):
                self._check()
                shutil.rmtree(path, ignore_errors=True)


def take_over(root: Path, account: Account | None) -> None:
    """Give their names to whole checkpoints of the steps that count, and move away all that earlier processes began.

    Args:
        root: the folder of all checkpoints; need not be there.
        account: of the run by its journal; None if it has none.
    """
    lines = {} if account is None else account.lines
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        match = _FRESH.fullmatch(path.name)
        with suppress(FileNotFoundError):  # its process has given it its name at this moment
            if match and match[1] and _counts(path, int(match[2]), lines) and not (root / match[1]).exists():
                rename(path, root / match[1])
            elif match:
                path.rename(gone := root / f"{_GONE}{path.name}")
                shutil.rmtree(gone, ignore_errors=True)
            elif path.name.startswith(_GONE):
                shutil.rmtree(path, ignore_errors=True)


def _counts(path: Path, step: int, lines: dict[int, str]) -> bool:
    """True if a checkpoint is whole and of a step that counts."""
    with suppress(MoeError, OSError):
        return step in lines and read_state(path).get(LINE) == lines[step]
    return False
