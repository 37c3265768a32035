"""The recorded experts are those that the model itself chooses, token by token, through drops and updates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from scalelab.errors import LabError
from scalelab.rollout.config import GeneratorConfig
from scalelab.rollout.generator import Generator
from scalelab.rollout.types import Completion, Request
from tests.helpers.rollout_models import DENSE, MOE, Ranks, generate, prompts, reference, write_model

pytestmark = pytest.mark.slow

# The cache holds fewer sequences than run: vLLM drops some and computes them again.
CONFIG = GeneratorConfig(
    max_model_len=128, max_sequences=8, block_size=32, kv_cache_gib=0.0006, prefix_caching=False, record_routing=True
)


@torch.no_grad()
def chosen(folder: Path, completion: Completion) -> np.ndarray:
    """transformers' own choices int64 [T − 1, L]."""
    model, choices = reference(folder), []
    for layer in model.model.layers:
        layer.feed_forward.router.register_forward_hook(lambda *call: choices.append(call[-1][1].argmax(-1)))
    ids = torch.tensor([[*completion.request.prompt_ids, *completion.token_ids.tolist()]])
    model(ids[:, :-1])
    return torch.stack(choices, dim=-1).numpy()


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
        assert routed_TLK is not None
        assert routed_TLK.shape == (9 + len(completion.token_ids), MOE.num_hidden_layers, 1)
        assert (routed_TLK[-1] == -1).all()
        np.testing.assert_array_equal(routed_TLK[:-1, :, 0], chosen(folder, completion))


def test_a_dense_model_has_no_experts_to_record(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="a model that has none"):
        Generator(write_model(tmp_path, DENSE, seed=0), CONFIG)
