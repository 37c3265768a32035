"""vLLM takes the engines' configuration as on a GPU, and its models every weight that the trainer publishes."""

import subprocess
import sys

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
from scalelab.cluster.environment import environment
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
