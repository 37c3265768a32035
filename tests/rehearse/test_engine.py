"""vLLM takes the engines' configuration as on a GPU, and its models every weight that the trainer publishes."""

import ast
import subprocess
import sys
from typing import Any

import pytest

CODE = """
from moe.model.size import parameters
from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.rehearse.engine import rehearse
from scalelab.rehearse.roles import engine_roles
from scalelab.rehearse.setting import RehearsalSettings

for name, devices in (("scalerl_8b", 1), ("scalerl_17bx16", 4)):
    run = resolve(name).run
    roles = engine_roles(run.generator.tensor_parallel, run.cluster.generators)
    assert roles[-1].rank == devices - 1
    result = rehearse(RehearsalSettings(run, device("gb200")), roles[-1])
    assert result.problems == [], result.problems
    phases = ["configure", "build", "load", "cache", *["start"] * (devices > 1), "receive"]
    assert [phase.name for phase in result.phases] == phases
    [sent] = result.publication
    assert (sent["op"], sent["bytes"]) == ("broadcast", 2 * parameters(run.model.to_hf()).total)
    for kind, planned in result.plan_memory_gib.items():
        assert abs(result.memory_gib[kind] / planned - 1) < 0.01, (kind, result.memory_gib[kind], planned)
"""


STARTS = """
import os
from scalelab.environment import environment
from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.rehearse.engine import rehearse
from scalelab.rehearse.roles import engine_roles
from scalelab.rehearse.setting import RehearsalSettings

run = resolve("h100/scalerl_8b_512").run
role = engine_roles(run.generator.tensor_parallel, run.cluster.generators)[0]
for own in (environment("engine"), environment("trainer")):
    os.environ.update(own)
    print(rehearse(RehearsalSettings(run, device("h100")), role).problems)
"""


@pytest.mark.slow
def test_an_engine_on_several_devices_does_not_start_in_the_trainers_environment() -> None:
    ended = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, timeout=900, check=False)
    own, trainers = [line for line in ended.stdout.splitlines() if line.startswith("[")]
    assert own == "[]", ended.stderr[-2000:]
    assert "start: RuntimeError" in trainers
    assert "no handle (cudaIpcGetMemHandle) for memory of expandable segments" in trainers


@pytest.mark.slow
@pytest.mark.nightly
def test_the_last_device_of_both_models_engines_takes_all_weights_at_full_size() -> None:
    """In a process of its own, since vLLM's groups and settings are a whole process's."""
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]


FAMILIES = """
from moe.settings import Layout
from scalelab.hardware import device
from scalelab.rehearse.engine import rehearse
from scalelab.rehearse.roles import engine_roles
from scalelab.rehearse.setting import RehearsalSettings
from tests.helpers.rehearsals import MODELS, run_of

for family in ("glm4_moe", "deepseek_v3"):
    run = run_of(MODELS[family], Layout(expert=4), 4)
    role = engine_roles(run.generator.tensor_parallel, run.cluster.generators)[-1]
    result = rehearse(RehearsalSettings(run, device("h100")), role)
    assert result.problems == [], result.problems
    for kind, planned in result.plan_memory_gib.items():
        assert abs(result.memory_gib[kind] / planned - 1) < 0.01, (kind, result.memory_gib[kind], planned)
"""


ANSWERS = """
from vllm.v1.worker.gpu.async_utils import AsyncOutput

from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.rehearse.engine import rehearse
from scalelab.rehearse.roles import engine_roles
from scalelab.rehearse.setting import RehearsalSettings
from scalelab.rollout.engine import Engine
from vllm.v1.outputs import LogprobsLists

run = resolve("h100/scalerl_8b").run
role = engine_roles(run.generator.tensor_parallel, run.cluster.generators)[0]
get_output, took, add = AsyncOutput.get_output, Engine._took, Engine.add

def without_logprobs(self):
    made = get_output(self)
    made.logprobs = None
    return made

def a_token_more(self):
    made = get_output(self)
    made.sampled_token_ids = [[*ids, 7] if ids else ids for ids in made.sampled_token_ids]
    return made

def all_logprobs(self):
    made = get_output(self)
    twice = [part.repeat(2, axis=1) for part in made.logprobs[:2]]
    made.logprobs = LogprobsLists(twice[0], twice[1][:, ::-1] - 1, *made.logprobs[2:])
    return made

def takes_none(self, output):
    output.new_logprobs = None
    return took(self, output)

def with_more(self, request):
    object.__setattr__(request, "max_tokens", request.max_tokens + 1)
    add(self, request)

plain = (AsyncOutput, "get_output", get_output)
changes = [
    plain,
    (AsyncOutput, "get_output", without_logprobs),
    (AsyncOutput, "get_output", a_token_more),
    (AsyncOutput, "get_output", all_logprobs),
    (Engine, "_took", takes_none),
    (Engine, "add", with_more),
]
for owner, name, value in changes:
    kept = getattr(owner, name)
    setattr(owner, name, value)
    print("said:", rehearse(RehearsalSettings(run, device("h100")), role).problems)
    setattr(owner, name, kept)
"""


