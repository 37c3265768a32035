"""A whole run in one process without Ray, vLLM or a model: the real loop, books, journal, folder and checkpoints.

Engines, graders and trainer answer at once, by hash: what is generated and how it is graded depends on names alone.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from moe.checkpoint.folder import Manifest, digest, publish, write_manifest
from moe.durable import write_whole
from moe.train.result import StepResult
from scalelab.experiment import Resolved, resolve
from scalelab.rollout.types import AnyCompletion, Completion, Request
from scalelab.run.books import new_books
from scalelab.run.checkpoint_store import CheckpointStore
from scalelab.run.config import Run
from scalelab.run.coroutines import Changes
from scalelab.run.loop import Loop
from scalelab.run.ports import TrainerLostError
from scalelab.run.work import RolloutWork, Step
from scalelab.run.world import build_loop, evaluate_in_flight
from scalelab.store.folder import RunFolder
from scalelab.store.manifest import check_config, read_run_manifest
from scalelab.watch.tensorboard_writer import TensorBoardWriter
from tasks.stream import stable_number
from tasks.types import Prompt, Verdict

SETTINGS = {
    "Budget.steps": 4,
    "Evaluation.every": 2,
    "Evaluation.prompts": 2,
    "Evaluation.samples": 2,
    "Recipe.prompts_per_step": 2,
    "Recipe.generations_per_prompt": 2,
    "Run.checkpoint_every": 2,
    "CheckpointPolicy.keep_last": 1,
    "Retention.train_every": 1,
    "PipelineRL.k": 2,
}


@cache
def settings(**more: Any) -> Resolved:
    """The configuration of the run; the same object each time, for its tasks remember the prompts that they made.

    Args:
        more: other values, with `__` for the dot.
    """
    values = SETTINGS | {name.replace("__", "."): value for name, value in more.items()}
    return resolve("quickstart", [f"{name}={value}" for name, value in values.items()])


class Letters:
    """A tokenizer: a token is a letter."""

    bos_token_id = 0

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The letters' numbers."""
        return [1 + ord(letter) % 90 for letter in text]


class Engines:
    """Engines that answer in a moment."""

    def __init__(self) -> None:
        self.version, self.outstanding, self.room = 0, 0, 64

    async def generate(self, requests: Sequence[Request]) -> list[AnyCompletion]:
        """Three tokens each."""
        version = self.version
        await asyncio.sleep(0)
        return [_completion(request, version) for request in requests]

    async def update(self, version: int, weights: Any) -> None:
        """Hold other weights."""
        await asyncio.sleep(0)
        self.version = version

    def set_aside(self, count: int) -> int:
        """Keep none for an evaluation."""
        return 0

    def forget(self) -> None:
        """Do nothing: no requests are held."""

    def totals(self) -> Mapping[str, float]:
        """No counters."""
        return {}

    async def serve(self) -> None:
        """Live on."""
        await asyncio.Event().wait()


def _completion(request: Request, version: int) -> Completion:
    tokens = np.array([1 + stable_number(request.id) % 7, 2, 3], dtype=np.int32)
    logprobs, forced = np.full(3, -0.5, dtype=np.float32), np.zeros(3, dtype=bool)
    return Completion(request, tokens, logprobs, ((version, 0, 3),), forced, False, False, text=request.id)


def graded(prompt: Prompt, text: str) -> Verdict:
    """A verdict by hash; about half of them pass."""
    return Verdict("passed", 1.0) if stable_number(prompt.id, text) % 2 == 0 else Verdict("failed", 0.0)


class Graders:
    """Graders that answer in a moment."""

    outstanding, room = 0, 64
    counts: Mapping[str, int] = {}

    async def grade(self, prompt: Prompt, completions: Sequence[AnyCompletion]) -> list[Verdict]:
        """About half of them pass."""
        await asyncio.sleep(0)
        return [graded(prompt, one.text) for one in completions if isinstance(one, Completion)]

    async def serve(self) -> None:
        """Live on."""
        await asyncio.Event().wait()


