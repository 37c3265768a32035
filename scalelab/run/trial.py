"""An optimiser step on made-up completions, tried before a run's first evaluation costs anything."""

from __future__ import annotations

import numpy as np

from scalelab.recipe.step import StepLoss, plan_step
from scalelab.recipe.types import Rollout
from scalelab.run.config import Run
from scalelab.run.work import Step

PROMPT = 64
"""Tokens of a made-up prompt, where the model has room for so many."""


def made_up_step(run: Run) -> Step:
    """An optimiser step on groups of the longest completions that the run allows, at least one for each trainer rank.

    Their tokens are random, and every other one of a group has passed, so that none is left out.
    """
    recipe, config = run.recipe, run.model.to_hf()
    longest = min(recipe.max_tokens, config["max_position_embeddings"] - 1)
    prompt = min(PROMPT, config["max_position_embeddings"] - longest)
    groups = -(-run.cluster.trainers // recipe.generations_per_prompt)
    rng = np.random.default_rng(run.seed)

    def one(group: int, number: int) -> Rollout:
        tokens = rng.integers(config["vocab_size"], size=prompt + longest, dtype=np.int32)
        return Rollout(
            prompt_id=f"made up/{group}",
            task=run.tasks[0].name,
            prompt_ids=tokens[:prompt],
            completion_ids=tokens[prompt:],
            logprobs_T=np.full(longest, -np.log(config["vocab_size"]), np.float32),
            forced_T=np.zeros(longest, bool),
            spans=((0, 0, longest),),
            reward=float(number % 2),
            outcome="passed" if number % 2 else "failed",
        )

    made = [[one(group, number) for number in range(recipe.generations_per_prompt)] for group in range(groups)]
    sequences, metrics = plan_step(made, recipe, 0)
    count = groups * recipe.generations_per_prompt
    return Step(sequences, StepLoss(recipe.loss), metrics, count, count * longest, [])
