"""Cost of the recipe's mathematics in a step: filters, advantages, weights and layout on the driver, loss and
its gradient on the trainer (given the log-probs), beside the time of the whole step.

    python tools/bench/recipe.py [--seconds-per-step 0.70]

CPU time on one thread. Reference steps: 0.70 s for the miniature, the median of its trainer on one core; 608 s for the
paper's batch, which is 100,000 GPU-hours over 7,400 steps on 80 GPUs (ScaleRL §A.3). This one thread computes the loss
of the whole step; in a run every trainer rank has its share of it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from moe.sequences import TrainingSequence
from scalelab.recipe.length_control import ForcedInterruption
from scalelab.recipe.losses import LOSSES, Loss
from scalelab.recipe.recipe import Recipe
from scalelab.recipe.step import StepLoss
from scalelab.recipe.types import Rollout
from tests.helpers.recipe_step import build_step

VERSION = 100


@dataclass(frozen=True)
class TimedBatch:
    """A batch, and how long a step on it takes."""

    name: str
    recipe: Recipe
    median_tokens: int
    prompt_tokens: int
    tokens_per_micro_batch: int
    seconds_per_step: float


SETTINGS = (
    TimedBatch(
        "miniature 16×8",
        Recipe(
            prompts_per_step=16,
            generations_per_prompt=8,
            max_tokens=128,
            length_control=ForcedInterruption(earliest=80, latest=96),
        ),
        median_tokens=48,
        prompt_tokens=24,
        tokens_per_micro_batch=16_384,
        seconds_per_step=0.70,
    ),
    TimedBatch(
        "ScaleRL 48×16",
        Recipe(),
        median_tokens=5_000,
        prompt_tokens=200,
        tokens_per_micro_batch=16_384,
        seconds_per_step=608.0,
    ),
)


def synthetic_rollout(rng: np.random.Generator, setting: TimedBatch, prompt: int) -> Rollout:
    """A completion of log-normal length, half of it sampled by the previous version."""
    tokens = int(np.clip(setting.median_tokens * rng.lognormal(0.0, 0.6), 1, setting.recipe.max_tokens))
    reward = float(rng.random() < 0.4)
    return Rollout(
        prompt_id=f"prompt{prompt}",
        task="math",
        prompt_ids=rng.integers(0, 1000, setting.prompt_tokens, dtype=np.int32),
        completion_ids=rng.integers(0, 1000, tokens, dtype=np.int32),
        logprobs_T=-rng.exponential(1.0, tokens).astype(np.float32),
        forced_T=np.zeros(tokens, dtype=bool),
        spans=((VERSION - 1, 0, tokens // 2), (VERSION, tokens // 2, tokens)),
        reward=reward,
        outcome="passed" if reward else "failed",
    )


def micro_batches(sequences: list[TrainingSequence], budget: int) -> list[dict[str, torch.Tensor]]:
    """Pack the extras of consecutive sequences, up to the budget of tokens each."""
    packs: list[list[TrainingSequence]] = [[]]
    for sequence in sequences:
        if packs[-1] and sum(map(len, packs[-1])) + len(sequence) > budget:
            packs.append([])
        packs[-1].append(sequence)
    return [{key: torch.from_numpy(np.concatenate([s.extras[key] for s in p])) for key in p[0].extras} for p in packs]


def loss_and_gradient(loss: Loss, batches: list[dict[str, torch.Tensor]]) -> None:
    """Run the loss forward and backward over all micro-batches, as if log-probs had just been computed."""
    for extras in batches:
        logprobs_T = (extras["old_logprobs"] + 0.01).requires_grad_()
        value, _ = StepLoss(loss)(logprobs_T, -logprobs_T.detach(), extras)
        value.backward()


def cpu_seconds(call: Callable[[], object], repeats: int) -> float:
    """Median CPU time of a call, after one to warm up; on one thread it is wall time without the neighbours."""
    call()
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


def measure(setting: TimedBatch, repeats: int) -> dict[str, float]:
    """CPU seconds per step of each part."""
    rng, recipe = np.random.default_rng(0), setting.recipe
    groups = [
        [synthetic_rollout(rng, setting, prompt) for _ in range(recipe.generations_per_prompt)]
        for prompt in range(recipe.prompts_per_step)
    ]
    sequences, metrics = build_step(groups, recipe, VERSION)
    batches = micro_batches(sequences, setting.tokens_per_micro_batch)
    print(f"{setting.name}: {metrics['tokens_in_loss']:,} tokens in the loss, {len(batches)} micro-batch(es)")
    parts = {"build_step": cpu_seconds(lambda: build_step(groups, recipe, VERSION), repeats)}
    for loss in (made() for made in LOSSES):
        parts[f"loss {type(loss).__name__}"] = cpu_seconds(partial(loss_and_gradient, loss, batches), repeats)
    parts["build_step + loss CISPO"] = parts["build_step"] + parts["loss CISPO"]
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds-per-step", type=float, help="measured step of the miniature, instead of 0.70 s")
    parser.add_argument("--repeats", type=int, default=7, help="timed calls of which the median is shown (default 7)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    miniature, paper = SETTINGS
    if args.seconds_per_step:
        miniature = replace(miniature, seconds_per_step=args.seconds_per_step)
    for setting in (miniature, paper):
        for part, seconds in measure(setting, args.repeats).items():
            print(
                f"  {part:24} {1e3 * seconds:9.2f} ms "
                f"{1e6 * seconds / setting.recipe.completions_per_step:8.1f} µs per completion "
                f"{seconds / setting.seconds_per_step:8.3%} of a {setting.seconds_per_step:g} s step"
            )


if __name__ == "__main__":
    main()
