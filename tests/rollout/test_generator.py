"""A generator interrupts where it was asked to, accounts for every request, and never leaves a caller waiting."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moe.model.families import Llama, Llama4Text
from scalelab.errors import LabError
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.engine import Engine
from scalelab.rollout.generator import Generator
from scalelab.rollout.interruption import Phrases, forced_mask
from scalelab.rollout.types import Request
from tests.helpers.automata import by_ids
from tests.helpers.rollout_models import (
    DENSE,
    MOE,
    Ranks,
    generate,
    prompts,
    reference,
    reference_logprobs,
    take,
    write_model,
)

pytestmark = pytest.mark.slow

# The cache holds 19 blocks where 8 long sequences want 24: vLLM also drops sequences and takes them up again.
CONFIG = GeneratorSetup(max_model_len=128, max_sequences=8, block_size=32, kv_cache_gib=0.0003)
PHRASE, END = (41, 42, 43, 44, 7), (7,)
CLOSING = by_ids(END)
PROMPTS = prompts(200, 6, DENSE.vocab_size, seed=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), DENSE, 0)


@pytest.fixture(scope="module")
def generator(model: Path) -> Iterator[Generator]:
    generator = Generator(model, CONFIG, PHRASE, CLOSING)
    yield generator
    generator.close()


def test_interruptions_come_exactly_where_asked_in_a_mixed_batch(generator: Generator, model: Path) -> None:
    rng = np.random.default_rng(3)
    positions = [None if rng.random() < 0.3 else int(rng.integers(0, 50)) for _ in range(120)]
    requests = [
        Request(f"mixed{i}", PROMPTS[i], int(rng.integers(20, 60)), interrupt_at=position)
        for i, position in enumerate(positions)
    ]
    completions = generate(generator, requests)
    kinds = set()
    for completion in completions:
        ids, position = completion.token_ids.tolist(), completion.request.interrupt_at
        expected = forced_mask(ids, position, Phrases(PHRASE, CLOSING))
        np.testing.assert_array_equal(completion.forced_T, expected)
        forced = completion.token_ids[completion.forced_T].tolist()
        assert tuple(forced) == PHRASE[: len(forced)]
        assert completion.interrupted == bool(forced)
        if forced:
            assert position is not None
            assert len(forced) == min(len(PHRASE), len(ids) - position)
            assert END[0] not in ids[:position]
        reached = position is not None and len(ids) > position
        kinds.add((reached, bool(forced), len(forced) == len(PHRASE), completion.truncated))
    assert {(False, False), (True, True), (True, False)} == {kind[:2] for kind in kinds}
    # The log-prob of a forced token is the one it would have had as a sample.
    models = {0: reference(model)}
    for completion in completions[:20]:
        np.testing.assert_allclose(completion.logprobs_T, reference_logprobs(models, completion), atol=1e-4)


def test_interruption_may_come_before_the_first_token(generator: Generator) -> None:
    requests = [Request(f"zero{i}", PROMPTS[i], 8, interrupt_at=0) for i in range(12)]
    for completion in generate(generator, requests):
        assert tuple(completion.token_ids[:5].tolist()) == PHRASE
        assert completion.forced_T.tolist()[:5] == [True] * 5


def test_stats_count_every_token_by_kind(generator: Generator) -> None:
    before = generator.stats()
    requests = [Request(f"kind{i}", PROMPTS[i], 20, kind="eval" if i % 3 else "train") for i in range(30)]
    completions = generate(generator, requests)
    gained = {name: value - before[name] for name, value in generator.stats().items()}
    for kind in ("train", "eval"):
        mine = [completion for completion in completions if completion.request.kind == kind]
        assert gained[f"completions_{kind}"] == len(mine)
        assert gained[f"tokens_{kind}"] == sum(len(completion.token_ids) for completion in mine)
        assert gained[f"busy_seconds_{kind}"] > 0
    assert gained["completions"] == 30
    assert generator.unfinished == 0


def test_seeded_completions_repeat_and_greedy_ones_do_not_vary(generator: Generator) -> None:
    def texts(name: str, **options: Any) -> list[list[int]]:
        requests = [Request(f"{name}{i}", PROMPTS[0], 30, **options) for i in range(2)]
        return [completion.token_ids.tolist() for completion in generate(generator, requests)]

    first, second = texts("a", seed=5), texts("b", seed=5)
    assert first[0] == first[1] == second[0]
    greedy = texts("c", temperature=0, kind="eval")
    assert greedy[0] == greedy[1]


def test_collect_returns_nothing_at_its_deadline(generator: Generator) -> None:
    began = time.monotonic()
    assert generator.collect(10, timeout=0.05) == []
    assert time.monotonic() - began >= 0.05


def test_aborted_requests_never_come_back_and_the_others_do(generator: Generator) -> None:
    """Some are being generated, some still wait, some are unknown."""
    requests = [Request(f"abort{i}", PROMPTS[i], 100) for i in range(40)]
    generator.submit(requests)
    wanted = [f"abort{i}" for i in range(0, 40, 2)]
    aborted = generator.abort([*wanted, "unknown"])
    assert set(aborted) <= set(wanted)
    assert len(aborted) > 10
    completions = take(generator, 40 - len(aborted))
    assert {completion.request.id for completion in completions} == {r.id for r in requests} - set(aborted)
    assert generator.unfinished == 0
    assert generator.collect(10, timeout=0.05) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"prompt_ids": ()}, "needs a prompt"),
        ({"max_tokens": 0}, "max_tokens of at least 1"),
        ({"max_tokens": 123}, r"may reach 129 tokens: raise max_model_len \(128\)"),
        ({"prompt_ids": (5, 96)}, "outside the model's vocabulary of 96"),
        ({"temperature": 0.7}, "trains on temperature 0.7"),
    ],
)
def test_requests_it_cannot_serve_are_refused_before_any_is_queued(
    generator: Generator, change: dict[str, Any], problem: str
) -> None:
    good = Request("good", PROMPTS[0], 10)
    with pytest.raises(LabError, match=problem):
        generator.submit([good, dataclasses.replace(good, id="bad", **change)])
    with pytest.raises(LabError, match="different ids"):
        generator.submit([good, good])
    assert generator.unfinished == 0


def test_calls_from_many_threads_lose_nothing(generator: Generator, model: Path) -> None:
    ranks = Ranks()
    segments = ranks.publish(0, model)
    done: list[str] = []

    def ask(thread: int) -> None:
        generator.submit([Request(f"thread{thread}.{i}", PROMPTS[i], 20) for i in range(20)])

    def empty() -> None:
        while len(done) < 80:
            done.extend(completion.request.id for completion in generator.collect(7, timeout=0.2, linger=0))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    threads += [threading.Thread(target=empty) for _ in range(2)]
    threads += [threading.Thread(target=lambda: generator.take_weights(segments)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(900)
        assert not thread.is_alive()
    ranks.close()
    assert sorted(done) == sorted(f"thread{thread}.{i}" for thread in range(4) for i in range(20))


def test_generation_goes_on_while_weights_load_however_long_that_takes(
    generator: Generator, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine without steps would hang for the driver, which would end it."""
    ranks, loaded, staged = Ranks(), threading.Event(), Engine.staged
    monkeypatch.setattr(Engine, "staged", lambda engine: loaded.is_set() and staged(engine))
    segments, before = ranks.publish(1, model), generator.stats()
    taking = threading.Thread(target=lambda: generator.take_weights(segments))
    taking.start()
    generate(generator, [Request(f"beside{i}", PROMPTS[0], 20) for i in range(8)])
    assert taking.is_alive()
    assert generator.stats()["updates"] == before["updates"]
    assert generator.stats()["steps"] >= before["steps"] + 20
    loaded.set()
    taking.join(900)
    ranks.close()
    assert generator.stats()["updates"] == before["updates"] + 1


