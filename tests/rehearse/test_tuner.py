"""The fine-tuning that a run begins with is rehearsed as it is: its own ranks, setup, loss and rows, not RL's."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moe.settings import Layout
from scalelab.cli import main
from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.rehearse import tuner
from scalelab.rehearse.roles import trainer_roles
from scalelab.rehearse.setting import RehearsalSettings
from scalelab.start.fine_tuning import cross_entropy
from tests.helpers.rehearsals import MODELS, run_of

pytestmark = pytest.mark.slow

LOSS_OF_RL = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Breaks:
    sees = ("reference",)

    def __call__(self, tokens):
        raise RuntimeError("the loss of RL")
"""
EXPERIMENT = '''"""RL whose loss breaks."""
from loss_that_breaks import Breaks
from experiments.quickstart import experiment as quickstart

experiment = quickstart.override({"Recipe.loss": Breaks, "SFT.steps": 3})
'''
ENDS = [(0, "first"), (15, "last")]
SHALLOW = ["--set", "Llama.num_hidden_layers=2"]


def said_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["rehearse", *arguments, "--json", "--jobs", "1"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.nightly
def test_a_fine_tuning_has_a_loss_and_a_setup_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RL's loss, which breaks here, sees the first policy, whose weights RL's trainer keeps beside its own."""
    (tmp_path / "loss_that_breaks.py").write_text(LOSS_OF_RL)
    (tmp_path / "mine.py").write_text(EXPERIMENT)
    code, said = said_of(capsys, str(tmp_path / "mine.py"), "--only", "tuner", "--only", "trainer")
    assert code == 1
    tuned, trainer = said["roles"]
    assert (tuned["kind"], tuned["role"], tuned["stands_for"]) == ("tuner", "tuner rank 0", 2)
    assert tuned["ok"]
    assert [phase["name"] for phase in tuned["phases"]] == ["build", "load", "step", "export"]
    assert not trainer["ok"]
    assert "the loss of RL" in trainer["problems"][0]
    assert "reference" not in tuned["memory_gib"] | tuned["plan_memory_gib"]
    assert trainer["memory_gib"]["reference"] == pytest.approx(trainer["plan_memory_gib"]["reference"], rel=0.01)
    assert tuned["micro_batches"] == 128 * 128 / 2 / 4096, "traces of a step, all of the longest, over two ranks"


def test_a_large_fine_tuning_is_rehearsed_on_its_own_ranks_and_rows(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = said_of(capsys, "sft/scalerl_8b", "--only", "tuner", "--devices", "no", *SHALLOW)
    assert code == 1, "without Transformer Engine's layers it is rehearsed in part"
    assert [role["role"] for role in said["roles"]] == [f"tuner rank {n}: {end} of tensor 2" for n, end in ENDS]
    for role in said["roles"]:
        assert role["problems"] == []
        assert [phase["name"] for phase in role["phases"]] == ["build", "load", "held out", "step", "export"]
        assert (role["stands_for"], role["longest_row"], role["micro_batches"]) == (8, 12288, 36)
        assert role["peak_gib"] == pytest.approx(role["plan_gib"], rel=0.1)
        assert role["flops"] == pytest.approx(role["plan_flops"], rel=0.01)
        assert not any("fine-tuning" in line for line in role["not_rehearsed"])


@pytest.mark.parametrize(
    ("sets", "problem"),
    [
        (["SFT.trainers=96"], "fine-tuning wants SFT.trainers = 96 devices, there are 80: lower it"),
        (["Cluster.devices_per_node=16"], "16 ranks of the fine-tuning are to share a node, and one has 8 devices"),
    ],
)
def test_a_fine_tuning_that_does_not_fit_breaks(
    sets: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [part for one in sets for part in ("--set", one)]
    assert main(["rehearse", "sft/scalerl_8b", "--only", "tuner", *SHALLOW, *arguments]) == 1
    out = capsys.readouterr().out
    assert f"breaks: tuner rank 0: first of tensor 2: {problem}" in out
    assert "of the fine-tuning: 12,288 tokens; exchanges are those of a step of at most" in out


def test_what_is_handed_to_the_trainer_is_a_fine_tunings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def loss(logprobs_T: Any, entropy_T: Any, extras: dict[str, Any]) -> Any:
        seen.append((len(logprobs_T), {*extras}))
        return cross_entropy(logprobs_T, entropy_T, extras)

    monkeypatch.setattr(tuner, "cross_entropy", loss)
    run = run_of(replace(MODELS["llama"], num_hidden_layers=1), Layout(tensor=2), 4)
    traces = resolve("sft/scalerl_8b").run.sft
    run = replace(run, sft=replace(traces, longest=1024, trainers=4), cluster=replace(run.cluster, trainers=8))
    role = trainer_roles(Layout(tensor=2), 4, "tuner")[1]
    result = tuner.rehearse(RehearsalSettings(run, device("h100")), role)
    assert (result.problems, result.kind) == ([], "tuner")
    assert seen == [(2048, {"weights"})], "a micro-batch of two full traces"
    assert "data × 2" in {exchange["group"] for exchange in result.collectives}, "of its own ranks"


def test_a_fine_tuning_without_steps_takes_none() -> None:
    run = run_of(replace(MODELS["llama"], num_hidden_layers=1), Layout(), 1)
    run = replace(run, sft=replace(run.sft, pretrained=None, steps=0))
    result = tuner.rehearse(RehearsalSettings(run, device("h100")), trainer_roles(Layout(), 1, "tuner")[0])
    assert result.problems == []
    assert [phase.name for phase in result.phases] == ["build", "load", "export"]
