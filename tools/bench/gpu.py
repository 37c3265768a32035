"""Numbers and speed of one GPU, beside a core's numbers and the figures of `scalelab plan`.

    python -m tools.bench.gpu                      # both tables; one GPU of 80 GB, .venv of `make install-gpu`
    python -m tools.bench.gpu --only training      # or equality

`equality` takes a step of small models on a core and on the GPU, from the same weights and on the same batch.
`training` takes steps of whole layers of the 8B and of the 17Bx16. docs/trainer.md and docs/plan.md have the figures.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from moe.model.families import Llama, Llama4Text, Model
from moe.sequences import TrainingSequence
from moe.settings import OptimizerConfig, Recompute, TrainerSetup
from moe.train.trainer import Trainer
from moe.weights.links import shapes
from scalelab.environment import environment
from scalelab.experiment import resolve
from scalelab.hardware import Device, found
from scalelab.plan.memory import RESERVE, trainer_memory
from scalelab.plan.speed import Assumptions, splits_head, training_flops
from tests.helpers.moe_models import rendezvous

TABLES = ("equality", "training")


def equality() -> Iterator[str]:
    """Gradients, loss and log-probabilities of one step: a core in bf16 and the GPU, against a core in fp32."""
    with tempfile.TemporaryDirectory() as folder:
        kinds = [("core", "float32"), ("core", "bfloat16"), ("gpu", "float32"), ("gpu", "bfloat16")]
        steps = [_in_background("equality_step", f"{folder}/{at}_{dtype}", at, dtype) for at, dtype in kinds]
        for step in steps:
            step.wait(600)
        exact, *others = (torch.load(f"{folder}/{at}_{dtype}", weights_only=False) for at, dtype in kinds)
    yield "| model | on | gradients | loss | log-probs |"
    yield "|---|---|---|---|---|"
    for (at, dtype), models in zip(kinds[1:], others, strict=True):
        for name, want in exact.items():
            yield f"| {name} | {at}, {dtype} | {_differences(models[name], want)} |"


def _differences(have: dict[str, Any], want: dict[str, Any]) -> str:
    """Relative norm of all gradients' difference, of the loss, and the largest of a log-probability in nats."""
    if "error" in have:
        return f"{have['error']} | |"
    square = sum((have["gradients"][name] - g).square().sum() for name, g in want["gradients"].items())
    norm = sum(g.square().sum() for g in want["gradients"].values())
    far = max(np.abs(a - b).max() for a, b in zip(have["logprobs"], want["logprobs"], strict=True))
    return f"{(square / norm).sqrt():.1e} | {abs(have['loss'] / want['loss'] - 1):.1e} | {far:.1e}"


