"""Graded groups and the steps that one or several trainer ranks take on them; run as a module, one of the ranks."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from moe.settings import Layout
from moe.train.trainer import Trainer
from scalelab.recipe.losses import CISPO, DAPO, GRPO, GSPO
from scalelab.recipe.recipe import Recipe
from scalelab.recipe.step import StepLoss, summarise
from scalelab.recipe.types import Rollout
from tests.helpers.moe_models import MOE, trainer
from tests.helpers.recipe_step import build_step

RECIPE = Recipe(generations_per_prompt=4)
LOSSES = (CISPO(1.2), DAPO(), GRPO(), GSPO(0.05, 0.05))


def make_groups() -> list[list[Rollout]]:
    """Groups whose log-probs are still missing (zero)."""
    rng = np.random.default_rng(0)

    def rollout(prompt: int, reward: float) -> Rollout:
        tokens = int(rng.integers(1, 40))
        return Rollout(
            prompt_id=f"prompt{prompt}",
            task="math",
            prompt_ids=rng.integers(3, MOE.vocab_size, 5),
            completion_ids=rng.integers(3, MOE.vocab_size, tokens),
            logprobs_T=np.zeros(tokens, dtype=np.float32),
            forced_T=rng.random(tokens) < 0.1,
            spans=((0, 0, tokens),),
            reward=reward,
            outcome="passed" if reward else "failed",
        )

    return [[rollout(prompt, reward) for reward in (1.0, 0.0, 0.0, 1.0)] for prompt in range(6)]


def with_logprobs(groups: list[list[Rollout]], model: Trainer, noise: float) -> list[list[Rollout]]:
    """Give the rollouts the trainer's own log-probs, plus some noise."""
    rng = np.random.default_rng(1)
    rollouts = [rollout for group in groups for rollout in group]
    sequences, _ = build_step(groups, RECIPE, 0)
    logprobs = iter(model.logprobs(sequences))
    filled = iter(
        replace(r, logprobs_T=next(logprobs)[len(r.prompt_ids) :] + noise * rng.normal(size=len(r.completion_ids)))
        for r in rollouts
    )
    return [[next(filled) for _ in group] for group in groups]


def steps(model: Trainer, reverse: bool = False) -> list[tuple[float, float, dict[str, float | None]]]:
    """Loss, gradient norm and figures of a step of every loss on noisy groups, without moving the weights."""
    groups = with_logprobs(make_groups(), model, 0.3)
    sequences, _ = build_step(groups[::-1] if reverse else groups, RECIPE, 0)
    results = [model.train_step(sequences, StepLoss(loss), lr=0.0) for loss in LOSSES]
    return [(result.loss, result.grad_norm, summarise(result.metrics)) for result in results]


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    ranks = trainer(MOE, rank, 2, f"file://{folder}/meeting", layout=Layout(context=2), tokens_per_micro_batch=128)
    (folder / f"rank{rank}.pkl").write_bytes(pickle.dumps(steps(ranks)))
    ranks.close()
