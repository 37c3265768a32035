"""The cluster world: a run on Ray actors, on the wall clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moe.checkpoint.folder import finished, newest, read_state, step_folder
from scalelab.run.books import new_books
from scalelab.run.changes import Changes
from scalelab.run.cluster.actors import Head
from scalelab.run.cluster.engines import ClusterEngines
from scalelab.run.cluster.faults import Faults
from scalelab.run.cluster.graders import ClusterGraders
from scalelab.run.cluster.trainer import ClusterTrainer
from scalelab.run.config import Run
from scalelab.run.evaluations import InFlightEvaluation
from scalelab.run.folder import RunFolder
from scalelab.run.journal import Journal
from scalelab.run.loop import Loop, TrainerLostError
from scalelab.run.progress import Progress, Status
from scalelab.run.rollouts import prune_rollouts
from scalelab.run.work import RolloutWork

LOOK_SECONDS = 1.0
"""Between two looks at Ray's own processes, which show nowhere else."""


class ClusterRun:
    """A run in the cluster world, its actors up; it is its own `Home`.

    Args:
        run: the run.
        base: the folder of the base model.
        folder: takes what the run leaves.
        tokenizer: of the model.
        phrase_ids: token ids of the interrupting phrase.
        end_think: how the end of thinking is recognised.
        progress: takes lines for people.
    """

    rests = False

    def __init__(
        self,
        run: Run,
        base: Path,
        folder: RunFolder,
        tokenizer: Any,
        phrase_ids: list[int],
        end_think: Any,
        progress: Progress,
    ) -> None:
        self.run, self.folder, self.progress = run, folder, progress
        self.changes, self._head = Changes(), Head()
        self.trainer = ClusterTrainer(run, base, run.cluster.trainers)
        self.graders = ClusterGraders(run, self.changes)
        self.engines = ClusterEngines(run, base, phrase_ids, end_think, self.changes)
        folder.describe(clock="wall", verifiers=self.graders.describe())
        self.trainer.ready()
        self.engines.ready()
        self.faults = self.engines.faults = Faults(run.cluster, folder.add_fault, progress.say)
        self._work = RolloutWork(run.recipe, tokenizer, run.seed, seeded=False)
        self._held_out = [prompt for task in run.tasks for prompt in task.held_out(run.evaluation.prompts)]
        self.books = new_books(run)
        self._first = self.books.capture(folder.checkpoints)
        self.saved = -1
        self.loop: Loop

    def load(self) -> None:
        """Put trainer and books back to the newest checkpoint that is whole, or to the beginning if there is none.

        The ledger goes on: what was spent is spent. Lines of steps that are undone leave the files of the run.
        """
        state, folder = self._first, self.folder.checkpoints
        if finished(folder):
            looked_at = newest(folder, self.run.model.to_hf(), fallback=True, contents=False)
            seconds = self.run.trainer.save_deadline
            read = self.trainer.call("load", str(looked_at.path), True, seconds=seconds)
            for problem in (*looked_at.passed_over, *read.passed_over):
                self.progress.say(f"passed over: {problem}")
            state = read_state(read.path)
        books = self.books
        books.restore(state, folder, self.progress.say)
        books.ledger.at_least(self.folder.spent())
        self.saved = books.version
        undone = self.folder.go_back(books.version, [task.name for task in self.run.tasks])
        books.measured = max([books.measured, *self.folder.measured()])
        if books.measure_from is not None and books.measure_from <= books.measured:
            books.measure_from = None
        said = f"; {undone} later steps are undone" if undone else ""
        self.progress.say(f"going on from step {books.version}{said}")

    async def main(self, attach: Callable[[Loop], None] = lambda _: None) -> None:
        """Run on the running event loop.

        Args:
            attach: called with the loop before it begins, so that signals can reach it.
        """
        clock = time.monotonic
        journal = Journal(
            self.run, self.books, self.engines, self.graders, self.folder, self.progress, clock, simulated=False
        )
        self._journal = journal
        self._evaluation = InFlightEvaluation(
            books=self.books,
            engines=self.engines,
            graders=self.graders,
            work=self._work,
            changes=self.changes,
            charge=lambda: journal.charge(self.loop.stepping),
            record=journal.evaluated,
            clock=clock,
            held_out=self._held_out,
            samples=self.run.evaluation.samples,
            updating=lambda: self.loop.updating or self.loop.behind,
        )
        self.loop = Loop(
            books=self.books,
            budget=self.run.budget,
            evaluation_every=self.run.evaluation.every,
            checkpoint_every=self.run.checkpoint_every,
            work=self._work,
            engines=self.engines,
            trainer=self.trainer,
            graders=self.graders,
            evaluation=self._evaluation,
            journal=journal,
            home=self,
            changes=self.changes,
            clock=clock,
        )
        attach(self.loop)
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self._look(), name="look at Ray")
            await self.loop.run()
            looking.cancel()

    async def _look(self) -> None:
        """See that Ray lives, charge the time, and show where the run stands."""
        while True:
            self._head.check()
            self._journal.charge(self.loop.stepping)
            self.show()
            await asyncio.sleep(LOOK_SECONDS)

    def show(self) -> None:
        """Show where the run stands."""
        budget, evaluation = self.run.budget, self._evaluation
        self.progress.show(
            Status(
                step=self.books.version,
                steps=budget.steps,
                compute=self.books.ledger.compute,
                unit=self.run.compute_unit,
                completions=int(self.engines.totals().get("completions", 0)),
                hours=budget.hours,
                evaluated=(evaluation.graded, evaluation.expected) if evaluation.running else None,
            )
        )

    # Home.

    def save(self) -> Any:
        """Take a checkpoint of everything; it is written while the loop goes on."""
        version, folder = self.books.version, self.folder.checkpoints
        state = self.books.capture(folder)
        self.saved = version
        return self._saved(self.trainer.save(str(step_folder(folder, version)), state), state["rollouts"])

    async def _saved(self, taken: Any, rollouts: str | None) -> None:
        await taken
        prune_rollouts(self.folder.checkpoints, rollouts)

    async def check(self) -> None:
        """Notice soon when a checkpoint could not be written."""
        await self.trainer.saving()

    async def rest(self) -> None:
        """Take a checkpoint at the end, and wait until it is on the disk."""
        if self.saved != self.books.version:
            await self.save()
        await self.trainer.finish_saving()
        prune_rollouts(self.folder.checkpoints)

    async def go_back(self, error: TrainerLostError) -> None:
        """Replace a trainer that lost a rank, and put everything back to the newest checkpoint.

        The engines stand still meanwhile, as nothing can be asked of them.

        Raises:
            LabError: the trainer was replaced as often as it may be.
        """
        self.faults.lost("trainer", "the trainer", error, step=self.books.version)
        self._journal.charge(stepping=False)
        await asyncio.to_thread(self.trainer.restart)
        await asyncio.to_thread(self.load)
        self.faults.recovered("trainer", "the trainer")

    def stop(self) -> None:
        """End the actors and give their devices back."""
        self.trainer.stop()
        self.engines.stop()
