"""A world of the loop whose parts take drawn times and break where a test says, on a simulated clock."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from scalelab.errors import LabError
from scalelab.recipe.types import AnyRollout, Rollout
from scalelab.rollout.evaluation import Graded
from scalelab.run.books import BooksState, Ledger, RunBooks
from scalelab.run.coroutines import Changes
from scalelab.run.evaluations import EvaluationPoint, InFlightEvaluation, PreparedSet
from scalelab.run.loop import Loop
from scalelab.run.ports import EvaluationLostError, TrainerLostError
from scalelab.run.settings import Budget, Evaluation
from scalelab.virtual.clock import run_virtual
from tasks.types import Prompt

RESTART_SECONDS = 5.0
"""Simulated time until a lost engine or grader is replaced."""


class Sampler:
    """Prompts without end; the state is their number."""

    def __init__(self) -> None:
        self.drawn = 0
        self.observed: list[str] = []

    def __next__(self) -> Prompt:
        self.drawn += 1
        return Prompt(f"t/{self.drawn}", "t", "?", "!")

    def observe(self, prompt_id: str, rate: float) -> None:
        self.observed.append(prompt_id)

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]


class Work:
    """Groups of two completions, each of one token of the version that made it."""

    generations = 2

    def requests(self, name: str, prompt: Prompt, kind: str = "train") -> list[str]:
        return [f"{kind}/{name}/{number}" for number in range(self.generations)]

    def rollouts(self, prompt: Prompt, completions: Sequence[int], verdicts: Sequence[str]) -> list[AnyRollout]:
        return [
            Rollout(
                prompt_id=prompt.id,
                task=prompt.task,
                prompt_ids=np.zeros(1, np.int32),
                completion_ids=np.zeros(1, np.int32),
                logprobs_T=np.zeros(1, np.float32),
                forced_T=np.zeros(1, bool),
                spans=((version, 0, 1),),
                reward=1.0,
                outcome="passed",
            )
            for version in completions
        ]

    def outcome(self, rollouts: list[AnyRollout]) -> tuple[float, str | None]:
        dropped = int(rollouts[0].prompt_id.partition("/")[2]) % 7 == 0
        return 0.5, "zero_variance" if dropped else None

    def step(self, groups: list[list[AnyRollout]], version: int) -> Any:
        empty = version % 5 == 4  # a step of which nothing is left to train on
        return SimpleNamespace(sequences=[] if empty else groups, loss=None, kept=False, records=[], groups=groups)


class CompletionsInMemory:
    """The file of an evaluation; at most one is open, and none is left open."""

    def __init__(self, world: World, version: int) -> None:
        self.world, self.version, self.taken = world, version, 0

    def add(self, rollouts: Sequence[AnyRollout]) -> None:
        assert {rollout.spans[0][0] for rollout in rollouts} == {self.version}, "an evaluation is of one policy"
        self.taken += len(rollouts)

    def finish(self) -> Future[None]:
        assert self.taken == self.world.evaluation.expected
        self.world.whole.append(self.version)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def drop(self) -> None:
        assert self.world.open_file is self
        self.world.open_file = None


class World:
    """The parts, what breaks, and a diary of what happened.

    Args:
        folder: takes rollouts of checkpoints.
        schedule: `PipelineRL` or another.
        seed: of the times.
        lose: numbers of the trainer's calls (steps, exports, checkpoints in the order made) at which a rank dies.
        lose_parts: the same for an "engine" (calls: groups and weights) and a "grader" (calls: groups).
        at_once: parts that die together with a rank of the trainer.
        stop_at: simulated seconds at which the run is asked to stop.
        save_at: simulated seconds at which a checkpoint is asked for.
        aside: engines that keep their weights for an evaluation.
        pauses: whether a stretch ends at every checkpoint, as in the virtual world.
        hours: budget of device-hours, charged every second as on a cluster.
        cancel_at: simulated seconds at which the run is cancelled, as by a second Ctrl-C.
        every_hours: device-hours between evaluations; None: every four steps.
    """

    def __init__(
        self,
        folder: Path,
        schedule: Any,
        seed: int = 0,
        lose: Sequence[int] = (),
        stop_at: float | None = None,
        steps: int = 12,
        restarts: int = 3,
        save_at: float | None = None,
        aside: int = 0,
        pauses: bool = False,
        hours: float | None = None,
        cancel_at: float | None = None,
        every_hours: float | None = None,
        lose_parts: Mapping[str, Sequence[int]] | None = None,
        at_once: Sequence[str] = (),
    ) -> None:
        self.rng, self.folder = random.Random(seed), folder
        self.lose, self.stop_at, self.restarts, self.save_at = set(lose), stop_at, restarts, save_at
        self.cancel_at, self.pauses = cancel_at, pauses
        self.lose_parts, self.at_once = lose_parts or {}, at_once
        self.part_calls: Counter[str] = Counter()
        self.deaths: Counter[str] = Counter()
        self.down: set[str] = set()
        self.changes = Changes()
        self.books = RunBooks(schedule.start(3, steps), Sampler(), Ledger(1, 1))  # type: ignore[arg-type]
        self.calls = 0
        self.trained: list[tuple[int, list[str]]] = []
        self.stale: list[int] = []
        self.evaluated: list[int] = []
        self.evaluated_again: list[int] = []
        self.open_file: CompletionsInMemory | None = None
        self.whole: list[int] = []
        self.kept: BooksState = self.books.capture().written(folder)
        self.saved: list[int] = []
        self.asked_to_save = False
        self.went_back: list[int] = []
        self.outstanding = 0
        self.capacity = 10
        self.training = self.most_training = 0
        self.version = 0
        self.undone_when_updated = 0
        self.set_aside_at: int | None = None
        self.evaluations_lost = 0
        self.updates_beside = 0
        self.steps_beside_the_first = 0
        self.forgets = 0
        self.counts: dict[str, int] = {}
        self.stop_after: int | None = None
        self.evaluation: InFlightEvaluation[Any] = InFlightEvaluation(
            books=self.books,
            budget=Budget(steps=steps, hours=hours),
            engines=self,  # type: ignore[arg-type]
            graders=self,  # type: ignore[arg-type]
            changes=self.changes,
            charge=lambda: None,
            file=self._file,
            record=self._record,
            clock=lambda: 0.0,
            sets={"held_out": PreparedSet([Prompt(f"e/{n}", "t", "?", "!") for n in range(2)], Work())},  # type: ignore[arg-type]
            first=["held_out"],
            updating=lambda: self.loop.updating.locked() or self.loop.behind,
            aside=aside,
            engines_idle=lambda: self.loop.budget_spent,
        )
        self.loop = Loop(
            books=self.books,
            budget=Budget(steps=steps, hours=hours),
            evaluation_due=Evaluation(every=4, every_hours=every_hours).due,
            checkpoint_due=lambda step, *_: step % 3 == 0,
            work=Work(),
            engines=self,
            trainer=self,
            graders=self,
            evaluation=self.evaluation,
            journal=self,
            checkpointer=self,
            changes=self.changes,
            clock=lambda: 0.0,
        )

    def run(self) -> None:
        async def main() -> None:
            if self.stop_at is not None:
                asyncio.get_running_loop().call_later(self.stop_at, self.loop.stop)
            if self.save_at is not None:
                asyncio.get_running_loop().call_later(self.save_at, self._ask_to_save)
            if self.cancel_at is not None:
                asyncio.get_running_loop().call_later(self.cancel_at, asyncio.current_task().cancel)  # type: ignore[union-attr]
            charging = asyncio.get_running_loop().create_task(self._charge_every_second())
            async with asyncio.timeout(100_000):
                await self.loop.run()
            charging.cancel()

        run_virtual(main())

    async def _charge_every_second(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.books.ledger.advance(1.0, evaluation_share=0.0, trainer_idle=not self.loop.stepping.locked())
            self.changes.notify()

    def _ask_to_save(self) -> None:
        self.asked_to_save = True
        self.loop.save_soon()

    async def _pause(self, most: float = 3.0) -> None:
        await asyncio.sleep(self.rng.random() * most)

    # Engines and graders.

    @property
    def room(self) -> int:
        return 0 if self.down else self.capacity - self.outstanding

    def _kill(self, part: str) -> None:
        """Lose what a part has in flight; another takes its place after a while."""
        self.deaths[part] += 1
        self.down.add(part)
        asyncio.get_running_loop().call_later(RESTART_SECONDS, self._replace, part, self.deaths[part])

    def _replace(self, part: str, death: int) -> None:
        if self.deaths[part] == death:
            self.down.remove(part)
            self.changes.notify()

    async def _work(self, part: str, most: float) -> None:
        """Take a drawn time, and begin again with whoever replaces a part that dies meanwhile."""
        self.part_calls[part] += 1
        dies = self.part_calls[part] in self.lose_parts.get(part, ())
        while True:
            await self.changes.until(lambda: part not in self.down, f"another {part}")
            deaths = self.deaths[part]
            await self._pause(most)
            if dies:
                self._kill(part)
                dies = False
            if deaths == self.deaths[part]:
                return

    async def generate(self, requests: Sequence[str]) -> list[int]:
        evaluating = requests[0].startswith("eval")
        aside = self.set_aside_at if evaluating else None
        forgets, deaths = self.forgets, self.deaths["engine"]
        assert self.undone_when_updated == len(self.went_back), "engines are asked that hold weights of an undone step"
        self.outstanding += len(requests)
        self.training += 0 if evaluating else len(requests)
        self.most_training = max(self.most_training, self.training)
        try:
            version = self.version if aside is None else aside
            await self._work("engine", 8.0)
            if deaths != self.deaths["engine"]:
                if aside is not None:
                    self.evaluations_lost += 1
                    raise EvaluationLostError("the engines that were set aside are lost")
                version = self.version
        finally:
            self.training -= 0 if evaluating else len(requests)
            if forgets == self.forgets:
                self.outstanding -= len(requests)
        assert forgets == self.forgets, "an answer from before a return to a checkpoint reached somebody"
        return [version] * len(requests)

    def set_aside(self, count: int) -> int:
        self.set_aside_at = self.version if count else None
        return count

    async def update(self, version: int, weights: int) -> None:
        self.updates_beside += self.evaluation.running
        assert weights == version, "weights of another version than they are said to be"
        undone = len(self.went_back)
        await self._work("engine", 3.0)
        self.undone_when_updated = undone
        self.version = version

    def forget(self) -> None:
        self.forgets += 1
        self.outstanding = 0

    def totals(self) -> dict[str, float]:
        return {}

    async def serve(self) -> None:
        await asyncio.Event().wait()

    async def grade(self, prompt: Prompt, completions: Sequence[int]) -> list[str]:
        await self._work("grader", 3.0)
        return ["passed"] * len(completions)

    # Trainer.

    def _call(self) -> None:
        self.calls += 1
        if self.calls in self.lose:
            for part in self.at_once:
                self._kill(part)
            raise TrainerLostError(f"call {self.calls} lost a rank")

    async def step(self, step: Any) -> str:
        self.steps_beside_the_first += self.books.evaluated < 0
        await self._pause()
        self._call()
        return "stepped"

    def publish(self, version: int) -> Awaitable[int]:
        assert version == self.books.version
        return self._publish(version)

    async def _publish(self, version: int) -> int:
        await self._pause(0.5)
        self._call()
        return version

    # Journal and checkpointer.

    def charge(self, stepping: bool) -> None:
        pass

    async def keep(self, step: Any, result: str | None) -> None:
        await self._pause(1.0)
        assert self.loop.stepping.locked()

    def stepped(self, names: list[str], step: Any, result: str | None, seconds: dict[str, float]) -> LabError | None:
        assert (result is None) == (not step.sequences)
        self.trained.append((self.books.version, names))
        self.stale += [self.books.version - 1 - rollout.spans[0][0] for group in step.groups for rollout in group]
        return LabError("stopped by a monitor") if self.books.version == self.stop_after else None

    def last_evaluated(self) -> dict[str, int]:
        return {"held_out": self.evaluated[-1]} if self.evaluated else {}

    def _file(self, version: int, again: str) -> CompletionsInMemory:
        assert self.open_file is None, "one evaluation at a time"
        self.open_file = CompletionsInMemory(self, version)
        return self.open_file

    def _record(self, point: EvaluationPoint, graded: list[Graded], again: str) -> None:
        assert len(graded) == self.evaluation.expected
        assert self.whole == [point.version], "completions are on the disk before the lines"
        self.whole.clear()
        (self.evaluated_again if again else self.evaluated).append(point.version)

    async def save(self) -> Coroutine[None, None, None]:
        capture = self.books.capture()
        version = self.books.version
        await self._pause(0.5)
        assert self.books.version == version, "no step may follow before the checkpoint was asked for"
        return self._save(capture.written(self.folder))

    async def _save(self, state: BooksState) -> None:
        await self._pause(0.5)
        self._call()
        self.kept = state
        self.saved.append(state["schedule"]["trainer_version"])

    async def check(self) -> None:
        pass

    async def rest(self) -> None:
        if self.kept["schedule"]["trainer_version"] < self.books.version:
            await (await self.save())

    async def go_back(self, error: TrainerLostError) -> None:
        self.restarts -= 1
        if self.restarts < 0:
            raise LabError(f"{error}; no restart is left")
        await self._pause()
        self.books.restore(self.kept, self.folder, print)
        version = self.books.version
        self.went_back.append(version)
        self.trained = [(step, names) for step, names in self.trained if step <= version]
        self.evaluated = [step for step in self.evaluated if step <= version]
        self.books.add_evaluated(self.last_evaluated())

    # What must hold at the end.

    def audit(self, stopped: bool = False, spent: bool = False) -> None:
        steps = [step for step, _ in self.trained]
        assert steps == list(range(1, len(steps) + 1)), "each step once, in order"
        names = [name for _, of_step in self.trained for name in of_step]
        assert len(set(names)) == len(names) == 3 * len(steps), "each group once"
        assert sorted(set(self.evaluated)) == self.evaluated, "each evaluation once, in order"
        settled = len(names) + sum(self.books.dropped.values())
        assert self.books.drawn == settled + len(self.books.groups), "no group is lost"
        assert self.outstanding == 0
        if not stopped:
            assert spent or self.books.version == self.books.schedule.steps
            lost_first = self.evaluation.aside and (self.evaluations_lost or self.went_back)
            assert self.evaluated[0] == 0 or lost_first
            assert self.evaluated[-1] == self.books.version
