"""The virtual world: one real engine and one real trainer stand for a simulated cluster, on a simulated clock.

A decoding step, an optimiser step, a transfer of weights and a verdict take the time that `Rates` says; everything else
is the real thing. Sampling seeds depend on the run's seed, the group and the number alone. At a checkpoint all that is
in flight is dropped and generated again, as a resumed run has to do, so that both are the same run; evaluations are
taken then, from weights that were kept, and take no simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from moe.train.result import StepResult
from moe.train.trainer import Trainer
from moe.weights.shards import Snapshot
from scalelab.errors import LabError
from scalelab.plan.rates import trainer_unit
from scalelab.recipe.types import AnyRollout
from scalelab.rollout.engine import Engine
from scalelab.rollout.generator import complete
from scalelab.rollout.interruption import Phrases
from scalelab.rollout.tokenizer import with_texts
from scalelab.rollout.types import AnyCompletion, Completion, Request
from scalelab.run.books import new_books
from scalelab.run.checkpoint_store import BY_RULE, CheckpointStore, taken_by_rule
from scalelab.run.config import Run
from scalelab.run.coroutines import Changes
from scalelab.run.evaluations import EvaluationAtRest, EvaluationPoint, PreparedSet, by_name, prepared_sets
from scalelab.run.journal import Journal
from scalelab.run.local_evaluation import LocalGraders, evaluate_locally
from scalelab.run.ports import TrainerLostError
from scalelab.run.work import RolloutWork, Step
from scalelab.run.world import RunLoop, build_loop
from scalelab.store.copying import Copier
from scalelab.store.folder import RunFolder
from scalelab.store.recovery import DUE
from scalelab.virtual.clock import virtual_loop
from scalelab.virtual.cluster import clock_facts, engine_config, simulated_rates
from scalelab.virtual.durations import SimulatedGraders, SimulatedTrainer
from scalelab.virtual.engines import SimulatedEngines, Stream, Usage
from scalelab.watch.progress import Progress, Status
from tasks.types import Prompt, Verdict

EngineStream = Stream[Request, AnyCompletion]


class EngineDecoder:
    """vLLM's engine, a step at a time."""

    def __init__(self, engine: Engine, phrases: Phrases, tokenizer: Any) -> None:
        self._engine, self._phrases, self._tokenizer = engine, phrases, tokenizer
        self._live: dict[str, EngineStream] = {}

    def start(self, stream: EngineStream) -> None:
        """Begin a sequence with the next step."""
        self._live[stream.request.id] = stream
        self._engine.add(stream.request)

    def steps_to_end(self) -> int:
        """1: any sequence may end with the next step."""
        return 1

    def advance(self, steps: int) -> Sequence[tuple[EngineStream, Completion]]:
        """Make a token for every sequence, and return those that ended, each with its completion.

        Raises:
            LabError: some had to wait, so simulated engines would not be in lock-step.
        """
        outputs = self._engine.step()
        if self._engine.waiting:
            raise LabError(
                f"vLLM let {self._engine.waiting} sequences of the simulated engines wait: please report this, with "
                "config.gin"
            )
        if not outputs:
            return []
        ended = [self._live.pop(output.id) for output in outputs]
        completions = [
            complete(stream.request, output, self._phrases) for stream, output in zip(ended, outputs, strict=True)
        ]
        return list(zip(ended, with_texts(self._tokenizer, completions), strict=True))

    def load(self, version: int, weights: Snapshot) -> None:
        """Swap the weights between two steps; unfinished sequences go on with the KV cache they have."""
        assert weights.version == version
        self._engine.replace_weights(weights)

    def forget(self) -> None:
        """Drop all sequences."""
        self._engine.abort(list(self._live))
        self._live.clear()

    def tokens(self, completion: AnyCompletion) -> int:
        """Tokens of a completion."""
        return completion.tokens

    def generate(self, requests: Sequence[Request], most: int) -> Iterator[list[Completion]]:
        """Generate completions while nothing else runs, at most so many side by side; yields them as they finish."""
        waiting = list(reversed(requests))
        while waiting or self._live:
            while waiting and len(self._live) < most:
                request = waiting.pop()
                self.start(Stream(request, None, 0))
            if ended := self.advance(1):
                yield [completion for _, completion in ended]