@pytest.mark.slow
def test_an_answer_that_is_not_read_as_it_was_given_breaks_the_rehearsal() -> None:
    """Damage to what vLLM's runner for GPUs gives, to what a request asks for, and to the lab's reading."""
    ended = subprocess.run([sys.executable, "-c", ANSWERS], capture_output=True, text=True, timeout=280, check=False)
    said = [line.removeprefix("said: ") for line in ended.stdout.splitlines() if line.startswith("said: ")]
    assert len(said) == 6, ended.stderr[-2000:]
    assert said[0] == "[]"
    assert all("configure: " in line for line in said[1:]), said
    assert sum("the engine read" in line for line in said) == 3, said


RECEIVES = """
from dataclasses import replace

from moe.settings import Layout
from scalelab.hardware import device
from scalelab.rehearse import receiving
from scalelab.rehearse.engine import rehearse
from scalelab.rehearse.roles import engine_roles
from scalelab.rehearse.setting import RehearsalSettings
from tests.helpers.rehearsals import MODELS, run_of

run = run_of(MODELS["mixtral"], Layout(tensor=2, expert=2), 4)
run = replace(run, cluster=replace(run.cluster, device="gpu", publication="nccl"))
role = engine_roles(run.generator.tensor_parallel, run.cluster.generators)[-1]
declared = receiving.declared
changes = (
    lambda sent: sent,
    lambda sent: sent[:-1],
    lambda sent: [*sent, sent[-1]],
    lambda sent: [replace(sent[0], shape=(3, *sent[0].shape[1:])), *sent[1:]],
    lambda sent: [replace(sent[0], name="model.nothing.weight"), *sent[1:]],
)
for change in changes:
    receiving.declared = lambda *arguments: change(declared(*arguments))
    result = rehearse(RehearsalSettings(run, device("h100")), role)
    print("said:", [phase.name for phase in result.phases][-1], result.problems)
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_an_engine_does_not_receive_what_the_trainer_does_not_send() -> None:
    ended = subprocess.run([sys.executable, "-c", RECEIVES], capture_output=True, text=True, timeout=280, check=False)
    said = [line.removeprefix("said: receive ") for line in ended.stdout.splitlines() if line.startswith("said: ")]
    assert len(said) == 5, ended.stderr[-2000:]
    assert said[0] == "[]"
    assert "of lm_head.weight only 24192 of 32000 rows came" in said[1]
    assert len({*said}) == 5
    assert all("receive: " in line for line in said[1:]), said


@pytest.mark.slow
@pytest.mark.nightly
def test_engines_take_the_weights_of_sigmoid_routers_and_hold_latent_attention_s_cache() -> None:
    ended = subprocess.run([sys.executable, "-c", FAMILIES], capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]


CHOOSES = """
import os
import socket
import sys
from dataclasses import replace

import torch
import vllm.config.vllm as vllm_config
import vllm.utils.flashinfer as flashinfer
from vllm.platforms import current_platform
from vllm.triton_utils import triton

from moe.settings import Layout
from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.rehearse import gpu_platform
from scalelab.rehearse.engine import rehearse
from scalelab.rehearse.explain import ToldError
from scalelab.rehearse.roles import engine_roles
from scalelab.rehearse.setting import RehearsalSettings
from tests.helpers.rehearsals import MODELS, run_of

def state():
    kernels = (triton.Config, type(torch.ops._C).__getattr__, torch.cuda.Stream, torch.cuda.Event)
    asked = (flashinfer.has_flashinfer, flashinfer.has_nvidia_artifactory)
    members = (type(current_platform), vllm_config.HAS_TRITON, *kernels, *asked)
    return members, dict(sys.modules)

def rehearsed(run, hardware):
    role = engine_roles(run.generator.tensor_parallel, run.cluster.generators)[-1]
    return rehearse(RehearsalSettings(run, device(hardware)), role).problems

def asked_elsewhere(host, *arguments, **others):
    print("asked:", host, flush=True)
    raise OSError("no network")

socket.getaddrinfo = asked_elsewhere
in_fork, every = gpu_platform.in_fork, []
def told(work):
    every.append(in_fork(work))
    print("chosen:", vars(every[-1]))
    return every[-1]

