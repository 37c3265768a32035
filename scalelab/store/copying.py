"""Second copy of a run's newest checkpoint on another path, from which the run goes on if its first disk is lost."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from moe.checkpoint.folder import (
    WRITING,
    CheckpointPolicy,
    check,
    finished_checkpoints,
    prune,
    publish,
    read_state,
    restore_replaced,
)
from moe.durable import made_whole, write_whole
from moe.errors import MoeError, printable
from scalelab.guarded import read_whole
from scalelab.store.chain import JOURNAL
from scalelab.store.earlier import read_account
from scalelab.store.lines import as_text
from scalelab.store.manifest import (
    CHECKPOINTS,
    CONFIG,
    MANIFEST,
    ROLLOUTS,
    SECOND_COPY,
    TOKENIZER,
    check_config,
    manifest_text,
)
from scalelab.store.waiting_rollouts import prune_rollouts

_KEPT = CheckpointPolicy(keep_last=1)


def copy_newest(run: Path, root: Path) -> Path | None:
    """Copy the newest checkpoint of a run with all that it needs to go on, unless that is there already.

    The checkpoint takes its name last, once its files hash to what they should; then the copy before it is deleted.

    Args:
        run: the run's folder.
        root: where the copy goes, into a folder with the run's name.

    Returns:
        The new copy of the checkpoint; None if there is nothing to copy.

    Raises:
        OSError, MoeError: it could not be copied; an earlier copy is still whole.
    """
    there, target = finished_checkpoints(run / CHECKPOINTS), root / run.resolve().name
    if not there or there[-1].name in [path.name for path in finished_checkpoints(target / CHECKPOINTS)]:
        return None
    newest = there[-1]
    fresh = _copy_checkpoint(newest, target)
    _copy_lines(run, target)
    copy = target / CHECKPOINTS / newest.name
    publish(fresh, copy)
    prune(target / CHECKPOINTS, _KEPT, copy)
    prune_rollouts(target / CHECKPOINTS)
    return copy


def second_copy(run: Path, root: str | None) -> Path | None:
    """The newest checkpoint in the second copy of a run; None if there is none, or the run is that copy."""
    if root is None:
        return None
    folder = Path(root).expanduser() / run.resolve().name
    there = [] if folder.resolve() == run.resolve() else finished_checkpoints(folder / CHECKPOINTS)
    return there[-1] if there else None


def take_back(run: Path, root: str | None, say: Callable[[str], None]) -> None:
    """Bring the checkpoint of the second copy back into a run whose own checkpoints are gone.

    Args:
        run: the run's folder.
        root: where its copies lie; None if it has none.
        say: takes lines for people.

    Raises:
        LabError, MoeError, OSError: the copy is damaged, or of a run with another configuration.
    """
    restore_replaced(run / CHECKPOINTS)
    copy = second_copy(run, root)
    if copy is None or finished_checkpoints(run / CHECKPOINTS):
        return
    check_config(run, read_state(copy))
    say(f"{run / CHECKPOINTS} holds no checkpoint: taking the second one back, {copy}")
    publish(_copy_checkpoint(copy, run), run / CHECKPOINTS / copy.name)


def _copy_checkpoint(source: Path, run: Path) -> Path:
    """Copy a checkpoint, and the rollouts and the tokenizer beside it, into another run's folder; returns it unnamed.

    Raises:
        OSError, MoeError: it could not be copied, or is not whole.
    """
    target = run / CHECKPOINTS
    target.mkdir(parents=True, exist_ok=True)
    fresh = target / f".{source.name}{WRITING}"
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(source, fresh)
    check(fresh)
    waiting = read_state(fresh).get("rollouts")
    if isinstance(waiting, str):
        _copy_file(source.parent / waiting, target / waiting)
    if (source.parent / TOKENIZER).is_dir():
        shutil.copytree(source.parent / TOKENIZER, target / TOKENIZER, dirs_exist_ok=True)
    return fresh


def _copy_lines(run: Path, target: Path) -> None:
    """Copy configuration and journal, write what follows from it, and copy the completions that it names."""
    write_whole(target / CONFIG, read_whole(run / CONFIG))
    write_whole(target / SECOND_COPY, f"of {run.resolve()}\n")
    content = read_whole(run / JOURNAL)
    write_whole(target / JOURNAL, content[: content.rfind(b"\n") + 1])  # the last line may be half written
    account = read_account(target)
    assert account is not None
    for name, records in account.views.items():
        write_whole(target / name, "".join(as_text(records)))
    write_whole(target / MANIFEST, manifest_text(account.manifest))
    (target / ROLLOUTS).mkdir(exist_ok=True)
    here = {file.name for file in (run / ROLLOUTS).glob("*.parquet")}
    for name in here - {file.name for file in (target / ROLLOUTS).glob("*.parquet")}:
        _copy_file(run / ROLLOUTS / name, target / ROLLOUTS / name)
    for file in (target / ROLLOUTS).glob("*.parquet"):
        if file.name not in here:
            file.unlink()


def _copy_file(source: Path, target: Path) -> None:
    with made_whole(target) as partial:
        shutil.copyfile(source, partial)


class Copier:
    """Keep the second copy up to date; a failure is reported and does not end the run.

    Args:
        run: the run's folder.
        root: where the copies go; None makes none.
        say: takes lines for people.
    """

    def __init__(self, run: Path, root: str | None, say: Callable[[str], None]) -> None:
        self._run, self._say = run, say
        self._root = None if root is None else Path(root).expanduser()
        self._one_at_a_time = threading.Lock()
        self._said: str | None = None

    def update(self) -> None:
        """Copy the newest checkpoint if it is newer than the copy."""
        if self._root is None:
            return
        with self._one_at_a_time:
            try:
                copy_newest(self._run, self._root)
                self._said = None
            except (OSError, MoeError) as error:  # also where the run has deleted the checkpoint meanwhile
                if (problem := type(error).__name__) != self._said:
                    self._say(f"no second copy of the newest checkpoint in {self._root}: {printable(error)}")
                self._said = problem
