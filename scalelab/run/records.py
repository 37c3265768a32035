"""What a run writes down: the lines of `evals.jsonl` and `metrics.jsonl`, and sampled rollouts."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from scalelab.errors import LabError
from scalelab.recipe.step import summarise
from scalelab.recipe.types import Rollout
from scalelab.rollout.evaluation import Score, TaskEvaluation, evaluate
from scalelab.rollout.types import Completion
from tasks.types import Prompt, Verdict

if TYPE_CHECKING:
    from moe.train.result import StepResult
    from scalelab.run.driver import Driver, Measurement


@dataclass(frozen=True)
class Graded:
    """A completion with its text and what the verifier said of it."""

    prompt: Prompt
    completion: Completion
    text: str
    verdict: Verdict

    def rollout(self) -> Rollout:
        """What the recipe needs of it."""
        completion, verdict = self.completion, self.verdict
        return Rollout(
            prompt_id=self.prompt.id,
            task=self.prompt.task,
            prompt_ids=np.array(completion.request.prompt_ids, dtype=np.int32),
            completion_ids=completion.token_ids,
            logprobs_T=completion.logprobs_T,
            forced_T=completion.forced_T,
            spans=completion.spans,
            reward=verdict.reward,
            outcome=verdict.outcome,
            truncated=completion.truncated,
            interrupted=completion.interrupted,
            routed_TLK=completion.routed_TLK,
        )

    def score(self) -> Score:
        """What an evaluation needs of it."""
        return Score(
            task=self.prompt.task,
            prompt_id=self.prompt.id,
            reward=self.verdict.reward,
            outcome=self.verdict.outcome,
            truncated=self.completion.truncated,
            interrupted=self.completion.interrupted,
            length=len(self.completion.token_ids),
        )


def step_record(
    driver: Driver, metrics: dict[str, Any], result: StepResult | None, seconds: dict[str, float]
) -> dict[str, Any]:
    """One line of `metrics.jsonl`.

    Args:
        driver: the run, just after the step was booked.
        metrics: what `build_step` said of the step's rollouts.
        result: what the trainer said of the step; None if no rollout was left to train on.
        seconds: wall time by phase: `wait` (the trainer had no batch), `build`, `step`.
    """
    trained = {"loss": None, "grad_norm": None, "skipped": False} if result is None else _trained(result)
    version = driver.schedule.trainer_version
    return {
        "step": version,
        "version": version,
        "time": time.time(),
        **_ledger(driver.ledger.hours, driver.unit),
        **trained,
        **metrics,
        "seconds": seconds,
        "generator_idle_seconds": driver.generators.total("idle_seconds"),
        "generator_lag": version - driver.generators.version,
        "outstanding": {
            "groups": driver.schedule.outstanding,
            "completions": driver.generators.outstanding,
            "grading": driver.verifiers.outstanding,
        },
        "refilled": dict(driver.refilled),
        "sampler": driver.sampler.metrics(),
        "verifiers": driver.verifiers.counts,
    }


def eval_records(driver: Driver, measurement: Measurement) -> list[dict[str, Any]]:
    """The lines of `evals.jsonl` of one evaluation, one per task."""
    begin = {
        "step": measurement.version,
        "version": measurement.version,
        "time": time.time(),
        **_ledger(measurement.hours, driver.unit),
    }
    by_task = evaluations(measurement.graded)
    return [begin | by_task[task.name].record() for task in driver.run.tasks]


def evaluations(graded: Sequence[Graded]) -> dict[str, TaskEvaluation]:
    """mean@k and the rest of graded completions, by task.

    A prompt with a completion that the verifier failed to grade is left out of the pass rate, since an error says
    nothing about the policy; `n_prompts` and `outcomes` show it.

    Raises:
        LabError: the verifier failed on all prompts of a task, or on all but one.
    """
    outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for one in graded:
        outcomes[one.prompt.task][one.verdict.outcome] += 1
    failed = {one.prompt.id: one for one in graded if one.verdict.outcome == "error"}
    by_task = {of.task: of for of in evaluate(one.score() for one in graded if one.prompt.id not in failed)}
    for one in failed.values():
        if one.prompt.task not in by_task:
            raise LabError(f"evaluation of {one.prompt.task}: the verifier failed everywhere: {one.verdict.detail}")
    return {task: replace(of, outcomes=dict(outcomes[task])) for task, of in by_task.items()}


def _trained(result: StepResult) -> dict[str, Any]:
    return {
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "skipped": result.skipped,
        **summarise(result.metrics),
        "router": {name: value for name, value in result.metrics.items() if name.startswith("moe_")},
        "trainer_seconds": result.seconds,
    }


def _ledger(hours: dict[str, float], unit: str) -> dict[str, Any]:
    compute = sum(spent for role, spent in hours.items() if role != "evaluation")
    return {"compute": compute, "compute_by_role": dict(hours), "compute_unit": unit}


def rollout_row(graded: Graded) -> dict[str, Any]:
    """One row of `rollouts/*.parquet`."""
    return {
        "task": graded.prompt.task,
        "prompt_id": graded.prompt.id,
        "prompt": graded.prompt.text,
        "completion": graded.text,
        "outcome": graded.verdict.outcome,
        "reward": graded.verdict.reward,
        "detail": graded.verdict.detail,
        "tokens": len(graded.completion.token_ids),
        "truncated": graded.completion.truncated,
        "interrupted": graded.completion.interrupted,
        "versions": [span[0] for span in graded.completion.spans],
    }