class Trainer:
    """A trainer whose weights are the number of its steps."""

    def __init__(self, run: Run) -> None:
        self.steps, self._run, self._hf = 0, run, run.model.to_hf()

    async def step(self, step: Step) -> StepResult:
        """Take a step."""
        lengths = step.sequences.lengths
        await asyncio.sleep(0)
        self.steps += 1
        told = [np.zeros(length, np.float32) for length in lengths] if step.kept else None
        return StepResult(0.5, 1.0, _METRICS, sum(lengths), 0.01, False, 1.0, told)

    async def publish(self, version: int) -> int:
        """The weights."""
        return self.steps

    async def save(self, path: str, state: Mapping[str, Any]) -> None:
        """Write a checkpoint in the order in which `moe.checkpoint.saver` does."""
        target = Path(path)
        fresh = target.with_name(f".{target.name}.writing")
        if fresh.exists():
            shutil.rmtree(fresh)
        fresh.mkdir()
        write_whole(fresh / "state.json", json.dumps(dict(state)))
        write_whole(fresh / "weights", json.dumps(self.steps))
        files = {file.name: digest(file) for file in fresh.iterdir()}
        write_manifest(fresh, Manifest(self.steps, self._hf, {}, 1, ("model", "state"), files))
        publish(fresh, target)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint."""
        self.steps = json.loads((path / "weights").read_text())


_METRICS = dict.fromkeys(
    (
        *("tokens_sum", "entropy_sum", "ratio_min", "ratio_sum", "ratio_max", "clipped_sum", "kl_sum", "gap_sum"),
        *("gap_max", "same_version_gap_sum", "same_version_tokens_sum", "same_version_sum"),
    ),
    1.0,
)


class Quiet:
    """Progress that nobody looks at."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        """Remember a line."""
        self.said.append(line)

    def evaluated(self, records: Any) -> None:
        """Do nothing."""


class World:
    """One process's part of the run; it is its own `Checkpointer`."""

    pauses = False

    def __init__(self, run: Run, folder: RunFolder) -> None:
        self.run, self.folder = run, folder
        self.progress: Any = Quiet()
        self.books, self.changes = new_books(run), Changes()
        self.engines, self.graders, self.trainer = Engines(), Graders(), Trainer(run)
        self.checkpoint_store = CheckpointStore(run, self.books, folder, self.progress.say)
        self.work = RolloutWork(run.recipe, Letters(), run.seed, False, run.retention.train_every)
        self.loop: Loop
        self.ticks = 0.0

    def clock(self) -> float:
        """Every look takes a second."""
        self.ticks += 1.0
        return self.ticks

    def resume(self) -> None:
        """Go on from the newest checkpoint."""
        self.checkpoint_store.go_back(self.trainer.load)
        assert self.trainer.steps == self.books.version

    async def main(self) -> None:
        """Run to the end of the budget."""
        self.loop, _ = build_loop(
            self,
            self.clock,
            simulated=False,
            evaluation=lambda journal: evaluate_in_flight(self, journal, self.clock),
        )
        await self.loop.run()

    async def save(self) -> Coroutine[None, None, None]:
        """Take a checkpoint."""
        path, state = self.checkpoint_store.begin()
        await self.trainer.save(path, state())
        return self._pruned()

    async def _pruned(self) -> None:
        self.checkpoint_store.prune()

    async def check(self) -> None:
        """Return at once: no checkpoint is written in the background."""

    async def rest(self) -> None:
        """Take the last checkpoint."""
        if self.checkpoint_store.due:
            await (await self.save())
        self.checkpoint_store.prune()

    async def go_back(self, error: TrainerLostError) -> None:
        """Fail: only the whole process is ever lost."""
        raise error


def live(path: Path, resolved: Resolved) -> None:
    """Begin a run in a folder, or go on with the one that is there, and see it to its end."""
    begun = (path / "manifest.json").exists()
    folder = RunFolder(path)
    folder.add_observer(TensorBoardWriter(path / "tensorboard"))
    if begun:
        check_config(path, read_run_manifest(path))
    else:
        names = [task.name for task in resolved.run.tasks]
        policy = asdict(resolved.run.checkpoints)
        held_out = dict.fromkeys(names, 2)
        folder.begin(resolved.config_gin(), status="running", held_out=held_out, checkpoint_policy=policy)
    world = World(resolved.run, folder)
    if begun:
        world.resume()
    asyncio.run(world.main())
    folder.describe(status="finished")
    folder.close()
