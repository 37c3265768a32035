"""Write checkpoints that lie ready in host memory, in a thread if wanted, so that training goes on meanwhile.

Every rank writes its own files; they talk over a process group of their own, so that their messages never mix with
those of training. A checkpoint appears under its name only when every byte of it is on the disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.strategies.common import TorchCommonSaveStrategy
from megatron.core.dist_checkpointing.strategies.torch import MCoreSavePlanner
from torch import Tensor
from torch.distributed import checkpoint as torch_checkpoint
from torch.distributed.checkpoint.api import CheckpointException  # a BaseException
from torch.distributed.checkpoint.metadata import MetadataIndex

from moe.checkpoint.folder import (
    STATE,
    WRITING,
    CheckpointPolicy,
    Manifest,
    digest,
    prune,
    publish,
    write_manifest,
)
from moe.durable import sync, write_whole
from moe.errors import MoeError, first_line, kind_and_line


@dataclass(frozen=True)
class Staged:
    """This rank's part of a checkpoint, in host memory.

    Attributes:
        path: where the checkpoint is to appear.
        shards: tensors and objects of which this rank holds the main replica, in torch's form.
        common: what is the same on every rank.
        manifest: its description, its files not yet known.
        state: the caller's own, as JSON; None if there is none.
        keep: which of the checkpoints beside it stay once it is whole; None keeps all.
        read: gives the tensors that ``shards`` holds on the meta device, one at a time, when they are written.
    """

    path: Path
    shards: dict[str, Any]
    common: dict[str, Any]
    manifest: Manifest
    state: dict[str, Any] | None = None
    keep: CheckpointPolicy | None = None
    read: Callable[[MetadataIndex], Tensor] | None = None

    @property
    def folder(self) -> Path:
        """Folder that the checkpoint is written to until it is whole."""
        return self.path.with_name(f".{self.path.name}{WRITING}")


class _Planner(MCoreSavePlanner):
    """Megatron's planner, extended to tensors that exist only while they are written."""

    def __init__(self, read: Callable[[MetadataIndex], Tensor] | None) -> None:
        super().__init__(dedup_replicated_tensors=False, flatten_state_dict=False)
        self._read = read
        self._last: Tensor | None = None

    def lookup_object(self, index: MetadataIndex) -> Any:
        """A tensor or an object of this rank."""
        found = super().lookup_object(index)
        if self._read is None or not isinstance(found, Tensor) or not found.is_meta:
            return found
        if self._last is not None:
            self._last.untyped_storage().resize_(
                0
            )  # it is written, but torch's writer holds it until the file is whole
        self._last = self._read(index)
        return self._last


class Saver:
    """Writer of one checkpoint at a time; all methods but `running` are collective.

    Args:
        deadline: seconds that writing one may take.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._group: dist.ProcessGroup | None = None
        self._thread: threading.Thread | None = None
        self._path: Path | None = None
        self._error: MoeError | None = None

    def start(self, staged: Staged, background: bool) -> None:
        """Write a checkpoint; in the background this returns at once. The one before it must be finished.

        Raises:
            MoeError: if it cannot be written and is not written in the background.
        """
        if self._group is None:
            patience = datetime.timedelta(seconds=self._deadline)
            self._group = dist.new_group(backend="gloo", timeout=patience)
        self._path = staged.path
        self._thread = threading.Thread(target=self._write, args=(staged, self._group), name="checkpoint", daemon=True)
        self._thread.start()
        if not background:
            self.finish()

    def finish(self) -> None:
        """Wait until nothing is being written.

        Raises:
            MoeError: if the last checkpoint could not be written (said once), or takes longer than the deadline.
        """
        if self._thread is not None:
            self._thread.join(self._deadline)
            if self._thread.is_alive():
                raise MoeError(
                    f"the checkpoint {self._path} is still being written after {self._deadline:.0f} s; "
                    "look at its disk, or raise TrainerConfig.save_deadline"
                )
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def running(self) -> Path | None:
        """The checkpoint being written by this rank now.

        Raises:
            MoeError: if the last one could not be written; `finish` will say so, too, on every rank.
        """
        if self._thread is not None and self._thread.is_alive():
            return self._path
        if self._error is not None:
            raise self._error
        return None

    def _write(self, staged: Staged, group: dist.ProcessGroup) -> None:
        try:
            write(staged, group)
        except MoeError as error:
            self._error = error
        except BaseException as error:  # nothing catches the errors of a thread; `finish` raises this one
            self._error = MoeError(f"cannot write a checkpoint to {staged.path}: {one_line(error)}")


def write(staged: Staged, group: dist.ProcessGroup) -> None:
    """Write a checkpoint; collective within ``group``, which holds all ranks.

    Raises:
        MoeError: on every rank, if any rank cannot write its part; what was at the path before is still there.
    """
    first, folder = group.rank() == 0, staged.folder
    written: dict[str, tuple[int, str]] = {}
    with together(group, f"write a checkpoint to {staged.path}"):
        if first:
            TorchCommonSaveStrategy("torch", 1).save_common(staged.common, folder)
            if staged.state is not None:
                write_whole(folder / STATE, json.dumps(staged.state))
        torch_checkpoint.save(
            staged.shards,
            # everything is in host memory, or read when it is its turn: nothing to copy ahead of the writing
            storage_writer=torch_checkpoint.FileSystemWriter(
                folder, thread_count=1, sync_files=True, per_thread_copy_ahead=0
            ),
            planner=_Planner(staged.read),
            process_group=group,
        )
        if first:
            save_config(CheckpointingConfig("torch_dist", 1), str(folder))
        own = folder.glob(f"__{group.rank()}_*.distcp")
        shared = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".distcp"] if first else []
        for path in (mine := (*own, *shared)):
            sync(path)
        written = {path.relative_to(folder).as_posix(): digest(path) for path in mine}
    everyone: list[Any] = [None] * group.size()
    dist.all_gather_object(everyone, written, group=group)
    with together(group, f"put the checkpoint in its place at {staged.path}"):
        if first:
            files = {name: facts for part in everyone for name, facts in part.items()}
            _publish(staged, dataclasses.replace(staged.manifest, files=files))


def _publish(staged: Staged, manifest: Manifest) -> None:
    """Give a whole checkpoint its manifest and its name, and delete those that it replaces."""
    for name, (size, _) in manifest.files.items():
        if not (staged.folder / name).exists() or (staged.folder / name).stat().st_size != size:
            raise OSError(f"{name} of another rank is not to be seen here; give a folder that all ranks share")
    write_manifest(staged.folder, manifest)
    publish(staged.folder, staged.path)
    if staged.keep is not None:
        prune(staged.path.parent, staged.keep, staged.path)


@contextlib.contextmanager
def together(group: dist.ProcessGroup | None, what: str) -> Iterator[None]:
    """A block that succeeds on every rank or on none.

    Raises:
        MoeError: on every rank, after the block, if one met an error in it: the first rank's, in one line.
    """
    problem = None
    try:
        yield
    except (OSError, RuntimeError, MoeError, CheckpointException) as error:
        problem = one_line(error)
    problems: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(problems, problem, group=group)
    found = [p for p in problems if p is not None]
    if found:
        raise MoeError(f"cannot {what}: {found[0]}")


def one_line(error: BaseException) -> str:
    """The kind of an error, unless it is the package's own, and the first line of its message."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return first_line(error) if isinstance(error, MoeError) else kind_and_line(error)
