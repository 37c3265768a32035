"""The engine of `scalelab eval` has room for the longest request of any model, whoever made it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scalelab.environment import ALLOCATOR, environment
from scalelab.errors import LabError
from scalelab.session.evaluate_model import engine_config
from scalelab.start.model_folder import ModelFolder
from tests.helpers.real_models import DEEPSEEK_V3

WORK: Any = SimpleNamespace(prompt_ids=lambda prompt: [0] * 100, max_tokens=860, generations=2, temperature=1.0)
STRANGE = {"model_type": "gemma3_text", "num_hidden_layers": 10, "num_attention_heads": 4, "head_dim": 256}


@pytest.mark.parametrize(
    ("gpu", "hf_config", "per_token"),
    [
        (True, DEEPSEEK_V3, 61 * (512 + 64) * 2),  # vLLM keeps the latent part
        (False, DEEPSEEK_V3, 2 * 61 * 128 * 192 * 4),  # and on cores all keys and values
        (True, {**STRANGE, "num_key_value_heads": 1}, 2 * 10 * 256 * 2),
        (False, {**STRANGE, "num_key_value_heads": None}, 2 * 10 * 4 * 256 * 4),
    ],
)
def test_the_cache_has_room_for_every_sequence_and_one_more(
    gpu: bool, hf_config: dict[str, Any], per_token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    prompts: Any = ["one", "two", "three"]
    config = engine_config(ModelFolder(Path("model"), hf_config, None), prompts, WORK)
    assert config.max_model_len == 960
    assert config.dtype == ("bfloat16" if gpu else "float32")
    sequences = min(6, max(1, 4 * 2**30 // (per_token * 1024)))
    assert config.max_sequences == sequences
    assert config.kv_cache_gib == (sequences + 1) * per_token * 1024 / 2**30


@pytest.mark.parametrize(("gpu", "temperature"), [(True, 2.5), (False, 2.5), (True, 2.0), (True, 0.0)])
def test_a_temperature_that_vllm_refuses_on_a_gpu_is_refused_there_before_the_engine_starts(
    gpu: bool, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    work: Any = SimpleNamespace(**{**vars(WORK), "temperature": temperature})
    prompts: Any = ["one"]
    said = "--temperature is 2.5: vLLM on a GPU draws at temperatures from 0.01 to 2, and"
    refused = pytest.raises(LabError, match=said) if gpu and temperature > 2 else nullcontext()
    with refused:
        engine_config(ModelFolder(Path("model"), {**STRANGE, "num_key_value_heads": 1}, None), prompts, work)


IMPORT = """
import json, os, sys
sys.modules["safetensors"] = None  # comes right after the environment, before vLLM, which takes long
try:
    import scalelab.rollout.engine
except ImportError:
    print(json.dumps(dict(os.environ)))
"""


def test_the_engine_has_plain_segments_where_its_shell_asks_for_expandable_ones() -> None:
    """Split over GPUs it would end at its start, and vLLM would compile a sampler that it does not use."""
    asked = {**dict.fromkeys(ALLOCATOR, "expandable_segments:True"), "VLLM_USE_FLASHINFER_SAMPLER": "1"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], env=os.environ | asked, capture_output=True, text=True, timeout=120, check=True
    )
    seen, wanted = json.loads(done.stdout.splitlines()[-1]), environment("engine")
    own = wanted.keys() - environment("verifier").keys()
    assert own > asked.keys()
    assert {name: seen[name] for name in own} == {name: wanted[name] for name in own}
