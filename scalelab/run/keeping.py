"""Checkpoints of a run: their content, the choice of one to resume from, and the return to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from moe.checkpoint.folder import step_folder
from moe.errors import printable
from scalelab.errors import LabError
from scalelab.run.books import BooksState, RunBooks
from scalelab.run.config import Run
from scalelab.store.folder import CONFIG_SHA256, RunFolder, config_sha256
from scalelab.store.recovery import EPOCH, Return, choose
from scalelab.store.rollouts import prune_rollouts

State = dict[str, Any]


class Keeper:
    """Keeper of checkpoints: captures the books, and restores them.

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
        self._first = self.capture()
        self._saved = -1

    @property
    def due(self) -> bool:
        """True if the books have changed since the last checkpoint."""
        return self._saved != self._books.version

    def capture(self, **more: Any) -> State:
        """The books as a checkpoint keeps them.

        Args:
            more: what the world keeps beside them.
        """
        return {**self._books.capture(self._root), **more, CONFIG_SHA256: self._config, EPOCH: self._folder.epoch}

    def begin(self, **more: Any) -> tuple[str, State]:
        """Choose the folder and capture the state of a new checkpoint."""
        self._folder.check()
        self._saved = self._books.version
        return str(step_folder(self._root, self._saved)), self.capture(**more)

    def prune(self, state: Mapping[str, Any] | None = None) -> None:
        """Record what is whole, and delete rollouts that no checkpoint names, except those of one being written."""
        self._folder.note_checkpoints()
        prune_rollouts(self._root, state["rollouts"] if state else None)

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
        chosen, books = self.choose(), self._books
        if chosen.path is not None:
            load(chosen.path)
        try:
            books.restore(cast("BooksState", chosen.state or self._first), self._root, self._say)
            books.ledger.at_least(self._folder.spent())
            books.ledger.go_back((chosen.state or self._first)["ledger"])
            undone = self._folder.go_back(books.version, [task.name for task in self._run.tasks])
            books.add_evaluated(self._folder.evaluated_steps())
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
        return chosen.state if chosen.path is not None else None
