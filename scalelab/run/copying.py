"""Second copy of a run's newest checkpoint on another path, from which the run goes on if its first disk is lost."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from moe.checkpoint.folder import WRITING, CheckpointPolicy, check, finished_checkpoints, prune, publish, read_state
from moe.durable import PARTIAL, put_in_place, write_whole
from moe.errors import MoeError, printable
from scalelab.run.folder import CONFIG, MANIFEST
from scalelab.run.recovery import CHECKPOINTS
from scalelab.run.retention import ROLLOUTS
from scalelab.run.rollouts import prune_rollouts

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
    there, target = finished_checkpoints(run / CHECKPOINTS), root / run.name
    if not there or there[-1].name in [path.name for path in finished_checkpoints(target / CHECKPOINTS)]:
        return None
    newest = there[-1]
    (target / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    copy = target / CHECKPOINTS / newest.name
    fresh = copy.with_name(f".{copy.name}{WRITING}")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(newest, fresh)
    check(fresh)
    waiting = read_state(fresh).get("rollouts")
    if isinstance(waiting, str):
        _copy_file(run / CHECKPOINTS / waiting, target / CHECKPOINTS / waiting)
    tokenizer = Path(CHECKPOINTS) / "tokenizer"
    if (run / tokenizer).is_dir():
        shutil.copytree(run / tokenizer, target / tokenizer, dirs_exist_ok=True)
    _copy_lines(run, target)
    publish(fresh, copy)
    prune(target / CHECKPOINTS, _KEPT, copy)
    prune_rollouts(target / CHECKPOINTS)
    return copy


def _copy_lines(run: Path, target: Path) -> None:
    """Copy configuration, manifest and whole lines, and the completions that these name."""
    for file in (run / CONFIG, run / MANIFEST, *run.glob("*.jsonl")):
        content = file.read_bytes()
        write_whole(target / file.name, content[: content.rfind(b"\n") + 1])  # the last may be half written
    (target / ROLLOUTS).mkdir(exist_ok=True)
    here = {file.name for file in (run / ROLLOUTS).glob("*.parquet")}
    for name in here - {file.name for file in (target / ROLLOUTS).glob("*.parquet")}:
        _copy_file(run / ROLLOUTS / name, target / ROLLOUTS / name)
    for file in (target / ROLLOUTS).glob("*.parquet"):
        if file.name not in here:
            file.unlink()


def _copy_file(source: Path, target: Path) -> None:
    partial = target.with_name(target.name + PARTIAL)
    shutil.copyfile(source, partial)
    put_in_place(partial, target)


class Copier:
    """Keep the second copy up to date; what goes wrong with it is said, and ends no run.

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
