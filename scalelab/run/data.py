"""Check a run's problems before anything expensive starts: they exist, and their prompts fit the engine."""

from __future__ import annotations

from typing import Any

from scalelab.errors import LabError
from scalelab.rollout.tokenizer import prompt_ids
from scalelab.run.config import Run
from tasks.types import Prompt

LOOKED_AT = 1000
"""Prompts of an endless task that are checked."""


def held_out(run: Run) -> list[Prompt]:
    """The held-out prompts of a run's evaluations, of all its tasks."""
    return [prompt for task in run.tasks for prompt in task.held_out(run.evaluation.prompts)]


def describe_tasks(run: Run) -> dict[str, Any]:
    """Load the problems of a run, and describe their origins for the manifest.

    Raises:
        LabError: a task has nothing to train on.
        TaskError: data are missing, or fewer prompts are held out than the evaluations ask for.
    """
    facts = {}
    for task in run.tasks:
        task.held_out(run.evaluation.prompts)
        if task.size == 0:
            raise LabError(
                f"task {task.name} has nothing to train on: its problems are for evaluation only, or all of them are "
                f"held out (held_out_size = {task.held_out_size})"
            )
        if about := task.describe():
            facts[task.name] = about
    return facts


def check_prompts(run: Run, tokenizer: Any) -> None:
    """Check that every prompt leaves room for a completion; of an endless task, the first `LOOKED_AT`.

    Raises:
        LabError: some do not, or a chat is asked for and the model has no chat template.
    """
    limit = run.generator.max_model_len - run.recipe.max_tokens
    for task in run.tasks:
        count = LOOKED_AT if task.size is None else task.size
        prompts = [*task.held_out(run.evaluation.prompts), *map(task.prompt, range(count))]
        prompt_ids(tokenizer, prompts[0])
        # A token is a byte at least, so that only long texts need to be cut into tokens; a chat's marks come on top.
        doubtful = [prompt for prompt in prompts if prompt.chat or len(prompt.text.encode()) + 1 > limit]
        long = [length for prompt in doubtful if (length := len(prompt_ids(tokenizer, prompt))) > limit]
        if long:
            shorter = f"leave long problems out with {type(task).__name__}.longest"
            way = shorter if hasattr(task, "longest") else f"make the problems of {type(task).__name__} shorter"
            raise LabError(
                f"{len(long)} of {len(prompts)} prompts of {task.name} have more than the {limit} tokens that "
                f"GeneratorConfig.max_model_len leaves beside Recipe.max_tokens (the longest {max(long)}): "
                f"{way}, or raise max_model_len"
            )
