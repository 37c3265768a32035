"""Build the loop in a world that runs a whole experiment: books, journal and evaluation put together in one place.

The simulated world has neither a folder nor a model; it builds its loop in `scalelab.virtual.simulation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from scalelab.recipe.types import AnyRollout
from scalelab.rollout.types import AnyCompletion, Request
from scalelab.run.books import RunBooks
from scalelab.run.config import Run
from scalelab.run.coroutines import Changes
from scalelab.run.evaluations import InFlightEvaluation, prepared_sets
from scalelab.run.journal import Journal
from scalelab.run.loop import Checkpointer, Evaluator, Loop
from scalelab.run.ports import Engines, Graders, Trainer, WeightsT
from scalelab.run.work import RolloutWork, Step
from scalelab.store.folder import RunFolder
from scalelab.watch.progress import Progress
from tasks.types import Prompt, Verdict

if TYPE_CHECKING:
    from moe.train.result import StepResult


RunLoop = Loop[Prompt, Request, AnyCompletion, Verdict, list[AnyRollout], Step, "StepResult", WeightsT]
"""The loop of a whole experiment, in a world whose weights travel in their own way."""


class World(Checkpointer, Protocol[WeightsT]):
    """The parts of a run in one world, which is its own `Checkpointer`."""

    run: Run
    books: RunBooks
    folder: RunFolder
    progress: Progress
    changes: Changes
    work: RolloutWork

    @property
    def engines(self) -> Engines[Request, AnyCompletion, WeightsT]:
        """Generators of completions."""

    @property
    def trainer(self) -> Trainer[Step, StepResult, WeightsT]:
        """The policy that learns."""

    @property
    def graders(self) -> Graders[Prompt, AnyCompletion, Verdict]:
        """Verifiers of completions."""

    @property
    def loop(self) -> RunLoop[WeightsT]:
        """The result of `build_loop`."""


def build_loop(
    world: World[WeightsT], clock: Callable[[], float], *, simulated: bool, evaluation: Callable[[Journal], Evaluator]
) -> tuple[RunLoop[WeightsT], Journal]:
    """Build the loop of a world, and the journal that it writes.

    Args:
        world: its parts.
        clock: seconds of the world's time.
        simulated: whether that is no wall clock.
        evaluation: makes the evaluation, which is written to the journal.
    """
    run = world.run
    journal = Journal(
        run, world.books, world.engines, world.graders, world.folder, world.progress, clock, simulated=simulated
    )
    loop: RunLoop[WeightsT] = Loop(
        books=world.books,
        budget=run.budget,
        evaluation_due=run.evaluation.due,
        checkpoint_due=run.checkpoint_cadence.due,
        work=world.work,
        engines=world.engines,
        trainer=world.trainer,
        graders=world.graders,
        evaluation=evaluation(journal),
        journal=journal,
        checkpointer=world,
        changes=world.changes,
        clock=clock,
    )
    return loop, journal


def evaluate_in_flight(
    world: World[WeightsT], journal: Journal, clock: Callable[[], float]
) -> InFlightEvaluation[WeightsT]:
    """Evaluation among the completions for training, in a world whose loop does not rest."""
    return InFlightEvaluation(
        books=world.books,
        budget=world.run.budget,
        engines=world.engines,
        graders=world.graders,
        changes=world.changes,
        charge=lambda: journal.charge(world.loop.stepping.locked()),
        file=world.folder.evaluation_file,
        record=journal.evaluated,
        clock=clock,
        sets=prepared_sets(world.run, world.work),
        first=world.run.evaluation.first,
        updating=lambda: world.loop.updating.locked() or world.loop.behind,
        aside=world.run.evaluation.engines_of(world.run.cluster.generators),
        engines_idle=lambda: world.loop.budget_spent,
    )
