"""A run on a cluster whose loop is watched, and whose actors work on afterwards; for the benchmarks of the loop."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import ray

from scalelab.cluster.actors import start_ray
from scalelab.cluster.faults import Faults
from scalelab.cluster.trainer_ranks import ClusterTuner
from scalelab.cluster.world import ClusterRun
from scalelab.rollout.tokenizer import load_tokenizer
from scalelab.run.config import Run
from scalelab.run.loop import Loop, Work
from scalelab.session.drive import drive
from scalelab.session.worlds import phrase_ids
from scalelab.start.base_model import base_model
from scalelab.store.folder import RunFolder
from scalelab.watch.progress import Progress


class WatchedTrainer:
    """A trainer that keeps the batches that it was given, and when their steps ended."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.batches: list[Any] = []
        self.ended: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    async def step(self, step: Any) -> Any:
        """Take an optimiser step."""
        self.batches.append(step)
        result = await self._trainer.step(step)
        self.ended.append(time.monotonic())
        return result


class WatchedEngines:
    """Engines that keep when they held which version of the weights."""

    def __init__(self, engines: Any) -> None:
        self._engines = engines
        self.updated: dict[int, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engines, name)

    async def update(self, version: int, weights: Any) -> None:
        """Swap the weights in flight."""
        await self._engines.update(version, weights)
        self.updated[version] = time.monotonic()

    async def serve(self) -> None:
        """Do nothing until cancelled: `WatchedRun.train` keeps the engines at work, beyond the end of the loop."""
        await asyncio.get_running_loop().create_future()


class WatchedRun:
    """A run with its actors up.

    Args:
        world: the run.
        base: folder of its base model.
    """

    def __init__(self, world: ClusterRun, base: Path) -> None:
        self.world, self.base = world, base
        self.trainer, self.engines = WatchedTrainer(world.trainer), WatchedEngines(world.engines)

    def train(self, then: Callable[[], Awaitable[None]], work: Work | None = None) -> None:
        """Run the loop to the end of its budget, then something else with the same actors.

        Args:
            then: what comes after the loop.
            work: what groups are made of; None leaves that to the run.
        """

        async def main(attach: Callable[[Loop], None]) -> None:
            def watch(loop: Loop) -> None:
                loop.trainer, loop.engines = self.trainer, self.engines
                loop.work = work or loop.work
                attach(loop)

            async with asyncio.TaskGroup() as group:
                serving = group.create_task(self.world.engines.serve())
                await self.world.main(watch)
                await then()
                serving.cancel()

        drive(main, asyncio.new_event_loop, self.world.progress)

    async def train_again(self, last: int) -> tuple[float, int, int]:
        """(seconds, tokens, completions) of the loop's last batches, one after the other, with no loop between them."""
        began, tokens, completions = time.monotonic(), 0, 0
        for step in self.trainer.batches[-last:]:
            tokens += (await self.world.trainer.step(step)).tokens
            completions += len(step.sequences)
        return time.monotonic() - began, tokens, completions


@contextmanager
def watched(run: Run, folder: type[RunFolder] = RunFolder) -> Iterator[WatchedRun]:
    """Start a run's actors, in a folder that is removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="bench_loop_"))
    start_ray(run.cluster, max(run.devices, run.sft.trainers))
    try:
        progress = Progress()
        base = base_model(run, progress, ClusterTuner)
        tokenizer = load_tokenizer(base)
        with closing(folder(path / "run")) as files:
            files.begin(
                "# A run of a benchmark, which no configuration describes: the tool changes it after resolving.\n"
            )
            faults = Faults(run.cluster, files.add_fault, progress.say)
            world = ClusterRun(run, base, files, tokenizer, *phrase_ids(run, tokenizer), progress, faults)
            yield WatchedRun(world, base)
    finally:
        ray.shutdown()
        shutil.rmtree(path, ignore_errors=True)
