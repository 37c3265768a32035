"""Preemptions of a plan are those of vLLM's own scheduler, and cost nothing where the cache holds all."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.model.size import kv_bytes_per_token
from scalelab import cli
from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.plan.lengths import Moments, lengths_of
from scalelab.plan.preemption import computed_again, preempted
from scalelab.plan.speed import Assumptions, decoding, training_flops

PROMPT = 20


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 8), st.integers(80, 400))
def test_every_token_is_made_once_however_often_it_is_computed(lengths: list[int], places: int, cache: int) -> None:
    made, again, times = preempted(np.array(lengths, float), PROMPT, cache, places, 4)
    assert made == pytest.approx(sum(lengths))
    assert (again > 0) == (times > 0)
    if places * (PROMPT + max(lengths) + 4) <= cache:
        assert times == 0


def test_two_sequences_in_a_cache_for_one_and_a_half_take_turns() -> None:
    """By hand: both reach 10 + 40 of 100 tokens, the second gives up 50 and computes them when the first has ended."""
    assert preempted(np.array([60.0, 60.0]), 10, 100, 2, 0) == (120, 50, 1)


@pytest.mark.slow
@pytest.mark.parametrize("caching", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_an_engine_of_vllm_computes_nearly_as_many_tokens_again(caching: bool, tmp_path: Path) -> None:
    """By its own scheduler's counts, for lengths that end as they did; the prefix cache saves some of them."""
    from scalelab.rollout.engine import Engine
    from scalelab.rollout.interruption import Phrases
    from scalelab.rollout.types import Request
    from tests.helpers.rollout_models import DENSE, prompts, write_model
    from tests.rollout.test_generator import CONFIG

    model, block, places = replace(DENSE, vocab_size=960), 32, 24
    asked_C = np.minimum(np.random.default_rng(0).lognormal(math.log(220), 0.6, 160), 460).astype(int)
    cache = 12 * (PROMPT + 230) // block * block
    size = kv_bytes_per_token(model.to_hf(), CONFIG.dtype, latent=False) * (cache + block) / 2**30  # one is vLLM's own
    config = replace(
        CONFIG,
        prefix_caching=caching,
        block_size=block,
        max_model_len=512,
        max_sequences=places,
        kv_cache_gib=size,
        max_batched_tokens=512 * places,
    )
    engine = Engine(write_model(tmp_path, model, 0), config, Phrases())
    scheduler, computed = engine._scheduler, 0
    schedule = scheduler.schedule

    def counted(throttle_prefills: bool = False) -> Any:
        nonlocal computed
        output = schedule(throttle_prefills)
        computed += output.total_num_scheduled_tokens
        return output

    scheduler.schedule = counted
    ended: dict[str, int] = {}
    try:
        for at, ids in enumerate(prompts(len(asked_C), PROMPT, model.vocab_size, seed=0)):
            engine.add(Request(f"{at}", ids, int(asked_C[at]), seed=at, temperature=1.0))
        while len(ended) < len(asked_C):
            ended |= {one.id: len(one.token_ids) for one in engine.step()}
    finally:
        engine.close()
    lengths_C = np.array([ended[f"{at}"] for at in range(len(asked_C))])
    found = (computed - len(asked_C) * PROMPT - (lengths_C - 1).sum()) / lengths_C.sum()
    made, again, times = preempted(lengths_C.astype(float), PROMPT, cache, places, block)
    planned = again / made
    assert engine.preemptions > 100
    assert times == pytest.approx(engine.preemptions, rel=0.25)
    assert 0.65 * planned < found < planned  # 0.71 and 0.83 where this was measured


def test_a_cache_for_all_computes_nothing_again_and_a_small_one_ever_more() -> None:
    length = lengths_of(resolve("h100/scalerl_8b").run, 0.6).moments()
    room = 80 * round(256 + length.square / (2 * length.mean))
    of_places = [computed_again(length, 256, room, places, 64) for places in (40, 60, 80, 100, 160)]
    assert of_places[0] == 0
    assert of_places == sorted(of_places)
    assert of_places[-1] > 0.5
    assert computed_again(Moments(100.0, 10_000.0, 100), 10, 1100 + 640, 10, 64) == 0


@given(st.floats(1.1, 300), st.integers(1, 4000), st.floats(20, 9000))
@settings(deadline=None)
def test_an_engine_that_starts_more_computes_no_less_again(sequences: float, places: int, mean: float) -> None:
    """However small or large the cache; a share has the error of a simulation."""
    length = Moments(mean, 1.3 * mean**2, max(1, round(3 * mean)))
    cache = int(sequences * (256 + length.square / (2 * length.mean)))
    few, many, all_of_them = (computed_again(length, 256, cache, one, 16) for one in (places, 4 * places, 10**6))
    assert few <= many + 0.3
    assert many <= all_of_them + 0.3
    assert all_of_them > 0.05 or mean < 1000  # short completions hardly grow


def test_time_of_prompts_is_that_of_their_products() -> None:
    """Without preemptions: a third of the trainer's products without the head's, at the engine's share of the peak."""
    run, gpu = resolve("h100/scalerl_8b").run, device("h100")
    length, assumed = Moments(1000.0, 1e6, 1000), Assumptions(prompt=500)
    hf = run.model.to_hf()
    engine = decoding(hf, run.generator_setup, 8, length, gpu, assumed)
    none = decoding(hf, run.generator_setup, 8, length, gpu, replace(assumed, prompt=0))
    assert (engine.again, none.prefill) == (0, 0)
    head = hf["vocab_size"] * hf["hidden_size"]
    forward = (training_flops(hf, "none", 500, 500**2) - 500 * 8 * head) / 3 + 500 * 2 * head
    seconds = engine.prefill * length.mean / engine.sequences  # of one completion
    assert seconds == pytest.approx(forward / (gpu.tflops * 1e12 * assumed.decode_mfu), rel=0.02)


def test_a_plan_says_how_many_sequences_to_start_instead(capsys: pytest.CaptureFixture[str]) -> None:
    def planned(places: int) -> dict:
        assert cli.main(["plan", "h100/scalerl_8b", "--set", f"GeneratorConfig.max_sequences={places}", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    many = planned(160)
    [note] = [note for note in many["notes"] if "preempts" in note]
    fewer = int(note.split("GeneratorConfig.max_sequences=")[1].split(",")[0])
    instead = planned(fewer)
    gained = (instead["decoding"]["sequences"] / instead["decoding"]["seconds"]) / (
        many["decoding"]["sequences"] / many["decoding"]["seconds"]
    )
    assert f"for {gained - 1:.0%} more tokens" in note
    assert not [note for note in instead["notes"] if "preempts" in note]
    for places in (64, 72, 76, 82):  # of which more would be no better
        assert not [note for note in planned(places)["notes"] if f"max_sequences={places + 1}" in note]
    for note in (note for places in range(60, 90, 5) for note in planned(places)["notes"] if "preempts" in note):
        assert "up to 0%" not in note
