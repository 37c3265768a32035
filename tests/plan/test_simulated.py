"""A plan's step is the simulator's, whatever holds it: the trainer, the engines, or the longest completion."""

from __future__ import annotations

import json

import pytest

from scalelab.cli import main
from tasks.data.datasets import CodeDataset

pytestmark = pytest.mark.slow

RUNS = {
    "the trainer": ("h100/scalerl_8b", "--gpus", "80"),
    "the engines": ("h100/scalerl_17bx16", "--gpus", "80"),
    "the longest completion": ("h100/scalerl_8b", "--gpus", "400"),
    "the longest completion, on GB200": ("scalerl_8b", "--gpus", "80"),
    "the longest completion of a mixture": ("scalerl_17bx16", "--gpus", "400"),
    "rounds of eight steps": ("scalerl_8b", "--set", "Run.schedule=@PPOOffPolicy()"),
    "rounds of one step": ("h100/scalerl_8b", "--set", "Run.schedule=@Synchronous()"),
    "the trainer, whose experts are loaded unevenly": ("scalerl_17bx16", "--gpus", "80", "--imbalance", "3"),
    "the longest completion, with little staleness": ("h100/scalerl_8b", "--set", "PipelineRL.k=2"),
}
WITHIN = 0.05
"""Largest relative difference; 77 of 78 runs of a grid differed by less (`tools/bench/plan_grid.py`)."""


FOR_A_NIGHT = ("the longest completion, on GB200", "the longest completion of a mixture")


@pytest.mark.parametrize(
    "held_by", [pytest.param(one, marks=[pytest.mark.nightly] * (one in FOR_A_NIGHT)) for one in RUNS]
)
def test_a_plans_step_is_the_simulators_without_evaluations(held_by: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*RUNS[held_by], "--set", "Evaluation.every=1000000", "--json"]
    assert main(["plan", *arguments]) == 0
    planned = json.loads(capsys.readouterr().out)["seconds"]
    assert main(["simulate", *arguments, "--no-search", "--hours", "3"]) == 0
    simulated = json.loads(capsys.readouterr().out)["split"]["seconds_per_step"]
    assert planned["step"] == pytest.approx(simulated, rel=WITHIN)
    held = planned["step"] == pytest.approx(planned["hold"], rel=1e-4)
    assert held == held_by.startswith("the longest completion")


@pytest.mark.parametrize("schedule", ["Synchronous", "PPOOffPolicy"])
def test_rounds_that_verifiers_hold_up_are_the_simulators(
    schedule: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verifiers begin with a round's first whole group, not with its first completion."""
    monkeypatch.setattr(CodeDataset, "seconds_per_reward", 1.0)
    steps = []
    for command, *more in (["plan"], ["simulate", "--no-search", "--hours", "3"]):
        schedules = ("--set", f"Run.schedule=@{schedule}()", "--set", "Cluster.verifiers=2")
        assert main([command, "math_code", *more, *schedules, "--set", "Evaluation.every=1000000", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        steps.append(said["seconds"]["step"] if command == "plan" else said["split"]["seconds_per_step"])
    assert steps[0] == pytest.approx(steps[1], rel=0.1)


def test_a_split_that_a_plan_refuses_is_refused_with_the_same_words(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["h100/scalerl_8b", "--gpus", "7"]
    assert main(["plan", *arguments, "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert problems
    assert main(["simulate", *arguments, "--hours", "1", "--no-search", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["split"]["problems"] == problems
    assert main(["simulate", *arguments, "--hours", "1", "--no-search"]) == 1
    assert f"split does not run: {problems[0]}" in capsys.readouterr().out
