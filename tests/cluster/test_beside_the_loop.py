"""Work beside the event loop: what is large is fetched and written in threads, and the next step waits for it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalelab.cluster.world import ClusterRun
from scalelab.experiment import resolve
from scalelab.run.books import new_books
from scalelab.run.checkpoint_store import CheckpointStore
from scalelab.run.journal import Journal

SECONDS = 60.0
"""Longest time that a thread waits for the event loop here."""


class LoopGoesOn:
    """Work of a thread that ends only if the event loop runs beside it."""

    def __init__(self) -> None:
        self._begun, self._moved = threading.Event(), threading.Event()

    def work(self) -> None:
        self._begun.set()
        assert self._moved.wait(SECONDS), "the event loop stood still"

    async def move(self) -> None:
        """Let the work end, once it has begun."""
        while not self._begun.is_set():
            await asyncio.sleep(0.001)
        self._moved.set()


async def beside(going: LoopGoesOn, awaited: Any) -> Any:
    return (await asyncio.wait_for(asyncio.gather(awaited, going.move()), 2 * SECONDS))[0]


def test_a_checkpoints_completions_are_fetched_beside_the_loop_and_before_the_trainer_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, happened = LoopGoesOn(), list[str]()

    def fetch(rollouts: Any, seconds: float) -> list[Any]:
        going.work()
        happened.append("fetched")
        return list(rollouts)

    async def taken() -> None:
        happened.append("taken")

    def save(path: str, state: dict[str, Any]) -> Any:
        happened.append(f"asked for version {state['schedule']['trainer_version']}, {state['drawn']} drawn")
        return taken()

    (tmp_path / "config.gin").write_text("")
    folder: Any = SimpleNamespace(
        path=tmp_path, checkpoints=tmp_path, line_of=lambda version: None, begin_checkpoint=lambda *_: tmp_path / "step"
    )
    run = resolve("quickstart").run
    books = new_books(run)
    store = CheckpointStore(run, books, folder, print)
    monkeypatch.setattr("scalelab.run.books.with_contents", fetch)
    monkeypatch.setattr("scalelab.cluster.world.ray.put", lambda state: state)
    books.draw(0)
    world: Any = SimpleNamespace(
        checkpoint_store=store, trainer=SimpleNamespace(save=save), run=run, _saved=lambda taken: taken
    )

    async def main() -> None:
        saving = asyncio.ensure_future(ClusterRun.save(world))
        await asyncio.sleep(0)
        books.draw(0)  # later than the checkpoint
        await (await beside(going, saving))

    asyncio.run(main())
    assert happened == ["fetched", "asked for version 0, 1 drawn", "taken"]


def test_completions_of_a_step_are_kept_beside_the_loop() -> None:
    going, kept = LoopGoesOn(), list[Any]()

    def keep(*what: Any) -> None:
        going.work()
        kept.append(what)

    journal: Any = SimpleNamespace(_folder=SimpleNamespace(keep_trained=keep), _books=SimpleNamespace(version=4))
    step: Any = SimpleNamespace(rollouts=["a rollout"])
    result: Any = SimpleNamespace(logprobs=["its log-probs"])
    asyncio.run(beside(going, Journal.keep(journal, step, result)))
    assert kept == [(5, ["a rollout"], ["its log-probs"])]


@pytest.mark.parametrize("result", [None, SimpleNamespace(logprobs=None)])
def test_a_step_without_log_probs_keeps_nothing(result: Any) -> None:
    asyncio.run(Journal.keep(SimpleNamespace(), SimpleNamespace(), result))  # type: ignore[arg-type]
