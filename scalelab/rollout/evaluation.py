"""Evaluation on held-out prompts: mean@k with its standard error, and the metrics beside it.

Pure arithmetic, no engine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scalelab.errors import LabError
from scalelab.numbers import counted
from scalelab.recipe.types import AnyRollout, HeldRollout
from tasks.math.extract import MAX_ANSWER, extract_answer
from tasks.scores import Score, majority_at_k, mean_at_k, pass_at_k, passed
from tasks.thinking import THINK_OPEN, answer_part


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
    parts: Mapping[str, float]
    answer: str | None
    """Answer of the completion, for a vote of the majority; None if it gives none."""

    @classmethod
    def of(cls, rollout: AnyRollout) -> Graded:
        """The verdict on a rollout."""
        taken = {name: getattr(rollout, name) for name in cls.__slots__ if name != "answer"}
        if isinstance(rollout, HeldRollout):
            return cls(**taken, answer=rollout.answer)
        return cls(**taken, answer=answer_of(rollout.prompt, rollout.text))

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
    """mean@k: the mean reward, which is the share passed where rewards are 0 or 1."""
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
    measure: str
    """Name of `pass_rate` in the field's words: "mean reward" where some rewards are partial, else "pass rate"."""
    metrics: dict[str, dict[str, float]]
    """Value and standard error of all other metrics, by name."""

    def record(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return asdict(self)


def answer_of(prompt: str, text: str) -> str | None:
    """The answer that a completion states, without the thinking before it; None if there is none.

    Args:
        prompt: text of the prompt; a completion of one that opens a thinking has no answer until it is closed.
        text: the completion.
    """
    part = answer_part(text, whole_if_unclosed=not prompt.rstrip().endswith(THINK_OPEN))
    return None if not part else extract_answer(part) or part[:MAX_ANSWER]


def evaluate(completions: Sequence[Graded], longest: Mapping[str, int] | None = None) -> dict[str, TaskEvaluation]:
    """Compute mean@k and the rest per task, in the order in which the tasks first appear.

    A prompt with a completion that the verifier failed to grade is left out of the pass rate, since an error says
    nothing about the policy; `n_prompts` and `outcomes` show it.

    Args:
        completions: of all tasks.
        longest: most tokens of a completion of each task, for the metric `length`, which is a share of it.

    Raises:
        LabError: a task's prompts have different numbers of completions, or fewer than two of them could be graded.
    """
    by_task: defaultdict[str, list[Graded]] = defaultdict(list)
    for completion in completions:
        by_task[completion.task].append(completion)
    return {task: _evaluate_task(task, of_task, (longest or {}).get(task)) for task, of_task in by_task.items()}


def graded_by_prompt(completions: Sequence[Graded]) -> dict[str, list[Graded]]:
    """Every prompt's completions, without prompts of which a completion could not be graded."""
    failed = {one.prompt_id for one in completions if not one.graded}
    graded: defaultdict[str, list[Graded]] = defaultdict(list)
    for one in completions:
        if one.prompt_id not in failed:
            graded[one.prompt_id].append(one)
    return graded


def metrics_of(by_prompt: Sequence[Sequence[Graded]], longest: int | None = None) -> dict[str, Score]:
    """Metrics of a task beside its mean reward, each a mean over prompts: shares and rewards from 0 to 1.

    `passed`: share of completions; `pass@k` and `majority@k` for powers of two and for all k samples; `truncated`;
    `length`: of the longest that is allowed; and every part of a reward by its own name (with `part ` before it where
    another metric is called so). A completion without a part, such as one that ran out of time, has 0 of it.

    Args:
        by_prompt: per prompt its k completions, all graded.
        longest: most tokens of a completion; None leaves `length` out.
    """
    k = len(by_prompt[0])
    several = sorted({*(2**power for power in range(1, k.bit_length())), k} - {1})
    passes = [[float(passed(one.outcome)) for one in of_prompt] for of_prompt in by_prompt]
    answers = [[(one.answer, one.reward) for one in of_prompt] for of_prompt in by_prompt]
    found = {"passed": mean_at_k(passes)}
    found |= {f"pass@{count}": pass_at_k(passes, count) for count in several}
    found |= {f"majority@{count}": majority_at_k(answers, count) for count in several if count > 2}
    found["truncated"] = mean_at_k([[float(one.truncated) for one in of_prompt] for of_prompt in by_prompt])
    if longest is not None:
        found["length"] = mean_at_k([[one.tokens / longest for one in of_prompt] for of_prompt in by_prompt])
    for part in sorted({name for of_prompt in by_prompt for one in of_prompt for name in one.parts if name}):
        score = mean_at_k([[one.parts.get(part, 0.0) for one in of_prompt] for of_prompt in by_prompt])
        found[f"part {part}" if part in found or "@" in part else part] = score
    return found


def _evaluate_task(task: str, completions: list[Graded], longest: int | None) -> TaskEvaluation:
    by_prompt = graded_by_prompt(completions)
    rewards = {prompt: [one.reward for one in of_prompt] for prompt, of_prompt in by_prompt.items()}
    sizes = {len(of_prompt) for of_prompt in rewards.values()}
    if len(sizes) != 1 or len(rewards) < 2:
        failed = next((one.detail for one in completions if not one.graded), "")
        each = " or ".join(map(str, sorted(sizes)))
        some = f"{counted(len(rewards), 'prompt')} with {each} completions each" if rewards else "no completion"
        raise LabError(
            f"evaluation of {task}: {some} could be graded; it takes two or more prompts with equally many"
            + (f"; the verifier failed: {failed}" if failed else "")
        )
    graded = [one for one in completions if one.prompt_id in rewards]
    score = mean_at_k(list(rewards.values()))
    partial = any(one.reward != float(passed(one.outcome)) for one in graded)
    metrics = metrics_of([*by_prompt.values()], longest)
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
        measure="mean reward" if partial else "pass rate",
        metrics={name: {"value": one.value, "stderr": one.stderr} for name, one in metrics.items()},
    )
