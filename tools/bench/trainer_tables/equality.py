"""Every layout of two and four gloo processes against one process: gradients, losses, log-probabilities.

Run as a module, this file is one rank: ``python -m tools.bench.trainer_tables.equality RANK WORLD FOLDER``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moe.settings import Layout
from tests.helpers.moe_ranks import FOUR, MODELS, Case, largest_difference, probe, spawn

_DENSE = [Layout(), Layout(tensor=2), Layout(pipeline=2), Layout(context=2)]
_MOE = [
    *_DENSE,
    Layout(expert=2),
    Layout(expert_tensor=2),
    Layout(tensor=2, expert=2),
    Layout(tensor=2, expert_tensor=2),
    Layout(context=2, expert=2),
]
CASES: dict[int, tuple[Case, ...]] = {
    2: tuple(
        Case(name, layout)
        for name, model in MODELS.items()
        for layout in (_MOE if "num_experts_per_tok" in model.to_hf() else _DENSE)
    ),
    4: FOUR,
}


def lines() -> Iterator[str]:
    """The table, one row for every layout."""
    yield "| processes | model: layout | largest relative gradient difference | loss | gradient norm | log-probs |"
    yield "|---|---|---|---|---|---|"
    single = {case: probe(case) for case in {case.single_rank for cases in CASES.values() for case in cases}}
    for world, cases in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            ranks = spawn(world, Path(folder), "tools.bench.trainer_tables.equality", deadline=1800)
        for case in cases:
            yield f"| {world} | {case.name} | {_row(single[case.single_rank], [rank[case.name] for rank in ranks])} |"


def _row(single_rank: dict[str, Any], ranks: list[dict[str, Any]]) -> str:
    """The largest differences over all ranks; of loss and norm relative, of log-probabilities in nats."""
    one = single_rank["result"]
    gradient = max(largest_difference(single_rank, rank) for rank in ranks)
    loss = max(abs(rank["result"].loss / one.loss - 1) for rank in ranks)
    norm = max(abs(rank["result"].grad_norm / one.grad_norm - 1) for rank in ranks)
    logprob = max(np.abs(a - b).max() for rank in ranks for a, b in zip(single_rank["logprobs"], rank["logprobs"]))
    return " | ".join(f"{value:.1e}" for value in (gradient, loss, norm, logprob))


def main(rank: int, world: int, folder: Path) -> None:
    """One rank: everything about every case."""
    told = {case.name: probe(case, rank, world, f"file://{folder}/{i}") for i, case in enumerate(CASES[world])}
    torch.save(told, folder / f"rank{rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
