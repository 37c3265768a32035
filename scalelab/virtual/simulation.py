"""The simulated world: the loop of a real run, with drawn lengths for completions and durations for everything else.

Shared cores: time on the clock is *work time*. Where parts share cores (`Rates.cores`), wall time passes more slowly
than it, by the number of parts at work over the number of cores. Faults are left out.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from scalelab.errors import LabError
from scalelab.plan.lengths import Lengths
from scalelab.run.books import Books, Ledger
from scalelab.run.coroutines import Changes
from scalelab.run.loop import Loop
from scalelab.run.ports import TrainerLostError, too_few_places
from scalelab.run.settings import Budget, Rates
from scalelab.schedule.schedule import Schedule
from scalelab.virtual.clock import run_virtual, virtual_loop
from scalelab.virtual.drawn_evaluations import DrawnEngines, DrawnEvaluation, EvaluationLoad, drawn_evaluation
from scalelab.virtual.durations import SimulatedGraders, SimulatedTrainer

DRAW = 256  # groups whose lengths are drawn at once


@dataclass(frozen=True)
class Shape:
    """The simulated run's numbers of prompts, completions and devices, without speeds."""

    generators: int
    """Engines."""
    trainers: int
    """Trainer units: each is a whole copy of the model."""
    groups_per_step: int
    generations: int
    """Completions of a group."""
    slots: int
    """Sequences side by side in an engine."""
    prompt_tokens: float
    kept: float = 1.0
    """Share of the groups that is left in the loss."""


@dataclass
class Totals:
    """Counters since the beginning; the difference of two gives the figures of a window."""

    wall: float = 0.0
    steps: int = 0
    completions: int = 0
    tokens: int = 0
    finished: int = 0
    """Completions that the engines have finished, held-out ones too."""
    generators_idle: float = 0.0
    """Engine-seconds without a sequence."""
    running: float = 0.0
    """Sequence-seconds."""
    trainer_idle: float = 0.0
    """Seconds without a step or an export."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Completions trained on, by trainer version − version of their first token."""

    def since(self, before: Totals) -> Totals:
        """Subtract an earlier snapshot."""
        values = {name: value - getattr(before, name) for name, value in vars(self).items()}
        return Totals(**values)


class Drawn(NamedTuple):
    """A group of the simulated world."""

    tokens: list[int]
    """Completion tokens of each completion."""
    trained: float
    """Tokens of prompts and completions that its step trains on."""


class Finished(NamedTuple):
    """A group of the simulated world whose completions have ended."""

    trained: float
    """Tokens of prompts and completions that its step trains on."""
    completions: Sequence[tuple[int, int]]
    """Tokens of each completion, and the version of its first."""


@dataclass(frozen=True)
class DrawnStep:
    """An optimiser step: a number of tokens."""

    sequences: float
    completions: int
    tokens: int
    """Completion tokens."""
    staleness: Counter[int]


class DrawnWork:
    """Work on groups that consist of lengths alone.

    Args:
        draws: the groups, in the order of drawing.
        generations: completions of a group.
    """

    def __init__(self, draws: Iterator[Drawn], generations: int) -> None:
        self.generations = generations
        self._draws = draws
        self._started: dict[str, Drawn] = {}

    def requests(self, name: str, prompt: str) -> list[int]:
        """The lengths of a group's completions."""
        drawn = self._started[prompt] = next(self._draws)
        return drawn.tokens

    def rollouts(self, prompt: str, completions: Sequence[tuple[int, int]], verdicts: Sequence[None]) -> Finished:
        """A finished group, with the versions that its completions began with."""
        return Finished(self._started.pop(prompt).trained, completions)

    def outcome(self, rollouts: Finished) -> tuple[None, str | None]:
        """No pass rate, and no reason to replace the group."""
        return None, None

    def step(self, groups: list[Finished], version: int) -> DrawnStep:
        """The step that trains on these groups."""
        completions = [completion for group in groups for completion in group.completions]
        return DrawnStep(
            sequences=sum(group.trained for group in groups),
            completions=len(completions),
            tokens=sum(tokens for tokens, _ in completions),
            staleness=Counter(version - began for _, began in completions),
        )


class NoEvaluation:
    """An evaluation that never takes place."""

    holds_draws = holds_weights = False

    def due(self, version: int, names: Sequence[str] | None = None) -> None:
        """Do nothing: no evaluation is ever due."""

    def awaits(self, updating: bool) -> bool:
        """False: no weights are waited for."""
        return False

    def done(self, version: int) -> bool:
        """True: there is nothing to evaluate."""
        return True

    async def serve(self) -> None:
        """Return at once."""


class NoCheckpoints:
    """A home without checkpoints."""

    pauses = False

    async def save(self) -> Coroutine[None, None, None]:
        """Give something to wait for, without a checkpoint."""
        return self.check()

    async def check(self) -> None:
        """Return: no checkpoint can fail."""

    async def rest(self) -> None:
        """Return at once."""

    async def go_back(self, error: TrainerLostError) -> None:
        """Fail: a simulated trainer is never lost."""
        raise error


