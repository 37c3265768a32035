"""An engine's actor hands out texts, so that the driver decodes none, and measures how long its engine stands still."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scalelab.cluster.engine_actor import EngineActor
from scalelab.rollout import generator, tokenizer
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.types import Completion, Request

pytestmark = pytest.mark.slow


class ScriptedGenerator:
    """A generator that takes steps when a test says so."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.steps, self.unfinished = 0.0, 1
        self.done: list[Completion] = []
        self.begun: list[str] = []
        self.waits = (0.0, 0.0)

    def submit(self, requests: Sequence[Request]) -> None:
        self.begun += [one.id for one in requests]

    def collect(self, max_items: int, timeout: float, linger: float) -> list[Completion]:
        done, self.done, self.waits = self.done, [], (timeout, linger)
        return done

    def stats(self) -> dict[str, float]:
        return {"steps": self.steps}


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> EngineActor:
    letters = SimpleNamespace(
        all_special_ids=[0], batch_decode=lambda rows: ["".join(chr(96 + token) for token in row) for row in rows]
    )
    monkeypatch.setattr(generator, "Generator", ScriptedGenerator)
    monkeypatch.setattr(tokenizer, "load_tokenizer", lambda model: letters)
    return EngineActor("", GeneratorSetup(max_model_len=8), (), None, 0)


def test_completions_leave_an_engine_with_their_texts(actor: EngineActor) -> None:
    tokens = np.array([1, 2, 3, 0], np.int32)
    zeros = np.zeros(4, np.float32)
    done = Completion(Request("one", (1,), 4), tokens, zeros, ((0, 0, 4),), zeros.astype(bool), False, False)
    actor._generator.done = [done]  # type: ignore[attr-defined]
    ([completion], _), contents, records = actor.collect()
    assert contents is records is None, "a small answer is no shard"
    assert isinstance(completion, Completion)
    assert completion.text == "abc"
    assert completion.request == Request("one", (), 4), "the driver has the prompt"


def test_an_engine_begins_the_requests_that_come_with_a_call_for_completions(actor: EngineActor) -> None:
    engine: Any = actor._generator
    actor.collect([Request("one", (1,), 4)])
    actor.collect()
    assert engine.begun == ["one"]


@pytest.mark.parametrize(("unfinished", "seconds"), [(0, 0.05), (1, 2.0), (4, 8.0), (9, 8.0)])
def test_completions_of_an_engine_wait_for_others_the_longer_the_fuller_it_is(
    unfinished: int, seconds: float, actor: EngineActor
) -> None:
    engine: Any = actor._generator
    actor._linger, actor._places, engine.unfinished = 8.0, 4, unfinished
    actor.collect()
    assert engine.waits == (32.0, seconds)


def test_an_engine_stands_still_only_with_work_and_without_steps(actor: EngineActor) -> None:
    engine: Any = actor._generator

    def stalled() -> float:
        return actor.collect()[0][1]["stalled_seconds"]

    began = time.monotonic()
    time.sleep(0.05)
    assert 0.05 <= stalled() <= time.monotonic() - began + 0.01
    engine.steps += 1
    assert stalled() == 0, "as while new weights are loaded beside its work"
    time.sleep(0.05)
    assert stalled() >= 0.05
    engine.unfinished = 0
    assert stalled() == 0
