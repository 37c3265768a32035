"""The recorded experts are those that the model itself chooses, token by token, through drops and updates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vllm.config import VllmConfig

from scalelab.errors import LabError
from scalelab.recipe.sequences import PlannedSequences
from scalelab.rollout import engine
from scalelab.rollout import generator as generator_module
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.engine import Engine
from scalelab.rollout.generator import Generator
from scalelab.rollout.routing import of_all_tokens
from scalelab.rollout.types import Completion, Request
from scalelab.run.work import rollout
from tasks.types import Prompt, verdict
from tests.helpers.gpu_records import record_as_on_a_gpu
from tests.helpers.rollout_models import DENSE, MOE, Ranks, generate, prompts, reference, write_model

pytestmark = pytest.mark.slow

# The cache holds fewer sequences than run: vLLM drops some and computes them again.
CONFIG = GeneratorSetup(
    max_model_len=128, max_sequences=8, block_size=32, kv_cache_gib=0.0006, prefix_caching=False, record_routing=True
)


PROMPT = Prompt("math/1", "math", "a question", "its answer")


@torch.no_grad()
def chosen(folder: Path, completion: Completion) -> np.ndarray:
    """transformers' own choices int64 [T − 1, L]."""
    model, choices = reference(folder), []
    for layer in model.model.layers:
        layer.feed_forward.router.register_forward_hook(lambda *call: choices.append(call[-1][1].argmax(-1)))
    ids = torch.tensor([[*completion.request.prompt_ids, *completion.token_ids.tolist()]])
    model(ids[:, :-1])
    return torch.stack(choices, dim=-1).numpy()


@pytest.fixture(params=["the lab's recorder", "vLLM's own, as on a GPU"])
def recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorder of the experts: the lab on a CPU, vLLM's connectors on a GPU."""
    if request.param == "the lab's recorder":
        return

    class AsOnAGpu(Engine):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._engine.collective_rpc(record_as_on_a_gpu)

    plain = engine.engine_config

    def configured(folder: Path, hf_config: dict[str, Any], config: GeneratorSetup, *rest: Any) -> VllmConfig:
        """vLLM checks at once that its runner for GPUs is there."""
        made = plain(folder, hf_config, replace(config, record_routing=False), *rest)
        made.aux_output_config.enable_return_routed_experts = True
        made.scheduler_config.scheduler_cls = None  # the lab's own is for CPUs
        return made

    monkeypatch.setattr(engine, "engine_config", configured)
    monkeypatch.setattr(engine, "vllm_records", lambda config: config.record_routing)
    monkeypatch.setattr(generator_module, "Engine", AsOnAGpu)


@pytest.mark.usefixtures("recorder")
def test_every_token_has_the_experts_it_went_through(tmp_path: Path) -> None:
    folder = write_model(tmp_path, MOE, seed=0)
    generator, ranks = Generator(folder, CONFIG), Ranks()
    try:
        requests = [Request(f"r{i}", prompt, 40 + 5 * (i % 8)) for i, prompt in enumerate(prompts(16, 9, 96, seed=1))]
        completions = generate(generator, requests)
        generator.take_weights(ranks.publish(1, folder))
        completions += generate(generator, [Request("later", requests[0].prompt_ids, 60)])
    finally:
        generator.close()
        ranks.close()
    for completion in completions:
        routed_TLK = completion.routed_TLK
        assert isinstance(routed_TLK, np.ndarray)
        assert routed_TLK.shape == (9 + len(completion.token_ids), MOE.num_hidden_layers, 1)
        assert (routed_TLK[-1] == -1).all()
        assert routed_TLK.dtype == np.int16
        np.testing.assert_array_equal(routed_TLK[:-1, :, 0], chosen(folder, completion))
        # what the trainer asks of a step's sequences
        one = rollout(PROMPT, np.array(completion.request.prompt_ids), completion, verdict("passed"))
        [sequence] = PlannedSequences([one], np.ones(1), np.ones(1), 0).built()
        assert sequence.routed_TLK is routed_TLK


@pytest.mark.parametrize("rows", [None, 7, 9])
def test_a_record_of_other_lengths_is_refused(rows: int | None) -> None:
    routed = None if rows is None else np.zeros((rows, 2, 1), np.uint8)
    with pytest.raises(LabError, match=r"the experts of the 8 tokens .* set Recipe.router_replay to False"):
        of_all_tokens(routed, 9)


def test_experts_beyond_a_byte_keep_their_numbers() -> None:
    routed = np.full((2, 1, 1), 500, np.uint16)
    assert of_all_tokens(routed, 3).ravel().tolist() == [500, 500, -1]


def test_a_dense_model_has_no_experts_to_record(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="a model that has none"):
        Generator(write_model(tmp_path, DENSE, seed=0), CONFIG)
