"""A simulated CUDA device is used where it is set up, and finds what a label of its own finds."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moe.settings import Layout, OptimizerConfig
from scalelab.cli import main
from scalelab.hardware import device
from scalelab.rehearse import environment
from scalelab.rehearse.environment import how_to_set_up, interpreters, simulated_cuda
from scalelab.rehearse.processes import REHEARSAL, ROOT, Interpreter, rehearse_all, tasks_of
from scalelab.rehearse.result import RoleResult
from scalelab.rehearse.roles import engine_roles, trainer_roles
from scalelab.rehearse.setting import RehearsalSettings
from tests.helpers.process_memory import most_gib
from tests.helpers.rehearsals import LENGTH, MODELS, run_of

H100 = device("h100")
H100_RUNS = ("8b_node", "8b", "17bx16_least", "17bx16", "8b_512", "17bx16_512")
BIG = (*(f"h100/scalerl_{one}" for one in H100_RUNS), "h200/scalerl_17bx16_least", "scalerl_8b", "scalerl_17bx16")
"""The placements of docs/plan.md."""


def test_an_environment_is_whole_or_not_there(tmp_path: Path) -> None:
    assert simulated_cuda(H100, tmp_path) is None
    for name in ("env/bin/python", *environment.LIBRARIES):
        assert simulated_cuda(H100, tmp_path) is None
        path = tmp_path / ".rehearse" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = simulated_cuda(device("gb200"), tmp_path)
    assert found is not None
    assert found.python == str(tmp_path / ".rehearse/env/bin/python")
    assert dict(found.environment)["SIMULATED_CAPABILITY_MAJOR"] == "10"


def test_what_is_missing_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "run from a checkout" in how_to_set_up(tmp_path)
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    assert "install gcc, then run tools/rehearse/install.sh" in how_to_set_up()
    monkeypatch.setattr(environment, "FOLDER", "nowhere")
    assert main(["rehearse", "scalerl_8b", "--devices", "yes"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_trainer_has_a_runs_variables_beside_those_of_the_simulated_device(tmp_path: Path) -> None:
    """Its allocator of expandable segments asks libraries that no other does: a rehearsal without it said nothing."""
    for name in ("env/bin/python", *environment.LIBRARIES):
        (tmp_path / ".rehearse" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ".rehearse" / name).touch()
    simulated = simulated_cuda(H100, tmp_path)
    pythons = interpreters(simulated)
    assert simulated is not None
    assert pythons["trainer"].python == simulated.python
    trainer, engine = (dict(pythons[kind].environment) for kind in ("trainer", "engine"))
    assert trainer == {**trainer, **dict(simulated.environment)}
    assert trainer["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert engine["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:False"


@pytest.mark.slow
@pytest.mark.skipif(simulated_cuda(H100) is None, reason="needs tools/rehearse/install.sh")
@pytest.mark.parametrize("offload", [False, True])
def test_a_mixture_lives_on_a_simulated_gpu(offload: bool) -> None:
    layout = Layout(tensor=2, expert=4)
    run = run_of(MODELS["mixtral"], layout, 8, "selective")
    optimizer = replace(run.trainer.optimizer, offload=offload)
    run = replace(
        run, trainer=replace(run.trainer, optimizer=optimizer, overlap_gradients=offload, overlap_parameters=offload)
    )
    pythons = interpreters(simulated_cuda(H100))
    roles = trainer_roles(layout, 8)  # two, which are forks of one process
    result, other = rehearse_all(tasks_of(RehearsalSettings(run, H100), roles, pythons), 1, 280, lambda *said: None)
    assert result.problems == other.problems == []
    assert result.memory_gib.get("optimizer", 0) == pytest.approx(result.plan_memory_gib["optimizer"], rel=1e-2)
    assert not any("which device" in line for line in result.not_rehearsed)
    assert all(phase.peak_gib > 0 for phase in result.phases)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.skipif(simulated_cuda(H100) is None, reason="needs tools/rehearse/install.sh")
def test_every_role_of_the_big_experiments_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """All documented placements at once, with the memory and the work of their plans, in 8 GB of this machine's."""
    with most_gib(REHEARSAL) as most:
        assert main(["rehearse", *BIG, "--devices", "yes", "--jobs", "2", "--set", "SFT.pretrained=/", "--json"]) == 0
    assert 0 < most[0] <= 8e9 / 2**30
    said = json.loads(capsys.readouterr().out)
    assert [one["experiment"] for one in said["experiments"]] == [*BIG]
    for role in (role for one in said["experiments"] for role in one["roles"]):
        assert role["ok"], role
        if role["kind"] in ("trainer", "engine"):
            assert role["peak_gib"] == pytest.approx(role["plan_gib"], rel=0.1)
        if role["kind"] == "trainer":
            assert role["flops"] == pytest.approx(role["plan_flops"], rel=0.01)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(simulated_cuda(H100) is None, reason="needs tools/rehearse/install.sh")
