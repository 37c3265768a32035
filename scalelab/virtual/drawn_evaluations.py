"""Evaluations of a simulated run: a real run's rules of when and on which engines, with drawn lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalelab.plan.lengths import Lengths
from scalelab.run.config import Run
from scalelab.run.coroutines import TaskGroup
from scalelab.run.evaluations import InFlightEvaluation, PreparedSet
from scalelab.run.settings import Rates
from scalelab.virtual.engines import DrawnDecoder, DrawnSequence, SimulatedEngines
from tasks.types import Prompt

DRAW = 256
"""Lengths that are drawn at once."""


class DrawnEngines(SimulatedEngines[int, tuple[int, int], None]):
    """Simulated engines with drawn lengths, some of which can be lent to another pool, with their sequences."""

    def __init__(self, rates: Rates, engines: int, places: int, changed: Callable[[], None]) -> None:
        self._drawn = DrawnDecoder()
        super().__init__(rates, engines, places, self._drawn, changed)
        self._leaving: tuple[float, DrawnEngines] | None = None
        self._coming: list[DrawnSequence] = []

    def lend(self, count: int, other: DrawnEngines) -> None:
        """Let the other pool have some engines, and as great a share of the sequences as soon as a step is over."""
        if other._leaving is not None:  # taken back before they had gone
            other._leaving = None
        self._leaving = count / self.engines, other
        self.resize(self.engines - count)
        other.resize(other.engines + count)

    def _admit(self) -> None:
        coming, self._coming = self._coming, []
        self._drawn.put(coming)
        self.running += len(coming)
        if self._leaving is not None:
            (share, other), self._leaving = self._leaving, None
            moved = self._drawn.take(round(share * self.running))
            self.running, self.outstanding = self.running - len(moved), self.outstanding - len(moved)
            other.outstanding += len(moved)
            other._coming += moved
            other._wake()
        super()._admit()


@dataclass(frozen=True)
class EvaluationLoad:
    """Evaluations of a run, in numbers."""

    due: Callable[[int, float, float], Sequence[str]]
    """Rule that names the sets to evaluate after a step: `Evaluation.due`."""
    period: Callable[[float], float]
    """Steps from one evaluation to the next, where each takes so many device-hours: `Evaluation.period`."""
    aside: Callable[[int], int]
    """Engines of so many that are set aside for an evaluation: `Evaluation.engines_of`."""
    prompts: Mapping[str, int]
    """Prompts of each set; where early evaluations take fewer samples, as many as make the mean over the budget."""
    samples: Mapping[str, int]
    """Completions of each prompt of a set."""
    lengths: Lengths
    seed: int

    @classmethod
    def of(cls, run: Run, lengths: Lengths) -> EvaluationLoad:
        """The evaluations of an experiment, but for the first weights' and the last ones'."""
        prompts = {one.name: max(1, round(one.planned_mean / one.samples)) for one in run.sets}
        samples = {one.name: one.samples for one in run.sets}
        rule = run.evaluation

        def aside(engines: int) -> int:
            return min(rule.engines_of(engines), engines - 1)

        return cls(rule.due, rule.period, aside, prompts, samples, lengths, run.seed)

    def thinned(self, thin: int, hours_of_step: float, every: int) -> EvaluationLoad:
        """Make more and smaller evaluations with as much work for each engine, on so many times fewer.

        Args:
            thin: times fewer engines.
            hours_of_step: device-hours of a step.
            every: steps from one of them to the next.
        """
        every = max(1, min(every, round(self.period(hours_of_step))))
        share = every / self.period(hours_of_step) / thin
        return replace(
            self,
            due=lambda step, since, compute: () if step % every else (*self.prompts,),
            aside=lambda engines: min(engines - 1, -(-self.aside(engines * thin) // thin)),
            prompts={name: max(1, round(count * share)) for name, count in self.prompts.items()},
        )

    def draws(self) -> Iterator[int]:
        """Lengths of held-out completions without end."""
        rng = np.random.default_rng((self.seed, 1))
        while True:
            yield from self.lengths.draw(rng, DRAW, 1).ravel().tolist()


class _Lengths:
    """Work on the held-out completions of a set: lengths alone."""

    def __init__(self, generations: int, lengths: Iterator[int]) -> None:
        self.generations, self._lengths = generations, lengths

    def requests(self, name: str, prompt: Prompt, kind: str) -> list[int]:
        """The lengths of a prompt's completions."""
        return [next(self._lengths) for _ in range(self.generations)]

    def rollouts(self, *finished: object) -> list[Any]:
        """Return no rollouts: nothing is written down."""
        return []


class _NoFile:
    """The file of completions that are lengths alone."""

    def add(self, rollouts: Sequence[Any]) -> None:
        """Do nothing."""

    def finish(self) -> Future[None]:
        """Return a future that is done."""
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def drop(self) -> None:
        """Do nothing."""


class _Engines:
    """The engines as an evaluation sees them: all, or those that are set aside, which are a pool of their own."""

    def __init__(self, pool: DrawnEngines, apart: DrawnEngines) -> None:
        self._pool, self._apart = pool, apart

    @property
    def version(self) -> int:
        """The version that the engines hold."""
        return self._pool.version

    async def generate(self, requests: Sequence[int]) -> list[tuple[int, int]]:
        """Generate the completions of a prompt."""
        return await (self._apart if self._apart.engines else self._pool).generate(requests)

    def set_aside(self, count: int) -> int:
        """Lend engines to the other pool, or take all back with 0."""
        if count:
            self._pool.lend(count, self._apart)
        else:
            self._apart.lend(self._apart.engines, self._pool)
        return count


@dataclass(eq=False)
class DrawnEvaluation(InFlightEvaluation[None]):
    """Evaluation among the completions of a simulated run."""

    apart: DrawnEngines | None = None
    """Pool of the engines that are set aside."""

    async def serve(self) -> None:
        """Evaluate what is due, until cancelled; the first weights count as evaluated."""
        assert self.apart is not None
        async with TaskGroup() as group:
            group.create_task(self.apart.serve(), name="engines set aside")
            await super().serve()


def drawn_evaluation(load: EvaluationLoad, pool: DrawnEngines, apart: DrawnEngines, **parts: Any) -> DrawnEvaluation:
    """Build the evaluation of a simulated run.

    Args:
        load: what is evaluated.
        pool: all engines.
        apart: engines that are set aside; none at first.
        parts: the fields of `InFlightEvaluation` that are the run's own.
    """
    lengths = load.draws()

    def prepared(name: str) -> PreparedSet:
        work: Any = _Lengths(load.samples[name], lengths)
        return PreparedSet([Prompt(f"{name}/{n}", name, "", None) for n in range(load.prompts[name])], work)

    parts["books"].add_evaluated(dict.fromkeys(load.prompts, 0))
    return DrawnEvaluation(
        engines=_Engines(pool, apart),  # type: ignore[arg-type] # requests are lengths
        file=lambda version, again: _NoFile(),
        sets={name: prepared(name) for name in load.prompts},
        first=(),
        aside=load.aside(pool.engines),
        apart=apart,
        **parts,
    )
