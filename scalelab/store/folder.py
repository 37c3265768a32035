"""A run on disk: append-only JSON lines, flushed and synced, that any reader may follow while the run goes on."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import FileIO
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from moe.durable import append, made_whole, sync, write_whole
from moe.errors import printable
from scalelab.errors import LabError
from scalelab.guarded import read_whole
from scalelab.jsonl import plain, read_objects
from scalelab.store.completions import CompletionsFile, completions_table
from scalelab.store.status_file import STATUS, StatusFile

if TYPE_CHECKING:
    import numpy as np

    from scalelab.recipe.types import Rollout

log = logging.getLogger(__name__)

MANIFEST, CONFIG, CHECKPOINTS, ROLLOUTS = "manifest.json", "config.gin", "checkpoints", "rollouts"
"""Names in a run's folder."""

TOKENIZER = "tokenizer"
"""Folder beside the checkpoints, where an export looks for it."""

RAY_LOG = "ray.log"
"""File in a run's folder for what C++ code writes to standard error in the command's process."""

CONFIG_SHA256 = "config_sha256"
"""Key of the SHA-256 of `config.gin`, in the manifest and in a checkpoint's state."""


_KINDS: dict[str, type | tuple[type, ...]] = {
    **{"status": str, "reason": (str, type(None)), "resumed": list, "wall_seconds": (int, float), "cpu_seconds": dict},
}
"""Types of the manifest's entries that a resumed run reads."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read all records of a JSON-lines file; a torn last line (of a killed run) is left out with a warning.

    Raises:
        LabError: a line other than the last is not JSON.
    """
    objects, torn = read_objects(path)
    if torn:
        log.warning("%s: the last line is torn and was left out", path)
    return [record for _, record in objects]


def read_run_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run's folder.

    Raises:
        LabError: there is none, or it is not readable.
    """
    try:
        manifest = json.loads(read_whole(path / MANIFEST))
    except FileNotFoundError:
        raise LabError(f"{path} is no folder of a run: it has no {MANIFEST}") from None
    except (ValueError, RecursionError) as error:
        raise LabError(f"{path / MANIFEST} is not JSON ({printable(error)}): mend it, or start another run") from None
    if not isinstance(manifest, dict):
        raise LabError(f"{path / MANIFEST} is no JSON object: mend it, or start another run")
    for name, kind in _KINDS.items():
        if name in manifest and not isinstance(manifest[name], kind):
            value = str(manifest[name])[:40]
            raise LabError(f"{path / MANIFEST}: {name} is {value!r}, which no run writes: mend it, or start another")
    return manifest


_BEGUN = frozenset({MANIFEST, CONFIG, STATUS, RAY_LOG, "lock", "tensorboard"})
"""Names in the folder of a run that has made nothing yet, besides empty files and folders."""


def made_nothing(path: Path) -> bool:
    """True for an empty folder, and for that of a run that failed before it made anything, as one that is refused."""
    entries = list(path.iterdir())
    for entry in entries:
        empty = next(entry.iterdir(), None) is None if entry.is_dir() else entry.stat().st_size == 0
        if not empty and entry.name not in _BEGUN:
            return False
    return not entries or ((path / MANIFEST).exists() and read_run_manifest(path).get("status") == "failed")


def clear(path: Path) -> bool:
    """Remove what `made_nothing` allows, and say if there was anything; the lock stays with its holder."""
    entries = [entry for entry in path.iterdir() if entry.name != "lock"]
    for entry in entries:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return bool(entries)


def config_sha256(path: Path) -> str:
    """SHA-256 of a run's `config.gin`.

    Raises:
        LabError: there is none.
    """
    try:
        return hashlib.sha256(read_whole(path / CONFIG)).hexdigest()
    except FileNotFoundError:
        raise LabError(f"{path} has no {CONFIG}, without which nobody knows what it ran: put it back") from None


def check_config(path: Path, vouched: dict[str, Any]) -> None:
    """Check that a run's `config.gin` is the one it began with.

    Args:
        path: the run's folder.
        vouched: its manifest, or the state of a checkpoint of it. Those of older versions vouch for nothing.

    Raises:
        LabError: the file was changed or cut off since: another run would go on under this one's name.
    """
    expected = vouched.get(CONFIG_SHA256)
    if expected is not None and config_sha256(path) != expected:
        raise LabError(
            f"{path / CONFIG} is not what this run began with (its SHA-256 differs): put the file back as it was, or "
            f"start another run with `scalelab run {path / CONFIG}`"
        )


class Lines:
    """An append-only JSON-lines file; a torn end left by a crash is cut off before the first new line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_file():
            content = path.read_bytes()
            if content and not content.endswith(b"\n"):
                os.truncate(path, content.rfind(b"\n") + 1)
                log.warning("%s: cut off a torn last line", path)
        self._open()

    def _open(self) -> None:
        # Unbuffered, so that a line refused by a full disk is not written later in part.
        self._file = FileIO(self.path, "a")

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; it is on disk when this returns. NaN and infinities are written as null."""
        append(self._file, json.dumps(plain(record), ensure_ascii=False, allow_nan=False).encode() + b"\n")

    def remove(self, undone: Callable[[dict[str, Any]], bool], into: Lines) -> list[dict[str, Any]]:
        """Move the undone records to another file.

        A crash on the way leaves them in both files; the next call then moves those that are not there yet.
        """
        records = read_lines(self.path)
        gone = [record for record in records if undone(record)]
        there = read_lines(into.path) if gone else []
        for record in gone:
            moved = {"file": self.path.name, **record}
            if moved not in there:
                into.write(moved)
        if gone:
            self.close()
            kept = [json.dumps(record, ensure_ascii=False) + "\n" for record in records if not undone(record)]
            write_whole(self.path, "".join(kept))
            self._open()
        return gone

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Observer(Protocol):
    """A reader of a run's records as they are written: TensorBoard, or trackers. No method raises, or waits."""

    def step(self, record: dict[str, Any]) -> None:
        """Take a line of `metrics.jsonl`."""

    def evaluation(self, record: dict[str, Any]) -> None:
        """Take a line of `evals.jsonl`."""

    def alarm(self, record: dict[str, Any]) -> None:
        """Take a line of `alarms.jsonl`."""

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take a few passed and failed completions of each task of an evaluation; called from a thread."""

    def go_back(self, step: int) -> None:
        """Take note that all steps after this one are undone."""

    def close(self, status: str) -> None:
        """Take the run's status, and end."""