gpu_platform.in_fork = told
for name, hardware in (("h100/scalerl_8b", "h100"), ("h100/scalerl_17bx16", "h100"), ("scalerl_17bx16", "gb200")):
    print("problems:", rehearsed(resolve(name).run, hardware))
latent = run_of(MODELS["deepseek_v3"], Layout(), 4)
blocks = resolve("h100/scalerl_8b").run
object.__setattr__(blocks.generator, "block_size", 8)  # which a run's own check refuses before
for run in (replace(latent, generator=replace(latent.generator, dtype="float32")), blocks):
    print("refused:", rehearsed(run, "h100"))

run = resolve("h100/scalerl_8b").run
for change in ({"worker": "CPUWorker"}, {"graphs": "NONE"}, {"all_reduce": False}, {"cache": ("float8_e4m3fn",)}):
    try:
        gpu_platform.hold(replace(every[0], **change), run.model.to_hf(), run.generator_setup)
    except ValueError as error:
        print("held:", error)

try:
    in_fork(lambda: os._exit(3))
except ToldError as error:
    print("died:", error)

before = state()
try:
    with gpu_platform.platform_of(device("h100")):
        import vllm.v1.worker.gpu_worker
        same = [one is other for one, other in zip(state()[0], before[0])]
        print("inside:", current_platform.is_cuda(), current_platform.get_device_capability().to_int(), any(same))
        raise KeyError
except KeyError:
    print("after:", current_platform.is_cpu(), state() == before, "vllm.platforms.cuda" in sys.modules)
"""
"""Prints what vLLM chooses on GPUs, what it refuses there, and what is left of the platform."""


@pytest.fixture(scope="module")
def choices() -> dict[str, list[Any]]:
    """Values of `CHOOSES`, by the word before it."""
    ended = subprocess.run([sys.executable, "-c", CHOOSES], capture_output=True, text=True, timeout=280, check=False)
    said: dict[str, list[Any]] = {}
    for word, _, rest in (line.partition(": ") for line in ended.stdout.splitlines()):
        said.setdefault(word, []).append(rest)
    assert "after" in said, ended.stderr[-2000:]
    return said


@pytest.mark.slow
def test_vllm_configures_an_engine_for_a_gpu_as_on_one(choices: dict[str, list[Any]]) -> None:
    dense, mixture, blackwell = map(ast.literal_eval, choices["chosen"])
    assert dense == {
        "worker": "vllm.v1.worker.gpu_worker.Worker",
        "runner": "vllm.v1.worker.gpu.model_runner.GPUModelRunner",
        "scheduler": "vllm.v1.core.sched.scheduler.Scheduler",
        "graphs": "FULL_AND_PIECEWISE",
        "cache": ("bfloat16",),
        "all_reduce": True,
        "buffers": False,
        "kernels": ("FlashAttentionBackend",),
    }
    chunked = "ChunkedLocalAttention_8192_"
    assert mixture == {
        **dense,
        "graphs": "PIECEWISE",
        "buffers": True,
        "kernels": (f"{chunked}FlashAttentionBackend", "FlashAttentionBackend", "TritonExperts"),
    }
    kernels = (f"{chunked}FlashInferBackend", "FlashInferBackend", "TrtLlmBf16ExpertsMonolithic")
    assert blackwell == {**mixture, "kernels": kernels}
    assert choices["problems"] == ["[]"] * 3
    assert "asked" not in choices, "a rehearsal asks no server"


@pytest.mark.slow
def test_what_vllm_refuses_on_a_gpu_breaks_the_rehearsal_with_its_reason(choices: dict[str, list[Any]]) -> None:
    latent, block = choices["refused"]
    for said, reason in ((latent, "FLASH_ATTN_MLA: [dtype not supported]"), (block, "[block_size not supported]")):
        assert said.startswith("['configure: ValueError: No valid attention backend found for cuda"), said
        assert reason in said


@pytest.mark.slow
def test_nothing_of_a_gpu_s_platform_is_left(choices: dict[str, list[Any]]) -> None:
    assert choices["inside"] == ["True 90 False"]
    assert choices["after"] == ["True True False"]
    assert choices["died"] == ["its process ended without a word"]


@pytest.mark.slow
def test_a_choice_that_the_lab_does_not_count_on_is_an_error(choices: dict[str, list[Any]]) -> None:
    assert choices["held"] == [
        "on this GPU vLLM's worker is CPUWorker, and the lab counts on vllm.v1.worker.gpu_worker.Worker",
        "on this GPU vLLM's graphs is NONE, and the lab counts on FULL_AND_PIECEWISE",
        "on this GPU vLLM's all_reduce is False, and the lab counts on True",
        "on this GPU vLLM's cache is ('float8_e4m3fn',), and the lab counts on ('bfloat16',)",
    ]
