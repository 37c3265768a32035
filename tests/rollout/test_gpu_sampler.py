"""vLLM's own sampler for GPUs does what an engine on a GPU asks of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalelab.hardware import device
from scalelab.rehearse.environment import simulated_cuda
from tests.helpers.gpu_sampler import START

SIMULATED = simulated_cuda(device("h100"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(SIMULATED is None, reason="needs tools/rehearse/install.sh"),
]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Samples of `tests.helpers.gpu_sampler`, with the Triton that torch's CUDA build brings."""
    assert SIMULATED is not None
    folder = tmp_path_factory.mktemp("triton")
    [triton] = Path(SIMULATED.python).parents[1].glob("lib/python3*/site-packages/triton")
    (folder / "triton").symlink_to(triton)
    path = os.pathsep.join([*sys.path, str(folder)])
    done = subprocess.run(
        [sys.executable, "-c", START, str(folder)],
        env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def tokens(steps: list[dict[str, Any]]) -> list[list[int]]:
    return [step["tokens"] for step in steps]


@pytest.mark.parametrize(("name", "temperature"), [("half", 0.5), ("one", 1.0)])
def test_tokens_are_drawn_at_the_temperature_that_is_asked_for(
    drawn: dict[str, Any], name: str, temperature: float
) -> None:
    weight_V = np.exp(np.array(drawn["logits"]) / temperature)
    expected_V = weight_V / weight_V.sum()
    every = np.array(tokens(drawn[name])).ravel()
    found_V = np.bincount(every, minlength=len(expected_V)) / len(every)
    assert np.all(np.abs(found_V - expected_V) < 4 * np.sqrt(expected_V / len(every)))
    assert set(np.array(tokens(drawn["greedy"])).ravel()) == {int(np.argmax(drawn["logits"]))}


def test_a_seed_draws_the_same_tokens_again_and_another_seed_or_position_others(drawn: dict[str, Any]) -> None:
    assert tokens(drawn["half"]) == tokens(drawn["again"])
    for steps in (drawn["half"], drawn["one"]):
        first, second, _ = tokens(steps)
        assert first != second
        assert len(set(first)) > 3


def test_log_probs_are_one_float_a_token_of_the_unscaled_policy(drawn: dict[str, Any]) -> None:
    """Importance ratios count on it, whatever the temperature; a row is one request's, in the order of the batch."""
    logits_V = np.array(drawn["logits"])
    logprobs_V = logits_V - np.log(np.exp(logits_V).sum())
    for name in ("half", "one", "greedy"):
        for step in drawn[name]:
            count = len(step["tokens"])
            assert step["forms"] == [["torch.int64", count, 1], ["torch.float32", count, 1]]
            assert step["sampled"] == [1] * count
            np.testing.assert_allclose(step["logprobs"], logprobs_V[step["tokens"]], atol=1e-6)


def test_the_phrase_is_forced_at_its_position_and_nowhere_else(drawn: dict[str, Any]) -> None:
    first, second, third, fourth = tokens(drawn["forced"])
    assert (second[:2], third[:2]) == ([6, 6], [7, 7])
    for free in (first, second[2:], third[2:], fourth):  # all of one seed, which draws other tokens here
        assert not {6, 7} & set(free)