@pytest.mark.parametrize("name", ["sft/scalerl_8b", "sft/scalerl_17bx16"])
def test_every_rank_of_a_big_fine_tuning_starts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--only", "tuner", "--devices", "yes", "--set", "SFT.pretrained='/'"]
    assert main(["rehearse", name, *only, "--json"]) == 0
    for role in json.loads(capsys.readouterr().out)["roles"]:
        assert role["peak_gib"] == pytest.approx(role["plan_gib"], rel=0.03)
        assert role["flops"] == pytest.approx(role["plan_flops"], rel=0.03)


def on_simulated_gpu(layout: Layout, world: int, **trainer: Any) -> RoleResult:
    run = run_of(MODELS["mixtral"], layout, world, "selective")
    run = replace(run, trainer=replace(run.trainer, **trainer))
    pythons, role = interpreters(simulated_cuda(H100)), trainer_roles(layout, world)[0]
    (result,) = rehearse_all(tasks_of(RehearsalSettings(run, H100), [role], pythons), 1, 280, lambda *said: None)
    assert result.problems == []
    assert not any("Transformer Engine" in line for line in result.not_rehearsed)
    return result


@pytest.mark.slow
@pytest.mark.skipif(simulated_cuda(H100) is None, reason="needs tools/rehearse/install.sh")
def test_transformer_engines_layers_compute_what_the_local_ones_do() -> None:
    """They keep a workspace of cuBLAS and not Megatron's buffer for what tensor ranks gather: the only difference."""
    layout = Layout(tensor=2, expert=4)
    theirs, local = (on_simulated_gpu(layout, 8, kernels=kernels) for kernels in ("transformer_engine", "local"))
    assert theirs.flops == local.flops
    assert theirs.collectives == local.collectives
    for kind in ("weights", "gradients", "optimizer"):
        assert theirs.memory_gib[kind] == local.memory_gib[kind]
    workspace = 32 / 2**10
    gathered = LENGTH * MODELS["mixtral"].hidden_size * 2 / 2**30
    (step, other) = (next(phase for phase in one.phases if phase.name == "step") for one in (theirs, local))
    assert step.peak_gib - other.peak_gib == pytest.approx(workspace - gathered, abs=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(simulated_cuda(H100) is None, reason="needs tools/rehearse/install.sh")
def test_moments_in_bfloat16_take_what_the_plan_says() -> None:
    layout = Layout(tensor=2, expert=4)
    optimizer = OptimizerConfig(moments="bfloat16")
    result = on_simulated_gpu(layout, 8, optimizer=optimizer)
    assert result.memory_gib["optimizer"] == pytest.approx(result.plan_memory_gib["optimizer"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.nightly
def test_packages_for_gpus_without_a_driver_change_nothing(tmp_path: Path) -> None:
    """A Transformer Engine that breaks what imports it, and a vLLM whose version is that of a build for GPUs."""
    for module in ("transformer_engine", "apex"):
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").write_text("raise RuntimeError('CUDA driver version is insufficient')")
    (tmp_path / "vllm-0.32.0.dist-info").mkdir()
    (tmp_path / "vllm-0.32.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    layout = Layout(tensor=2)
    run = run_of(MODELS["llama"], layout, 2)
    interpreter = Interpreter(environment=(("PYTHONPATH", f"{tmp_path}:{ROOT}"),))
    roles = [trainer_roles(layout, 2)[0], engine_roles(1, 1)[0]]
    pythons = {"trainer": interpreter, "engine": interpreter}
    results = rehearse_all(tasks_of(RehearsalSettings(run, H100), roles, pythons), 1, 140, lambda *said: None)
    assert [result.problems for result in results] == [[], []]
