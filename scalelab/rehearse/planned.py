"""The plan of one role in the form of a rehearsal; importable without torch."""

from __future__ import annotations

import math
from typing import Any

from moe.settings import TrainerSetup
from scalelab.plan.lengths import fitting_prompt, lengths_of
from scalelab.plan.memory import activation_bytes, export_bytes, generator_memory, head_bytes
from scalelab.plan.shape import parameter_counts, shape
from scalelab.plan.sizes import held
from scalelab.plan.speed import Assumptions, splits_head, training_flops
from scalelab.rehearse.result import GIB
from scalelab.rollout.config import GeneratorSetup
from scalelab.run.config import Run

_OF_LAYERS = ("no_rope_layers", "layer_types", "moe_layers")
"""Entries of a config.json with one value for each layer, or with layers' numbers."""


def trainer_gib(
    hf_config: dict[str, Any], config: TrainerSetup, world: int, longest: int, stage: int, export: bool = False
) -> dict[str, float]:
    """GiB of a trainer rank of one pipeline stage by kind.

    Activations include the logits of a chunk; or they are what an export gathers, where that is counted and is more.
    The first policy's weights are a kind of their own, where they are kept.
    """
    parts = held(hf_config, config.layout, world, config.dtype, stage, settings=config.optimizer)
    head = head_bytes(hf_config, config) if stage == config.layout.pipeline - 1 else 0.0
    kinds = {
        "weights": parts.weights,
        "gradients": parts.gradients,
        "optimizer": parts.optimizer,
        "activations": max(
            activation_bytes(hf_config, config, longest, stage) + head,
            export_bytes(hf_config, config.dtype) if export else 0.0,
        ),
    }
    if config.reference:
        kinds["reference"] = parts.weights
    return {kind: size / GIB for kind, size in kinds.items()}


def trainer_flops(hf_config: dict[str, Any], config: TrainerSetup, row: list[int], stage: int) -> float:
    """FLOPs of a rank of one pipeline stage for one micro-batch.

    Args:
        hf_config: the model.
        config: layout and recomputation.
        row: tokens of each sequence of the micro-batch.
        stage: the pipeline stage.
    """
    layout, split = config.layout, splits_head(config)
    tokens, square = float(sum(row)), float(sum(length**2 for length in row))
    mine = _stage(hf_config, stage, layout.pipeline)
    found = training_flops(mine, config.recompute, tokens, square, split_head=split, reference=config.reference)
    if stage < layout.pipeline - 1:  # the last stage has the output product
        head = (12.0 if split else 8.0) + 2.0 * config.reference
        found -= head * hf_config["vocab_size"] * hf_config["hidden_size"] * tokens
    return found / (layout.tensor * layout.context)


def _stage(hf_config: dict[str, Any], stage: int, stages: int) -> dict[str, Any]:
    """The config of a model that has the layers of one pipeline stage only."""
    count = hf_config["num_hidden_layers"] // stages
    mine = range(stage * count, (stage + 1) * count)
    experts = [layer.experts for layer in shape(hf_config).layers]
    kept = {name: [hf_config[name][i] for i in mine] for name in _OF_LAYERS[:2] if hf_config.get(name)}
    if hf_config.get("moe_layers"):
        kept["moe_layers"] = [i - mine.start for i in mine if experts[i]]
    return {**hf_config, "num_hidden_layers": count, **kept}


def micro_batches(run: Run) -> int:
    """Micro-batches of a data-parallel rank in one optimiser step, from the plan's mean length of a completion."""
    assumed = Assumptions()
    mean = lengths_of(run, assumed.sigma, assumed.median).moments().mean
    tokens = run.recipe.completions_per_step * (mean + fitting_prompt(run))
    return _micro_batches(tokens, run.trainer_setup, run.cluster.trainers)


def tuner_micro_batches(run: Run) -> int:
    """The most micro-batches of a data-parallel rank in a step of the fine-tuning: all its traces are the longest."""
    return _micro_batches(run.sft.traces_per_step * run.longest_trace, run.tuner_setup, run.sft.trainers)


def _micro_batches(tokens: float, config: TrainerSetup, world: int) -> int:
    layout = config.layout
    rows = world / (layout.tensor * layout.pipeline * layout.context)
    return max(1, math.ceil(tokens / rows / config.tokens_per_micro_batch))


def engine_gib(hf_config: dict[str, Any], config: GeneratorSetup) -> dict[str, float]:
    """GiB of weights and KV cache on one of the devices that share an engine."""
    memory = generator_memory(parameter_counts(hf_config).total, config, gpu=True)
    return {"weights": memory.weights, "kv_cache": memory.kv_cache}
