"""The cluster world: a run on Ray actors, on the wall clock."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import ray

from moe.checkpoint.folder import finished_checkpoints
from moe.weights.segments import Segment
from scalelab.cluster.actors import LOOK_SECONDS, RayProcesses, draining_nodes
from scalelab.cluster.engines import ClusterEngines
from scalelab.cluster.faults import Faults
from scalelab.cluster.graders import ClusterGraders
from scalelab.cluster.heartbeats import Heartbeats, stragglers
from scalelab.cluster.placement import for_trainer, refuse_missing, shared
from scalelab.cluster.trainer_ranks import ClusterTrainer
from scalelab.cluster.trial import made_up_step
from scalelab.errors import LabError
from scalelab.run.books import new_books
from scalelab.run.checkpoint_store import CheckpointStore
from scalelab.run.config import Run
from scalelab.run.coroutines import Changes, TaskGroup, in_own_thread
from scalelab.run.evaluations import InFlightEvaluation
from scalelab.run.journal import Journal
from scalelab.run.ports import TrainerLostError
from scalelab.run.work import RolloutWork
from scalelab.run.world import RunLoop, build_loop, evaluate_in_flight
from scalelab.shards import stored
from scalelab.store.copying import Copier
from scalelab.store.folder import RunFolder
from scalelab.waiting import LateError, answer
from scalelab.watch.progress import Progress, Status, duration

log = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0
"""Seconds between two checks for nodes that are about to be drained."""

COPY_SECONDS = 30.0
"""Seconds between two checks for a checkpoint that is newer than its second copy."""


class ClusterRun:
    """A run in the cluster world, its actors up; it is its own `Checkpointer`.

    Args:
        run: the run.
        base: the folder of the base model.
        folder: takes what the run leaves.
        tokenizer: of the model.
        phrase_ids: token ids of the interrupting phrase.
        end_think: how the end of thinking is recognised.
        progress: takes lines for people.
        faults: told of every engine and trainer that is lost.
    """

    pauses = False

    def __init__(
        self,
        run: Run,
        base: Path,
        folder: RunFolder,
        tokenizer: Any,
        phrase_ids: list[int],
        end_think: Any,
        progress: Progress,
        faults: Faults,
    ) -> None:
        self.run, self.folder, self.progress, self.faults = run, folder, progress, faults
        self.changes, self._ray = Changes(), RayProcesses()
        devices = shared(run.cluster)
        # The trainer's devices are held first: engines, which fit anywhere, could break up the only node large enough.
        ranks = devices or for_trainer(run.cluster, run.cluster.trainers)
        # Engines take longest to come up, and Ray starts no more processes at a time than there are cores.
        self.engines = ClusterEngines(run, base, phrase_ids, end_think, self.changes, faults, devices)
        self.trainer = ClusterTrainer(run, base, run.cluster.trainers, ranks)
        self.graders = ClusterGraders(run, self.changes)
        self.trainer.on_lost_records, self.trainer.on_lost_completions = faults.lost_records, faults.lost_completions
        if run.cluster.publication != "files":
            self.trainer.listeners, self.trainer.on_unsent = self.engines.listeners, faults.unsent
        faults.retry_with_new_trainer(self.trainer.ready, self.trainer.restart)
        if run.cluster.try_step and not finished_checkpoints(folder.checkpoints):
            progress.say("trying an optimiser step on made-up completions")
            self.trainer.try_step(made_up_step(run, stored))
            faults.retry_with_new_trainer(self.trainer.ready, self.trainer.restart)
        folder.describe(clock="wall", verifiers=self.graders.describe())
        self.engines.ready()
        self.work = RolloutWork(run.recipe, tokenizer, run.seed, False, run.retention.train_every, run.tasks)
        self.books = new_books(run)
        self.checkpoint_store = CheckpointStore(run, self.books, folder, progress.say)
        self._copier = Copier(folder.path, run.retention.copy_to, progress.say)
        self.heartbeats = Heartbeats(lambda: self.engines.actors() | self.trainer.actors() | self.graders.actors())
        self.loop: RunLoop[list[Segment]]

    def resume(self) -> None:
        """Go on from the newest checkpoint; a trainer that is lost on the way is replaced.

        Raises:
            LabError: it cannot be replaced any more, or no checkpoint can be used.
        """

        def attempt() -> None:
            self.trainer.ready()
            self.load()

        self.faults.retry_with_new_trainer(attempt, self.trainer.restart)

    def load(self) -> None:
        """Put trainer and books back to the newest checkpoint that is whole, or to the beginning if there is none.

        The ledger goes on: what was spent is spent. Lines of steps that are undone leave the files of the run.

        Raises:
            TrainerLostError: the trainer died, or hangs.
        """
        self.checkpoint_store.go_back(self._load)

    def _load(self, path: Path) -> None:
        self.trainer.call("load", str(path), seconds=self.run.save_seconds)

    async def main(self, attach: Callable[[RunLoop[list[Segment]]], None] = lambda _: None) -> None:
        """Run on the running event loop.

        Args:
            attach: called with the loop before it begins, so that signals can reach it.
        """
        clock = time.monotonic

        def evaluation(journal: Journal) -> InFlightEvaluation[list[Segment]]:
            self._evaluation = evaluate_in_flight(self, journal, clock)
            return self._evaluation

        self.loop, self._journal = build_loop(self, clock, simulated=False, evaluation=evaluation)
        attach(self.loop)
        async with TaskGroup() as group:
            beside = [
                group.create_task(self._look(), name="look at Ray"),
                group.create_task(self.heartbeats.serve(), name="heartbeats"),
                group.create_task(self._copy(), name="second copy"),
            ]
            if self.run.cluster.address is not None:
                beside.append(group.create_task(self._leave_nodes(), name="nodes that are about to go"))
            await self.loop.run()
            for task in beside:
                task.cancel()
        self.folder.status.write("RL", **self._run_state())
        await asyncio.to_thread(self._copier.update)

    async def _copy(self) -> None:
        """Keep the second copy of the newest checkpoint up to date."""
        while True:
            await asyncio.sleep(COPY_SECONDS)
            await asyncio.to_thread(self._copier.update)

    async def _leave_nodes(self) -> None:
        """Stop engines on nodes that are about to go, and take a checkpoint if the trainer is on one of them."""
        seen: dict[str, float] = {}
        while True:
            try:
                draining = await asyncio.to_thread(draining_nodes)
            except Exception as error:  # of many kinds while Ray's head node is away, which others report
                log.debug("draining nodes are not known: %s", error)
                draining = seen
            if draining or seen:
                self.engines.drain(draining)
            if (draining.keys() - seen) & self.trainer.nodes and self.checkpoint_store.due:
                self.progress.say("a node of the trainer is about to go: taking a checkpoint")
                self.loop.save_soon()
            seen = draining
            await asyncio.sleep(DRAIN_SECONDS)

    async def _look(self) -> None:
        """Check that Ray lives, charge the time, and show the run's progress."""
        while True:
            self._ray.check()
            self._journal.charge(self.loop.stepping.locked())
            self.changes.notify()  # the budget's hours may be over
            self.show()
            if self.folder.status.due:
                self.folder.status.write("RL", **self._run_state())
            await asyncio.sleep(LOOK_SECONDS)

    def _run_state(self) -> dict[str, Any]:
        """Content of `status.json`: the loop and every actor."""
        versions, evaluation = self.engines.versions(), self._evaluation
        actors = self.heartbeats.lines()
        waits = sorted(self.changes.waits().items(), key=lambda one: -one[1])
        return {
            "step": self.books.version,
            "steps": self.run.budget.steps,
            "compute": self.books.ledger.compute,
            "unit": self.run.compute_unit,
            "evaluation": [evaluation.graded, evaluation.expected] if evaluation.running else None,
            "waits": [f"{what}, {duration(seconds)}" for what, seconds in waits],
            "actors": [one | {"version": versions[one["name"]]} if one["name"] in versions else one for one in actors],
            "stragglers": stragglers(actors),
        }

    def show(self) -> None:
        """Show the run's progress."""
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

    # Checkpointer.

    async def save(self) -> Coroutine[None, None, None]:
        """Take a checkpoint of everything; it is written while the loop goes on."""
        path, state = self.checkpoint_store.begin()
        what = "completions that wait for a step to be written"
        ready = in_own_thread(lambda: ray.put(state()))  # once for all ranks, and beside the event loop
        return self._saved(self.trainer.save(path, await answer(ready, self.run.save_seconds, what)))

    async def _saved(self, taken: Any) -> None:
        await taken
        await in_own_thread(self.checkpoint_store.prune)

    async def check(self) -> None:
        """Notice soon when a checkpoint has been written, or could not be."""
        await self.trainer.saving()
        await in_own_thread(self.checkpoint_store.publish)  # old ones are deleted, which takes long on some disks

    async def rest(self) -> None:
        """Take a checkpoint at the end, and wait until it is on the disk."""
        if self.checkpoint_store.due:
            await (await self.save())
        await self.trainer.finish_saving()
        await in_own_thread(self.checkpoint_store.prune)

    async def go_back(self, error: TrainerLostError) -> None:
        """Replace a trainer that lost a rank, and put everything back to the newest checkpoint.

        A trainer that is lost on the way is replaced again, after a pause. The engines stand still meanwhile, as
        nothing can be asked of them.

        Raises:
            BrokenOffError: a device is gone, and has not come back while the trainer was waited for.
            LabError: the trainer was replaced as often as it may be.
        """
        for attempt in self.faults.trainer_attempts(error, step=self.books.version):
            self._journal.charge(stepping=False)
            self._journal.broken = True
            await asyncio.sleep(attempt.pause)
            with attempt:
                await in_own_thread(self._restart)
                await asyncio.to_thread(self.load)
        self._journal.charge(stepping=False)
        self._journal.broken = False

    def _restart(self) -> None:
        try:
            self.trainer.restart()
            self.trainer.ready()
        except LabError as error:  # whatever keeps it from coming up, such as a second death or a port that is taken
            if isinstance(error.__cause__, LateError):
                refuse_missing(self.run.cluster, self.run.devices, str(error))
            raise TrainerLostError(str(error)) from error

    def stop(self) -> None:
        """End the actors and give their devices back."""
        self.trainer.stop()
        self.engines.stop()
