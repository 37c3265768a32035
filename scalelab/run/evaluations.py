"""Evaluate a policy on held-out prompts: on the engines in flight, or at rest from weights that were kept.

Every evaluation calls `generate_and_grade`, that of `scalelab eval` (`scalelab.session.evaluate_model`), too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from scalelab.recipe.types import Rollout
from scalelab.rollout.evaluation import Graded
from scalelab.rollout.types import Completion, Request
from scalelab.run.books import RunBooks
from scalelab.run.changes import Changes
from scalelab.run.ports import Engines, EvaluationLostError, Graders, WeightsT
from scalelab.run.tasks import TaskGroup
from scalelab.run.work import Sampling
from tasks.types import Prompt, Verdict

T = TypeVar("T")


@dataclass(frozen=True)
class Spent:
    """The policy of an evaluation, and the compute spent when it was sampled."""

    version: int
    hours: dict[str, float]
    completions: int
    tokens: int
    generated: int
    seconds: float
    """Time on the world's clock."""

    @classmethod
    def of(cls, books: RunBooks, version: int, seconds: float) -> Spent:
        """The current state of the books."""
        return cls(version, dict(books.ledger.hours), books.completions, books.tokens, books.generated, seconds)


RecordEvaluation = Callable[[Spent, list[Graded]], None]
"""Function that writes an evaluation down."""


class Completions(Protocol):
    """File of an evaluation's completions."""

    def add(self, rollouts: Sequence[Rollout]) -> None:
        """Take completions; returns at once."""

    def finish(self) -> Future[None]:
        """Write what is left; once this is done, all is on the disk."""

    def drop(self) -> None:
        """Delete what was written."""


async def generate_and_grade(
    prompts: Mapping[str, Prompt],
    samples: int,
    work: Sampling,
    generate: Callable[[Sequence[Request]], Awaitable[list[Completion]]],
    grade: Callable[[Prompt, Sequence[Completion]], Awaitable[list[Verdict]]],
    finished: Callable[[list[Rollout]], list[T]],
) -> list[T]:
    """Generate and grade completions of held-out prompts, all prompts side by side.

    Args:
        prompts: the prompts, by the names that their requests get.
        samples: completions of each prompt.
        work: makes requests and rollouts.
        generate: `Engines.generate`.
        grade: `Graders.grade`.
        finished: takes a prompt's rollouts as soon as they are graded, and gives what is to be returned of them.

    Returns:
        What `finished` gave, in the order of the prompts.
    """

    async def one(name: str, prompt: Prompt) -> list[T]:
        completions = await generate(work.requests(name, prompt, "eval", samples))
        verdicts = await grade(prompt, completions)
        return finished(work.rollouts(prompt, completions, verdicts))

    async with TaskGroup() as group:
        running = [group.create_task(one(name, prompt)) for name, prompt in prompts.items()]
    return [one for task in running for one in task.result()]


