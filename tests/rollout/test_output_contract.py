"""Fields that engines read of vLLM's outputs on a GPU have the shapes and types of vLLM's own code.

The model runner for GPUs hands its output over through `AsyncOutput`, and vLLM's own scheduler makes of it what the lab
reads. Both run here beneath an engine that takes this CPU for a GPU; only CUDA's streams and events are stand-ins.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.config import VllmConfig
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState

from scalelab.rehearse.answering import as_handed_over
from scalelab.rollout import engine, interruption
from scalelab.rollout import generator as generator_module
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.engine import Engine
from scalelab.rollout.generator import Generator
from scalelab.rollout.interruption import Phrases
from scalelab.rollout.types import Completion, Request
from tests.helpers.gpu_records import record_as_on_a_gpu
from tests.helpers.rollout_models import MOE, generate, prompts, write_model

pytestmark = pytest.mark.slow

CONFIG = GeneratorSetup(
    max_model_len=128, max_sequences=8, block_size=32, kv_cache_gib=0.0006, prefix_caching=False, record_routing=True
)
"""The cache holds fewer sequences than run, so that vLLM preempts some."""

READ = {
    "output": {"request_id", "new_token_ids", "new_logprobs", "routed_experts", "finished", "finish_reason"},
    "new_logprobs": {"logprobs"},
    "ctx": {"idx_mapping_np", "seq_lens_upper_bound_np"},
    "req_states": {"max_num_reqs", "device", "vocab_size"},
    "_requests": {"prompt_len", "all_token_ids"},
}
"""Fields that the lab reads, by the name under which it holds their object; the tests below hold each."""


def attributes(of: Callable[..., Any] | type, name: str) -> set[str]:
    """Attributes that a function or a class reads of whatever it calls so."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(of)))
    read = [one for one in ast.walk(tree) if isinstance(one, ast.Attribute)]
    return {one.attr for one in read if name in (getattr(one.value, "id", None), getattr(one.value, "attr", None))}


def test_the_lab_reads_no_field_of_vllm_s_outputs_that_is_not_held_here() -> None:
    found = {
        "output": attributes(Engine._took, "output") | attributes(Engine._finish, "output"),
        "new_logprobs": attributes(Engine._took, "new_logprobs"),
        "ctx": attributes(interruption.ForcePhraseV2, "ctx"),
        "req_states": attributes(interruption.ForcePhraseV2, "req_states"),
        "_requests": attributes(interruption.ForcePhraseV2, "_requests"),
    }
    assert found == READ
    assert READ["output"] <= {*EngineCoreOutput.__struct_fields__, "finished"}
    assert READ["new_logprobs"] <= set(LogprobsLists._fields)
    assert READ["ctx"] <= {one.name for one in fields(LogitsContext)}
    assert READ["req_states"] | READ["_requests"] <= {one.name for one in fields(LogitsProcRequestState)}


def hand_over_as_on_a_gpu(worker: Any) -> None:
    """Give a worker's outputs the form and the way that the model runner for GPUs gives them."""
    runner = worker.model_runner
    sample = runner.sample_tokens

    def sample_tokens(*args: Any, **kwargs: Any) -> ModelRunnerOutput:
        made = sample(*args, **kwargs)
        tokens = [token for (token,) in made.sampled_token_ids]
        out = as_handed_over(made.req_ids, tokens, made.logprobs.logprobs[:, 0].tolist(), [1] * len(tokens))
        out.aux_output_connector_output = made.aux_output_connector_output
        return out

    runner.sample_tokens = sample_tokens


def generated(folder: Path, requests: list[Request]) -> list[Completion]:
    generator = Generator(folder, CONFIG)
    try:
        return generate(generator, requests)
    finally:
        generator.close()


def test_outputs_of_the_runner_for_gpus_have_the_form_that_engines_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, outputs = write_model(tmp_path, MOE, seed=0), []
    lengths = [40 + 5 * (i % 8) for i in range(16)]
    # Greedy, since vLLM's own draws, which a GPU takes, are others than those of a CPU.
    requests = [
        Request(f"r{i}", ids, lengths[i], temperature=0.0, kind="eval")
        for i, ids in enumerate(prompts(16, 9, 96, seed=1))
    ]
    free = [Request(f"free{i}", prompts(1, 9, 96, seed=2)[0], 40) for i in range(2)]
    here = generated(folder, requests)
    eagerly: list[bool] = []

    class AsOnAGpu(Engine):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            assert self._recorder is None, "vLLM records"
            self._engine.collective_rpc(record_as_on_a_gpu)
            self._engine.collective_rpc(hand_over_as_on_a_gpu)

        def _took(self, output: EngineCoreOutput) -> bool:
            outputs.append(output)
            return super()._took(output)

    plain = engine.engine_config

    def configured(
        folder: Path, hf_config: dict[str, Any], config: GeneratorSetup, phrases: Phrases, seed: int, eager: bool
    ) -> VllmConfig:
        eagerly.append(eager)
        # What vLLM refuses on a CPU, or compiles there for minutes, is left out.
        made = plain(folder, hf_config, replace(config, record_routing=False), phrases, seed, True)
        made.aux_output_config.enable_return_routed_experts = True
        return made

    monkeypatch.setattr(engine, "engine_config", configured)
    monkeypatch.setattr(engine, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    for on_cpu in ("rank_no_logprobs", "draw_args"):
        monkeypatch.setattr(engine, on_cpu, lambda *_: pytest.fail("the lab's own sampling is for a CPU"))
    monkeypatch.setattr(generator_module, "Engine", AsOnAGpu)
    *there, one_free, other_free = generated(folder, [*requests, *free])

    assert eagerly == [False], "CUDA graphs are captured"
    assert one_free.token_ids.tolist() != other_free.token_ids.tolist(), "vLLM draws, by the request's temperature"
    for output in outputs:
        assert type(output.request_id) is str
        assert [type(token) for token in output.new_token_ids] == [int], "a token for each sequence and step"
        logprobs = output.new_logprobs
        assert logprobs is not None
        assert (logprobs.logprobs.shape, logprobs.logprobs.dtype) == ((1, 1), np.float32), "the sampled token's"
        assert logprobs.logprob_token_ids[:, 0].tolist() == output.new_token_ids
        assert (output.finish_reason is not None) == output.finished
        routed = output.routed_experts
        if routed is not None:
            assert routed.shape[1:] == (MOE.num_hidden_layers, 1)
            assert routed.dtype.kind == "u"
    names = {output.request_id for output in outputs if output.finished}
    assert len(names) == len(requests) + len(free)
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_array_equal(one.routed_TLK, other.routed_TLK)
        np.testing.assert_allclose(one.logprobs_T, other.logprobs_T, atol=1e-5)
        assert (one.truncated, one.spans) == (other.truncated, other.spans)
