"""Every task has its own lengths: a task without thinking is not interrupted, beside one that is."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalelab.cli import main
from scalelab.errors import LabError
from scalelab.experiment import load, resolve_experiment
from scalelab.plan.lengths import LogNormal, Mixture, lengths_of
from scalelab.plan.prompts import draws, reward_seconds, running_out
from scalelab.recipe.length_control import ForcedInterruption
from scalelab.run.config import Run
from scalelab.run.settings import limits_of
from scalelab.run.work import RolloutWork
from tasks.errors import TaskError
from tasks.math.miniature import MathMiniature
from tasks.own import RewardTask
from tests.helpers.crash_world import Letters


@dataclass(frozen=True)
class Short(RewardTask):
    name: str = "short"
    size: int = 100

    def problem(self, rng: random.Random) -> tuple[str, str]:
        return f"Say {rng.randrange(10_000)}.", "x"

    def reward(self, prompt: Any, answer: str) -> float:
        return 1.0


def mixed(**fields: Any) -> Run:
    [(name, quickstart)] = load("quickstart").items()
    tasks = (MathMiniature, Short(**fields))
    experiment = quickstart.override({"Run.tasks": tasks, "Run.task_weights": (0.75, 0.25)})
    run: Run = resolve_experiment(name, experiment).run
    return run


def test_each_task_s_requests_have_its_own_limits() -> None:
    run = mixed(max_tokens=20)
    work = RolloutWork(run.recipe, Letters(), 0, seeded=False, tasks=run.tasks)
    math, short = (work.requests("g", task.prompt(0)) for task in run.tasks)
    assert {request.max_tokens for request in math} == {run.recipe.max_tokens}
    assert {request.max_tokens for request in short} == {20}
    assert all(request.interrupt_at is None for request in short)
    control = run.recipe.length_control
    assert isinstance(control, ForcedInterruption)
    assert all(control.earliest <= (request.interrupt_at or 0) <= control.latest for request in math)
    run = mixed(max_tokens=20, thinking=True, interrupt=(3, 5))
    work = RolloutWork(run.recipe, Letters(), 0, seeded=False, tasks=run.tasks)
    assert {request.interrupt_at for request in work.requests("g", run.tasks[1].prompt(0))} <= {3, 4, 5}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": 81}, "max_tokens (81) of short exceeds Recipe.max_tokens (80)"),
        ({"thinking": True, "max_tokens": 50}, "no room for an answer within max_tokens (50) of short"),
        ({"max_tokens": 20, "typical_tokens": 21}, "typical_tokens (21) of short exceeds max_tokens (20)"),
    ],
)
def test_limits_that_do_not_fit_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(LabError) as refused:
        mixed(**fields)
    assert said in str(refused.value)


def test_plans_take_each_task_s_own_lengths_by_its_share() -> None:
    run = mixed(max_tokens=20, typical_tokens=5)
    lengths = lengths_of(run, 0.6)
    assert isinstance(lengths, Mixture)
    (_, math, most), (_, short, least) = lengths.parts
    assert (most, least) == (0.75, 0.25)
    assert (short.median, short.max_tokens, short.interrupt) == (5, 20, None)
    assert (math.median, math.max_tokens) == (40, 80)
    found = lengths.moments()
    assert found.mean == pytest.approx(0.75 * math.moments().mean + 0.25 * short.moments().mean)
    assert found.square == pytest.approx(0.75 * math.moments().square + 0.25 * short.moments().square)
    drawn = lengths.draw(np.random.default_rng(0), 20_000, 2)
    assert drawn.mean() == pytest.approx(found.mean, rel=0.02)
    alike = replace(run, tasks=(run.tasks[0],), task_weights=None)
    assert isinstance(lengths_of(alike, 0.6), LogNormal)


def test_a_plan_says_when_prompts_run_out_and_what_rewards_cost(capsys: pytest.CaptureFixture[str]) -> None:
    run = mixed(size=100, seconds_per_reward=0.5)
    found = draws(run, steps=1000)
    assert (found["short"].different, found["short"].drawn) == (100, 1000 * 16 // 4)
    [math, short] = running_out(run, found)
    assert short.startswith("short: 100 different prompts, drawn 4,000 times: each 40 times; learnt ones")
    assert "math: 4,096 different prompts" in math
    assert reward_seconds(run) == 0.25 * 0.5 * run.recipe.completions_per_step
    assert main(["plan", "quickstart", "--set", "Budget.steps=20000", "--set", "MathMiniature.size=500"]) == 0
    assert "math: 500 different prompts, drawn 160,000 times: each 320 times" in capsys.readouterr().out


def test_a_plan_says_that_too_few_prompts_are_held_out_and_counts_those_of_a_local_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sums.jsonl"
    file.write_text(
        "".join(json.dumps({"problem": f"What is {n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(90))
    )
    of_file = ["Run.tasks=(@MathDataset(),)", "Run.task_weights=None", f"MathDataset.file={str(file)!r}"]
    sets = [*of_file, "MathDataset.held_out_size=30", "Evaluation.prompts=30"]
    assert main(["plan", "quickstart", *(word for one in sets for word in ("--set", one))]) == 0
    assert "sums: 60 different prompts, drawn 2,400 times: each 40 times" in capsys.readouterr().out
    short = ["MathMiniature.min_terms=2", "MathMiniature.max_terms=2", "MathMiniature.size=50"]
    main(["plan", "quickstart", *(word for one in short for word in ("--set", one))])
    assert "problems, 128 are asked for: evaluate fewer, raise MathMiniature.held_out_share" in capsys.readouterr().out


def test_a_task_says_how_many_of_its_prompts_are_evaluated() -> None:
    run = mixed(evaluation_prompts=7)
    [held_out] = run.sets
    math, short = run.tasks
    assert (held_out.prompts_of(math), held_out.prompts_of(short)) == (run.evaluation.prompts, 7)
    assert len(held_out.held_out(short)) == 7
    assert held_out.planned == (run.evaluation.prompts + 7) * run.evaluation.samples
    with pytest.raises(TaskError, match=r"evaluation_prompts is 1: give 2 or more"):
        mixed(evaluation_prompts=1)


def test_an_evaluation_set_with_longer_completions_keeps_a_task_s_own_limit() -> None:
    run = mixed(max_tokens=20)
    longer = [limits_of(task, run.recipe, most=100).max_tokens for task in run.tasks]
    assert longer == [100, 20]


@pytest.mark.parametrize(("name", "size", "step"), [("quickstart", 16, 32), ("h100/scalerl_8b", 8, 16)])
def test_blocks_that_vllms_attention_does_not_take_are_refused(
    name: str, size: int, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", name, "--set", f"GeneratorConfig.block_size={size}"]) == 1
    assert f"GeneratorConfig.block_size is {size}, and vLLM's attention on a" in (said := capsys.readouterr().err)
    assert f"takes multiples of {step}" in said
    assert main(["show", name, "--set", f"GeneratorConfig.block_size={step}"]) == 0
