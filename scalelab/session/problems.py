"""Check a run's problems before anything expensive starts: they exist, fit the engine, and are no benchmark's, too."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scalelab.errors import LabError
from scalelab.rollout.tokenizer import prompt_ids
from scalelab.run.config import Run
from scalelab.run.evaluation_sets import ReadySet
from scalelab.run.settings import limits_of
from tasks.data.decontaminate import decontaminate, words
from tasks.task import Task
from tasks.types import Prompt

LOOKED_AT = 1000
"""Prompts of an endless task that are checked."""
NAMED = 3
"""Most problems that a message names."""
_SHORT = 8
"""Words below which problems are compared as they are written: an n-gram of them drops what sums differ in."""


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


def check_overlap(run: Run, say: Callable[[str], None]) -> dict[str, Any]:
    """Compare every benchmark with the prompts that the run trains on.

    Args:
        run: the run.
        say: takes a line about each overlap that is allowed.

    Returns:
        For the manifest, by benchmark: the number of its problems, and those that are trained on.

    Raises:
        LabError: the run trains on problems of a benchmark that does not allow it.
    """
    benchmarks = [one for one in run.sets if not one.trained]
    training = [one for task in run.tasks for one in _bare(_training(task))] if benchmarks else []
    found = {}
    for one in benchmarks:
        pairs = overlap(training, _bare(one.all_prompts))
        if not pairs:
            continue
        told = _told(one, pairs)
        if not one.allow_overlap:
            raise LabError(
                f"{told}: leave them out of the training (MathDataset.against = ({one.name!r},) does), or bind "
                "Benchmark.allow_overlap = True"
            )
        say(f"{told}; Benchmark.allow_overlap lets it go on")
        found[one.name] = {"problems": len(one.all_prompts), "trained_on": dict(pairs)}
    return found


def overlap(training: Sequence[tuple[str, str]], evaluation: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The evaluation problems that are training problems, too.

    Texts of eight words and more are compared by the word sequences that they share, shorter ones as they are written.

    Args:
        training: id and text of each problem.
        evaluation: the same.

    Returns:
        Ids of the evaluation problem and of the training problem, one pair for each evaluation problem.
    """
    written = {" ".join(text.split()): name for name, text in training}
    found = {name: written[key] for name, text in evaluation if (key := " ".join(text.split())) in written}
    long = [[(name, text) for name, text in part if len(words(text)) >= _SHORT] for part in (training, evaluation)]
    for one in decontaminate(long[0], long[1]):
        found.setdefault(one.like, one.id)
    return [(name, found[name]) for name, _ in evaluation if name in found]


def _training(task: Any) -> Iterable[Prompt]:
    return (task.prompt(index) for index in range(LOOKED_AT if task.size is None else task.size))


def _bare(prompts: Iterable[Prompt]) -> list[tuple[str, str]]:
    """Id and text of prompts, without the words of a template that begin and end them all."""
    texts = {prompt.id: prompt.text for prompt in prompts}
    if len(texts) < 2:
        return list(texts.items())
    # Letter by letter is what is wanted here: a template ends anywhere.
    before = len(os.path.commonprefix([*texts.values()]))  # noqa: RUF071
    after = len(os.path.commonprefix([text[before:][::-1] for text in texts.values()]))  # noqa: RUF071
    return [(name, text[before : len(text) - after]) for name, text in texts.items()]


def _told(one: ReadySet, pairs: Sequence[tuple[str, str]]) -> str:
    named = ", ".join(f"{mine} as {other}" for mine, other in pairs[:NAMED])
    more = ", …" if len(pairs) > NAMED else ""
    return f"the run trains on {len(pairs)} of the {len(one.all_prompts)} problems of {one.name} ({named}{more})"
