"""vLLM takes the engines of the big experiments as it would on GPUs: compiled, under Model Runner V2."""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import vllm.config.vllm as vllm_config
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.platforms import current_platform
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.worker.gpu.sample.logits_processor import build_custom_logits_processors_params_validator

from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.rehearse import gpu_platform
from scalelab.rollout import engine
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.engine import Engine, engine_config
from scalelab.rollout.interruption import ForcePhraseV1, ForcePhraseV2, Phrases
from scalelab.rollout.limits import CPU_HEAD_SIZES, GPU_COOLEST, GPU_HOTTEST, temperature_problem
from scalelab.rollout.on_cpu import Draw
from tests.helpers.automata import by_ids
from tests.helpers.rollout_models import MOE

pytestmark = pytest.mark.slow

PHRASES = Phrases((1, 2, 3), by_ids((4, 5)))


def test_the_head_sizes_that_a_run_may_have_on_a_cpu_are_those_of_vllm() -> None:
    assert set(CPU_HEAD_SIZES) == set(CPUAttentionBackend.get_supported_head_sizes())


@pytest.mark.parametrize("temperature", [0.0, 1e-6, GPU_COOLEST / 2, GPU_COOLEST, 1.0, GPU_HOTTEST, 2.01, float("inf")])
def test_the_temperatures_that_a_run_may_have_on_a_gpu_are_those_that_vllm_takes_as_they_are(
    temperature: float,
) -> None:
    try:
        taken = SamplingParams(temperature=temperature).temperature == temperature
    except VLLMValidationError:
        taken = False
    assert (temperature_problem(temperature, "gpu") is None) == taken
    assert temperature_problem(temperature, "cpu") is None


def test_an_engine_for_another_device_is_refused(tmp_path: Path) -> None:
    config = resolve("scalerl_8b").run.generator_setup
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LabError, match=r"is to run on a GPU, and this vLLM is built for a CPU: install .*install-gpu"):
        Engine(tmp_path, config, PHRASES)


def test_what_the_linker_cannot_load_is_not_left_for_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM has processes load torch's OpenMP first; below a path with a space each would complain."""
    run = resolve("quickstart").run
    (tmp_path / "config.json").write_text(json.dumps(run.model.to_hf()))
    library = tmp_path / "the lab/torch/lib/libgomp.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr("torch.__file__", str(library.parents[1] / "__init__.py"))
    for before in ("", "/lib/one.so", "/lib/one.so /lib/another.so"):
        monkeypatch.setenv("LD_PRELOAD", before)
        engine_config(tmp_path, run.model.to_hf(), run.generator_setup, PHRASES, 0, eager=True)
        assert os.environ["LD_PRELOAD"] == before


@pytest.mark.parametrize("name", ["scalerl_8b", "scalerl_17bx16"])
def test_a_compiled_engine_can_be_configured_and_hashed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = resolve(name).run
    hf_config = run.model.to_hf()
    (tmp_path / "config.json").write_text(json.dumps({**hf_config, "dtype": "bfloat16"}))
    here = engine_config(tmp_path, hf_config, run.generator_setup, PHRASES, 0, eager=False)
    assert here.model_config.logits_processors == [ForcePhraseV1, Draw]
    monkeypatch.setattr(vllm_config, "HAS_TRITON", True)
    there = engine_config(tmp_path, hf_config, run.generator_setup, PHRASES, 0, eager=False)
    assert there.use_v2_model_runner
    assert there.model_config.logits_processors == [ForcePhraseV2]
    build_custom_logits_processors_params_validator(there.model_config.logits_processors)
    assert there.compute_hash() == here.compute_hash()
    assert there.cache_config.kv_cache_memory_bytes == run.generator.kv_cache_gib * 2**30


def test_latent_attention_is_taken_from_vllm_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is set by the import of a module, which vLLM's own platform for CUDA decides about in a fork."""

    def imported() -> str | None:
        monkeypatch.delenv("VLLM_MLA_DISABLE", raising=False)
        monkeypatch.delitem(sys.modules, engine.__name__)
        importlib.import_module(engine.__name__)
        return os.environ.get("VLLM_MLA_DISABLE")

    def on_a_gpu() -> tuple[bool, str | None]:
        with gpu_platform.platform_of(device("h100")):
            return current_platform.is_cuda(), imported()

    assert gpu_platform.in_fork(on_a_gpu) == (True, None)
    assert gpu_platform.in_fork(imported) == "1"


def test_settings_for_a_cpu_alone_are_left_out_on_a_gpu(tmp_path: Path) -> None:
    run = resolve("h100/scalerl_8b").run
    hf_config = run.model.to_hf()
    (tmp_path / "config.json").write_text(json.dumps({**hf_config, "dtype": "bfloat16"}))

    def configured() -> dict[str, object]:
        made = engine_config(tmp_path, hf_config, run.generator_setup, PHRASES, 0, eager=False)
        scheduling = made.scheduler_config
        return {
            "prompts in pieces": scheduling.enable_chunked_prefill,
            "batches in flight": scheduling.async_scheduling,
            "scheduler": scheduling.get_scheduler_cls().__name__,
            "one cache": scheduling.disable_hybrid_kv_cache_manager,
            "eager": made.model_config.enforce_eager,
            "norms": made.kernel_config.ir_op_priority.rms_norm,
            "loading is shown": made.load_config.use_tqdm_on_load,
        }

    def on_a_gpu() -> dict[str, object]:
        with gpu_platform.platform_of(device("h100")):
            return configured()

    here, there = gpu_platform.in_fork(configured), gpu_platform.in_fork(on_a_gpu)
    assert there == {
        "prompts in pieces": True,
        "batches in flight": False,
        "scheduler": "Scheduler",
        "one cache": False,
        "eager": False,
        "norms": ["native"],
        "loading is shown": True,
    }
    assert {name for name in here if here[name] == there[name]} == {"batches in flight", "eager"}


def test_what_a_cpu_alone_refuses_is_taken_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    even = {**MOE.to_hf(), "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}
    odd = {**even, "hidden_size": 48}
    setup = GeneratorSetup(max_model_len=64, max_sequences=4, block_size=32, device="cpu")
    halves = replace(setup, tensor_parallel=2, record_routing=True)
    with pytest.raises(LabError, match="need sizes in multiples of 32"):
        engine._check(odd, setup, tmp_path)
    with pytest.raises(LabError, match="experts are recorded in one process only"):
        engine._check(even, halves, tmp_path)
    monkeypatch.setattr(engine, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    engine._check(odd, replace(setup, device="gpu"), tmp_path)
    engine._check(even, replace(halves, device="gpu"), tmp_path)
    with pytest.raises(LabError, match=r"a CPU, and this vLLM is built for a GPU: install .* \(make install\)"):
        engine._check(odd, setup, tmp_path)
