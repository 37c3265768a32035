"""Checks of a run's settings against each other: what each group of settings cannot be beside another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from moe.errors import MoeError
from moe.model.architectures import check_expert_bias
from moe.model.families import Llama4Text, Model, routed_experts
from moe.settings import TrainerConfig
from moe.train.layout import check_layout, ranks_per_copy
from scalelab.recipe.length_control import ForcedInterruption
from scalelab.recipe.losses import check_sees
from scalelab.recipe.recipe import Recipe
from scalelab.rollout.config import GeneratorConfig
from scalelab.rollout.limits import BLOCK_STEP, attention_problem, temperature_problem
from scalelab.rollout.split import split_problem
from scalelab.run.evaluation_sets import ReadySet, check_metrics
from scalelab.run.ports import too_few_places
from scalelab.run.settings import SFT, Cluster, Evaluation, Virtual, limits_of
from tasks.task import Task


def check_tasks(tasks: Sequence[Task], weights: Sequence[float] | None, recipe: Recipe) -> None:
    """Check names, weights, and what the recipe asks of tasks.

    Raises:
        ValueError: naming the settings that cannot be together, and what would do; so do the other checks.
    """
    names = [task.name for task in tasks]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"Run.tasks is {names}: give at least one task, each name once")
    if weights is not None and len(weights) != len(names):
        raise ValueError(f"Run.task_weights is {weights} for {len(names)} tasks: give each a share")
    check_limits(tasks, recipe)
    check_sees(recipe.loss, names)


def check_limits(tasks: Sequence[Task], recipe: Recipe) -> None:
    """Check that every task's limits fit each other and the recipe.

    Raises:
        ValueError: naming those that do not, and what would do.
    """
    for task in tasks:
        limits = limits_of(task, recipe)
        if limits.max_tokens > recipe.max_tokens:
            raise ValueError(
                f"max_tokens ({limits.max_tokens}) of {task.name} exceeds Recipe.max_tokens ({recipe.max_tokens}), for "
                "which engines and memory are sized: lower the one or raise the other"
            )
        if isinstance(limits.control, ForcedInterruption) and limits.control.latest >= limits.max_tokens:
            raise ValueError(
                f"an interruption at token {limits.control.latest} leaves no room for an answer within max_tokens "
                f"({limits.max_tokens}) of {task.name}: give the task a window of its own, interrupt = (first, last)"
            )
        if (limits.typical or 0) > limits.max_tokens:
            raise ValueError(
                f"typical_tokens ({limits.typical}) of {task.name} exceeds max_tokens ({limits.max_tokens}): lower it"
            )


def check_sets(
    sets: Sequence[ReadySet], trained: Sequence[Task], generator: GeneratorConfig, device: Literal["cpu", "gpu"]
) -> None:
    """Check that the evaluation sets have curves of different names, and that their completions fit the engines."""
    curves = [task.name for one in sets for task in one.tasks]
    if twice := next((name for name in curves if curves.count(name) > 1), None):
        raise ValueError(f"two evaluation sets have a curve called {twice}: bind Benchmark.name")
    for one in sets:
        if not one.trained and one.tasks[0].name in [task.name for task in trained]:
            raise ValueError(f"benchmark {one.name} has the name of a task that is trained on: bind Benchmark.name")
        if one.max_tokens >= generator.max_model_len:
            raise ValueError(
                f"max_tokens ({one.max_tokens}) of evaluation set {one.name} leaves no room for a prompt within "
                f"GeneratorConfig.max_model_len ({generator.max_model_len}): lower the one or raise the other"
            )
        if problem := temperature_problem(one.temperature, device):
            raise ValueError(f"the temperature of evaluation set {one.name} is {one.temperature:g}: {problem}")
        check_metrics(one)
        for task in one.tasks:
            prompts = one.prompts_of(task)
            if prompts is not None and task.held_out_size is not None and prompts > task.held_out_size:
                own = "evaluation_prompts" if prompts != one.prompts else "Evaluation.prompts"
                setting = own if one.trained else f"prompts of benchmark {one.name}"
                raise ValueError(
                    f"{setting} ({prompts}) exceeds held_out_size ({task.held_out_size}) of {task.name}: lower the "
                    "one or raise the other"
                )


def check_places(recipe: Recipe, evaluation: Evaluation, cluster: Cluster, generator: GeneratorConfig) -> None:
    """Check that the engines that an evaluation leaves to training have room for a group."""
    aside = evaluation.engines_of(cluster.generators)
    if aside and aside >= cluster.generators:
        raise ValueError(
            f"Evaluation.engines ({aside}) leaves none of Cluster.generators "
            f"({cluster.generators}) to go on: set fewer aside, or 0"
        )
    places = (cluster.generators - aside) * generator.max_sequences
    if problem := too_few_places(places, recipe.generations_per_prompt):
        raise ValueError(problem)


def check_lengths(model: Model, recipe: Recipe, generator: GeneratorConfig, sft: SFT) -> None:
    """Check that prompts, completions and traces fit into the engines, and the engines' lengths into the model."""
    longest, limit = generator.max_model_len, model.max_position_embeddings
    if recipe.max_tokens >= longest:
        raise ValueError(
            f"Recipe.max_tokens ({recipe.max_tokens}) leaves no room for a prompt within "
            f"GeneratorConfig.max_model_len ({longest}): lower the one or raise the other"
        )
    if longest > limit:
        raise ValueError(
            f"GeneratorConfig.max_model_len ({longest}) exceeds the model's max_position_embeddings ({limit})"
        )
    if sft.public is not None and sft.longest > longest:
        raise ValueError(
            f"SFT.longest ({sft.longest}) exceeds GeneratorConfig.max_model_len ({longest}): traces that long "
            "teach what RL cuts off; lower the one or raise the other"
        )
    chunk = model.attention_chunk_size if isinstance(model, Llama4Text) else generator.block_size
    if chunk % generator.block_size:
        raise ValueError(
            f"GeneratorConfig.block_size ({generator.block_size}) must divide the model's "
            f"attention_chunk_size ({chunk})"
        )


