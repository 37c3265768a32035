"""Processor time of a token in the engine, and of an optimiser step, each alone on one core.

    OMP_NUM_THREADS=1 python -m tools.bench.sides [--experiment study/scalerl] [--sequences 1024] [--steps 8]

Both start from the base model that comes with the lab. To compare two versions, start them in turn. Nothing is
asserted: the lines are the result.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from moe.sequences import TrainingSequence
from moe.train.trainer import Trainer
from scalelab.experiment import resolve
from scalelab.rollout.engine import Engine, Output
from scalelab.rollout.interruption import Phrases
from scalelab.rollout.tokenizer import load_tokenizer
from scalelab.rollout.types import Request
from scalelab.run.config import Run
from scalelab.start.base_model import SHIPPED


def engine_line(run: Run, base: Path, sequences: int) -> str:
    """Decode so many sequences side by side, four of each prompt, half of them to be interrupted."""
    tokenizer = load_tokenizer(base)
    config = replace(run.generator_setup, max_sequences=sequences, kv_cache_gib=1.0)
    engine = Engine(base, config, Phrases((10, 11, 12), ()))
    for number in range(sequences):
        prompt = tuple(tokenizer.encode(f"Compute 3 + 4 - 5 + 6 = ? and then say {number // 4}"))
        cut = 70 if number % 8 < 4 else None
        engine.add(Request(str(number), prompt, run.recipe.max_tokens, seed=number, interrupt_at=cut))
    began = time.process_time()
    done: list[Output] = []
    while len(done) < sequences:
        done += engine.step()
    seconds, tokens = time.process_time() - began, sum(len(one.token_ids) for one in done)
    engine.close()
    return f"engine: {1e6 * seconds / tokens:.1f} µs a token, {tokens} tokens of {sequences} sequences"


def trainer_line(run: Run, base: Path, steps: int) -> str:
    """Take optimiser steps on 128 sequences of 60 to 119 tokens."""
    trainer = Trainer(run.model.to_hf(), run.trainer_setup, weights=str(base))
    stream = np.random.default_rng(0)
    sequences = [TrainingSequence(stream.integers(5, 300, int(size))) for size in stream.integers(60, 120, 128)]
    seconds = []
    for _ in range(steps + 2):
        began = time.process_time()
        tokens = trainer.train_step(sequences, _likelihood).tokens
        seconds.append(time.process_time() - began)
    trainer.close()
    return f"trainer: {median(seconds[2:]):.3f} s a step, at best {min(seconds[2:]):.3f}, of {tokens} tokens"


def _likelihood(logprobs_T: Tensor, entropy_T: Tensor, extras: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    return -1e-3 * logprobs_T.sum(), {}


def main() -> None:
    """Print a line for each side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="study/scalerl", help="whose base model comes with the lab")
    parser.add_argument("--sequences", type=int, default=1024, help="decoded side by side")
    parser.add_argument("--steps", type=int, default=8, help="optimiser steps after two that warm up")
    given = parser.parse_args()
    torch.set_num_threads(1)
    run, base = resolve(given.experiment).run, SHIPPED / given.experiment.split("/")[0]
    print(engine_line(run, base, given.sequences), flush=True)
    print(trainer_line(run, base, given.steps), flush=True)


if __name__ == "__main__":
    main()