def equality_step(file: str, dtype: str) -> None:
    """Write the loss, log-probabilities and gradients of one step of every small model."""
    from tests.helpers.moe_models import DEEPSEEK_V3, GLM4_MOE, QWEN2, batch, routed, trainer, weighted, weights
    from tests.helpers.moe_ranks import MODELS, PROBE, SCALE

    results: dict[str, dict[str, Any]] = {}
    for name, model in {**MODELS, "Qwen2": QWEN2, "GLM-4.5": GLM4_MOE, "DeepSeek-V3": DEEPSEEK_V3}.items():
        sequences = batch(0)
        if "num_experts_per_tok" in model.to_hf():
            sequences = routed(sequences, model)  # rounding moves a token to another expert
        one = None
        try:
            one = trainer(model, dtype=dtype, optimizer=PROBE)
            start = {key: value.bfloat16().float() for key, value in weights(one).items()}
            one.load_weights(start)
            logprobs = one.logprobs(sequences)
            loss = one.train_step(sequences, weighted).loss
            moved = {key: (value.float() - start[key]) / SCALE for key, value in weights(one).items()}
            results[name] = {"loss": loss, "logprobs": logprobs, "gradients": moved}
        except Exception as error:  # the other models' lines are worth having
            results[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"}
            traceback.print_exc()
        finally:
            if one is not None:
                one.close()
    torch.save(results, file)


def training() -> Iterator[str]:
    """Rate, share of the peak and memory of training steps, each kind in a process of its own."""
    yield "| layers | recompute | tokens/s | share of the peak | plan | rest of a step, s | GiB | plan |"
    yield "|---|---|---|---|---|---|---|---|"
    for model in ("8b", "17bx16"):
        for recompute in ("none", "selective", "full"):
            with tempfile.NamedTemporaryFile() as file:
                _in_background("training_steps", file.name, "gpu", model, recompute).wait(600)
                yield Path(file.name).read_text() or f"| {model} | {recompute} | it failed | | | | | |"


def training_steps(file: str, name: str, recompute: Recompute) -> None:
    """Write a line of the table."""
    model, device, assumed = _layers(name), _device(), Assumptions()
    hf = model.to_hf()
    config = TrainerSetup(
        dtype="bfloat16", tokens_per_micro_batch=16384, recompute=recompute, optimizer=OptimizerConfig(lr=1e-6)
    )
    one = Trainer(hf, config, rendezvous=rendezvous(), weights=_noise(hf))
    stream = np.random.default_rng(0)
    # four completions fill a micro-batch; the slope over micro-batches is apart from what each step costs once
    batches = [[_sequence(stream, hf["vocab_size"]) for _ in range(4 * micro)] for micro in (1, 3)]
    seconds = [median(one.train_step(batch, _likelihood).seconds for _ in range(4)) for batch in batches]
    peak = one.train_step(batches[0], _likelihood).peak_gib
    one.close()
    slope = (seconds[1] - seconds[0]) / 2
    lengths = np.array([len(sequence) for sequence in batches[1]], float)
    tokens, square = lengths.mean(), (lengths**2).mean()
    flops = 4 * training_flops(hf, recompute, tokens, square, split_head=splits_head(config))
    wanted = trainer_memory(hf, config, 1, int(lengths.max()), gpu=True).total - RESERVE
    share = flops / slope / (device.tflops * 1e12)
    mfu = assumed.mfu if name == "8b" else assumed.expert_mfu
    layers = f"{hf['num_hidden_layers']} of {name}"
    line = f"| {layers} | {recompute} | {4 * tokens / slope:,.0f} | {share:.3f} | {mfu} | {seconds[0] - slope:.3f} |"
    Path(file).write_text(f"{line} {peak:.2f} | {wanted:.2f} |")


def _layers(name: str) -> Model:
    """A few whole layers of a model of the mission."""
    if name == "8b":
        model = resolve("h100/scalerl_8b").run.model
        assert isinstance(model, Llama)
        return replace(model, num_hidden_layers=8)
    scout = resolve("h100/scalerl_17bx16").run.model
    assert isinstance(scout, Llama4Text)
    return replace(scout, num_hidden_layers=1, vocab_size=32768)


def _device() -> Device:
    """The table's entry for this GPU."""
    return found(torch.cuda.get_device_name(), 1, 1).device


def _noise(hf_config: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Random weights, the same stretch again and again: a core takes minutes to draw billions."""
    noise = 0.02 * torch.randn(2**22, generator=torch.Generator().manual_seed(0))
    for name, shape in shapes(hf_config).items():
        count = math.prod(shape)
        yield name, noise.repeat(-(-count // len(noise)))[:count].view(shape)


def _sequence(stream: np.random.Generator, vocabulary: int) -> TrainingSequence:
    return TrainingSequence(stream.integers(0, vocabulary, 4096, dtype=np.int32))


def _likelihood(
    logprobs_T: torch.Tensor, entropy_T: torch.Tensor, extras: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return -1e-4 * logprobs_T.sum(), {}


def _in_background(task: str, file: str, at: str, *rest: str) -> subprocess.Popen[bytes]:
    """Start a function of this module in a process of its own, with the environment that a run gives a trainer."""
    role = environment("trainer")
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if at == "core" else {}
    command = [sys.executable, "-m", "tools.bench.gpu", "--task", json.dumps([task, file, *rest])]
    return subprocess.Popen(command, env={**os.environ, **role, **hidden})


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TABLES, help="one table instead of all")
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task:
        task, *arguments = given.task
        globals()[task](*arguments)
        return
    if not torch.cuda.is_available():
        parser.error("there is no GPU here")
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    for name in [given.only] if given.only else TABLES:
        print(f"\n## {name}\n", flush=True)
        for line in globals()[name]():
            print(line, flush=True)


if __name__ == "__main__":
    main()
