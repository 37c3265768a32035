"""Weight publication, the trainer's half: all weights as whole tensors in a few flat buffers, ready for the generators.

The second half reads every tensor out of the buffers into memory of its own, as an engine does with its parameters.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from moe_models import rendezvous

from moe.model.config import Llama, Llama4Text, Model
from moe.train.config import OptimizerConfig, TrainerConfig
from moe.train.trainer import Trainer

SMOL = Llama(
    vocab_size=49152,
    hidden_size=576,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    intermediate_size=1536,
    tie_word_embeddings=True,
)
"""The shape of SmolLM2-135M."""
MODELS: dict[str, Model] = {"Llama-4 miniature": Llama4Text(), "Llama 135M": SMOL}
ROUNDS = 5


def lines() -> Iterator[str]:
    """The table, one row for every model and precision."""
    torch.set_num_threads(1)
    yield f"One process, one thread, medians of {ROUNDS}, seconds of CPU time; a call is one buffer."
    yield ""
    yield "| model | type | tensors | MB | calls | seconds to publish | GB/s | seconds to read | GB/s |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, model in MODELS.items():
        for dtype in ("float32", "bfloat16"):
            config = TrainerConfig(dtype=dtype, optimizer=OptimizerConfig(warmup_steps=0))
            trainer = Trainer(model.to_hf(), config, rendezvous=rendezvous())
            try:
                yield f"| {name} | {dtype} | {_row(trainer)} |"
            finally:
                trainer.close()


def _row(trainer: Trainer) -> str:
    buckets = list(trainer.weight_buckets())
    size = sum(bucket.data.nbytes for bucket in buckets)
    publish = _median(lambda: list(trainer.weight_buckets()))
    read = _median(lambda: [tensor.clone() for bucket in buckets for _, tensor in bucket.tensors()])
    tensors = sum(len(bucket.entries) for bucket in buckets)
    rates = f"{publish:.4f} | {size / publish / 1e9:.2f} | {read:.4f} | {size / read / 1e9:.2f}"
    return f"{tensors} | {size / 1e6:.1f} | {len(buckets)} | {rates}"


def _median(action: Callable[[], Any]) -> float:
    """Seconds of the process's own work, which the load of the machine does not count into."""
    seconds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        action()
        seconds.append(time.process_time() - started)
    return statistics.median(seconds)
