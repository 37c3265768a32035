"""A run that is stopped while engines of their own evaluate its base model: what is missing then is said."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from scalelab.store.folder import RunFolder
from tests.helpers.crash_world import Engines, World, settings


class OneAside(Engines):
    """Two engines, of which the one that is set aside for an evaluation never answers."""

    def set_aside(self, count: int) -> int:
        return count

    async def generate(self, requests: Any) -> Any:
        if requests[0].id.startswith("eval"):
            await asyncio.Event().wait()
        return await super().generate(requests)


@pytest.mark.timeout(60)
def test_a_resumed_run_says_that_its_base_model_was_not_evaluated(tmp_path: Path) -> None:
    resolved = settings(Cluster__generators=2, Evaluation__engines=1, Budget__steps=8)
    folder = RunFolder(tmp_path / "run")
    held_out = dict.fromkeys([task.name for task in resolved.run.tasks], 2)
    policy = asdict(resolved.run.checkpoints)
    folder.begin(resolved.config_gin(), status="running", held_out=held_out, checkpoint_policy=policy)
    world = World(resolved.run, folder)
    world.engines = OneAside()

    async def stopped() -> None:
        running = asyncio.create_task(world.main())
        while world.books.version < 4:
            await asyncio.sleep(0)
        world.loop.stop()
        await running

    asyncio.run(stopped())
    folder.close()
    assert world.books.evaluated < 0
    folder = RunFolder(tmp_path / "run")
    world = World(resolved.run, folder)
    world.resume()
    folder.close()
    assert world.books.version >= 4
    [told] = [line for line in world.progress.said if "base model's evaluation was broken off" in line]
    assert "`scalelab eval`" in told
    assert "--r0" in told
