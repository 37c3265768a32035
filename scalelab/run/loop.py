"""The loop that is ScaleRL: draw → generate → verify → filter → advantages → loss → step → publish → evaluate.

    ┌─────────┐ groups  ┌───────────────┐ rollouts ┌────────────┐ weights ┌───────────┐
    │  draw   ├────────▶│ group (many)  ├─────────▶│  optimise  ├────────▶│  publish  │
    │ prompts │         │ engines→graders│          │  trainer   │         │  engines  │
    └────▲────┘         └───────────────┘          └─────┬──────┘         └─────┬─────┘
         │                                               │ version              │ version
         │          ┌─────────────── Books ──────────────▼──────────────────────▼─────┐
         └──────────┤ schedule · sampler · groups · ledger · evaluations              │◀── evaluation
                    └───────────────────────────────────────────────────────────────────┘

Each box is a coroutine. They share the books and wait for conditions on them (`Changes.until`); whoever changes the
books says so (`Changes.notify`). What the loop asks of engines, trainer and graders stands in `scalelab.run.ports`: the
same loop runs on a Ray cluster, on a simulated clock with the real parts, and with nothing but durations.

A *stretch* of the run is one task group. It ends at the budget's end, when the run is asked to stop, and, on a
simulated clock, at every checkpoint. A lost trainer cancels it; the next stretch begins at the newest checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from scalelab.errors import LabError, first_error
from scalelab.run.books import Books
from scalelab.run.coroutines import Changes, TaskGroup
from scalelab.run.grading import generated_and_graded
from scalelab.run.ports import (
    CompletionT,
    Engines,
    Graders,
    PromptT,
    RequestT,
    ResultT,
    RolloutsT,
    StepLostError,
    StepT,
    Trainer,
    TrainerLostError,
    VerdictT,
    WeightsT,
)
from scalelab.run.settings import Budget

_StepIn = TypeVar("_StepIn", contravariant=True)
_ResultIn = TypeVar("_ResultIn", contravariant=True)
_PromptIn = TypeVar("_PromptIn", contravariant=True)
_RequestOut = TypeVar("_RequestOut", covariant=True)
_CompletionIn = TypeVar("_CompletionIn", contravariant=True)
_VerdictIn = TypeVar("_VerdictIn", contravariant=True)
_StepOut = TypeVar("_StepOut", covariant=True)

LOST_STEPS = 4
"""Most steps in a row whose completions are all lost: nodes then cannot reach each other's."""


class Work(Protocol[_PromptIn, _RequestOut, _CompletionIn, _VerdictIn, RolloutsT, _StepOut]):
    """Groups for the loop: of prompts and rollouts, or of lengths alone."""

    generations: int
    """Completions of a group."""

    def requests(self, name: str, prompt: _PromptIn) -> Sequence[_RequestOut]:
        """Make the engines' requests for a group."""

    def rollouts(
        self, prompt: _PromptIn, completions: Sequence[_CompletionIn], verdicts: Sequence[_VerdictIn]
    ) -> RolloutsT:
        """The graded completions of a group."""

    def outcome(self, rollouts: RolloutsT) -> tuple[float | None, str | None]:
        """A group's pass rate, and the reason to replace it by another (None: it is trained on)."""

    def step(self, groups: list[RolloutsT], version: int) -> _StepOut:
        """The training sequences of a step on these groups, with the step's metrics."""


class Evaluator(Protocol):
    """Evaluation of the policy while the run goes on."""

    @property
    def holds_draws(self) -> bool:
        """True if no group may be started yet."""

    @property
    def holds_weights(self) -> bool:
        """True if the engines have to keep the weights that they hold."""

    def due(self, version: int, names: Sequence[str] | None = None) -> None:
        """Ask for an evaluation of these weights, or of the first later ones, on some sets or on all."""

    def awaits(self, updating: bool) -> bool:
        """True while the weights of a due evaluation are being published; no step may be taken until then."""

    def done(self, version: int) -> bool:
        """True if these weights are evaluated."""

    async def serve(self) -> None:
        """Evaluate what is due, until cancelled."""


