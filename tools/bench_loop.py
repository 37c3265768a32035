"""Speed of the whole loop, beside what its two sides do alone, in one process run.

    .venv/bin/python tools/bench_loop.py                # the quickstart's model and tasks
    .venv/bin/python tools/bench_loop.py --against-trl  # a 1.05M dense Llama, 16 × 8 completions of 64 tokens

Three measurements with the same actors: the loop in steady state; the generator alone on the prompts of those steps;
the trainer alone on the batches of those steps. With `--against-trl` (and `trl` installed), TRL's GRPOTrainer follows
with CISPO, no KL, the same shape and batch. Nothing is asserted: the table is the result.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from moe.model.config import Llama
from scalelab.experiment import resolve
from scalelab.rollout.tokenizer import build_tokenizer, load_tokenizer
from scalelab.rollout.types import Completion
from scalelab.run.base_model import base_model
from scalelab.run.cluster.actors import start_ray
from scalelab.run.cluster.waiting import wait_for
from scalelab.run.config import Run
from scalelab.run.driver import Driver
from scalelab.run.folder import RunFolder, read_lines
from scalelab.run.generators import Generators
from scalelab.run.progress import Progress
from scalelab.run.session import phrase_ids
from scalelab.run.trainers import Trainers
from scalelab.run.verifiers import Verifiers
from tasks.math.miniature import MathMiniature
from tasks.types import Prompt, Verdict, verdict

# Steps before the measurement begins: the pipeline fills, allocators and caches warm up.
WARM_UP = 8


class CoinVerifier:
    """Rewards a completion by its parity: a fixed target with variance, for models that have learnt nothing."""

    def verify(self, items: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        return [verdict("passed" if sum(text.encode()) % 2 else "failed") for _, text in items]

    def close(self) -> None:
        """Nothing to end."""


@dataclass(frozen=True)
class CoinTask(MathMiniature):
    """The miniature's prompts, rewarded by a coin."""

    def verifier(self) -> Any:
        return CoinVerifier()


class Recorder(Trainers):
    """Trainers that remember the batches they were given."""

    def __init__(self, run: Run, weights: Path) -> None:
        super().__init__(run, weights, run.cluster.trainers)
        self.batches: list[tuple[Any, Any]] = []

    def start_step(self, sequences: Any, loss: Any, lr: float | None = None) -> list[Any]:
        self.batches.append((sequences, loss))
        return super().start_step(sequences, loss, lr)


class Listener(Driver):
    """A driver that, once told to, notes when completions come in instead of grading them."""

    arrivals: list[tuple[float, int]] | None = None

    def verify(self, completions: Sequence[Completion]) -> None:
        if self.arrivals is None:
            super().verify(completions)
        else:
            now = time.monotonic()
            self.arrivals += [(now, len(completion.token_ids)) for completion in completions]


def quickstart(steps: int, sets: Sequence[str]) -> Run:
    quiet = ["Evaluation.every=100000", "Evaluation.prompts=8", "Run.checkpoint_every=100000"]
    return resolve("quickstart", [*quiet, f"Budget.steps={steps}", *sets]).run


def dense(steps: int, sets: Sequence[str]) -> Run:
    """1.05M dense parameters from scratch: completions run to their limit of 64 tokens."""
    settings = ("Recipe.length_control=None", "Recipe.max_tokens=64", "SFT.steps=0")
    run = quickstart(steps, [*settings, "GeneratorConfig.max_sequences=256", *sets])
    shape = Llama(
        vocab_size=384, hidden_size=128, num_hidden_layers=4, intermediate_size=424, max_position_embeddings=512
    )
    return replace(run, model=shape, tasks=(CoinTask(),), task_weights=None)


def measure(run: Run) -> dict[str, Any]:
    """Rates of the loop, of the generator alone and of the trainer alone."""
    folder = Path(tempfile.mkdtemp(prefix="bench_loop_"))
    start_ray(run.cluster)
    try:
        progress = Progress()
        base = base_model(run, progress.say)
        tokenizer = load_tokenizer(base)
        trainers, generators = Recorder(run, base), Generators(run, base, *phrase_ids(run, tokenizer))
        verifiers, files = Verifiers(run), RunFolder(folder / "run")
        trainers.ready()
        generators.ready()
        driver = Listener(run, files, tokenizer, trainers, generators, verifiers, progress)
        driver.train()
        steps = read_lines(folder / "run" / "metrics.jsonl")[WARM_UP:]
        alone = generate_alone(run, driver, len(steps))
        trained = train_alone(run, trainers, len(steps))
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    completions = len(steps[1:]) * run.recipe.completions_per_step
    seconds = steps[-1]["time"] - steps[0]["time"]
    tasks = [task for step in steps[1:] for task in step["tasks"].values()]
    tokens = sum(task["completions"] * task["mean_length"] for task in tasks)
    return {
        "loop": (completions / seconds, tokens / seconds),
        "generator alone": alone,
        "trainer alone": trained,
        "waits": sum(step["seconds"]["wait"] for step in steps[1:]) / seconds,
    }


