"""Evaluate a policy on held-out prompts: on the engines in flight, or at rest from weights that were kept.

Every evaluation calls `generate_and_grade`, that of `scalelab eval` (`scalelab.session.evaluate_model`), too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from scalelab.recipe.types import AnyRollout
from scalelab.rollout.evaluation import Graded
from scalelab.rollout.types import AnyCompletion, Request
from scalelab.run.books import RunBooks
from scalelab.run.config import Run
from scalelab.run.coroutines import Changes, TaskGroup
from scalelab.run.evaluation_sets import ReadySet
from scalelab.run.grading import generated_and_graded
from scalelab.run.ports import Engines, EvaluationLostError, Graders, WeightsT
from scalelab.run.settings import Budget, limits_of
from tasks.types import Prompt, Verdict

if TYPE_CHECKING:
    from scalelab.run.work import Sampling  # whose tokenizers a simulation does without

T = TypeVar("T")
AnyCompletionT = TypeVar("AnyCompletionT", bound=AnyCompletion)


@dataclass(frozen=True)
class EvaluationPoint:
    """The policy of an evaluation, and the compute spent when it was sampled."""

    version: int
    hours: dict[str, float]
    completions: int
    tokens: int
    generated: int
    seconds: float
    """Time on the world's clock."""
    part: float = 1.0
    """Part of the run's budget."""

    @classmethod
    def of(cls, books: RunBooks, version: int, seconds: float, budget: Budget) -> EvaluationPoint:
        """The current state of the books."""
        part = budget.part(version, books.ledger.compute)
        return cls(version, dict(books.ledger.hours), books.completions, books.tokens, books.generated, seconds, part)


RecordEvaluation = Callable[[EvaluationPoint, list[Graded]], None]
"""Function that writes an evaluation down."""


class Completions(Protocol):
    """File of an evaluation's completions."""

    def add(self, rollouts: Sequence[AnyRollout]) -> None:
        """Take completions; returns at once."""

    def finish(self) -> Future[None]:
        """Write what is left; once this is done, all is on the disk."""

    def drop(self) -> None:
        """Delete what was written."""


@dataclass(frozen=True)
class HeldOutPrompt:
    """A held-out prompt, and the maker of its requests and rollouts."""

    prompt: Prompt
    work: Sampling


@dataclass(frozen=True)
class PreparedSet:
    """The prompts of an evaluation set, and the maker of their requests and rollouts."""

    prompts: Sequence[Prompt]
    work: Sampling
    early: Sampling | None = None
    """Maker of requests and rollouts before `full_from`, if that is another."""
    full_from: float = 0.0
    """Part of the budget from which `work` makes them."""

    def at(self, part: float) -> PreparedSet:
        """The set as it is evaluated when this part of the run's budget is spent."""
        early = self.early if part < self.full_from else None
        return PreparedSet(self.prompts, self.work if early is None else early)

    @property
    def expected(self) -> int:
        """Completions of an evaluation."""
        return len(self.prompts) * self.work.generations


def prepared_sets(run: Run, work: Sampling) -> dict[str, PreparedSet]:
    """The evaluation sets of a run with their prompts, by name.

    Args:
        run: the run.
        work: of its training, from which the sets' sampling differs where they say so.
    """

    def sampling(one: ReadySet, samples: int) -> Sampling:
        return work.like(
            generations=samples,
            max_tokens=one.max_tokens,
            temperature=one.temperature,
            limits={task.name: limits_of(task, run.recipe, one.max_tokens) for task in one.tasks},
        )

    return {
        one.name: PreparedSet(
            one.all_prompts, sampling(one, one.samples), sampling(one, one.early_samples), one.full_from
        )
        for one in run.sets
    }


def by_name(sets: Iterable[PreparedSet], version: int) -> dict[str, HeldOutPrompt]:
    """Held-out prompts by name; the name decides on their random numbers, so those of other versions are others."""
    return {f"{version}/{prompt.id}": HeldOutPrompt(prompt, one.work) for one in sets for prompt in one.prompts}


