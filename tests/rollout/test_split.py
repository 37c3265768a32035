"""An engine's devices split a model as vLLM can, or are refused before anything starts."""

from __future__ import annotations

import re

import pytest

from moe.model.families import Llama, Mixtral, Qwen3Moe
from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.rollout.limits import attention_problem
from scalelab.rollout.split import split_problem

WIDE = Llama(num_attention_heads=12, num_key_value_heads=4, hidden_size=384, vocab_size=512 * 3)


@pytest.mark.parametrize(
    ("experiment", "said"),
    [
        ("quickstart", "(3) does not divide the model's 4 attention heads: nearest valid 2 or 4"),
        ("h100/scalerl_8b", "(3) does not divide the model's 32 attention heads: nearest valid 2 or 4"),
        ("scalerl_17bx16", "(3) does not divide the model's 40 attention heads: nearest valid 2 or 4"),
    ],
)
def test_devices_that_do_not_divide_a_model_are_refused_with_the_nearest(experiment: str, said: str) -> None:
    with pytest.raises(LabError, match=re.escape(f"GeneratorConfig.tensor_parallel {said}")) as refused:
        resolve(experiment, ["GeneratorConfig.tensor_parallel=3"])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("model", "devices", "said"),
    [
        (WIDE, 6, "neither divides the model's 4 key-value heads nor is a multiple of them: nearest valid 4 or 12"),
        (WIDE, 12, None),
        (WIDE, 4, None),
        (Llama(vocab_size=500), 4, None),
        (Llama(intermediate_size=382), 4, "does not divide the model's 382 inner features of the feed-forward"),
        (Llama(num_attention_heads=9, num_key_value_heads=3, hidden_size=576), 3, "512 words of the padded vocabulary"),
        (Mixtral(num_local_experts=2), 4, None),
        (Qwen3Moe(num_experts=2, num_experts_per_tok=2), 4, "is more than the model's 2 experts: nearest valid 2"),
        (Qwen3Moe(moe_intermediate_size=90), 4, "does not divide the model's 90 inner features of an expert"),
    ],
)
def test_a_split_is_allowed_if_and_only_if_vllm_can_make_it(model: Llama, devices: int, said: str | None) -> None:
    problem = split_problem(model.to_hf(), devices)
    assert (problem is None) == (said is None)
    assert said is None or said in str(problem)


@pytest.mark.parametrize(("size", "runs"), [(64, True), (256, True), (260, False), (320, False), (84, False)])
def test_heads_that_flash_attention_does_not_run_are_refused_on_a_gpu(size: int, runs: bool) -> None:
    problem = attention_problem({"head_dim": size}, "gpu")
    assert (problem is None) == runs
    assert runs or f"head_dim is {size}, and flash attention runs multiples of 8 up to 256" in str(problem)