class RunFolder:
    """The folder of one run: `config.gin`, `manifest.json`, `evals.jsonl`, `metrics.jsonl` and the other files.

    Opening that of an earlier run goes on with its files.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        for part in (ROLLOUTS, CHECKPOINTS):
            (path / part).mkdir(parents=True, exist_ok=True)
        self.evals = Lines(path / "evals.jsonl")
        self.metrics = Lines(path / "metrics.jsonl")
        self.alarms = Lines(path / "alarms.jsonl")
        self.faults = Lines(path / "faults.jsonl")
        self.undone = Lines(path / "undone.jsonl")
        self.wall = Lines(path / "wall.jsonl")
        self.status = StatusFile(path)
        sync(path)
        self._observers: list[Observer] = []
        self.manifest: dict[str, Any] = read_run_manifest(path) if (path / MANIFEST).exists() else {}

    @property
    def checkpoints(self) -> Path:
        """Absolute path of the checkpoints' folder, since actors have other working directories."""
        return self.path.absolute() / CHECKPOINTS

    @property
    def sft(self) -> Path:
        """Folder of the fine-tuning's checkpoints, until the base model is made; absolute."""
        return self.path.absolute() / "sft"

    def begin(self, config_gin: str, **facts: Any) -> None:
        """Write the configuration of a new run, then the manifest with its SHA-256."""
        write_whole(self.path / CONFIG, config_gin)
        self.describe(**facts, **{CONFIG_SHA256: config_sha256(self.path)})

    def add_observer(self, observer: Observer) -> None:
        """Show later records to an observer, too."""
        self._observers.append(observer)

    def add_step(self, record: dict[str, Any]) -> None:
        """Write an optimiser step's line."""
        self.metrics.write(record)
        for one in self._observers:
            one.step(record)

    def add_evaluation(self, record: dict[str, Any]) -> None:
        """Write the line of one task's evaluation."""
        self.evals.write(record)
        for one in self._observers:
            one.evaluation(record)

    def add_wall(self, record: dict[str, Any]) -> None:
        """Write a record's wall-clock times, for a run on a simulated clock."""
        self.wall.write(record)

    def add_alarm(self, record: dict[str, Any]) -> None:
        """Write a monitor's alarm."""
        self.alarms.write(record)
        for one in self._observers:
            one.alarm(record)

    def add_fault(self, record: dict[str, Any]) -> None:
        """Write a fault, or the replacement of a lost actor."""
        self.faults.write(record)

    def go_back(self, step: int, tasks: Sequence[str]) -> int:
        """Move the lines of later steps to `undone.jsonl`, so that every other file has each step once.

        An evaluation that was written for some of the tasks only goes as well, and so do completions that undone steps
        trained on.

        Args:
            step: the last that counts.
            tasks: names of all tasks that an evaluation has a line of.

        Returns:
            Number of optimiser steps undone.
        """
        whole = Counter(record["step"] for record in read_lines(self.evals.path))
        gone = self.metrics.remove(lambda record: record["step"] > step, self.undone)
        self.alarms.remove(lambda record: record["step"] > step, self.undone)
        self.evals.remove(lambda record: record["step"] > step or whole[record["step"]] < len(tasks), self.undone)
        for path in (self.path / ROLLOUTS).glob("train_*.parquet"):
            if int(path.stem.removeprefix("train_")) > step:
                path.unlink()
        for one in self._observers:
            one.go_back(step)
        return len(gone)

    def spent(self) -> dict[str, float]:
        """Device-hours by role on the last line that was written, undone ones included."""
        records = [record for lines in (self.metrics, self.evals, self.undone) for record in read_lines(lines.path)]
        hours = [record["compute_by_role"] for record in records if "compute_by_role" in record]
        return max(hours, key=lambda by_role: sum(by_role.values()), default={})

    def evaluated_steps(self) -> list[int]:
        """Steps that were evaluated."""
        return sorted({record["step"] for record in read_lines(self.evals.path)})

    def describe(self, **facts: Any) -> None:
        """Add facts to the manifest and write it."""
        self.manifest.update(facts)
        write_whole(self.path / MANIFEST, json.dumps(plain(self.manifest), indent=2) + "\n")

    def evaluation_file(self, step: int) -> CompletionsFile:
        """Open the file for the completions of the evaluation at a step."""

        def shown(rows: list[dict[str, Any]]) -> None:
            for one in self._observers:
                one.completions(step, rows)

        return CompletionsFile(self.path / ROLLOUTS / f"step_{step:06d}.parquet", shown)

    def keep_trained(self, step: int, rollouts: Sequence[Rollout], logprobs: Sequence[np.ndarray]) -> None:
        """Write the completions of a training step, with the trainer's log-probabilities of prompt and completion."""
        from pyarrow import parquet

        with made_whole(self.path / ROLLOUTS / f"train_{step:06d}.parquet") as unfinished:
            parquet.write_table(completions_table(rollouts, logprobs), unfinished)

    def close(self) -> None:
        """Close the append-only files, and let observers end."""
        for one in self._observers:
            one.close(self.manifest.get("status", "failed"))
        self.evals.close()
        self.metrics.close()
        self.alarms.close()
        self.faults.close()
        self.undone.close()
        self.wall.close()


