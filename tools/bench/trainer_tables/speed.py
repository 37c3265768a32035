"""Tokens per second of a training step against transformers' own model: same weights, batches and loss, one thread.

transformers' side is what one writes with it: sequences padded to the longest, one forward and backward pass, torch's
clipping and fused AdamW. Both sides take turns, step by step, in one process, so that the machine's load hits both.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
import transformers

from moe.model.families import Llama, Llama4Text, Model, Qwen3Moe
from moe.sequences import TrainingSequence
from moe.settings import OptimizerConfig, TrainerSetup
from moe.train.trainer import Trainer
from tests.helpers.moe_models import rendezvous, weighted

MODELS: dict[str, Model] = {"Llama": Llama(), "Qwen3-MoE": Qwen3Moe(), "Llama-4": Llama4Text()}
LENGTHS = {"all 128 tokens": (128, 128), "16 to 128 tokens": (16, 128)}
SEQUENCES, STEPS = 32, 12
OPTIMIZER = OptimizerConfig(lr=1e-4, warmup_steps=0)


def lines() -> Iterator[str]:
    """The table, one row for every model and kind of batch."""
    torch.set_num_threads(1)
    yield f"Medians of {STEPS} steps of {SEQUENCES} sequences; tokens without padding, per second of CPU time."
    yield ""
    yield "| model | parameters | sequences | trainer | transformers | ratio | losses differ by |"
    yield "|---|---|---|---|---|---|---|"
    for name, model in MODELS.items():
        for kind, (shortest, longest) in LENGTHS.items():
            ours, theirs, gap, size = _race(model, shortest, longest)
            rates = f"{ours:.0f} | {theirs:.0f} | {ours / theirs:.2f}"
            yield f"| {name} | {size / 1e6:.1f}M | {kind} | {rates} | {gap:.0e} |"


def _race(model: Model, shortest: int, longest: int) -> tuple[float, float, float, int]:
    """Tokens per second of both sides, the first loss's relative difference, and the number of parameters."""
    rng = np.random.default_rng(0)
    batches = [
        [_sequence(rng, model.vocab_size, shortest, longest) for _ in range(SEQUENCES)] for _ in range(STEPS + 2)
    ]
    trainer = Trainer(model.to_hf(), TrainerSetup(optimizer=OPTIMIZER), rendezvous=rendezvous())
    with tempfile.TemporaryDirectory() as folder:
        trainer.save_hf(folder)
        plain = _Plain(folder)
    try:
        told = [
            (_timed(lambda batch: trainer.train_step(batch, weighted).loss, batch), _timed(plain.step, batch))
            for batch in batches
        ]
    finally:
        trainer.close()
    (_, first), (_, other) = told[0]
    tokens = [sum(len(sequence) for sequence in batch) for batch in batches]
    ours, theirs = (statistics.median(n / turns[side][0] for n, turns in zip(tokens[2:], told[2:])) for side in (0, 1))
    return ours, theirs, abs(first / other - 1), sum(p.numel() for p in plain.model.parameters())


def _sequence(rng: np.random.Generator, vocabulary: int, shortest: int, longest: int) -> TrainingSequence:
    length = int(rng.integers(shortest, longest + 1))
    weight_T = rng.normal(size=length).astype(np.float32) / 100
    weight_T[0] = 0
    return TrainingSequence(rng.integers(0, vocabulary, length, dtype=np.int32), {"weight": weight_T})


def _timed(step: Callable[[list[TrainingSequence]], float], batch: list[TrainingSequence]) -> tuple[float, float]:
    """CPU seconds of a step, and its loss."""
    started = time.process_time()
    loss = step(batch)
    return time.process_time() - started, loss


class _Plain:
    """transformers' model with torch's optimiser."""

    def __init__(self, folder: str) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
        groups = [
            {
                "params": [p for p in self.model.parameters() if (p.dim() > 1) == decays],
                "weight_decay": OPTIMIZER.weight_decay * decays,
            }
            for decays in (True, False)
        ]
        self.adam = torch.optim.AdamW(groups, OPTIMIZER.lr, OPTIMIZER.betas, OPTIMIZER.eps, fused=True)

    def step(self, sequences: list[TrainingSequence]) -> float:
        """One optimiser step on a padded batch."""
        longest = max(len(sequence) for sequence in sequences)
        shape = (len(sequences), longest)
        tokens, held, weight = torch.zeros(shape, dtype=torch.long), torch.zeros(shape), torch.zeros(shape)
        for row, sequence in enumerate(sequences):
            tokens[row, : len(sequence)] = torch.from_numpy(sequence.tokens_T)
            weight[row, : len(sequence)] = torch.from_numpy(sequence.extras["weight"])
            held[row, : len(sequence)] = 1
        logits = self.model(input_ids=tokens, attention_mask=held, use_cache=False).logits
        logp = logits[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2)
        loss = -(logp * weight[:, 1:]).sum()
        self.adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), OPTIMIZER.clip_grad)
        self.adam.step()
        return loss.item()
