"""Parameter counts of the real models: by formula, on the meta device, and transformers' own."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from moe.cpu import host as cpu_host
from moe.model import gpt as models
from moe.model.architectures import architecture
from moe.model.size import parameters
from moe.ranks import parallel
from moe.settings import Layout, TrainerSetup
from moe.weights.links import CORRECTION, links
from tests.helpers.real_models import (
    DEEPSEEK_V3,
    GLM_45_AIR,
    LLAMA_8B,
    MISTRAL_7B,
    MIXTRAL_8X7B,
    QWEN3_8B,
    QWEN3_30B,
    QWEN25_7B,
    SCOUT,
)

pytestmark = pytest.mark.slow

REAL = {"llama": LLAMA_8B, "scout": SCOUT, "qwen3": QWEN3_8B, "qwen3_moe": QWEN3_30B, "mixtral": MIXTRAL_8X7B,
        "qwen2": QWEN25_7B, "mistral": MISTRAL_7B, "glm4_moe": GLM_45_AIR, "deepseek_v3": DEEPSEEK_V3}  # fmt: skip
BILLIONS = {"llama": (8.03, 8.03), "scout": (107.8, 17.2), "qwen3": (8.19, 8.19), "qwen3_moe": (30.5, 3.35),
            "mixtral": (46.7, 12.9), "qwen2": (7.62, 7.62), "mistral": (7.25, 7.25), "glm4_moe": (106.9, 13.42),
            "deepseek_v3": (671.0, 37.6)}  # fmt: skip


def theirs(hf: dict[str, Any]) -> transformers.PreTrainedModel:
    """Transformers' model without memory."""
    with torch.device("meta"):
        return getattr(transformers, hf["architectures"][0])(transformers.AutoConfig.for_model(**hf))


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    parallel.join(Layout(), 0, 1, f"file://{tmp_path_factory.mktemp('meet')}/at", 60)
    yield
    parallel.leave()


@pytest.mark.parametrize("name", REAL)
def test_the_formula_the_model_and_transformers_count_alike(name: str, one_rank: None) -> None:
    hf = REAL[name]
    counted = parameters(hf)
    with cpu_host.megatron(), torch.device("meta"):
        ours = models.build(hf, TrainerSetup(dtype="bfloat16"))
    assert counted.total == sum(p.numel() for p in ours.parameters())
    whole = theirs(hf)
    buffers = sum(b.numel() for name, b in whole.named_buffers() if name.endswith(CORRECTION))
    assert counted.total == sum(p.numel() for p in whole.parameters()) + buffers
    assert {link.param for link in links(hf)} == {name for name, _ in ours.named_parameters()}
    billions = counted.total / 1e9, counted.active / 1e9
    assert billions == pytest.approx(BILLIONS[name], rel=0.005)


def test_active_parameters_leave_out_the_experts_a_token_does_not_meet() -> None:
    """Qwen3-30B-A3B counted by hand: 8 of 128 experts of three 2048 x 768 matrices in each of 48 layers."""
    counted = parameters(QWEN3_30B)
    assert counted.total - counted.active == 48 * 120 * 3 * 2048 * 768


@pytest.mark.parametrize("name", REAL)
def test_rotary_frequencies_equal_transformers(name: str) -> None:
    """Scout's lower and upper bound of the blend are one and the same."""
    config = transformers.AutoConfig.for_model(**REAL[name])
    rope = config.rope_parameters
    plans = architecture(REAL[name]).layers
    ours = np.array(plans[0].attention.inv_freq)
    if rope["rope_type"] == "default":
        turning = int(128 * rope.get("partial_rotary_factor", 1.0))
        wanted = rope["rope_theta"] ** -(np.arange(0, turning, 2) / turning)
    else:
        frequencies, magnitude = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
        wanted = frequencies.numpy()
        assert plans[0].attention.magnitude == pytest.approx(magnitude, rel=1e-6)
    np.testing.assert_allclose(ours, wanted, rtol=1e-6)