def generate_alone(run: Run, driver: Listener, steps: int) -> tuple[float, float]:
    """Completions/s and tokens/s of the engines with nobody else at work, on `steps` steps' worth of prompts."""
    count = steps * run.recipe.prompts_per_step
    prompts = [run.tasks[n % len(run.tasks)].prompt(n // len(run.tasks)) for n in range(count)]
    group = run.recipe.generations_per_prompt
    requests = [r for n, prompt in enumerate(prompts) for r in driver.requests(prompt, group, "train", f"alone{n}")]
    driver.arrivals = []
    driver.generators.submit(requests)
    while len(driver.arrivals) < len(requests):
        driver.wait()
    # Without the ends, in which the engine fills and empties.
    full = driver.arrivals[run.generator.max_sequences : -run.generator.max_sequences]
    seconds = full[-1][0] - full[0][0]
    return len(full) / seconds, sum(length for _, length in full) / seconds


def train_alone(run: Run, trainers: Recorder, steps: int) -> tuple[float, float]:
    """Completions/s and tokens/s of the trainer on the loop's own last batches, handed over one after the other."""
    batches = trainers.batches[-steps:]
    began, tokens = time.monotonic(), 0
    for sequences, loss in batches:
        result = wait_for(Trainers.start_step(trainers, sequences, loss), run.cluster.stall_seconds, "a step")[0]
        tokens += result.tokens
    seconds = time.monotonic() - began
    return len(batches) * run.recipe.completions_per_step / seconds, tokens / seconds


def measure_trl(steps: int) -> float | None:
    """Completions/s of TRL's GRPOTrainer (CISPO, no KL) on the shape and batch of `dense`; None without trl."""
    try:
        from trl import GRPOConfig, GRPOTrainer
    except ImportError:
        return None
    import torch
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    task, rng = MathMiniature(), random.Random(0)
    tokenizer = build_tokenizer((p.text + text for p, text in (task.trace(n) for n in range(1000))), 384)
    model = LlamaForCausalLM(LlamaConfig.from_dict(dense(1, ()).model.to_hf()))
    prompts = Dataset.from_list([{"prompt": task.prompt(n).text} for n in range(16 * (steps + WARM_UP))])
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="bench_trl_"),
        per_device_train_batch_size=128,
        num_generations=8,
        max_completion_length=64,
        max_steps=steps + WARM_UP,
        loss_type="cispo",
        beta=0.0,
        epsilon_high=5.0,
        learning_rate=2e-4,
        logging_steps=1000,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
    )
    times: list[float] = []

    def coin(completions: list[str], **_: Any) -> list[float]:
        times.append(time.monotonic())
        return [float(rng.random() < 0.5) for _ in completions]

    GRPOTrainer(model=model, processing_class=tokenizer, reward_funcs=coin, args=config, train_dataset=prompts).train()
    measured = times[WARM_UP:]
    return (len(measured) - 1) * 128 / (measured[-1] - measured[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="optimiser steps measured")
    parser.add_argument("--against-trl", action="store_true", help="the dense shape, and TRL beside it")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="CLASS.FIELD=VALUE")
    args = parser.parse_args()
    run = (dense if args.against_trl else quickstart)(args.steps + WARM_UP, args.sets)
    rates = measure(run)
    print("\n| | completions/s | tokens/s |\n|---|---|---|")
    for name in ("loop", "generator alone", "trainer alone"):
        print(f"| {name} | {rates[name][0]:.0f} | {rates[name][1]:.0f} |")
    slower = min(rates["generator alone"][0], rates["trainer alone"][0])
    print(f"\nloop / slower side alone: {rates['loop'][0] / slower:.2f}")
    print(f"share of the time that the trainer waited for a batch: {rates['waits']:.2f}")
    if args.against_trl:
        trl = measure_trl(args.steps)
        if trl is None:
            print("TRL is not installed: `pip install trl` to compare")
        else:
            print(f"TRL's GRPOTrainer: {trl:.0f} completions/s; ours / TRL: {rates['loop'][0] / trl:.2f}")


if __name__ == "__main__":
    main()