class VirtualRun:
    """A run in the virtual world, ready to go; it is its own `Checkpointer`.

    Args:
        run: the run, with `Run.virtual`.
        base: the folder of the base model.
        folder: takes what the run leaves.
        tokenizer: of the model.
        phrases: of the interruption.
        progress: takes lines for people.
    """

    pauses = True

    def __init__(
        self, run: Run, base: Path, folder: RunFolder, tokenizer: Any, phrases: Phrases, progress: Progress
    ) -> None:
        self.run, self.folder, self.progress = run, folder, progress
        self.rates, places = simulated_rates(run)
        config = engine_config(run, places)
        self._most = config.max_sequences
        self._engine = Engine(base, config, phrases, 0, run.seed % 2**31)
        self._decoder = EngineDecoder(self._engine, phrases, tokenizer)
        self._trainer = Trainer(run.model.to_hf(), run.trainer_setup, rendezvous=None, weights=str(base))
        self._real_graders = LocalGraders(run.graded_tasks, 1, run.cluster.stall_seconds)
        folder.describe(verifiers=self._verifiers(), **clock_facts(run))
        self.work = RolloutWork(run.recipe, tokenizer, run.seed, True, run.retention.train_every, run.tasks)
        self._sets = prepared_sets(run, self.work)
        units = run.cluster.trainers // trainer_unit(run)
        self.changes = Changes()
        self.engines: SimulatedEngines[Request, AnyCompletion, Snapshot] = SimulatedEngines(
            self.rates, run.cluster.generators, places, self._decoder, self.changes.notify
        )
        self.trainer: SimulatedTrainer[Step, StepResult, Snapshot] = SimulatedTrainer(
            self.rates, units, lambda step: step.tokens, self._train, self._weights
        )
        self.graders: SimulatedGraders[Prompt, AnyCompletion, Verdict] = SimulatedGraders(
            self.rates, self._real_graders.start
        )
        self.books = new_books(run)
        self.start = 0
        """Tick at which simulated time begins."""
        self._by_rule = False
        self._checkpoint_store = CheckpointStore(run, self.books, folder, progress.say)
        self._copier = Copier(folder.path, run.retention.copy_to, progress.say)

    def _verifiers(self) -> dict[str, Any]:
        """The sandbox tier of each task that runs code, for the manifest."""
        tiers = {name: sandbox.describe() for name, sandbox in self._real_graders.sandboxes().items()}
        return {"workers": 1, "sandboxes": [tiers]}

    def load(self) -> None:
        """Restore the newest whole checkpoint, or the beginning if there is none."""
        state = self._checkpoint_store.go_back(self._load)
        # Unlike real hours, those of undone steps do not count.
        self.books.ledger.load_state_dict({} if state is None else state["ledger"])
        if state is not None:
            self.engines.version = self.books.version
            self.engines.usage = Usage(**state["virtual"]["usage"])
            self.start = state["virtual"]["tick"]
            self._by_rule = taken_by_rule(state, self.run)

    def _load(self, path: Path) -> None:
        self._trainer.load(str(path))

    async def main(self, attach: Callable[[RunLoop[Snapshot]], None] = lambda _: None) -> None:
        """Run on the running event loop, a `VirtualLoop`.

        Args:
            attach: called with the loop before it begins, so that signals can reach it.
        """
        loop = virtual_loop()
        loop.moved = self._passed

        def evaluation(journal: Journal) -> EvaluationAtRest:
            file, record = self.folder.evaluation_file, journal.evaluated
            self._evaluation = EvaluationAtRest(
                self.books, self.run.budget, self._weights, self._sample, file, record, loop.time, self._sets
            )
            return self._evaluation

        self.loop, self._journal = build_loop(self, loop.time, simulated=True, evaluation=evaluation)
        self.loop.save_due = self._by_rule
        attach(self.loop)
        if self.books.evaluated < 0:
            self._evaluation.due(0, self.run.evaluation.first)
            await self._evaluation.rest()
            self._journal.begin()
        await self.loop.run()

    def _passed(self, seconds: float) -> None:
        self.engines.passed(seconds)
        self.show()

    def show(self) -> None:
        """Show the run's progress."""
        budget, books = self.run.budget, self.books
        self.progress.show(
            Status(
                step=books.version,
                steps=budget.steps,
                compute=books.ledger.compute,
                unit=self.run.compute_unit,
                completions=self.engines.usage.completions,
                hours=budget.hours,
            )
        )
        self.folder.status.note(
            "RL on a simulated clock",
            step=books.version,
            steps=budget.steps,
            compute=books.ledger.compute,
            unit=self.run.compute_unit,
        )

    def _train(self, step: Step) -> StepResult:
        return self._trainer.train_step(step.sequences.built(), step.loss, None, step.kept)

    def _weights(self, version: int) -> Snapshot:
        return Snapshot([self._trainer.publish(version)])

    async def _sample(self, point: EvaluationPoint, weights: Snapshot, sets: Sequence[PreparedSet]) -> list[AnyRollout]:
        """Generate and grade completions of the held-out prompts in real time, while the engines do nothing else."""
        self._decoder.load(point.version, weights)
        return [*await evaluate_locally(by_name(sets, point.version), self._generate_all, self._real_graders)]

    def _generate_all(self, requests: Sequence[Request]) -> Iterator[list[Completion]]:
        for completions in self._decoder.generate(requests, self._most):
            self.show()
            yield completions

    # Checkpointer.

    async def save(self) -> Coroutine[None, None, None]:
        """Refuse: checkpoints are taken at rest."""
        raise AssertionError("unreachable: a run on a simulated clock takes its checkpoints at rest")

    async def check(self) -> None:
        """Return at once: a checkpoint that could not be written has ended the run already."""

    async def rest(self) -> None:
        """Evaluate what is due, take a checkpoint, and leave engines and clock as a resumed run finds them.

        A run that is not asked to stop would not rest here, or not with the same groups drawn, as one that is asked to
        draws no more. So that both are the same run, `--resume` passes over a checkpoint that is not due.
        """
        due = not self.loop.stopping or self.loop.failure is not None
        self.trainer.forget()
        self.graders.forget()
        self.engines.version = self.books.version  # they get these weights before anything else
        await self._evaluation.rest()
        if self._checkpoint_store.due:
            virtual = {
                "tick": virtual_loop().now,
                "usage": asdict(self.engines.usage),
                DUE: due,
                BY_RULE: self.loop.save_due,
            }
            path, state = self._checkpoint_store.begin(due, virtual=virtual)
            self._trainer.save(path, state())
            self._checkpoint_store.prune()
            if due:  # a copy keeps one checkpoint, and none but those that are due can be gone on from
                self._copier.update()
        self._journal.begin()

    async def go_back(self, error: TrainerLostError) -> None:
        """Fail: the trainer is in this process, so its end is the end of the run until it is resumed."""
        raise error

    def close(self) -> None:
        """End the verifiers' processes, and give the engine's and the trainer's memory back."""
        self._real_graders.close()
        self._trainer.close()
        self._engine.close()