def check_recipe(model: Model, recipe: Recipe, trainer: TrainerConfig) -> None:
    """Check that both sides can do what the recipe asks of them."""
    if trainer.expert_bias:
        try:
            check_expert_bias(model.to_hf())
        except MoeError as error:
            raise ValueError(f"TrainerConfig.expert_bias = {trainer.expert_bias}: {error}") from error
    if recipe.router_replay and not routed_experts(model):
        raise ValueError("Recipe.router_replay needs a mixture of experts: Run.model is dense")
    if recipe.router_replay and trainer.recompute != "none" and trainer.layout.pipeline > 1:
        raise ValueError(
            "Recipe.router_replay with pipeline stages cannot recompute activations: set TrainerConfig.recompute "
            "to 'none' or Layout.pipeline to 1"
        )
    if recipe.temperature != 1.0:
        raise ValueError(
            f"Recipe.temperature is {recipe.temperature}: generators record the log-probs of the unscaled "
            "policy, so only 1.0 gives right importance ratios"
        )


def check_world(trainer: TrainerConfig, cluster: Cluster, virtual: Virtual | None) -> None:
    """Check that a virtual world can stand for the cluster."""
    if virtual is None:
        return
    if ranks_per_copy(trainer.layout) > 1:
        raise ValueError(
            f"Run.virtual trains in one process, but Layout spreads a copy of the model over "
            f"{ranks_per_copy(trainer.layout)}: set Layout.tensor, .pipeline, .context and .expert to 1"
        )
    if virtual.rates is not None and virtual.rates.cores is not None:
        raise ValueError(
            "Rates.cores is for `scalelab simulate`; the parts of Run.virtual wait for no core: leave it out"
        )
    if cluster.share_devices:
        raise ValueError("Run.virtual has devices that do one thing at a time: bind Cluster.share_devices = False")


def check_devices(model: Model, trainer: TrainerConfig, generator: GeneratorConfig, cluster: Cluster, sft: SFT) -> None:
    """Check devices, their number and how they are shared."""
    if cluster.device == "cpu" and trainer.gpu_only:
        raise ValueError(
            f"{' and '.join(trainer.gpu_only)} is for GPUs, and the run's devices are cores: leave it out, or "
            "bind Cluster.device = 'gpu'"
        )
    if cluster.device == "cpu" and cluster.publication != "files":
        raise ValueError(
            f"Cluster.publication = {cluster.publication!r} is for GPUs, and the run's devices are cores: "
            "leave it out, or bind Cluster.device = 'gpu'"
        )
    if problem := attention_problem(model.to_hf(), cluster.device):
        raise ValueError(f"Run.model: {problem}")
    if generator.block_size % (step := BLOCK_STEP[cluster.device]):
        raise ValueError(
            f"GeneratorConfig.block_size is {generator.block_size}, and vLLM's attention on a {cluster.device.upper()} "
            f"takes multiples of {step}"
        )
    for name, ranks in (("Cluster.trainers", cluster.trainers), ("SFT.trainers", sft.trainers)):
        try:
            check_layout(model.to_hf(), trainer.layout, ranks)
        except MoeError as error:
            raise ValueError(f"{name} = {ranks} with TrainerConfig.layout: {error}") from error
    if problem := split_problem(model.to_hf(), generator.tensor_parallel):
        raise ValueError(problem)
    if cluster.share_devices and generator.tensor_parallel > 1:
        raise ValueError(
            f"Cluster.share_devices is for engines on one device: GeneratorConfig.tensor_parallel is "
            f"{generator.tensor_parallel}, set it to 1"
        )