class Journal(Protocol[_StepIn, _ResultIn]):
    """Receiver of the loop's events."""

    def charge(self, stepping: bool) -> None:
        """Charge the time since the last charge to the ledger; `stepping` says whether the trainer was at work."""

    async def keep(self, step: _StepIn, result: _ResultIn | None) -> None:
        """Write the completions of a step that are to be kept; the step is not booked yet."""

    def stepped(
        self, names: list[str], step: _StepIn, result: _ResultIn | None, seconds: dict[str, float]
    ) -> LabError | None:
        """Write an optimiser step just after it was booked; returns the reason to stop the run, if there is one."""


class Checkpointer(Protocol):
    """Checkpoints, and the work between two stretches."""

    pauses: bool
    """True if a stretch ends at every checkpoint: everything in flight is dropped then, and started again."""

    async def save(self) -> Coroutine[None, None, None]:
        """Ask for a checkpoint of trainer and books as they are now; the next step may be asked for after that.

        Returns:
            What ends once it is taken.
        """

    async def check(self) -> None:
        """Raise the error of a checkpoint that could not be written.

        Raises:
            LabError: it could not.
        """

    async def rest(self) -> None:
        """Take a checkpoint that is on the disk when this returns, and evaluate what is due on engines at rest.

        Raises:
            TrainerLostError: the run has to go back.
        """

    async def go_back(self, error: TrainerLostError) -> None:
        """Replace the trainer; put it and the books back to the newest checkpoint."""


class _StretchOver(Exception):  # noqa: N818 - no error: it cancels what a stretch has in flight
    """Signal that ends a stretch in order."""


