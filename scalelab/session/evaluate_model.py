"""Evaluate a model on held-out prompts in this process, for `scalelab eval`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from moe.cpu.portable import hide_wider
from moe.durable import made_whole
from moe.model.size import kv_bytes_per_token
from scalelab.errors import LabError, nearest
from scalelab.recipe.types import Rollout
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.evaluation import Graded, TaskEvaluation, evaluate, graded_by_prompt
from scalelab.rollout.limits import temperature_problem
from scalelab.rollout.types import Completion, Request
from scalelab.run.evaluation_sets import like_trained
from scalelab.run.evaluations import HeldOutPrompt
from scalelab.run.local_evaluation import LocalGraders, evaluate_locally
from scalelab.run.settings import limits_of
from scalelab.run.work import Sampling
from scalelab.start.base_model import tokenizer_of
from scalelab.start.model_folder import ModelFolder
from scalelab.store.completions import completions_table
from tasks.data.datasets import DatasetTask
from tasks.data.hub import SOURCES
from tasks.scores import passed
from tasks.task import Task
from tasks.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from scalelab.rollout.generator import Generator

MAX_TOKENS = 1024
"""Most tokens of a completion of a model that belongs to no run."""

PROMPTS = 100
"""Prompts of a task that is no data set, for a model that belongs to no run."""

SEQUENCES, KV_GIB = 64, 4.0
"""Most sequences side by side and most GiB of KV cache for such a model."""

STALL_SECONDS = 1800.0
"""Time that the engine may take between two finished completions."""


@dataclass(frozen=True)
class EvaluationRequest:
    """Settings of an evaluation; None takes the setting of the model's run, or the default.

    Attributes:
        tasks: tasks of the run and data sets of the table, by name; tasks of one's own, made already.
    """

    tasks: tuple[str | Task, ...]
    data: str | None = None
    k: int | None = None
    prompts: int | None = None
    seed: int = 0
    max_tokens: int | None = None
    temperature: float = 1.0
    chat: bool | None = None
    think: bool | None = None


@dataclass(frozen=True)
class TaskScores:
    """One task's result.

    Attributes:
        task: its name.
        evaluation: pass rate, lengths and outcomes.
        mean_at_k: what `tasks.metrics.mean_at_k` says.
        pass_at_k: what `tasks.metrics.pass_at_k` says, by k.
    """

    task: str
    evaluation: TaskEvaluation
    mean_at_k: dict[str, float]
    pass_at_k: dict[int, dict[str, float]]

    def record(self) -> dict[str, Any]:
        """The result as a JSON object."""
        by_k = {str(k): score for k, score in self.pass_at_k.items()}
        return {**self.evaluation.record(), "mean_at_k": self.mean_at_k, "pass_at_k": by_k}


def evaluate_model(model: ModelFolder, asked: EvaluationRequest, out: Path | None = None) -> list[TaskScores]:
    """Generate and grade completions of held-out prompts, after all checks that need no engine.

    Args:
        model: the model.
        asked: the tasks, and settings of the evaluation.
        out: file for all completions with their verdicts.

    Raises:
        LabError: an unknown task, no chat template where a chat is asked for, prompts that are too long, …
    """
    tasks = [_task(task, model, asked) if isinstance(task, str) else task for task in asked.tasks]
    if len({task.name for task in tasks}) < len(tasks):
        raise LabError(f"the tasks are called {', '.join(task.name for task in tasks)}: give each a name of its own")
    prompts = [prompt for task in tasks for prompt in task.held_out(_how_many(task, model, asked))]
    tokenizer = tokenizer_of(model)
    work = _sampling(tokenizer, model, asked)
    config = engine_config(model, prompts, work)
    with (
        closing(LocalGraders(tasks, os.cpu_count() or 1, STALL_SECONDS)) as graders,
        tempfile.TemporaryDirectory(prefix="scalelab-eval-") as scratch,
    ):
        for sandbox in graders.sandboxes().values():
            print(sandbox, file=sys.stderr)
        folder = model.hf_folder(Path(scratch))
        named = {prompt.id: HeldOutPrompt(prompt, work) for prompt in prompts}
        graded = sample(folder, config, tokenizer, named, graders, model, asked.seed)
    if out is not None:
        _write(out, graded)
    return _scores([Graded.of(one) for one in graded], [task.name for task in tasks])


def _task(name: str, model: ModelFolder, asked: EvaluationRequest) -> Task:
    """The run's task of that name, or a data set of the lab."""
    own: dict[str, Any] = {} if model.run is None else {task.name: task for task in model.run.tasks}
    if name in own:
        task = own[name]
        return replace(task, folder=asked.data) if asked.data and hasattr(task, "folder") else task
    if name not in SOURCES:
        raise LabError(f"unknown task {name!r}: {nearest(name, [*own, *SOURCES])}")
    said = {"chat": asked.chat, "thinking": asked.think}
    settings = {field: value for field, value in said.items() if value is not None}
    trained = () if model.run is None else model.run.tasks
    return like_trained(name, trained, asked.data, workers=os.cpu_count() or 1, **settings)


def _how_many(task: Task, model: ModelFolder, asked: EvaluationRequest) -> int:
    if asked.prompts is not None:
        return asked.prompts
    if isinstance(task, DatasetTask) and (model.run is None or task not in model.run.tasks):
        return task.held_out_count
    wanted = PROMPTS if model.run is None else model.run.evaluation.prompts
    return wanted if task.held_out_size is None else min(wanted, task.held_out_size)