async def generate_and_grade(
    asked: Mapping[str, HeldOutPrompt],
    generate: Callable[[Sequence[Request]], Awaitable[list[AnyCompletionT]]],
    grade: Callable[[Prompt, Sequence[AnyCompletionT]], Awaitable[list[Verdict]]],
    finished: Callable[[list[AnyRollout]], list[T]],
) -> list[T]:
    """Generate and grade completions of held-out prompts, all prompts side by side.

    Args:
        asked: the prompts, by the names that their requests get.
        generate: `Engines.generate`.
        grade: `Graders.grade`.
        finished: takes a prompt's rollouts as soon as they are graded, and gives what is to be returned of them.

    Returns:
        What `finished` gave, in the order of the prompts.
    """

    async def one(name: str, asked: HeldOutPrompt) -> list[T]:
        requests = asked.work.requests(name, asked.prompt, "eval")
        completions, verdicts = await generated_and_graded(requests, generate, partial(grade, asked.prompt))
        return finished(asked.work.rollouts(asked.prompt, completions, verdicts))

    async with TaskGroup() as group:
        running = [group.create_task(one(name, prompt)) for name, prompt in asked.items()]
    return [one for task in running for one in task.result()]


@dataclass(eq=False)
class InFlightEvaluation(Generic[WeightsT]):
    """Evaluation among the completions for training.

    Either all engines keep their weights meanwhile, or those that are set aside for it, and the others go on as usual.
    What falls due while an evaluation runs is taken with the next weights after it.
    """

    books: RunBooks
    budget: Budget
    engines: Engines[Request, AnyCompletion, WeightsT]
    graders: Graders[Prompt, AnyCompletion, Verdict]
    changes: Changes
    charge: Callable[[], None]
    file: Callable[[int, str], Completions]
    """Opens the file for the completions of a version; the name of the sets if others have that version's."""
    record: Callable[[EvaluationPoint, list[Graded], str], None]
    """Writes an evaluation down, with the same name."""
    clock: Callable[[], float]
    sets: Mapping[str, PreparedSet]
    first: Sequence[str]
    """Sets that the first weights are evaluated on."""
    updating: Callable[[], bool]
    """True while weights are on their way to the engines."""
    aside: int = 0
    """Engines to set aside; 0 for none."""
    engines_idle: Callable[[], bool] = lambda: False
    """True if the engines have nothing else to do."""
    kept: int = 0
    """Engines that are set aside now."""
    graded: int = 0
    """Completions of the running evaluation that are graded."""
    running: bool = False
    taken: Mapping[str, PreparedSet] = field(default_factory=dict)
    """Sets of the running evaluation, as they are evaluated now."""

    @property
    def expected(self) -> int:
        """Completions of the running evaluation."""
        return sum(one.expected for one in self.taken.values())

    @property
    def holds_draws(self) -> bool:
        """True until the base model is evaluated, where its evaluation has all the engines."""
        return self.books.evaluated < 0 and not self.aside

    @property
    def holds_weights(self) -> bool:
        """True while an evaluation runs, or could begin."""
        return (self.running and not self.kept) or self._ready()

    def due(self, version: int, names: Sequence[str] | None = None) -> None:
        """Ask for an evaluation of these weights, or of the first later ones, on some sets or on all."""
        self.books.add_due(version, self.sets if names is None else names)

    def awaits(self, updating: bool) -> bool:
        """True while the weights of a due evaluation are being published, so that no later ones are."""
        return self.books.evaluate_from is not None and updating and not self.running

    def done(self, version: int) -> bool:
        """True if these weights are evaluated on all sets."""
        return all(self.books.evaluated_on.get(name, -1) >= version for name in self.sets)

    async def serve(self) -> None:
        """Evaluate what is due, until cancelled.

        Waits for: weights of the version that is due, in the engines. Produces: evaluations.
        """
        self.running = False
        if self.books.evaluated < 0:
            self.due(self.books.version, self.first)
        while True:
            await self.changes.until(self._ready, "an evaluation to be due")
            self.charge()
            self.running, self.graded = True, 0
            point = EvaluationPoint.of(self.books, self.engines.version, self.clock(), self.budget)
            self.taken = {name: one.at(point.part) for name, one in self.sets.items() if name in self.books.due}
            graded: list[Graded] | None = None
            # The last weights may have been evaluated on some sets before the hours of the budget were over.
            again = " ".join(self.taken) if self.books.evaluated == point.version else ""
            file = self.file(point.version, again)
            try:
                graded = await self._evaluate(point, file)
                self.charge()
                await asyncio.wrap_future(file.finish())
            except* EvaluationLostError:
                pass  # the evaluation stays due, and takes newer weights
            finally:
                file.drop()
            self.running = False
            if graded is None:
                continue
            self.record(point, graded, again)
            self.books.add_evaluated(dict.fromkeys(self.taken, point.version))
            self.changes.notify()

    async def _evaluate(self, point: EvaluationPoint, file: Completions) -> list[Graded]:
        """Generate and grade the held-out completions, on engines of their own unless there is nothing else to do."""
        beside = self.aside > 0 and not self.engines_idle()
        self.kept = self.engines.set_aside(self.aside) if beside else 0
        self.changes.notify()

        def finished(rollouts: list[AnyRollout]) -> list[Graded]:
            self.graded += len(rollouts)
            file.add(rollouts)
            return [Graded.of(one) for one in rollouts]

        try:
            return await generate_and_grade(
                by_name(self.taken.values(), point.version),
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


@dataclass(eq=False)
class EvaluationAtRest(Generic[WeightsT]):
    """Evaluation between two stretches, from weights copied when it fell due; it takes no simulated time."""

    books: RunBooks
    budget: Budget
    keep: Callable[[int], WeightsT]
    """Function that copies the trainer's weights, given their version."""
    generate: Callable[[EvaluationPoint, WeightsT, Sequence[PreparedSet]], Awaitable[list[AnyRollout]]]
    """Function that generates and grades completions of the sets' prompts with these weights."""
    file: Callable[[int], Completions]
    """Opens the file for the completions of a version."""
    record: RecordEvaluation
    clock: Callable[[], float]
    sets: Mapping[str, PreparedSet]
    kept: list[tuple[EvaluationPoint, WeightsT, set[str]]] = field(default_factory=list)
    """Weights with the sets that they are to be evaluated on."""
    holds_draws: bool = False
    holds_weights: bool = False

    def due(self, version: int, names: Sequence[str] | None = None) -> None:
        """Keep the trainer's weights, which are of this version, for some sets or for all."""
        wanted = {name for name in names or self.sets if self.books.evaluated_on.get(name, -1) < version}
        same = next((sets for point, _, sets in self.kept if point.version == version), None)
        if same is not None:
            same |= wanted
        elif wanted:
            point = EvaluationPoint.of(self.books, version, self.clock(), self.budget)
            self.kept.append((point, self.keep(version), wanted))

    def awaits(self, updating: bool) -> bool:
        """Always False: an evaluation at rest uses kept weights, so none has to be waited for."""
        return False

    def done(self, version: int) -> bool:
        """True if these weights are evaluated on all sets, or kept for that."""
        kept = {name for point, _, sets in self.kept if point.version == version for name in sets}
        return all(name in kept or self.books.evaluated_on.get(name, -1) >= version for name in self.sets)

    async def serve(self) -> None:
        """Do nothing until cancelled; `rest` evaluates."""

    async def rest(self) -> None:
        """Evaluate all weights that are kept."""
        for point, weights, names in self.kept:
            chosen = [name for name in self.sets if name in names]
            rollouts = await self.generate(point, weights, [self.sets[name].at(point.part) for name in chosen])
            file = self.file(point.version)
            try:
                file.add(rollouts)
                file.finish().result()  # the simulated clock stands still
            finally:
                file.drop()
            self.record(point, [Graded.of(one) for one in rollouts])
            self.books.add_evaluated(dict.fromkeys(chosen, point.version))
        self.kept.clear()
