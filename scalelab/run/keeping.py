"""Checkpoints of a run: what is put into them, which one a run goes on from, and what goes back with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moe.checkpoint.folder import step_folder
from scalelab.run.books import Books
from scalelab.run.config import Run
from scalelab.run.folder import CONFIG_SHA256, RunFolder, config_sha256
from scalelab.run.recovery import Return, choose
from scalelab.run.rollouts import prune_rollouts

State = dict[str, Any]


class Keeper:
    """Captures the books for checkpoints, and puts them back to one.

    Args:
        run: the run.
        books: its books.
        folder: where the checkpoints lie.
        say: takes lines for people.
    """

    def __init__(self, run: Run, books: Books, folder: RunFolder, say: Callable[[str], None]) -> None:
        self._run, self._books, self._folder, self._say = run, books, folder, say
        self._root = folder.checkpoints
        self._config = config_sha256(folder.path)
        self._first = self.capture()
        self._saved = -1

    @property
    def due(self) -> bool:
        """Whether the books have moved on since the last checkpoint."""
        return self._saved != self._books.version

    def capture(self, **more: Any) -> State:
        """The books as a checkpoint keeps them.

        Args:
            more: what the world keeps beside them.
        """
        return {**self._books.capture(self._root), **more, CONFIG_SHA256: self._config}

    def begin(self, **more: Any) -> tuple[str, State]:
        """The folder and the state of a checkpoint that is to be taken now."""
        self._saved = self._books.version
        return str(step_folder(self._root, self._saved)), self.capture(**more)

    def prune(self, state: Mapping[str, Any] | None = None) -> None:
        """Delete rollouts that no checkpoint names, but for those of a checkpoint that is still being written."""
        prune_rollouts(self._root, state["rollouts"] if state else None)

    def choose(self) -> Return:
        """The checkpoint to go on from; what is wrong with others is said."""
        chosen = choose(self._folder.path, self._run.model.to_hf())
        for problem in chosen.problems:
            self._say(problem)
        return chosen

    def go_back(self, load: Callable[[Path], None], check: Callable[[State], None] = lambda _: None) -> State | None:
        """Put trainer and books back to the newest checkpoint that is whole, or to the beginning if there is none.

        Lines of steps that are undone leave the files of the run.

        Args:
            load: loads the trainer from a checkpoint's folder.
            check: refuses a state that the world cannot go on from, before anything is changed.

        Returns:
            The checkpoint's state; None if there is none.

        Raises:
            LabError: the run has checkpoints, and none can be used.
        """
        chosen, books = self.choose(), self._books
        if chosen.path is not None:
            check(chosen.state)
            load(chosen.path)
        books.restore(chosen.state or self._first, self._root, self._say)
        self._saved = books.version if chosen.path is not None else -1
        undone = self._folder.go_back(books.version, [task.name for task in self._run.tasks])
        books.measured = max([books.measured, *self._folder.measured()])
        if books.measure_from is not None and books.measure_from <= books.measured:
            books.measure_from = None
        told = f"; {undone} later steps are undone" if undone else ""
        self._say(f"going on from step {books.version}{told}")
        return chosen.state if chosen.path is not None else None
