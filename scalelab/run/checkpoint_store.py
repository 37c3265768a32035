"""Checkpoints of a run: their content, the choice of one to resume from, and the return to it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from moe.errors import printable
from scalelab.errors import LabError
from scalelab.run.books import BooksState, RunBooks
from scalelab.run.config import Run
from scalelab.store.folder import RunFolder
from scalelab.store.manifest import CONFIG_SHA256, config_sha256
from scalelab.store.publication import LINE
from scalelab.store.recovery import Return, choose
from scalelab.store.waiting_rollouts import prune_rollouts

State = dict[str, Any]
BY_RULE = "by_rule"
"""Key in a virtual run's state: true if the rule for checkpoints asked for this one."""


class CheckpointStore:
    """Checkpoints of a run: captures the books, and restores them.

    Args:
        run: the run.
        books: its books.
        folder: where the checkpoints lie.
        say: takes lines for people.
    """

    def __init__(self, run: Run, books: RunBooks, folder: RunFolder, say: Callable[[str], None]) -> None:
        self._run, self._books, self._folder, self._say = run, books, folder, say
        self._root = folder.checkpoints
        self._config = config_sha256(folder.path)
        self._first = self.capture()()
        self._saved = -1
        self._rollouts: dict[Path, str] = {}
        self._naming = threading.Lock()

    @property
    def due(self) -> bool:
        """True if the books have changed since the last checkpoint."""
        return self._saved != self._books.version

    def capture(self, **more: Any) -> Callable[[], State]:
        """The books as they are now, as a function that writes what is large and gives the rest for a checkpoint.

        Args:
            more: what the world keeps beside them.
        """
        books, line = self._books.capture(), self._folder.line_of(self._books.version)
        return lambda: {**books.written(self._root), **more, CONFIG_SHA256: self._config, LINE: line}

    def begin(self, replaces: bool = True, **more: Any) -> tuple[str, Callable[[], State]]:
        """Choose the folder of a new checkpoint, which `publish` gives its name, and capture the books.

        Args:
            replaces: whether older ones are deleted then, as the run's policy has it.
            more: what the world keeps beside the books.

        Returns:
            The folder, and a function that gives the state, for a thread: it fetches and writes what waits for a step.
        """
        self._saved = self._books.version
        path = self._folder.begin_checkpoint(self._saved, self._run.checkpoints if replaces else None)
        written = self.capture(**more)

        def state() -> State:
            with self._naming:
                found = written()
                self._rollouts[path] = found["rollouts"]
            return found

        return str(path), state

    def publish(self) -> None:
        """Give their names to the checkpoints that have become whole."""
        self._folder.publish_checkpoints()

    def prune(self) -> None:
        """Name what is whole, and delete rollouts that no checkpoint names, except those of one being written."""
        self.publish()
        with self._naming:
            waiting = self._folder.unfinished_checkpoints()
            self._rollouts = {path: name for path, name in self._rollouts.items() if path in waiting}
            prune_rollouts(self._root, self._rollouts.values(), self._folder.check)

    def choose(self) -> Return:
        """Choose the checkpoint to resume from; problems of others are reported."""
        chosen = choose(self._folder.path, self._run.model.to_hf())
        for problem in chosen.problems:
            self._say(problem)
        return chosen

    def go_back(self, load: Callable[[Path], None]) -> State | None:
        """Restore trainer and books from the newest whole checkpoint, or from the beginning if there is none.

        Lines of steps that are undone leave the files of the run.

        Args:
            load: loads the trainer from a checkpoint's folder.

        Returns:
            The checkpoint's state; None if there is none.

        Raises:
            LabError: the run has checkpoints, and none can be used.
        """
        self.publish()
        chosen, books = self.choose(), self._books
        if chosen.path is not None:
            load(chosen.path)
        try:
            books.restore(cast("BooksState", chosen.state or self._first), self._root, self._say)
            books.ledger.at_least(self._folder.spent())
            books.ledger.go_back((chosen.state or self._first)["ledger"])
            fewest = min((one.tasks for one in self._run.sets), key=len)
            undone = self._folder.go_back(books.version, [task.name for task in fewest])
            books.add_evaluated(self._folder.evaluated_on())
        except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
            raise LabError(
                f"the lines of {self._folder.path} or the state of its checkpoint are not what this version writes "
                f"({printable(error)}): go on with the version that wrote them, or start another run"
            ) from error
        for path in chosen.not_due:  # their steps are made again
            shutil.rmtree(path)
        self._saved = books.version if chosen.path is not None else -1
        told = f"; {undone} later steps are undone" if undone else ""
        self._say(f"going on from step {books.version}{told}")
        if books.version > 0 and books.evaluated < 0:
            self._say(
                "the base model's evaluation was broken off, and its curve begins with later weights: `scalelab eval` "
                "measures the model that RL began with, for `fit --r0`"
            )
        return chosen.state if chosen.path is not None else None


def taken_by_rule(state: Mapping[str, Any], run: Run) -> bool:
    """True if the rule for checkpoints asked for this one of a virtual run, rather than the run's end or a stop.

    Those of earlier versions do not say so; their runs had no rule but `Run.checkpoint_every`.
    """
    return bool(state["virtual"].get(BY_RULE, state["schedule"]["trainer_version"] % run.checkpoint_every == 0))