def _sampling(tokenizer: PreTrainedTokenizerFast, model: ModelFolder, asked: EvaluationRequest) -> Sampling:
    """Requests as in the model's run, where `asked` says nothing else."""
    run = model.run
    return Sampling(
        tokenizer,
        generations=asked.k or (run.evaluation.samples if run is not None else 1),
        max_tokens=asked.max_tokens or (run.recipe.max_tokens if run is not None else MAX_TOKENS),
        temperature=asked.temperature,
        length_control=run.recipe.length_control if run is not None else None,
        limits={task.name: limits_of(task, run.recipe) for task in run.tasks} if run is not None else None,
        seed=asked.seed,
    )


def engine_config(model: ModelFolder, prompts: Sequence[Prompt], work: Sampling) -> GeneratorSetup:
    """Engine settings with room for the longest request: the run's own, or of a size that fits the model."""
    prompt = max(len(work.prompt_ids(prompt)) for prompt in prompts)
    hf, longest = model.hf_config, prompt + work.max_tokens
    limit = hf.get("max_position_embeddings", longest)
    if longest > limit:
        raise LabError(
            f"a prompt of {prompt} tokens and {work.max_tokens} for its completion exceed the model's "
            f"max_position_embeddings ({limit}): lower --max-tokens"
        )
    import torch

    gpu = torch.cuda.is_available()
    if problem := temperature_problem(work.temperature, "gpu" if gpu else "cpu"):
        raise LabError(f"--temperature is {work.temperature:g}: {problem}")
    if model.run is not None:
        config = model.run.generator_setup
        return replace(config, max_model_len=max(longest, config.max_model_len))
    dtype: Literal["float32", "bfloat16"] = "bfloat16" if gpu else "float32"
    gib_each = kv_bytes_per_token(hf, dtype, latent=gpu) * (longest + 64) / 2**30
    sequences = max(1, min(SEQUENCES, len(prompts) * work.generations, int(KV_GIB / gib_each)))
    return GeneratorSetup(
        max_model_len=longest,
        max_sequences=sequences,
        dtype=dtype,
        kv_cache_gib=gib_each * (sequences + 1),
    )


def sample(
    folder: Path,
    config: GeneratorSetup,
    tokenizer: PreTrainedTokenizerFast,
    named: Mapping[str, HeldOutPrompt],
    graders: LocalGraders,
    model: ModelFolder,
    seed: int,
) -> list[Rollout]:
    """Generate and grade all completions, in the order of the prompts, on an engine in this process."""
    hide_wider()  # before vLLM is imported
    from scalelab.rollout.generator import Generator
    from scalelab.rollout.tokenizer import with_texts
    from scalelab.session.drive import unwrapped
    from scalelab.session.worlds import phrase_ids

    def generate_all(requests: Sequence[Request]) -> Iterator[list[Completion]]:
        generator.submit(requests)
        done = 0
        while done < len(requests):
            completions = with_texts(tokenizer, _collect(generator))
            done += len(completions)
            print(f"\r{done} of {len(requests)} completions", end="", file=sys.stderr, flush=True)
            yield completions
        print(file=sys.stderr)

    phrase, end = phrase_ids(model.run, tokenizer) if model.run is not None else ([], ())
    generator = Generator(folder, config, phrase, end, threads=os.cpu_count() or 1, seed=seed)
    try:
        # Not asyncio.run: it would keep Ctrl-C from ending a wait for completions.
        with closing(asyncio.new_event_loop()) as loop:
            return loop.run_until_complete(evaluate_locally(named, generate_all, graders))
    except BaseExceptionGroup as errors:
        raise unwrapped(errors) from errors
    finally:
        generator.close()


def _collect(generator: Generator) -> list[Completion]:
    completions = generator.collect(256, STALL_SECONDS, linger=0.5)
    if not completions:
        raise LabError(f"no completion came in {STALL_SECONDS:.0f} s: lower --max-tokens, or use a faster machine")
    return completions


def _scores(graded: Sequence[Graded], names: Sequence[str]) -> list[TaskScores]:
    """mean@k and pass@k by the `evaluate` modules, over the prompts that were graded without an error."""
    from tasks.metrics.mean_at_k import MeanAtK
    from tasks.metrics.pass_at_k import PassAtK

    by_task = evaluate(graded)
    scores = []
    for name in names:
        by_prompt = graded_by_prompt([one for one in graded if one.task == name]).values()
        rewards = [[one.reward for one in of_prompt] for of_prompt in by_prompt]
        passes = [[float(passed(one.outcome)) for one in of_prompt] for of_prompt in by_prompt]
        k = by_task[name].k
        ks = sorted({*(2**power for power in range(k.bit_length())), k})
        scores.append(
            TaskScores(
                name,
                by_task[name],
                MeanAtK().compute(predictions=rewards),
                {at: PassAtK().compute(predictions=passes, k=at) for at in ks},
            )
        )
    return scores


def _write(out: Path, graded: Sequence[Rollout]) -> None:
    with made_whole(out) as partial, open(partial, "w", encoding="utf-8") as file:
        for one in graded:
            [row] = completions_table([one]).to_pylist()
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
