"""Build the loop in a world that runs a whole experiment: books, journal and evaluation put together in one place.

The simulated world has neither a folder nor a model; it builds its loop in `scalelab.virtual.simulation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from scalelab.run.books import Books
from scalelab.run.changes import Changes
from scalelab.run.config import Run
from scalelab.run.data import held_out
from scalelab.run.evaluations import InFlightEvaluation
from scalelab.run.journal import Journal
from scalelab.run.loop import Evaluator, Home, Loop
from scalelab.run.work import RolloutWork
from scalelab.store.folder import RunFolder


class World(Home, Protocol):
    """The parts of a run in one world, which is its own `Home`."""

    run: Run
    books: Books
    folder: RunFolder
    progress: Any
    """Receiver of lines and numbers for people, such as `Progress`."""
    changes: Changes
    work: RolloutWork
    engines: Any
    trainer: Any
    graders: Any
    loop: Loop
    """The result of `build_loop`."""


def build_loop(
    world: World, clock: Callable[[], float], *, simulated: bool, evaluation: Callable[[Journal], Evaluator]
) -> tuple[Loop, Journal]:
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
    loop = Loop(
        books=world.books,
        budget=run.budget,
        evaluation_due=run.evaluation.due,
        checkpoint_every=run.checkpoint_every,
        work=world.work,
        engines=world.engines,
        trainer=world.trainer,
        graders=world.graders,
        evaluation=evaluation(journal),
        journal=journal,
        home=world,
        changes=world.changes,
        clock=clock,
    )
    return loop, journal


def evaluate_in_flight(world: World, journal: Journal, clock: Callable[[], float]) -> InFlightEvaluation:
    """Evaluation among the completions for training, in a world whose loop does not rest."""
    return InFlightEvaluation(
        books=world.books,
        engines=world.engines,
        graders=world.graders,
        work=world.work,
        changes=world.changes,
        charge=lambda: journal.charge(world.loop.stepping.locked()),
        file=world.folder.evaluation_file,
        record=journal.evaluated,
        clock=clock,
        held_out=held_out(world.run),
        samples=world.run.evaluation.samples,
        updating=lambda: world.loop.updating.locked() or world.loop.behind,
        aside=world.run.evaluation.engines_of(world.run.cluster.generators),
        alone=lambda: world.loop.budget_spent,
    )