class Simulation:
    """One simulated run.

    Args:
        schedule: of the run.
        shape: what is simulated.
        rates: how long things take.
        draws: the groups in the order of drawing.
        ledger: with the devices of engines and trainer; None counts engines and copies of the model.
        evaluations: the run's; None leaves them out.
        driver_seconds: of the driver for a completion.

    Attributes:
        history: totals at the end of every step.
        evaluated: seconds that every evaluation took.
        due: steps after which one was due.

    Raises:
        LabError: the engines together have too few places for a group.
    """

    def __init__(
        self,
        schedule: Schedule,
        shape: Shape,
        rates: Rates,
        draws: Iterator[Drawn],
        ledger: Ledger | None = None,
        evaluations: EvaluationLoad | None = None,
        driver_seconds: float = 0.0,
    ) -> None:
        if problem := too_few_places(shape.generators * shape.slots, shape.generations):
            raise LabError(problem)
        self.schedule, self.shape, self.rates = schedule, shape, rates
        self.history: list[Totals] = []
        self.evaluated: list[float] = []
        self.due: list[int] = []
        self._totals, self._charged, self._hours = Totals(), 0.0, float("inf")
        changes = Changes()
        self.engines = DrawnEngines(rates, shape.generators, shape.slots, changes.notify)
        self.apart = DrawnEngines(rates, 0, shape.slots, changes.notify)
        self.trainer: SimulatedTrainer[DrawnStep, None, None] = SimulatedTrainer(
            rates, shape.trainers, lambda step: step.sequences, lambda step: None, lambda version: None
        )
        self.graders: SimulatedGraders[str, tuple[int, int], None] = SimulatedGraders(
            rates, lambda prompt, completions: list, driver_seconds
        )
        self._load = evaluations
        ledger = ledger or Ledger(shape.generators, shape.trainers)
        books: Books[str, Finished] = Books(schedule, map(str, itertools.count(1)), ledger)
        budget, clock = Budget(steps=schedule.steps), lambda: virtual_loop().time()
        self.evaluation: NoEvaluation | DrawnEvaluation = NoEvaluation()
        if evaluations is not None:
            self.evaluation = drawn_evaluation(
                evaluations,
                self.engines,
                self.apart,
                books=books,
                budget=budget,
                graders=self.graders,
                changes=changes,
                charge=lambda: self.charge(self.loop.stepping.locked()),
                record=lambda point, graded, again: self.evaluated.append(clock() - point.seconds),
                clock=clock,
                updating=lambda: self.loop.updating.locked() or self.loop.behind,
            )
        self.loop: Loop[str, int, tuple[int, int], None, Finished, DrawnStep, None, None] = Loop(
            books=books,
            budget=budget,
            evaluation_due=self._due,
            checkpoint_due=lambda *_: False,
            work=DrawnWork(draws, shape.generations),
            engines=self.engines,
            trainer=self.trainer,
            graders=self.graders,
            evaluation=self.evaluation,
            journal=self,
            checkpointer=NoCheckpoints(),
            changes=changes,
            clock=clock,
        )

    def _due(self, step: int, since: float, compute: float) -> Sequence[str]:
        due = () if self._load is None else self._load.due(step, since, compute)
        if due:
            self.due.append(step)
        return due

    def run(self, hours: float | None = None) -> list[Totals]:
        """Run to the end of the schedule's steps, or to so many hours of wall time.

        Returns:
            Totals at the end of every step.
        """
        self._hours = float("inf") if hours is None else hours

        async def main() -> None:
            clock = virtual_loop()
            clock.moved = self._passed
            if self.rates.cores is not None:
                clock.stretch = self._stretch
            await self.loop.run()

        run_virtual(main())
        return self.history

    def charge(self, stepping: bool) -> None:
        """Charge the wall time since the last charge."""
        now = virtual_loop().wall
        share = self.apart.engines / self.shape.generators
        self.loop.books.ledger.advance(now - self._charged, evaluation_share=share, trainer_idle=not stepping)
        self._charged = now

    async def keep(self, step: DrawnStep, result: None) -> None:
        """Return: no completion is there to be kept."""

    def stepped(self, names: list[str], step: DrawnStep, result: None, seconds: dict[str, float]) -> None:
        """Note the totals at the end of a step."""
        totals = self._totals
        totals.steps = self.schedule.trainer_version
        totals.completions += step.completions
        totals.tokens += step.tokens
        totals.staleness.update(step.staleness)
        usage, apart = self.engines.usage, self.apart.usage
        totals.generators_idle, totals.running = usage.idle + apart.idle, usage.sequences + apart.sequences
        totals.finished = usage.completions + apart.completions
        self.history.append(replace(totals, staleness=Counter(totals.staleness)))
        if totals.wall >= 3600 * self._hours:
            self.loop.stopping = True

    def _passed(self, seconds: float) -> None:
        self._totals.wall += seconds
        self.engines.passed(seconds)
        self.apart.passed(seconds)
        if not self.trainer.busy_before:
            self._totals.trainer_idle += seconds

    def _stretch(self) -> float:
        parts = self.engines.busy + self.apart.busy + self.shape.trainers * self.trainer.busy + self.graders.busy
        assert self.rates.cores is not None
        return max(1.0, parts / self.rates.cores)


def drawn(lengths: Lengths, shape: Shape, seed: int) -> Iterator[Drawn]:
    """Draw groups without end: lengths of their completions, all prompts alike."""
    rng = np.random.default_rng(seed)
    prompts = shape.generations * shape.prompt_tokens
    while True:
        for tokens_G in lengths.draw(rng, DRAW, shape.generations):
            yield Drawn(tokens_G.tolist(), shape.kept * (float(tokens_G.sum()) + prompts))
