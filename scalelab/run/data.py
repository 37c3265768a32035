"""Check a run's problems before anything expensive starts: they exist, and their prompts fit the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scalelab.errors import LabError
from scalelab.rollout.tokenizer import prompt_ids
from scalelab.run.config import Run
from scalelab.run.evaluation_sets import ReadySet
from scalelab.run.evaluations import PreparedSet
from scalelab.run.limits import limits_of
from scalelab.run.work import Sampling
from tasks.task import Task
from tasks.types import Prompt

LOOKED_AT = 1000
"""Prompts of an endless task that are checked."""


def prepared_sets(run: Run, work: Sampling) -> dict[str, PreparedSet]:
    """The evaluation sets of a run with their prompts, by name.

    Args:
        run: the run.
        work: of its training, from which the sets' sampling differs where they say so.
    """

    def sampling(one: ReadySet, samples: int) -> Sampling:
        return work.like(
            generations=samples,
            max_tokens=one.max_tokens,
            temperature=one.temperature,
            limits={task.name: limits_of(task, run.recipe, one.max_tokens) for task in one.tasks},
        )

    return {
        one.name: PreparedSet(
            one.all_prompts, sampling(one, one.samples), sampling(one, one.early_samples), one.full_from
        )
        for one in run.sets
    }


def describe_tasks(run: Run) -> dict[str, Any]:
    """Load the problems of a run, and describe their origins for the manifest.

    Raises:
        LabError: a task has nothing to train on.
        TaskError: data are missing, or a task has fewer different prompts than the run asks for.
    """
    facts = {}
    for task in run.tasks:
        if task.size == 0:
            raise LabError(
                f"task {task.name} has nothing to train on: its problems are for evaluation only, or all of them are "
                f"held out (held_out_size = {task.held_out_size})"
            )
        task.prompt(0)  # of a generator, draws as many different ones as are trained on
        if about := task.describe():
            facts[task.name] = about
    for one in run.sets:
        one.all_prompts  # noqa: B018 - loads them, so that one without prompts is refused here
        facts |= {task.name: about for task in one.tasks if not one.trained and (about := task.describe())}
    return facts


def check_prompts(run: Run, tokenizer: Any) -> None:
    """Check that every prompt leaves room for a completion; of an endless task, the first `LOOKED_AT`.

    Raises:
        LabError: some do not, or a chat is asked for and the model has no chat template.
    """
    for task in run.tasks:
        count = LOOKED_AT if task.size is None else task.size
        _check_fit(run, tokenizer, task, [task.prompt(index) for index in range(count)], None)
    for one in run.sets:
        for task in one.tasks:
            _check_fit(run, tokenizer, task, one.held_out(task), one)


def _check_fit(run: Run, tokenizer: Any, task: Task, prompts: Sequence[Prompt], of: ReadySet | None) -> None:
    most = limits_of(task, run.recipe, of.max_tokens if of else None).max_tokens
    limit = run.generator.max_model_len - most
    prompt_ids(tokenizer, prompts[0])
    # A token is a byte at least, so that only long texts need to be cut into tokens; a chat's marks come on top.
    doubtful = [prompt for prompt in prompts if prompt.chat or len(prompt.text.encode()) + 1 > limit]
    long = [length for prompt in doubtful if (length := len(prompt_ids(tokenizer, prompt))) > limit]
    if long:
        shorter = f"leave long problems out with {type(task).__name__}.longest"
        own = f"max_tokens of {task.name}" if of is None else f"max_tokens of evaluation set {of.name}"
        said = "Recipe.max_tokens" if most == run.recipe.max_tokens else own
        way = shorter if hasattr(task, "longest") else f"make the problems of {type(task).__name__} shorter"
        raise LabError(
            f"{len(long)} of {len(prompts)} prompts of {task.name} have more than the {limit} tokens that "
            f"GeneratorConfig.max_model_len leaves beside {said} (the longest {max(long)}): "
            f"{way}, or raise max_model_len"
        )