def free_folder(name: str, root: Path = Path("runs")) -> Path:
    """`runs/NAME`, or the first of `runs/NAME-2`, `runs/NAME-3`, … that does not exist yet.

    The last one that exists is taken again if its run failed before it made anything.
    """
    last: Path | None = None
    for path in _candidates(_folder(name, root)):
        if not path.exists():
            return last if last is not None and last.is_dir() and _free(last) else path
        last = path
    raise AssertionError("unreachable: the candidates never end")


def _free(path: Path) -> bool:
    try:
        return any(path.iterdir()) and made_nothing(path)
    except (LabError, OSError):  # whatever it is, it is something
        return False


def latest_folder(name: str, root: Path = Path("runs")) -> Path:
    """The last of `runs/NAME`, `runs/NAME-2`, … that exists.

    Raises:
        LabError: there is none.
    """
    existing = list(takewhile(Path.exists, _candidates(_folder(name, root))))
    if not existing:
        raise LabError(f"{_folder(name, root)} does not exist: give the folder of the run to resume, or --out")
    return existing[-1]


def _folder(name: str, root: Path) -> Path:
    """The folder of a name below `root`: every part of the name is an ordinary one there."""
    parts = [re.sub(r"[^\w.\-]", "_", part) for part in name.split("/")]
    return root.joinpath(*("_" * len(part) if set(part) == {"."} else part for part in parts if part))


def _candidates(path: Path) -> Iterator[Path]:
    yield path
    number = 2
    while True:
        yield path.with_name(f"{path.name}-{number}")
        number += 1
