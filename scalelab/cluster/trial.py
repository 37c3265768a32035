"""An optimiser step on made-up completions, tried before a run's first evaluation costs anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from moe.model.architectures import architecture
from scalelab.recipe.step import StepLoss, in_loss, plan_step
from scalelab.recipe.types import NOT_RECORDED, HeldRecord, Rollout, is_held
from scalelab.run.config import Run
from scalelab.run.work import Step

PROMPT = 64
"""Tokens of a made-up prompt, where the model has room for so many."""


def made_up_step(run: Run, hold: Callable[[list[np.ndarray]], Sequence[HeldRecord]]) -> Step:
    """An optimiser step on groups of the longest completions that the run allows, at least one for each trainer rank.

    Their tokens are random, and every other one of a group has passed, so that none is left out. With router replay
    each has a record of random experts.

    Args:
        run: what is to be tried.
        hold: gives the keys of records, which ranks fetch as they do those of engines.
    """
    recipe, config = run.recipe, run.model.to_hf()
    longest = min(recipe.max_tokens, config["max_position_embeddings"] - 1)
    prompt = min(PROMPT, config["max_position_embeddings"] - longest)
    groups, each = -(-run.cluster.trainers // recipe.generations_per_prompt), recipe.generations_per_prompt
    rng = np.random.default_rng(run.seed)
    tokens = prompt + longest
    keys: list[HeldRecord | None] = [None] * (groups * each)
    if recipe.router_replay:
        keys = [*hold([made_up_record(config, tokens, rng) for _ in keys])]

    def one(group: int, number: int) -> Rollout:
        ids = rng.integers(config["vocab_size"], size=tokens, dtype=np.int32)
        return Rollout(
            prompt_id=f"made up/{group}",
            task=run.tasks[0].name,
            prompt_ids=ids[:prompt],
            completion_ids=ids[prompt:],
            logprobs_T=np.full(longest, -np.log(config["vocab_size"]), np.float32),
            forced_T=np.zeros(longest, bool),
            spans=((0, 0, longest),),
            reward=float(number % 2),
            outcome="passed" if number % 2 else "failed",
            routed_TLK=keys[group * each + number],
        )

    made = [[one(group, number) for number in range(each)] for group in range(groups)]
    sequences, metrics = plan_step(made, recipe, 0)
    records = [one.routed_TLK for one in in_loss(made, recipe) if is_held(one.routed_TLK)]
    return Step(sequences, StepLoss(recipe.loss), metrics, len(keys), len(keys) * longest, [], [*records])


def made_up_record(config: dict[str, Any], tokens: int, rng: np.random.Generator) -> np.ndarray:
    """A record of random experts, as engines hand it out.

    Args:
        config: of the model, as Hugging Face writes it.
        tokens: T, of a prompt and its completion.
        rng: draws the experts.

    Returns:
        int16 [T, L, K]: for every token but the last one K different experts of each layer that has experts.
    """
    model = architecture(config)
    experts, chosen = model.fields["num_moe_experts"], model.fields["moe_router_topk"]
    record_TLK = np.full((tokens, len(model.layers), chosen), NOT_RECORDED, np.int16)
    for layer, plan in enumerate(model.layers):
        if plan.experts:
            first_T1 = rng.integers(experts, size=(tokens - 1, 1))
            record_TLK[:-1, layer] = (first_T1 + np.arange(chosen)) % experts
    return record_TLK
