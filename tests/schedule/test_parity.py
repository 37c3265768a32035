"""The synchronous case of all schedules trains the same weights, to the last bit, on the real generator and trainer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from smallest_run import SMALLEST

from scalelab.experiment import resolve
from scalelab.run.config import Run
from scalelab.run.folder import read_lines
from scalelab.schedule.pipeline import PipelineRL
from scalelab.schedule.rounds import PPOOffPolicy, Synchronous
from tasks.math.miniature import MathMiniature
from tasks.types import Prompt, Verdict, verdict

SETTINGS = {
    **SMALLEST,
    "Run.schedule": "@Synchronous()",
    "Run.reproducible": True,
    "Run.tasks": "(@MathMiniature(),)",
    "Run.task_weights": None,
    "Budget.steps": 5,
    "Evaluation.every": 1000,
    "Evaluation.prompts": 2,
    "Evaluation.samples": 1,
    "CheckpointPolicy.keep_last": 9,
}


class Coin:
    """Rewards a completion by its text's parity: something to learn from, where the smallest model solves nothing."""

    def verify(self, items: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        return [verdict("passed" if sum(text.encode()) % 2 else "failed") for _, text in items]


@dataclass(frozen=True)
class CoinMath(MathMiniature):
    def verifier(self) -> Any:
        return Coin()


@dataclass(frozen=True)
class Trained:
    """What a run came to."""

    folder: Path
    weights: dict[str, np.ndarray]
    steps: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A function that runs a schedule on actors of its own, within one Ray and from one base model."""
    import ray

    from scalelab.run.base_model import base_model
    from scalelab.run.cluster.actors import start_ray

    base_run = resolve("quickstart", [f"{name}={value}" for name, value in SETTINGS.items()]).run
    base_run = replace(base_run, tasks=(CoinMath(),))
    folder = tmp_path_factory.mktemp("parity")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCALELAB_CACHE", str(folder / "cache"))
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # Ray's workers import Coin from here
        start_ray(base_run.cluster)
        try:
            base = base_model(base_run, print)
            yield cache(lambda name, schedule: train(replace(base_run, schedule=schedule), base, folder / name))
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def train(run: Run, base: Path, folder: Path) -> Trained:
    from scalelab.rollout.tokenizer import load_tokenizer
    from scalelab.run.cluster.waiting import wait_for
    from scalelab.run.driver import Driver
    from scalelab.run.folder import RunFolder
    from scalelab.run.generators import Generators
    from scalelab.run.progress import Progress
    from scalelab.run.session import phrase_ids
    from scalelab.run.trainers import Trainers
    from scalelab.run.verifiers import Verifiers

    broken_off = folder.exists()
    tokenizer = load_tokenizer(base)
    trainers, verifiers = Trainers(run, base, 1), Verifiers(run)
    generators = Generators(run, base, *phrase_ids(run, tokenizer))
    trainers.ready()
    generators.ready()
    driver = Driver(run, RunFolder(folder), tokenizer, trainers, generators, verifiers, Progress())
    if broken_off:
        driver.load()
    driver.train()
    buckets = wait_for(trainers.start_export()[1], 60, "the weights")
    weights = {name: tensor.numpy().copy() for bucket in buckets for name, tensor in bucket.tensors()}
    trainers.stop()
    generators.stop()
    return Trained(folder, weights, read_lines(folder / "metrics.jsonl"), read_lines(folder / "evals.jsonl"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pipelinerl_0_ppo_off_policy_1_and_synchronous_give_identical_parameters(runs: Any) -> None:
    synchronous = runs("synchronous", Synchronous())
    assert len(synchronous.steps) == 5
    assert all(step["grad_norm"] > 0 for step in synchronous.steps), "a run that learns nothing proves nothing"
    for name, schedule in (("pipeline", PipelineRL(0)), ("ppo", PPOOffPolicy(1))):
        other = runs(name, schedule)
        for step, twin in zip(other.steps, synchronous.steps, strict=True):
            assert step["tasks"] == twin["tasks"], "the same completions, step for step"
            assert step["staleness"] == {"0": 16}
        assert other.weights.keys() == synchronous.weights.keys()
        for weight, values in synchronous.weights.items():
            np.testing.assert_array_equal(other.weights[weight], values, err_msg=weight)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_goes_on_from_an_earlier_checkpoint_ends_with_identical_parameters(runs: Any) -> None:
    whole = runs("synchronous", Synchronous())
    folder = whole.folder.with_name("broken_off")
    shutil.copytree(whole.folder, folder)
    for step in (4, 5):
        shutil.rmtree(folder / "checkpoints" / f"step_{step:06d}")
    resumed = runs(folder.name, Synchronous())
    for step, twin in zip(resumed.steps, whole.steps, strict=True):
        for name in ("step", "groups", "tasks", "loss", "grad_norm", "entropy", "staleness"):
            assert step[name] == twin[name], f"{name} of step {step['step']}"
    undone = read_lines(folder / "undone.jsonl")
    assert [line["step"] for line in undone if line["file"] == "metrics.jsonl"] == [3, 4, 5]
    for line, twin in zip(resumed.evaluations, whole.evaluations, strict=True):
        assert (line["step"], line["task"], line["pass_rate"]) == (twin["step"], twin["task"], twin["pass_rate"])
    for weight, values in whole.weights.items():
        np.testing.assert_array_equal(resumed.weights[weight], values, err_msg=weight)
