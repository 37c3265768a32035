"""2N steps at once against N steps, a save in the background, a load at another layout, and N steps more.

Run as a module, this file is one rank: ``python -m tools.bench.trainer_tables.resume RANK WORLD FOLDER``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from moe.settings import Layout
from moe.train.trainer import Trainer
from tests.helpers.moe_models import batch, trainer, weighted, weights
from tests.helpers.moe_ranks import MODELS, Case, spawn

N = 3
CASES = (
    Case("Llama", Layout(tensor=2)),
    Case("Llama", Layout(pipeline=2)),
    Case("Llama", Layout(context=2)),
    Case("Llama-4"),
    Case("Llama-4", Layout(expert=2)),
    Case("Llama-4", Layout(pipeline=2)),
    Case("Qwen3-MoE", Layout(tensor=2, expert_tensor=2)),
)


def lines() -> Iterator[str]:
    """The table, one row for every layout that a checkpoint of one process goes on at, and back."""
    yield f"N = {N} steps. Differences are largest over all tensors, relative to how far the 2N steps moved them."
    yield ""
    yield "| first N steps | next N steps | loss of the last step | weights | loaded back by one process |"
    yield "|---|---|---|---|---|"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        straight = {model: _straight(model, folder) for model in dict.fromkeys(case.model for case in CASES)}
        ranks = spawn(2, folder, "tools.bench.trainer_tables.resume", deadline=1800)
        for case in CASES:
            start, whole = straight[case.model]
            ends = [rank[case.name] for rank in ranks]
            loss = max(abs(end["loss"] / whole["loss"] - 1) for end in ends)
            weight = max(_distance(start, whole["weights"], end["weights"]) for end in ends)
            back = trainer(MODELS[case.model])
            back.load(folder / f"after {case.name}")
            same = all(torch.equal(tensor, ends[0]["weights"][key]) for key, tensor in back.export_weights())
            back.close()
            told = f"{loss:.1e} | {weight:.1e} | {'bit for bit' if same else 'DIFFERS'}"
            yield f"| 1 process | {case.name} | {told} |"


def _straight(model: str, folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Weights at the start, and what 2N steps come to; the checkpoint at N is written while training goes on."""
    one = trainer(MODELS[model])
    start = weights(one)
    for step in range(N):
        one.train_step(batch(step), weighted)
    one.save(folder / model, background=True)
    end = _end(one)
    one.close()
    return start, end


def _end(one: Trainer) -> dict[str, Any]:
    """Loss and weights after the second N steps."""
    losses = [one.train_step(batch(step), weighted).loss for step in range(N, 2 * N)]
    return {"loss": losses[-1], "weights": weights(one)}


def _distance(start: dict[str, torch.Tensor], a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(((b[name] - a[name]).norm() / (a[name] - start[name]).norm()).item() for name in a)


def main(rank: int, world: int, folder: Path) -> None:
    """One rank: the second half of every case."""
    told = {}
    for number, case in enumerate(CASES):
        one = trainer(MODELS[case.model], rank, world, f"file://{folder}/{number}", layout=case.layout, seed=7)
        one.load(folder / case.model)
        told[case.name] = _end(one)
        one.save(folder / f"after {case.name}")
        one.close()
    torch.save(told, folder / f"rank{rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