@dataclass(eq=False)
class Loop(Generic[PromptT, RequestT, CompletionT, VerdictT, RolloutsT, StepT, ResultT, WeightsT]):
    """One run in one world."""

    books: Books[PromptT, RolloutsT]
    budget: Budget
    evaluation_due: Callable[[int, float, float], Sequence[str]]
    """Rule that names the sets to evaluate after a step: `Evaluation.due`."""
    checkpoint_due: Callable[[int, float, float], bool]
    """Rule that tells whether a checkpoint is due after a step: `Run.checkpoint_cadence`."""
    work: Work[PromptT, RequestT, CompletionT, VerdictT, RolloutsT, StepT]
    engines: Engines[RequestT, CompletionT, WeightsT]
    trainer: Trainer[StepT, ResultT, WeightsT]
    graders: Graders[PromptT, CompletionT, VerdictT]
    evaluation: Evaluator
    journal: Journal[StepT, ResultT]
    checkpointer: Checkpointer
    changes: Changes
    clock: Callable[[], float]
    """Seconds of the world's time."""
    stopping: bool = False
    """True once the run was asked to stop."""
    stepping: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while an optimiser step is under way."""
    updating: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while weights are on their way to the engines."""
    behind: bool = False
    """True while the engines must get the trainer's weights before any request."""
    save_asked: bool = False
    """True while a checkpoint is to be taken before the next step."""
    save_due: bool = False
    """True if the rule asks for a checkpoint of the weights as they are."""
    unasked: int = 0
    """Groups that were drawn and have not asked the engines for completions yet; they take up room, too."""
    lost_steps: int = 0
    """Steps in a row of which every completion was lost."""
    failure: LabError | None = None
    """Reason to stop, if the run stops by itself."""
    early_end: str | None = None
    """Reason to end, in order, before the budget is spent."""

    async def run(self) -> None:
        """Run to the end of the budget, or until asked to stop; the last checkpoint is on the disk when this returns.

        Raises:
            LabError: a monitor stopped the run, after a checkpoint; or something that could not be replaced was lost.
        """
        self.behind = self.checkpointer.pauses or self.books.version > 0
        async with TaskGroup() as services:
            serving = [] if self.checkpointer.pauses else [services.create_task(one) for one in self.services()]
            while not self.over:
                await self.stretch()
            for task in serving:
                task.cancel()
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        """End the run after the step under way, with a checkpoint."""
        self.stopping = True
        self.changes.notify()

    def save_soon(self) -> None:
        """Take a checkpoint as soon as no step is under way."""
        self.save_asked = True
        self.changes.notify()

    async def stretch(self) -> None:
        """Run until there is a reason to rest, or to go back; see the module's docstring."""
        lost: TrainerLostError | None = None
        try:
            async with TaskGroup() as group:
                self.spawn = group.create_task
                services = self.services() if self.checkpointer.pauses else []
                for task in (*services, self.resume(), self.draw(), self.publish(), self.evaluation.serve()):
                    self.spawn(task)
                await self.optimise()
                raise _StretchOver
        except* _StretchOver:
            pass
        except* TrainerLostError as errors:
            lost = first_error(errors)
        self.unasked = 0
        self.engines.forget()
        if lost is None:
            try:
                await self.checkpointer.rest()
            except TrainerLostError as error:
                lost = error
        self.behind = self.checkpointer.pauses or lost is not None
        if lost is not None:
            await self.checkpointer.go_back(lost)

    def services(self) -> list[Coroutine[None, None, None]]:
        """Run the services that outlive a lost trainer: the engines with their weights, and the graders."""
        return [self.engines.serve(), self.graders.serve()]

    async def resume(self) -> None:
        """Bring the engines to the trainer's weights, then generate again what was in flight.

        Consumes: the books as they were restored. Produces: group tasks.
        """
        if self.behind:
            async with self.updating:
                await self.engines.update(self.books.version, await self.trainer.publish(self.books.version))
            self.behind = False
        for name in self.books.schedule.in_flight:
            self.start(name)
        self.changes.notify()

    async def draw(self) -> None:
        """Start groups as far as the schedule admits them and there is room; end the run where no prompt is left.

        Waits for: admission. Produces: group tasks.
        """
        while True:
            for _ in range(await self.changes.until(self.admitted, "room for another group")):
                name = self.books.draw(self.engines.version)
                if name is None:
                    self.early_end = "every prompt of every task is retired: add prompts, or raise retire_at"
                    self.changes.notify()
                    return
                self.start(name)

    def start(self, name: str) -> None:
        """Start the task of a drawn group; the task itself runs only when this coroutine waits."""
        self.unasked += 1
        self.spawn(self.group(name), name=name)

    async def group(self, name: str) -> None:
        """Process one group: prompt → requests → completions → verdicts → rollouts.

        Consumes: a drawn prompt. Waits for: engines, graders. Produces: a finished group, or a dropped one that another
        takes the place of.
        """
        self.unasked -= 1
        prompt = self.books.groups[name].prompt
        requests = self.work.requests(name, prompt)
        completions, verdicts = await generated_and_graded(
            requests, self.engines.generate, partial(self.graders.grade, prompt)
        )
        rollouts = self.work.rollouts(prompt, completions, verdicts)
        self.books.finish(name, rollouts, *self.work.outcome(rollouts))
        self.changes.notify()

    async def optimise(self) -> None:
        """Take optimiser steps until the run has a reason to rest.

        Consumes: finished groups. Waits for: a batch; weights and evaluations that a step must not overtake. Produces:
        policy versions.
        """
        began = self.clock()
        while not self.ending:
            names = self.batch()
            if self.save_asked:
                self.save_asked = False
                self.spawn(await self.checkpointer.save(), name="checkpoint")
            elif names is None:
                await self.changes.until(
                    lambda: self.ending or self.save_asked or self.batch(), "a batch of finished groups"
                )
            elif not self.spent():
                await self.step(names, self.clock() - began)
                self.spawn(self.checkpointer.check(), name="look at the last checkpoint")
                if self.save_due:
                    if self.checkpointer.pauses:
                        return
                    self.spawn(await self.checkpointer.save(), name="checkpoint")
                began = self.clock()
        if not (self.stopping or self.evaluation.done(self.books.version)):
            self.evaluation.due(self.books.version)
            self.changes.notify()
            await self.changes.until(lambda: self.stopping or self.over, "the last evaluation")

    def spent(self) -> bool:
        """Charge the time up to now, and tell whether it has ended the run."""
        self.journal.charge(stepping=False)
        return self.ending

    async def step(self, names: list[str], waited: float) -> None:
        """Train on a batch of groups and book it; if all its completions are lost, have them generated again.

        Raises:
            StepLostError: those were lost again and again.
        """
        began = self.clock()
        prompts = {name: self.books.groups[name].prompt for name in names}
        step = self.work.step(self.books.take(names), self.books.version)
        built = self.clock()
        self.journal.charge(stepping=False)
        try:
            async with self.stepping:
                result = await self.trainer.step(step) if step.sequences else None
                await self.journal.keep(step, result)
        except StepLostError:
            self.save_due, self.lost_steps = False, self.lost_steps + 1
            if self.lost_steps == LOST_STEPS:
                raise
            self.journal.charge(stepping=True)
            self.books.take_again(prompts)
            for name in names:
                self.start(name)
            self.changes.notify()
            return
        self.lost_steps = 0
        self.journal.charge(stepping=True)
        self.books.schedule.book_step(names)
        seconds = {"wait": waited, "build": built - began, "step": self.clock() - began}
        self.failure = self.journal.stepped(names, step, result, seconds)
        self.stopping |= self.failure is not None
        since, self.books.step_hours = self.books.step_hours, self.books.ledger.compute
        self.save_due = self.checkpoint_due(self.books.version, since, self.books.step_hours)
        due = self.evaluation_due(self.books.version, since, self.books.step_hours)
        if due or self.budget_spent:
            self.evaluation.due(self.books.version, None if self.budget_spent else due)
        self.changes.notify()

    async def publish(self) -> None:
        """Send the newest weights to the engines whenever they may have them; unfinished completions go on with them.

        Waits for: new weights, the schedule's consent, evaluations of the weights that the engines hold. Produces:
        engines with newer weights.
        """
        while True:
            await self.changes.until(self.publication_due, "weights to publish")
            version = self.books.version
            async with self.updating:
                published = self.trainer.publish(version)
                self.changes.notify()  # the next step may be asked for, now that the weights leave before it
                await self.engines.update(version, await published)
            self.changes.notify()

    # The conditions that coroutines wait for.

    @property
    def budget_spent(self) -> bool:
        """True if no further step may start: the budget is spent, or there is nothing left to train on."""
        hours = self.budget.hours
        spent = self.books.version >= self.budget.steps or (hours is not None and self.books.ledger.compute >= hours)
        return spent or self.early_end is not None

    @property
    def ending(self) -> bool:
        """True if no further step may start, for whatever reason."""
        return self.stopping or self.budget_spent

    @property
    def over(self) -> bool:
        """True if the run was asked to stop, or has come to its end and evaluated its last policy."""
        return self.stopping or (self.budget_spent and self.evaluation.done(self.books.version))

    def admitted(self) -> int:
        """Number of groups that may be started now."""
        if self.behind or self.ending or self.evaluation.holds_draws:
            return 0
        room = self.engines.room // self.work.generations - self.unasked if self.graders.room > 0 else 0
        return min(room, self.books.schedule.may_start(self.engines.version)) if room > 0 else 0

    def batch(self) -> list[str] | None:
        """The groups of the next step; None while one has to wait, or weights that are due have to leave first."""
        if self.publication_due() or self.evaluation.awaits(self.updating.locked()):
            return None
        return self.books.schedule.batch()

    def publication_due(self) -> bool:
        """True if the newest weights can leave for the engines."""
        if self.stepping.locked() or self.updating.locked() or self.behind or self.evaluation.holds_weights:
            return False
        if self.engines.version == self.books.version:
            return False
        return self.books.schedule.may_publish() or self.budget_spent