# The engine fails or closes below, so these tests come after those that share it.


def test_failure_while_generating_reaches_every_caller(
    generator: Generator, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Engine) -> None:
        raise RuntimeError("it said:\nthe device is gone\nand much more that nobody wants to read")

    monkeypatch.setattr(Engine, "step", fail)
    generator.submit([Request("doomed", PROMPTS[0], 10)])
    with pytest.raises(LabError, match=r"^the generator failed: RuntimeError: it said: the device is gone$"):
        generator.collect(1, timeout=900)
    for call in (generator.stats, lambda: generator.unfinished, lambda: generator.abort(["doomed"])):
        with pytest.raises(LabError, match="the device is gone"):
            call()
    with pytest.raises(LabError, match="the device is gone"):
        generator.take_weights(Ranks().publish(1, model))


@pytest.mark.parametrize(
    ("shape", "change", "problem"),
    [
        (DENSE, {"eos_token_id": None}, "has no eos_token_id"),
        (MOE, {"intermediate_size": 80}, "in multiples of 32, got .*80"),
        (MOE, {"attention_chunk_size": 48}, r"block_size \(32\) must divide .* \(48\)"),
    ],
)
def test_models_it_cannot_serve_are_refused_at_the_start(
    model: Path, tmp_path: Path, shape: Llama | Llama4Text, change: dict[str, object], problem: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**shape.to_hf(), **change}))
    (tmp_path / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    with pytest.raises(LabError, match=problem):
        Generator(tmp_path, CONFIG)


def test_closing_answers_those_who_wait(model: Path) -> None:
    generator = Generator(model, CONFIG)
    said: list[str] = []

    def wait() -> None:
        with pytest.raises(LabError) as error:
            generator.collect(1, timeout=900)
        said.append(str(error.value))

    waiting = threading.Thread(target=wait)
    waiting.start()
    generator.close()
    waiting.join(900)
    assert said == ["the generator is closed: start another"]
    with pytest.raises(LabError, match="closed"):
        generator.submit([])


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no weights"):
        Generator(tmp_path, CONFIG)
