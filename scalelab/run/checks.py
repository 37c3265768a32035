"""Checks of a run's settings against each other: what each group of settings cannot be beside another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moe.errors import MoeError
from moe.model.architectures import check_expert_bias
from moe.model.config import Llama4Text, routed_experts
from moe.train.layout import check_layout, ranks_per_copy
from scalelab.rollout.split import VOCABULARY_STEP, split_problem
from scalelab.run.ports import too_few_places

if TYPE_CHECKING:
    from scalelab.run.config import Run


def check_settings(run: Run) -> None:
    """Refuse settings that cannot be together.

    Raises:
        ValueError: naming them, and what would do.
    """
    _check_tasks(run)
    _check_lengths(run)
    _check_recipe(run)
    _check_devices(run)
    _check_sharing(run)


def _check_tasks(run: Run) -> None:
    names = [task.name for task in run.tasks]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"Run.tasks is {names}: give at least one task, each name once")
    if run.task_weights is not None and len(run.task_weights) != len(names):
        raise ValueError(f"Run.task_weights is {run.task_weights} for {len(names)} tasks: give each a share")
    for task in run.tasks:
        if task.held_out_size is not None and run.evaluation.prompts > task.held_out_size:
            raise ValueError(
                f"Evaluation.prompts ({run.evaluation.prompts}) exceeds held_out_size ({task.held_out_size}) of "
                f"{task.name}: lower the one or raise the other"
            )
        if not task.has_thinking and (control := run.recipe.length_control) is not None and control.phrase:
            raise ValueError(
                f"length_control interrupts a thinking that {task.name} does not have: bind "
                "Recipe.length_control = None or @LengthPenalty()"
            )

    aside = run.evaluation.engines_of(run.cluster.generators)
    if aside and aside >= run.cluster.generators:
        raise ValueError(
            f"Evaluation.engines ({aside}) leaves none of Cluster.generators "
            f"({run.cluster.generators}) to go on: set fewer aside, or 0"
        )
    places = (run.cluster.generators - aside) * run.generator.max_sequences
    if problem := too_few_places(places, run.recipe.generations_per_prompt):
        raise ValueError(problem)


def _check_lengths(run: Run) -> None:
    longest, limit = run.generator.max_model_len, run.model.max_position_embeddings
    if run.recipe.max_tokens >= longest:
        raise ValueError(
            f"Recipe.max_tokens ({run.recipe.max_tokens}) leaves no room for a prompt within "
            f"GeneratorConfig.max_model_len ({longest}): lower the one or raise the other"
        )
    if longest > limit:
        raise ValueError(
            f"GeneratorConfig.max_model_len ({longest}) exceeds the model's max_position_embeddings ({limit})"
        )
    if run.sft.traces is not None and run.sft.longest > longest:
        raise ValueError(
            f"SFT.longest ({run.sft.longest}) exceeds GeneratorConfig.max_model_len ({longest}): traces that long "
            "teach what RL cuts off; lower the one or raise the other"
        )
    chunk = run.model.attention_chunk_size if isinstance(run.model, Llama4Text) else run.generator.block_size
    if chunk % run.generator.block_size:
        raise ValueError(
            f"GeneratorConfig.block_size ({run.generator.block_size}) must divide the model's "
            f"attention_chunk_size ({chunk})"
        )


def _check_recipe(run: Run) -> None:
    if not (run.trainer.fp32_head and run.generator.fp32_head):
        raise ValueError("the head's precision is the recipe's choice: bind Recipe.fp32_head, nothing else")
    if run.generator.record_routing:
        raise ValueError("experts are recorded where they are replayed: bind Recipe.router_replay, nothing else")
    if run.generator.expert_bias:
        raise ValueError("generators have biases of experts where the trainer does: bind TrainerConfig.expert_bias")
    if run.trainer.expert_bias:
        try:
            check_expert_bias(run.model.to_hf())
        except MoeError as error:
            raise ValueError(f"TrainerConfig.expert_bias = {run.trainer.expert_bias}: {error}") from error
    if run.recipe.router_replay and not routed_experts(run.model):
        raise ValueError("Recipe.router_replay needs a mixture of experts: Run.model is dense")
    if run.recipe.router_replay and run.trainer.recompute != "none" and run.trainer.layout.pipeline > 1:
        raise ValueError(
            "Recipe.router_replay with pipeline stages cannot recompute activations: set TrainerConfig.recompute "
            "to 'none' or Layout.pipeline to 1"
        )
    if run.trainer.seed != 0:
        raise ValueError("the seed of the initial weights is the run's: bind Run.seed instead of TrainerConfig.seed")
    if run.recipe.temperature != 1.0:
        raise ValueError(
            f"Recipe.temperature is {run.recipe.temperature}: generators record the log-probs of the unscaled "
            "policy, so only 1.0 gives right importance ratios"
        )


def _check_devices(run: Run) -> None:
    if run.virtual is not None and ranks_per_copy(run.trainer.layout) > 1:
        raise ValueError(
            f"Run.virtual trains in one process, but Layout spreads a copy of the model over "
            f"{ranks_per_copy(run.trainer.layout)}: set Layout.tensor, .pipeline, .context and .expert to 1"
        )
    if run.virtual is not None and run.virtual.rates is not None and run.virtual.rates.cores is not None:
        raise ValueError(
            "Rates.cores is for `scalelab simulate`; the parts of Run.virtual wait for no core: leave it out"
        )
    if (run.trainer.device, run.generator.device) != ("auto", "auto"):
        raise ValueError("what a run's actors occupy is one choice for both sides: bind Cluster.device")
    if run.cluster.device == "cpu" and run.trainer.gpu_only:
        raise ValueError(
            f"{' and '.join(run.trainer.gpu_only)} is for GPUs, and the run's devices are cores: leave it out, or "
            "bind Cluster.device = 'gpu'"
        )
    if run.cluster.device == "cpu" and run.cluster.publication != "files":
        raise ValueError(
            f"Cluster.publication = {run.cluster.publication!r} is for GPUs, and the run's devices are cores: "
            "leave it out, or bind Cluster.device = 'gpu'"
        )
    vocabulary = run.model.vocab_size  # a sharded transfer cannot fill the rows that pad it
    if run.cluster.publication == "sharded_rdt" and vocabulary % VOCABULARY_STEP:
        raise ValueError(
            f"Cluster.publication = 'sharded_rdt' fills a vocabulary of {vocabulary} only if that is a multiple of "
            f"{VOCABULARY_STEP}: take 'nccl' or 'files'"
        )
    for name, ranks in (("Cluster.trainers", run.cluster.trainers), ("SFT.trainers", run.sft.trainers)):
        try:
            check_layout(run.model.to_hf(), run.trainer.layout, ranks)
        except MoeError as error:
            raise ValueError(f"{name} = {ranks} with TrainerConfig.layout: {error}") from error
    if problem := split_problem(run.model.to_hf(), run.generator.tensor_parallel):
        raise ValueError(problem)


def _check_sharing(run: Run) -> None:
    if not run.cluster.share_devices:
        return
    if run.generator.tensor_parallel > 1:
        raise ValueError(
            f"Cluster.share_devices is for engines on one device: GeneratorConfig.tensor_parallel is "
            f"{run.generator.tensor_parallel}, set it to 1"
        )
    if run.virtual is not None:
        raise ValueError("Run.virtual pretends devices that do one thing at a time: bind Cluster.share_devices = False")
