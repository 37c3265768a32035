"""Evaluation on held-out prompts: mean@k with its standard error.

Pure arithmetic, no engine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scalelab.errors import LabError
from scalelab.recipe.types import Rollout
from tasks.scores import mean_at_k


@dataclass(frozen=True, slots=True)
class Graded:
    """The verdict on one held-out completion, without its text and tokens; fields as in `Rollout`."""

    task: str
    prompt_id: str
    reward: float
    outcome: str
    truncated: bool
    interrupted: bool
    tokens: int
    detail: str

    @classmethod
    def of(cls, rollout: Rollout) -> Graded:
        """The verdict on a rollout."""
        return cls(*(getattr(rollout, name) for name in cls.__slots__))

    @property
    def graded(self) -> bool:
        """True unless the verifier itself failed, which leaves the reward without meaning."""
        return self.outcome != "error"


@dataclass(frozen=True)
class TaskEvaluation:
    """Result of an evaluation on one task; the fields are those of a line of `evals.jsonl`."""

    task: str
    n_prompts: int
    k: int
    """Completions of each prompt."""
    pass_rate: float
    """mean@k."""
    stderr: float
    """Standard error of `pass_rate`, clustered by prompt."""
    truncated: float
    """Share of the completions that hit the limit."""
    interrupted: float
    """Share of the completions with a forced phrase."""
    outcomes: dict[str, int]
    """Completions by outcome."""
    mean_length: float
    """Tokens of a completion."""

    def record(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return asdict(self)


def evaluate(completions: Sequence[Graded]) -> dict[str, TaskEvaluation]:
    """Compute mean@k and the rest per task, in the order in which the tasks first appear.

    A prompt with a completion that the verifier failed to grade is left out of the pass rate, since an error says
    nothing about the policy; `n_prompts` and `outcomes` show it.

    Raises:
        LabError: a task's prompts have different numbers of completions, or fewer than two of them could be graded.
    """
    by_task: defaultdict[str, list[Graded]] = defaultdict(list)
    for completion in completions:
        by_task[completion.task].append(completion)
    return {task: _evaluate_task(task, of_task) for task, of_task in by_task.items()}


def graded_by_prompt(completions: Sequence[Graded]) -> dict[str, list[Graded]]:
    """Every prompt's completions, without prompts of which a completion could not be graded."""
    failed = {one.prompt_id for one in completions if not one.graded}
    graded: defaultdict[str, list[Graded]] = defaultdict(list)
    for one in completions:
        if one.prompt_id not in failed:
            graded[one.prompt_id].append(one)
    return graded


def _evaluate_task(task: str, completions: list[Graded]) -> TaskEvaluation:
    rewards = {prompt: [one.reward for one in of_prompt] for prompt, of_prompt in graded_by_prompt(completions).items()}
    sizes = {len(of_prompt) for of_prompt in rewards.values()}
    if len(sizes) != 1 or len(rewards) < 2:
        failed = next((one.detail for one in completions if not one.graded), "")
        raise LabError(
            f"evaluation of {task}: {len(rewards)} prompts with {sorted(sizes)} completions each could be graded; it "
            f"takes two or more prompts with equally many" + (f"; the verifier failed: {failed}" if failed else "")
        )
    graded = [one for one in completions if one.prompt_id in rewards]
    score = mean_at_k(list(rewards.values()))
    return TaskEvaluation(
        task=task,
        n_prompts=len(rewards),
        k=sizes.pop(),
        pass_rate=score.value,
        stderr=score.stderr,
        truncated=float(np.mean([one.truncated for one in graded])),
        interrupted=float(np.mean([one.interrupted for one in graded])),
        outcomes=dict(Counter(one.outcome for one in completions)),
        mean_length=float(np.mean([one.tokens for one in graded])),
    )
