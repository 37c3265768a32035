"""A run on disk: one journal that proves itself, and the files that people and tools read, which follow from it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from moe.checkpoint.folder import MANIFEST as CHECKPOINT
from moe.checkpoint.folder import CheckpointPolicy, checkpoints_by_step, digest
from moe.durable import made_whole, make_folder, sync, write_whole
from scalelab.guarded import read_whole
from scalelab.jsonl import plain
from scalelab.shards import BRIEF_SECONDS
from scalelab.store.account import Account, Record, replay
from scalelab.store.chain import JOURNAL, ChainFile, read_chain
from scalelab.store.completions import CompletionsFile, completions_table
from scalelab.store.earlier import earlier_account, present_checkpoints, remove_unfinished
from scalelab.store.lease import Lease
from scalelab.store.lines import Lines, as_text, read_lines
from scalelab.store.manifest import (
    ALARMS,
    CHECKPOINTS,
    CONFIG,
    CONFIG_SHA256,
    EVALS,
    FAULTS,
    FORMAT,
    JOURNAL_KEY,
    MANIFEST,
    METRICS,
    ROLLOUTS,
    SECOND_COPY,
    START,
    VIEWS,
    WALL,
    completions_name,
    config_sha256,
    manifest_text,
    step_of_rollouts,
)
from scalelab.store.publication import CheckpointNames, take_over
from scalelab.store.status_file import StatusFile

if TYPE_CHECKING:
    import numpy as np

    from scalelab.recipe.types import AnyRollout

log = logging.getLogger(__name__)


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
    """The folder of one run: its journal, and the files that follow from it.

    A record goes to its file of lines first and to the journal then: what the journal holds is claimed, and all else is
    taken away when a run goes on. Opening the folder of an earlier run writes every file again that does not agree.

    Args:
        path: the folder; need not be there.
        lease: of this process; None: nothing is checked before a write.

    Raises:
        LabError: the journal is damaged, or gone.
    """

    def __init__(self, path: Path, lease: Lease | None = None) -> None:
        self.path, self._lease = path, lease
        for part in (ROLLOUTS, CHECKPOINTS):
            make_folder(path / part)
        self._holds()
        account, adopted = earlier_account(path)
        remove_unfinished(path)
        epoch = lease.epoch if lease else account.epoch + 1
        self._journal = ChainFile(path / JOURNAL, epoch, self._holds)
        if adopted is not None:
            self._journal.append("adopt", **adopted)
        else:  # with what another process has written until it lost the run
            account = replay(self._journal.chain.entries)
        take_over(self.checkpoints, account)
        take_over(self.sft, None)
        for found in (path / ROLLOUTS, self.checkpoints, self.sft):
            if found.is_dir():  # an earlier process may have died between a new name and its place on the disk
                sync(found)
        self._lines = {name: Lines(path / name) for name in VIEWS}
        self.mended: list[str] = []
        """Files that were written again, for they did not agree with the journal."""
        self.manifest: dict[str, Any] = {}
        self._hours: dict[str, float] = {}
        self._noted: dict[int, str] = {}
        self._steps: dict[int, str] = {}
        self._evaluated: set[tuple[str, int]] = set()
        self._settled: dict[str, list[Any]] = {}
        self.wall_seconds = 0.0
        """Seconds of RL on the wall clock until the last line, over all processes of the run."""
        self._take(account, anew=bool(account.epoch))
        self._publication = CheckpointNames(self.checkpoints, epoch, self.check)
        self.status = StatusFile(path, check=self.check, epoch=epoch)
        sync(path)
        self._observers: list[Observer] = []

    def check(self) -> None:
        """Make sure that this process may write.

        Raises:
            FencedError: another process has taken the run over.
        """
        self._journal.check()

    def _holds(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def _take(self, account: Account, anew: bool) -> None:
        """Make all files agree with an account.

        Args:
            account: what the journal says.
            anew: write them even if they agree, so that a process that had them open before writes elsewhere.
        """
        self.manifest = account.manifest
        for name, lines in self._lines.items():
            records = account.views[name]
            agrees = read_whole(lines.path) == "".join(as_text(records)).encode()
            if anew or not agrees:
                lines.replace(records, self.check)
            if anew and not agrees:
                self.mended.append(name)
        if account.manifest and anew:
            write_whole(self.path / MANIFEST, manifest_text(account.manifest), self.check)
        self._hours, self.wall_seconds = account.hours, account.wall_seconds
        self._noted, self._steps = dict(account.checkpoints), dict(account.lines)
        self._evaluated = {_evaluated(record) for record in account.views[EVALS] if not record.get("afterwards")}

    @property
    def epoch(self) -> int:
        """Number of this process among those that have worked on the run."""
        return self._journal.epoch

    @property
    def checkpoints(self) -> Path:
        """Absolute path of the checkpoints' folder, since actors have other working directories."""
        return self.path.absolute() / CHECKPOINTS

    @property
    def sft(self) -> Path:
        """Folder of the fine-tuning's checkpoints, until the base model is made; absolute."""
        return self.path.absolute() / "sft"

    def sft_names(self) -> CheckpointNames:
        """Names of the fine-tuning's checkpoints."""
        return CheckpointNames(self.sft, self.epoch, self.check)

    def begin(self, config_gin: str, **facts: Any) -> None:
        """Write the configuration of a new run, then the manifest with its SHA-256."""
        self.check()
        write_whole(self.path / CONFIG, config_gin)
        self.vouch([self.path / CONFIG])
        self.describe(**facts, **{CONFIG_SHA256: config_sha256(self.path), JOURNAL_KEY: FORMAT})

    def write_config(self, config_gin: str, start_gin: str) -> None:
        """Write the configuration of a branch, and that of the run that all began with."""
        self.check()
        write_whole(self.path / CONFIG, config_gin)
        write_whole(self.path / START, start_gin)

    def fork(
        self,
        parent: Record,
        lines: Mapping[str, Sequence[Record]],
        files: Mapping[str, Sequence[Any]],
        checkpoints: Mapping[int, str],
    ) -> None:
        """Begin the journal of a branch with its parent, the parent's lines, and the files that are there already.

        Args:
            parent: the parent's folder, the step of the fork, the digest of its checkpoint, and its journal's head.
            lines: of the parent, by file.
            files: digests of completions, by name.
            checkpoints: digests of the manifests of checkpoints, by step.
        """
        self._journal.append(
            "fork", parent=parent, facts={}, lines=dict(lines), files=dict(files), checkpoints=dict(checkpoints)
        )
        self._take(replay(read_chain(read_whole(self.path / JOURNAL)).entries), anew=False)
        self.vouch([self.path / START])

    def vouch(self, files: Iterable[Path]) -> None:
        """Record the hashes of files that do not change any more."""
        found = {str(path.relative_to(self.path)): list(digest(path)) for path in files}
        self._journal.append("files", files=found)

    def add_observer(self, observer: Observer) -> None:
        """Show later records to an observer, too."""
        self._observers.append(observer)

    def add_step(self, record: Record, wall: Record | None = None) -> None:
        """Write an optimiser step's line.

        Args:
            record: the line.
            wall: its wall-clock times, for a run on a simulated clock.
        """
        self._record("step", METRICS, [record], [wall] if wall else [], f"train_{record['step']:06d}")
        for one in self._observers:
            one.step(record)

    def add_evaluation(self, records: Sequence[Record], walls: Sequence[Record] = (), of_set: str = "") -> None:
        """Write the lines of an evaluation, one a task; all of them count, or none.

        Args:
            records: the lines.
            walls: their wall-clock times, for a run on a simulated clock.
            of_set: of an evaluation that is made afterwards, the name of its set.
        """
        self._record("evaluation", EVALS, records, walls, completions_name(records[0]["step"], of_set))
        self._evaluated |= {_evaluated(record) for record in records if not record.get("afterwards")}
        for record in records:
            for one in self._observers:
                one.evaluation(record)

    def add_alarm(self, record: Record) -> None:
        """Write a monitor's alarm."""
        self._record("alarm", ALARMS, [record])
        for one in self._observers:
            one.alarm(record)

    def add_fault(self, record: Record) -> None:
        """Write a fault, or the replacement of a lost actor."""
        self._record("fault", FAULTS, [record])

    def _record(
        self, kind: str, view: str, records: Sequence[Record], walls: Sequence[Record] = (), completions: str = ""
    ) -> None:
        """Write records to their file of lines, then to the journal; if the disk refuses, neither has them.

        Args:
            kind: of the journal's line.
            view: the file of lines.
            records: the lines.
            walls: their wall-clock times.
            completions: name of the file of completions that belongs to them, if one was written.
        """
        more: dict[str, Any] = {"wall": list(walls)} if walls else {}
        name = f"{ROLLOUTS}/{completions}.parquet"
        if name in self._settled:
            more["files"] = {name: self._settled[name]}
        self.check()
        sizes = {one: self._lines[one].size for one in (view, WALL)}
        try:
            self._lines[view].write(*records)
            self._lines[WALL].write(*walls)
            entry = self._journal.append(kind, records=list(records), **more)
        except OSError:
            for one, size in sizes.items():
                self._lines[one].cut(size)
            raise
        self._settled.pop(name, None)
        for record in records:
            if kind == "step":
                self._steps[record["step"]] = entry.hash
            spent = record.get("compute_by_role") or {}
            if sum(spent.values()) > sum(self._hours.values()):
                self._hours = spent

    def line_of(self, step: int) -> str | None:
        """Hash of the journal's line of a step that counts; None before the first."""
        return self._steps.get(step)

    def begin_checkpoint(self, step: int, keep: CheckpointPolicy | None) -> Path:
        """Path at which the trainer's ranks write a checkpoint; see `scalelab.store.publication`."""
        self.check()
        return self._publication.begin(step, keep)

    def unfinished_checkpoints(self) -> list[Path]:
        """Paths that `begin_checkpoint` gave for checkpoints that have no name of their own yet."""
        return self._publication.unfinished()

    def publish_checkpoints(self) -> None:
        """Give their names to the checkpoints that have become whole, and record them."""
        self._publication.publish()
        for step, path in checkpoints_by_step(self.checkpoints).items():
            if step not in self._noted:
                with suppress(FileNotFoundError):  # deleted meanwhile, as newer ones are whole
                    sha256 = digest(path / CHECKPOINT)[1]
                    self._journal.append("checkpoint", step=step, sha256=sha256)
                    self._noted[step] = sha256

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
        before = len(read_lines(self._lines[METRICS].path))
        self._publication.forget()
        self._journal.append("undo", step=step, tasks=len(tasks), checkpoints=present_checkpoints(self.path, step))
        account = replay(read_chain(read_whole(self.path / JOURNAL)).entries)
        self._take(account, anew=False)
        for file in (self.path / ROLLOUTS).glob("*.parquet"):
            if (step_of_rollouts(f"{ROLLOUTS}/{file.name}") or 0) > step:
                self.check()
                file.unlink()
        (self.path / SECOND_COPY).unlink(missing_ok=True)
        for one in self._observers:
            one.go_back(step)
        return before - account.steps

    def spent(self) -> dict[str, float]:
        """Device-hours by role on the last line that was written, undone ones included."""
        return dict(self._hours)

    def evaluated_steps(self) -> list[int]:
        """Steps that were evaluated."""
        return sorted({step for _, step in self._evaluated})

    def evaluated_on(self) -> dict[str, int]:
        """The last step that the run evaluated on each set."""
        return dict(sorted(self._evaluated))

    def describe(self, **facts: Any) -> None:
        """Add facts to the journal and to the manifest."""
        self._journal.append("facts", facts=facts)
        self.manifest.update(plain(facts))
        write_whole(self.path / MANIFEST, manifest_text(self.manifest), self.check)

    def evaluation_file(self, step: int, of_set: str = "") -> CompletionsFile:
        """Open the file for the completions of the evaluation at a step, or of one that is made afterwards on a set."""

        def shown(rows: list[dict[str, Any]]) -> None:
            for one in self._observers:
                one.completions(step, rows)

        return CompletionsFile(self.path / ROLLOUTS / f"{completions_name(step, of_set)}.parquet", shown, self.settle)

    def keep_trained(self, step: int, rollouts: Sequence[AnyRollout], logprobs: Sequence[np.ndarray]) -> None:
        """Write the completions of a training step, with the trainer's log-probabilities of prompt and completion."""
        from pyarrow import parquet

        path = self.path / ROLLOUTS / f"{completions_name(step, kind='train')}.parquet"
        with made_whole(path, side_by_side=True) as unfinished:
            parquet.write_table(completions_table(rollouts, logprobs, BRIEF_SECONDS), unfinished)
            self.settle(path, unfinished)

    def settle(self, path: Path, unfinished: Path) -> None:
        """Note the hash of a file of completions that is about to get its name.

        Whoever takes the run over removes what is unfinished first: so it gets its name while this process may write.
        """
        self._settled[f"{ROLLOUTS}/{path.name}"] = list(digest(unfinished))
        self.check()

    def close(self) -> None:
        """Close the append-only files, and let observers end."""
        for one in self._observers:
            one.close(self.manifest.get("status", "failed"))
        for lines in self._lines.values():
            lines.close()
        self._journal.close()


def _evaluated(record: Record) -> tuple[str, int]:
    """Evaluation set and step of a line of `evals.jsonl`; lines of older versions are of the held-out split."""
    return record.get("set", "held_out"), record["step"]
