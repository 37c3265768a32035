"""A look at a run's problems before anything expensive starts: are they there, and do they fit the engine?"""

from __future__ import annotations

from typing import Any

from scalelab.errors import LabError
from scalelab.rollout.tokenizer import prompt_ids
from scalelab.run.config import Run
from tasks.data.datasets import CodeDataset, MathDataset


def describe_tasks(run: Run) -> dict[str, Any]:
    """Load the data sets of a run and say where their problems came from, for the manifest.

    Raises:
        LabError: a task has nothing to train on.
        TaskError: data are missing, or fewer prompts are held out than the evaluations ask for.
    """
    facts = {}
    for task in run.tasks:
        if isinstance(task, MathDataset | CodeDataset):
            task.held_out(run.evaluation.prompts)
            if not task.size:
                raise LabError(
                    f"task {task.name} has nothing to train on: {task.dataset} is for evaluation only, or all of it is "
                    f"held out (held_out_size = {task.held_out_size})"
                )
            facts[task.name] = task.describe()
    return facts


def check_prompts(run: Run, tokenizer: Any) -> None:
    """See that every prompt of the data sets leaves room for a completion.

    Raises:
        LabError: some do not, or a chat is asked for and the model has no chat template.
    """
    limit = run.generator.max_model_len - run.recipe.max_tokens
    for task in run.tasks:
        if not isinstance(task, MathDataset | CodeDataset):
            continue
        prompts = [*task.held_out(run.evaluation.prompts), *map(task.prompt, range(task.size))]
        prompt_ids(tokenizer, prompts[0])
        # A token is a byte at least, so that only long texts need to be cut into tokens; a chat's marks come on top.
        doubtful = [prompt for prompt in prompts if prompt.chat or len(prompt.text.encode()) + 1 > limit]
        long = [length for prompt in doubtful if (length := len(prompt_ids(tokenizer, prompt))) > limit]
        if long:
            raise LabError(
                f"{len(long)} of {len(prompts)} prompts of {task.name} have more than the {limit} tokens that "
                f"GeneratorConfig.max_model_len leaves beside Recipe.max_tokens (the longest {max(long)}): "
                f"leave long problems out with {type(task).__name__}.longest, or raise max_model_len"
            )
