"""Samples on a CPU follow the logits and their own stream of numbers, whatever stands beside them in the batch."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

from scalelab.rollout.engine import Engine
from scalelab.rollout.interruption import Phrases
from scalelab.rollout.on_cpu import Draw, draw_args, draw_tokens, uniform
from scalelab.rollout.types import Request
from tests.helpers.rollout_models import DENSE, prompts, write_model
from tests.rollout.test_generator import CONFIG

pytestmark = pytest.mark.slow

VOCAB = 6


@given(st.lists(st.floats(-9, 9) | st.just(-np.inf), min_size=2, max_size=8), st.floats(0, 1, exclude_max=True))
def test_a_draw_is_where_the_cumulative_distribution_passes_the_number(logits: list[float], number: float) -> None:
    logits[0] = 0.0  # one word at least is possible
    row = torch.tensor([logits])
    token = int(draw_tokens(row, np.array([number])))
    probs = np.exp(np.array(logits) - np.logaddexp.reduce(logits))
    assert probs[token] > 0
    below = probs[:token].sum()
    assert below - 1e-6 <= number <= below + probs[token] + 1e-6


def test_frequencies_are_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    keys = np.array([draw_args(seed, 1.0)["draw"][0] for seed in range(4000)], np.uint64)
    numbers = [uniform(keys, np.full(len(keys), at)) for at in range(10)]
    counts = sum(np.bincount(draw_tokens(logits.expand(len(keys), -1), number), minlength=4) for number in numbers)
    np.testing.assert_allclose(counts / 40_000, logits.softmax(-1), atol=0.01)


@given(st.data())
def test_a_draw_depends_on_its_own_seed_and_position_alone(data: st.DataObject) -> None:
    seeds = data.draw(st.lists(st.integers(-3, 2**64), min_size=2, max_size=6, unique=True))
    logits = torch.randn(len(seeds), VOCAB, generator=torch.Generator().manual_seed(0))

    def processor(rows: list[int], so_far: int) -> Draw:
        made = Draw(SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=8)), torch.device("cpu"), False)
        params = [SamplingParams(temperature=0, extra_args=draw_args(seeds[row], 1.0)) for row in rows]
        added = [(at, one, None, [0] * so_far) for at, one in enumerate(params)]
        made.update_state(BatchUpdate(len(rows), [], added, []))
        return made

    together = processor([*range(len(seeds))], 0)
    first = together.apply(logits.clone()).argmax(-1)
    together.update_state(BatchUpdate(len(seeds), [], [], [(0, len(seeds) - 1, MoveDirectionality.SWAP)]))
    swapped = logits.clone()
    swapped[[0, -1]] = logits[[-1, 0]]
    second = together.apply(swapped).argmax(-1)
    for row in range(len(seeds)):
        assert processor([row], 0).apply(logits[[row]]).argmax(-1) == first[row]
        at = {0: len(seeds) - 1, len(seeds) - 1: 0}.get(row, row)
        assert processor([row], 1).apply(logits[[row]]).argmax(-1) == second[at]


def test_greedy_rows_stay_as_they_are() -> None:
    made = Draw(SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=2)), torch.device("cpu"), False)
    params = SamplingParams(temperature=0), SamplingParams(temperature=0, extra_args=draw_args(1, 2.0))
    made.update_state(BatchUpdate(2, [], [(row, one, None, []) for row, one in enumerate(params)], []))
    logits = torch.zeros(2, VOCAB)
    assert torch.equal(made.apply(logits.clone())[0], logits[0])
    assert made.apply(logits.clone())[1].isinf().sum() == 1


def agreed(output: EngineCoreOutput) -> None:
    """Check every field that `Engine` reads of vLLM's outputs, with whichever scheduler made them."""
    assert isinstance(output.request_id, str)
    assert isinstance(output.new_token_ids, list)
    assert all(type(token) is int for token in output.new_token_ids)
    assert output.finish_reason is None or output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert output.finished == (output.finish_reason is not None)
    found = output.new_logprobs
    assert found is not None, "every request asks for the log-probability of its tokens"
    assert found.logprobs.dtype == np.float32
    assert found.logprobs.shape[0] == len(output.new_token_ids), "one row for each token, of a step or of all"
    assert found.logprob_token_ids[:, 0].tolist() == output.new_token_ids, "the sampled token's is in the first column"
    assert output.routed_experts is None, "nobody asked for experts"


def test_the_engine_generates_what_it_would_with_vllms_own_scheduler(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cache that is too small for all, so that sequences are dropped and taken up again."""
    folder = write_model(tmp_path_factory.mktemp("model"), DENSE, 0)
    ids = prompts(8, 20, DENSE.vocab_size, seed=0)
    requests = [Request(f"r{at}", ids[at], 90, seed=at, temperature=float(at % 3 > 0)) for at in range(8)]

    def outputs() -> dict[str, tuple[list[int], np.ndarray, bool, tuple[tuple[int, int, int], ...]]]:
        computed = 0
        engine = Engine(folder, replace(CONFIG, prefix_caching=False), Phrases())
        schedule = engine._scheduler.schedule

        def counted(throttle_prefills: bool = False) -> SchedulerOutput:
            nonlocal computed
            output = schedule(throttle_prefills)
            computed += output.total_num_scheduled_tokens
            return output

        monkeypatch.setattr(engine._scheduler, "schedule", counted)
        took = engine._took

        def checked(output: Any) -> Any:
            agreed(output)
            return took(output)

        monkeypatch.setattr(engine, "_took", checked)
        try:
            for request in requests:
                engine.add(request)
            done = [output for _ in range(400) for output in engine.step()]
        finally:
            engine.close()
        once = sum(len(request.prompt_ids) for request in requests) + sum(len(one.token_ids) - 1 for one in done)
        assert engine.preemptions > 0
        assert engine.recomputed == computed - once
        return {one.id: (one.token_ids.tolist(), one.logprobs_T, one.truncated, one.spans) for one in done}

    ours = outputs()
    monkeypatch.setattr("scalelab.rollout.engine.ArrayScheduler", None)
    theirs = outputs()
    assert ours.keys() == theirs.keys() == {request.id for request in requests}
    for name in ours:
        assert ours[name][0] == theirs[name][0]
        np.testing.assert_allclose(ours[name][1], theirs[name][1], atol=1e-4)
        assert ours[name][2:] == theirs[name][2:]