@dataclass(eq=False)
class InFlightEvaluation(Generic[WeightsT]):
    """Evaluation among the completions for training.

    Either all engines keep their weights meanwhile, or those that are set aside for it, and the others go on as usual.
    What falls due while an evaluation runs is taken with the next weights after it.
    """

    books: RunBooks
    engines: Engines[Request, Completion, WeightsT]
    graders: Graders[Prompt, Completion, Verdict]
    work: Sampling
    changes: Changes
    charge: Callable[[], None]
    file: Callable[[int], Completions]
    """Opens the file for the completions of a version."""
    record: RecordEvaluation
    clock: Callable[[], float]
    held_out: Sequence[Prompt]
    samples: int
    updating: Callable[[], bool]
    """True while weights are on their way to the engines."""
    aside: int = 0
    """Engines to set aside; 0 for none."""
    alone: Callable[[], bool] = lambda: False
    """True if the engines have nothing else to do."""
    kept: int = 0
    """Engines that are set aside now."""
    graded: int = 0
    """Completions of the running evaluation that are graded."""
    running: bool = False

    @property
    def expected(self) -> int:
        """Completions of an evaluation."""
        return len(self.held_out) * self.samples

    @property
    def holds_draws(self) -> bool:
        """True until the base model is evaluated: its evaluation has the engines alone."""
        return self.books.evaluated < 0

    @property
    def holds_weights(self) -> bool:
        """True while an evaluation runs, or could begin."""
        return (self.running and not self.kept) or self._ready()

    def due(self, version: int) -> None:
        """Ask for an evaluation of these weights, or of the first later ones."""
        if self.books.evaluated < version:
            self.books.evaluate_from = version

    def awaits(self, updating: bool) -> bool:
        """True while the weights of a due evaluation are being published, so that no later ones are."""
        return self.books.evaluate_from is not None and updating and not self.running

    def done(self, version: int) -> bool:
        """True if these weights are evaluated."""
        return self.books.evaluated >= version

    async def serve(self) -> None:
        """Evaluate what is due, until cancelled.

        Waits for: weights of the version that is due, in the engines. Produces: evaluations.
        """
        self.running = False
        self.books.add_evaluated([])  # a checkpoint may be older than the evaluations that are written down
        if self.books.evaluated < 0:
            self.due(self.books.version)
        while True:
            await self.changes.until(self._ready, "an evaluation to be due")
            self.charge()
            self.running, self.graded = True, 0
            spent = Spent.of(self.books, self.engines.version, self.clock())
            graded: list[Graded] | None = None
            file = self.file(spent.version)
            try:
                graded = await self._evaluate(spent, file)
                self.charge()
                await asyncio.wrap_future(file.finish())
            except* EvaluationLostError:
                pass  # the evaluation stays due, and takes newer weights
            finally:
                file.drop()
            self.running = False
            if graded is None:
                continue
            self.record(spent, graded)
            self.books.add_evaluated([spent.version])
            self.changes.notify()

    async def _evaluate(self, spent: Spent, file: Completions) -> list[Graded]:
        """Generate and grade the held-out completions, on engines of their own unless there is nothing else to do."""
        beside = self.aside > 0 and self.books.evaluated >= 0 and not self.alone()
        self.kept = self.engines.set_aside(self.aside) if beside else 0
        self.changes.notify()

        def finished(rollouts: list[Rollout]) -> list[Graded]:
            self.graded += len(rollouts)
            file.add(rollouts)
            return [Graded.of(one) for one in rollouts]

        try:
            return await generate_and_grade(
                by_name(self.held_out, spent.version),
                self.samples,
                self.work,
                self.engines.generate,
                self.graders.grade,
                finished,
            )
        finally:
            if self.kept:
                self.engines.set_aside(0)
            self.kept = 0

    def _ready(self) -> bool:
        due = self.books.evaluate_from
        return not (self.running or self.updating()) and due is not None and self.engines.version >= due


def by_name(held_out: Sequence[Prompt], version: int) -> dict[str, Prompt]:
    """Held-out prompts by name; the name decides on their random numbers, so those of other versions are others."""
    return {f"{version}/{prompt.id}": prompt for prompt in held_out}


@dataclass(eq=False)
class EvaluationAtRest(Generic[WeightsT]):
    """Evaluation between two stretches, from weights copied when it fell due; it takes no simulated time."""

    books: RunBooks
    keep: Callable[[int], WeightsT]
    """Function that copies the trainer's weights, given their version."""
    generate: Callable[[Spent, WeightsT], Awaitable[list[Rollout]]]
    """Function that generates and grades completions of the held-out prompts with these weights."""
    file: Callable[[int], Completions]
    """Opens the file for the completions of a version."""
    record: RecordEvaluation
    clock: Callable[[], float]
    kept: list[tuple[Spent, WeightsT]] = field(default_factory=list)
    holds_draws: bool = False
    holds_weights: bool = False

    def due(self, version: int) -> None:
        """Keep the trainer's weights, which are of this version."""
        if self.books.evaluated < version and not self.done(version):
            self.kept.append((Spent.of(self.books, version, self.clock()), self.keep(version)))

    def awaits(self, updating: bool) -> bool:
        """Always False: an evaluation at rest uses kept weights, so none has to be waited for."""
        return False

    def done(self, version: int) -> bool:
        """True if these weights are evaluated, or kept for that."""
        return self.books.evaluated >= version or any(spent.version == version for spent, _ in self.kept)

    async def serve(self) -> None:
        """Do nothing until cancelled; `rest` evaluates."""

    async def rest(self) -> None:
        """Evaluate all weights that are kept."""
        for spent, weights in self.kept:
            rollouts = await self.generate(spent, weights)
            file = self.file(spent.version)
            try:
                file.add(rollouts)
                file.finish().result()  # the simulated clock stands still
            finally:
                file.drop()
            self.record(spent, [Graded.of(one) for one in rollouts])
            self.books.evaluated = spent.version
        self.kept.clear()
