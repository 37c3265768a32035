"""Claims of a run, replayed from its journal: every other file of lines, the manifest and all hashes follow from it.

| kind | records | shows in |
|---|---|---|
| `adopt` | the lines of a run that an earlier version began | all files of lines, `manifest.json` |
| `facts` | entries of the manifest: configuration, processes, how it ended | `manifest.json` |
| `step` | an optimiser step, and the file of completions it trained on | `metrics.jsonl`, `wall.jsonl`, `rollouts/` |
| `evaluation` | an evaluation of all tasks, and its file of completions | `evals.jsonl`, `wall.jsonl`, `rollouts/` |
| `alarm`, `fault` | a line of that kind | `alarms.jsonl`, `faults.jsonl` |
| `checkpoint` | a checkpoint that is whole, by its manifest's hash | `checkpoints/` |
| `files` | other files of the run, by their hashes | themselves |
| `fork` | the run and the step that a branch goes on from, and its parent's lines and files up to there | all |
| `undo` | a return to a checkpoint: lines of later steps do not count | `undone.jsonl` gets them |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from scalelab.store.chain import ChainEntry
from scalelab.store.manifest import ALARMS, EVALS, FAULTS, METRICS, UNDONE, VIEWS, WALL, kind_and_step, step_of_rollouts
from scalelab.store.retention import Retention

Record = dict[str, Any]
Digest = tuple[int, str]
"""Bytes and SHA-256 of a file."""

_TO_UNDO = (METRICS, ALARMS, EVALS)
"""Files whose lines a return to a checkpoint undoes, in the order in which they are moved."""


@dataclass
class Account:
    """State of a run after some lines of its journal.

    Attributes:
        manifest: content of `manifest.json`.
        views: records of each file of lines.
        files: hashes of files whose content is fixed, by their paths in the run's folder.
        checkpoints: hashes of the manifests of those that count, by step.
        epoch: of the last line.
        lines: hashes of the lines of the steps that count, by step.
        hours: device-hours by role on the line with the most, undone ones included.
        wall_seconds: seconds of RL so far on the wall clock, over all processes of the run.
    """

    manifest: Record = field(default_factory=dict)
    views: dict[str, list[Record]] = field(default_factory=lambda: {name: [] for name in VIEWS})
    files: dict[str, Digest] = field(default_factory=dict)
    checkpoints: dict[int, str] = field(default_factory=dict)
    epoch: int = 0
    lines: dict[int, str] = field(default_factory=dict)
    hours: dict[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0

    @property
    def steps(self) -> int:
        """Optimiser steps that count."""
        return len(self.views[METRICS])

    def apply(self, entry: ChainEntry) -> None:
        """Add a line of the journal.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: its content is not of its kind.
        """
        body, self.epoch = entry.body, entry.epoch
        if entry.kind in _RECORDS:
            self._add(_RECORDS[entry.kind], body["records"])
            if entry.kind == "step":
                self.lines.update((record["step"], entry.hash) for record in body["records"])
            self.views[WALL] += body.get("wall", ())
            self.files.update(_digests(body.get("files", {})))
            self._prune()
            self.wall_seconds = max([self.wall_seconds, *map(_wall, (*body["records"], *body.get("wall", ())))])
        elif entry.kind == "facts":
            self.manifest.update(body["facts"])
        elif entry.kind == "files":
            self.files.update(_digests(body["files"]))
        elif entry.kind == "checkpoint":
            self.checkpoints[int(body["step"])] = str(body["sha256"])
        elif entry.kind == "undo":
            self._undo(int(body["step"]), int(body["tasks"]))
            self.checkpoints = _by_step(body["checkpoints"])
        elif entry.kind in ("adopt", "fork"):
            self.manifest.update(body["facts"])
            for name in VIEWS:
                self._add(name, body["lines"].get(name, ()))
            self.files.update(_digests(body["files"]))
            self.checkpoints = _by_step(body["checkpoints"])
        else:
            raise ValueError(f"{entry.kind!r} is no kind of line")

    def _prune(self) -> None:
        """Forget the completions that the run's rule has deleted, as `scalelab.store.retention` does."""
        kept = retention_of(self.manifest)
        steps: dict[str, dict[str, int]] = {"step": {}, "train": {}}
        for name in self.files:
            if found := kind_and_step(name):
                steps[found[0]][name] = found[1]
        stay = kept.kept({*steps["step"].values()})
        gone = [name for name, step in steps["step"].items() if step not in stay]
        trained = {step: name for name, step in steps["train"].items()}
        gone += [trained[step] for step in kept.too_old({step: self.files[one][0] for step, one in trained.items()})]
        for name in gone:
            del self.files[name]

    def _add(self, name: str, records: Iterable[Record]) -> None:
        for record in records:
            self.views[name].append(record)
            spent = record.get("compute_by_role")
            if spent and sum(spent.values()) > sum(self.hours.values()):
                self.hours = spent

    def _undo(self, step: int, tasks: int) -> None:
        lines = Counter(record["step"] for record in self.views[EVALS])
        # Earlier versions wrote an evaluation task by task.
        partial = {at for at, count in lines.items() if count < tasks}
        for name in _TO_UNDO:
            undone, left = partial if name == EVALS else set(), []
            for record in self.views[name]:
                if record["step"] > step or record["step"] in undone:
                    self.views[UNDONE].append({"file": name, **record})
                else:
                    left.append(record)
            self.views[name] = left
        self.lines = {at: line for at, line in self.lines.items() if at <= step}
        self.files = {name: one for name, one in self.files.items() if (step_of_rollouts(name) or 0) <= step}


_RECORDS = {"step": METRICS, "evaluation": EVALS, "alarm": ALARMS, "fault": FAULTS}
"""Kinds of lines that hold records, and the file that shows them."""


def _by_step(checkpoints: dict[Any, Any]) -> dict[int, str]:
    return {int(step): str(sha256) for step, sha256 in checkpoints.items()}


def _digests(files: dict[str, Any]) -> dict[str, Digest]:
    return {name: (int(size), str(digest)) for name, (size, digest) in files.items()}


def _wall(record: Record) -> float:
    seconds = record.get("wall_seconds", 0.0)
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def retention_of(manifest: Record) -> Retention:
    """A run's rule for which completions stay; that of a manifest that has none, or another one, keeps all."""
    try:
        return Retention(**manifest.get("retention", {}))
    except (TypeError, ValueError):  # not as this version writes it
        return Retention()


def replay(entries: Iterable[ChainEntry]) -> Account:
    """The state of a run after all of these lines.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: a line's content is not of its kind.
    """
    account = Account()
    for entry in entries:
        account.apply(entry)
    return account
