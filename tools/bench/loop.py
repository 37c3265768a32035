"""Speed of the whole loop, beside what its two sides do alone, in one process run.

    .venv/bin/python tools/bench/loop.py                # the quickstart's model and tasks
    .venv/bin/python tools/bench/loop.py --against-trl  # a 1.05M dense Llama, 16 × 8 completions of 64 tokens
    .venv/bin/python tools/bench/loop.py --against-trl --bfloat16  # the same, both in bfloat16

Measurements with the same actors: the loop in steady state; the generator alone on the prompts of those steps; the
trainer alone on the batches of those steps; and the two at the same time, with no loop between them, which shows what
they take from each other on this machine. With `--against-trl` (and `trl` installed), TRL's GRPOTrainer follows with
CISPO, no KL, the same shape and batch. Nothing is asserted: the table is the result.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from watched import WatchedRun, watched

from moe.model.families import Llama
from moe.model.size import parameters
from scalelab.experiment import resolve
from scalelab.rollout.tokenizer import build_tokenizer, load_tokenizer
from scalelab.run.config import Run
from scalelab.run.work import RolloutWork
from scalelab.store.lines import read_lines
from tasks.math.miniature import MathMiniature
from tasks.types import Prompt, Verdict, verdict

# Steps before the measurement begins: the pipeline fills, allocators and caches warm up.
WARM_UP = 8

BFLOAT16 = ("TrainerConfig.dtype='bfloat16'", "GeneratorConfig.dtype='bfloat16'")

FLOPS_OF_SIDE = {"generator": 2, "trainer": 6, "loop": 8}
"""Operations for a parameter and token, attention left out (Kaplan et al., arXiv 2001.08361, §2.1)."""


def peak_flops() -> float:
    """Most fp32 operations that one core was seen to do in a second, in products of large matrices."""
    torch.set_num_threads(1)
    left, best = torch.rand(1024, 1024), 0.0
    for _ in range(20):
        began = time.perf_counter()
        left @ left
        best = max(best, 2 * 1024**3 / (time.perf_counter() - began))
    return best


class CoinVerifier:
    """Rewards a completion by its parity: a fixed target with variance, for models that have learnt nothing."""

    def verify(self, items: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        return [verdict("passed" if sum(text.encode()) % 2 else "failed") for _, text in items]

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


@dataclass(frozen=True)
class CoinTask(MathMiniature):
    """The miniature's prompts, rewarded by a coin."""

    def verifier(self) -> Any:
        return CoinVerifier()


def quickstart(steps: int, sets: Sequence[str]) -> Run:
    quiet = ["Evaluation.every=100000", "Evaluation.prompts=8", "Run.checkpoint_every=100000"]
    return resolve("quickstart", [*quiet, f"Budget.steps={steps}", *sets]).run


def dense(steps: int, sets: Sequence[str]) -> Run:
    """1.05M dense parameters from scratch: completions run to their limit of 64 tokens."""
    settings = [
        "Recipe.length_control=None",
        "Recipe.max_tokens=64",
        "SFT.steps=0",
        "GeneratorConfig.max_sequences=256",
    ]
    given = {text.partition("=")[0] for text in sets}
    run = quickstart(steps, [*(text for text in settings if text.partition("=")[0] not in given), *sets])
    shape = Llama(
        vocab_size=384, hidden_size=128, num_hidden_layers=4, intermediate_size=424, max_position_embeddings=512
    )
    return replace(run, model=shape, tasks=(CoinTask(),), task_weights=None)


def measure(run: Run) -> tuple[dict[str, tuple[float, float]], float]:
    """Measure the loop, and its two sides without it.

    Returns:
        Completions/s and tokens/s of the loop, of each side alone, and of each side beside the other; and the share of
        the loop's time that the trainer waited for a batch.
    """
    sides: dict[str, tuple[float, float]] = {}
    with watched(run) as lab:

        async def then() -> None:
            # Which queue is faster differs between models; the loop is compared with the faster.
            sides["generator alone"] = await generate_best(run, lab)
            sides["trainer alone"] = await train_once(run, lab)
            sides["generator beside"] = await beside(train_on(run, lab), generate_best(run, lab))
            sides["trainer beside"] = await beside(generate_on(run, lab), train_once(run, lab))

        lab.train(then)
        steps = read_lines(lab.world.folder.path / "metrics.jsonl")[WARM_UP:]
    completions = len(steps[1:]) * run.recipe.completions_per_step
    seconds = steps[-1]["time"] - steps[0]["time"]
    tasks = [task for step in steps[1:] for task in step["tasks"].values()]
    tokens = sum(task["completions"] * task["mean_length"] for task in tasks)
    waits = sum(step["seconds"]["wait"] for step in steps[1:]) / seconds
    return {"loop": (completions / seconds, tokens / seconds), **sides}, waits


