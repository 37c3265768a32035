"""Weights that change in flight: every token comes from the weights it is labelled with, and from nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moe.model.families import Llama, Llama4Text
from moe.weights.segments import SupersededError, UnavailableError
from scalelab.errors import LabError
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.generator import Generator
from scalelab.rollout.types import Completion, Request
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

CONFIG = GeneratorSetup(max_model_len=256, max_sequences=8, block_size=32, kv_cache_gib=0.02)
GREEDY: dict[str, Any] = {"temperature": 0, "kind": "eval"}


@dataclass
class Lab:
    """A generator, and two models whose weights it is given."""

    shape: Llama | Llama4Text
    first: Path
    second: Path
    generator: Generator = field(init=False)
    ranks: Ranks = field(default_factory=Ranks)
    from_fresh_engine: list[Completion] = field(init=False)
    """Greedy completions of an engine that was started on `second`."""

    def requests(self, name: str, count: int, max_tokens: int = 120, **options: Any) -> list[Request]:
        """Groups of two with prompts of two whole blocks and more, so that the prefix cache has work."""
        ids = prompts(count // 2, 70, self.shape.vocab_size, seed=len(name))
        return [Request(f"{name}{i}", ids[i // 2], max_tokens, **options) for i in range(count)]

    def load(self, version: int, folder: Path) -> None:
        self.generator.take_weights(self.ranks.publish(version, folder))

    def check(self, completions: list[Completion], folders: dict[int, Path]) -> None:
        """Hold the log-probs to those of transformers."""
        models = {version: reference(folder) for version, folder in folders.items()}
        for completion in completions:
            np.testing.assert_allclose(completion.logprobs_T, reference_logprobs(models, completion), atol=1e-4)


@pytest.fixture(scope="module", params=[MOE, pytest.param(DENSE, marks=pytest.mark.nightly)], ids=["moe", "dense"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("models")
    lab = Lab(
        request.param, write_model(folder / "first", request.param, 0), write_model(folder / "second", request.param, 1)
    )
    lab.generator = Generator(lab.second, CONFIG, version=1)
    lab.from_fresh_engine = generate(lab.generator, lab.requests("newborn", 6, **GREEDY))
    lab.generator.close()
    lab.generator = Generator(lab.first, CONFIG)
    yield lab
    lab.generator.close()
    lab.ranks.close()


def test_logprobs_equal_those_of_transformers_beyond_the_attention_chunk(lab: Lab) -> None:
    lab.load(0, lab.first)
    completions = generate(lab.generator, lab.requests("plain", 12))
    assert max(len(completion.token_ids) for completion in completions) > 64
    lab.check(completions, {0: lab.first})


def test_completion_ends_with_its_first_end_of_sequence_or_at_the_limit(lab: Lab) -> None:
    completions = generate(lab.generator, lab.requests("ends", 24, max_tokens=60))
    assert {completion.truncated for completion in completions} == {True, False}
    for completion in completions:
        ids, eos = completion.token_ids.tolist(), lab.shape.eos_token_id
        assert ids.index(eos) == len(ids) - 1 if not completion.truncated else eos not in ids and len(ids) == 60
        assert completion.token_ids.dtype == np.int32
        assert completion.logprobs_T.dtype == np.float32
        assert completion.logprobs_T.shape == completion.forced_T.shape == completion.token_ids.shape
        assert not completion.interrupted


def test_update_with_the_same_weights_changes_nothing(lab: Lab) -> None:
    lab.load(0, lab.first)
    before = generate(lab.generator, lab.requests("before", 6, **GREEDY))
    lab.load(1, lab.first)
    after = generate(lab.generator, lab.requests("after!", 6, **GREEDY))
    for old, new in zip(before, after):
        np.testing.assert_array_equal(old.token_ids, new.token_ids)
        np.testing.assert_array_equal(old.logprobs_T, new.logprobs_T)


def test_updated_engine_equals_a_fresh_one(lab: Lab) -> None:
    lab.load(0, lab.first)
    lab.load(1, lab.second)
    updated = generate(lab.generator, lab.requests("updated", 6, **GREEDY))
    for ours, theirs in zip(updated, lab.from_fresh_engine):
        np.testing.assert_array_equal(ours.token_ids, theirs.token_ids)
        np.testing.assert_array_equal(ours.logprobs_T, theirs.logprobs_T)
        assert ours.spans == theirs.spans == ((1, 0, len(ours.token_ids)),)


def test_unfinished_sequences_go_on_with_new_weights_and_stale_cache(lab: Lab) -> None:
    lab.load(0, lab.first)
    requests = lab.requests("flying", 40)
    lab.generator.submit(requests)
    for version, folder in ((1, lab.second), (2, lab.first)):
        wait_for_steps(lab.generator, 60)
        lab.load(version, folder)
    completions = take(lab.generator, len(requests))
    for completion in completions:
        versions, starts, ends = zip(*completion.spans)
        assert list(versions) == sorted(set(versions))
        assert starts == (0, *ends[:-1])
        assert ends[-1] == len(completion.token_ids)
        assert all(start < end for start, end in zip(starts, ends))
    crossing = [completion for completion in completions if len(completion.spans) > 1]
    assert len(crossing) >= 8
    assert {completion.spans[0][0] for completion in completions} >= {0, 1}
    lab.check(completions, {0: lab.first, 1: lab.second, 2: lab.first})


def test_no_new_request_sees_the_cache_of_older_weights(lab: Lab) -> None:
    """Requests for one prompt go on through the update, wait through it, and come after it."""
    lab.load(0, lab.first)
    prompt = prompts(1, 70, lab.shape.vocab_size, seed=9)[0]
    lab.generator.submit([Request(f"old{i}", prompt, 120) for i in range(20)])
    wait_for_steps(lab.generator, 10)
    lab.load(1, lab.second)
    lab.generator.submit([Request(f"new{i}", prompt, 120) for i in range(12)])
    completions = take(lab.generator, 32)
    lab.check(completions, {0: lab.first, 1: lab.second})
    began_new = [completion for completion in completions if completion.spans[0][0] == 1]
    assert len(began_new) >= 12
    # The test could tell: with the prompt's old cache, the log-probs would be others.
    models = {0: reference(lab.first), 1: reference(lab.second)}
    stale = reference_logprobs(models, began_new[0], prompt_version=0)
    assert np.abs(stale - began_new[0].logprobs_T).max() > 0.01


def test_weights_of_another_model_are_refused_and_the_old_ones_stay(lab: Lab, tmp_path: Path) -> None:
    lab.load(0, lab.first)
    wider = write_model(tmp_path / "wider", replace(lab.shape, vocab_size=104), 0)
    with pytest.raises(LabError, match=r"embed\S+ has shape \(104, 64\), but this model needs \(96, 64\)"):
        lab.load(3, wider)
    lab.check(generate(lab.generator, lab.requests("kept", 4)), {0: lab.first})


def test_a_version_that_cannot_be_had_is_refused_and_the_old_one_stays(lab: Lab) -> None:
    lab.load(0, lab.first)
    gone = lab.ranks.publish(1, lab.second)
    current = lab.ranks.publish(2, lab.second)
    with pytest.raises(SupersededError, match="version 1"):
        lab.generator.take_weights(gone)
    with pytest.raises(LabError, match=r"0 of 1 parts of .*: a rank is missing|1 of 2 parts of .*: a rank is missing"):
        lab.generator.take_weights(current[:1])
    with pytest.raises(LabError, match=r"versions \[1, 2\]: publish them together"):
        lab.generator.take_weights([gone[0], current[1]])
    lab.ranks.publishers[1].close()  # the other machine dies before anybody fetched
    with pytest.raises(UnavailableError, match=r"rank 1 at 127.0.0.1:\d+ did not hand over the weights of version 2"):
        lab.generator.take_weights(current)
    lab.check(generate(lab.generator, lab.requests("stays", 4)), {0: lab.first})
    lab.ranks.close()
    lab.ranks = Ranks()


def wait_for_steps(generator: Generator, count: int, timeout: float = 60.0) -> None:
    goal, deadline = generator.stats()["steps"] + count, time.monotonic() + timeout
    while generator.stats()["steps"] < goal:
        assert time.monotonic() < deadline, f"no {count} engine steps within {timeout} s"
        time.sleep(0.001)


@pytest.mark.nightly
def test_two_processes_that_share_a_model_are_one_generator(tmp_path: Path) -> None:
    shape = replace(MOE, intermediate_size=64)
    first, second = write_model(tmp_path / "first", shape, 0), write_model(tmp_path / "second", shape, 1)
    generator, ranks = Generator(first, replace(CONFIG, tensor_parallel=2)), Ranks()
    try:
        requests = [Request(f"a{i}", ids, 24) for i, ids in enumerate(prompts(4, 40, MOE.vocab_size, seed=3))]
        before = generate(generator, requests, timeout=900)
        generator.take_weights(ranks.publish(1, second))
        after = generate(generator, [replace(request, id=f"b{request.id}") for request in requests], timeout=900)
    finally:
        generator.close()
        ranks.close()
    for completions, folder in ((before, first), (after, second)):
        for completion in completions:
            expected = reference_logprobs({completion.spans[0][0]: reference(folder)}, completion)
            np.testing.assert_allclose(completion.logprobs_T, expected, atol=1e-4)