async def beside(other: Coroutine[Any, Any, None], measured: Awaitable[tuple[float, float]]) -> tuple[float, float]:
    """The result of a measurement while something else works, too; an error of either is raised."""
    working = asyncio.create_task(other)
    try:
        return await measured
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


async def train_once(run: Run, lab: WatchedRun) -> tuple[float, float]:
    """Completions/s and tokens/s of the trainer on the measured batches, one after the other."""
    seconds, tokens, completions = await lab.train_again(run.budget.steps - WARM_UP)
    return completions / seconds, tokens / seconds


async def train_on(run: Run, lab: WatchedRun) -> None:
    """Train until cancelled."""
    while True:
        await train_once(run, lab)


async def generate_best(run: Run, lab: WatchedRun) -> tuple[float, float]:
    """The faster of the two queues."""
    return max([await generate(run, lab, "short"), await generate(run, lab, "long")])


async def generate_on(run: Run, lab: WatchedRun) -> None:
    """Generate until cancelled."""
    while True:
        await generate(run, lab, "short")


async def generate(run: Run, lab: WatchedRun, queue: Literal["short", "long"]) -> tuple[float, float]:
    """Completions/s and tokens/s of the engines with no loop around them, on as many prompts as were measured.

    Args:
        run: as it was measured.
        lab: its actors.
        queue: what waits at the engine: one filling of it, or all prompts.
    """
    engines, full = lab.world.engines, run.generator.max_sequences // run.recipe.generations_per_prompt
    work = RolloutWork(run.recipe, load_tokenizer(lab.base), run.seed, seeded=False)
    count = max((run.budget.steps - WARM_UP) * run.recipe.prompts_per_step, 4 * full)
    prompts = [run.tasks[n % len(run.tasks)].prompt(n // len(run.tasks)) for n in range(count)]
    finished: list[tuple[float, int]] = []

    room = asyncio.Semaphore(2 * full if queue == "short" else count)

    async def group(number: int, prompt: Prompt) -> None:
        async with room:
            completions = await engines.generate(work.requests(f"{queue}{number}", prompt))
        finished.append((time.monotonic(), sum(one.tokens for one in completions)))

    await asyncio.gather(*(group(*numbered) for numbered in enumerate(prompts)))
    # Without the ends, in which the engine fills and empties.
    middle = finished[full:-full]
    seconds = middle[-1][0] - middle[0][0]
    return len(middle) * run.recipe.generations_per_prompt / seconds, sum(tokens for _, tokens in middle) / seconds


def measure_trl(steps: int, bfloat16: bool) -> float | None:
    """Completions/s of TRL's GRPOTrainer (CISPO, no KL) on the shape and batch of `dense`; None without trl."""
    try:
        from trl import GRPOConfig, GRPOTrainer
    except ImportError:
        return None
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(os.cpu_count() or 1)  # it is one process: it may have all cores
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
        bf16=bfloat16,
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
    parser.add_argument("--bfloat16", action="store_true", help="both sides, and TRL, in bfloat16 in place of fp32")
    args = parser.parse_args()
    sets = [*(BFLOAT16 if args.bfloat16 else ()), *args.sets]
    run = (dense if args.against_trl else quickstart)(args.steps + WARM_UP, sets)
    peak, active = peak_flops(), parameters(run.model.to_hf()).active
    rates, waits = measure(run)
    print(f"\n| | completions/s | tokens/s | GFLOP/s | of a core's {peak / 1e9:.0f} |\n|---|---|---|---|---|")
    for name, (completions, tokens) in rates.items():
        flops = FLOPS_OF_SIDE[name.split()[0]] * active * tokens
        print(f"| {name} | {completions:.0f} | {tokens:.0f} | {flops / 1e9:.1f} | {flops / peak:.1%} |")
    if not rates["trainer alone"][0]:
        raise SystemExit('no step had anything to train on: give more prompts, or Recipe.zero_variance="keep"')
    print()
    for how in ("alone", "beside"):
        slower = min(rates[f"generator {how}"][0], rates[f"trainer {how}"][0])
        print(f"loop / slower side {how}: {rates['loop'][0] / slower:.2f}")
    print(f"share of the time that the trainer waited for a batch: {waits:.2f}")
    if args.against_trl:
        trl = measure_trl(args.steps, args.bfloat16)
        if trl is None:
            print("TRL is not installed: `pip install trl` to compare")
        else:
            print(f"TRL's GRPOTrainer: {trl:.0f} completions/s; ours / TRL: {rates['loop'][0] / trl:.2f}")


if __name__ == "__main__":
    main()
