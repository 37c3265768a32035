"""Several processes as one trainer: the layouts to compare with one process, and what each rank does.

Run as a module, this file is one rank: ``python -m tests.helpers.moe_ranks RANK WORLD FOLDER``; `spawn` starts all.

Axes: `_T` tokens of one sequence.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallelConfig

from moe import optimizer
from moe.errors import MoeError
from moe.model.families import Model
from moe.model.head import token_logprobs
from moe.sequences import REFERENCE
from moe.settings import Layout, OptimizerConfig
from moe.train.trainer import Trainer
from moe.weights.hf_folder import FolderWeights
from moe.weights.links import EXPERT_BIAS, whole_and_first
from moe.weights.shards import Snapshot
from tests.helpers.moe_models import DENSE, MOE, QWEN2, QWEN3_MOE, batch, routed, trainer, weighted, weights

ROOT = Path(__file__).parents[2]

LLAMA = replace(DENSE, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4)
MODELS: dict[str, Model] = {
    "Llama": LLAMA,
    "Llama, tied": replace(LLAMA, tie_word_embeddings=True),
    "Llama-4": replace(MOE, num_attention_heads=4, num_key_value_heads=2),
    "Qwen2": replace(QWEN2, num_hidden_layers=4),
    "Qwen3-MoE": replace(QWEN3_MOE, num_hidden_layers=4),
}


@dataclass(frozen=True)
class Case:
    """A model under a layout; with a balancing loss, the layout must deal sequences as one process does."""

    model: str
    layout: Layout = field(default_factory=Layout)
    balance: float = 0.0
    replay: bool = False
    """Prescribe the experts of most tokens."""
    biased: bool = False
    """Choose experts by biases, too."""
    overlap: bool = False
    """Exchange gradients during the backward pass."""
    reference: bool = False
    """Let the loss see log-probabilities under the first weights."""

    @property
    def name(self) -> str:
        sizes = [f"{axis} {size}" for axis, size in asdict(self.layout).items() if size > 1]
        balanced = ["balanced"] if self.balance else []
        replayed = ["replayed"] if self.replay else []
        biased = ["biased"] if self.biased else []
        overlapped = ["overlapped"] if self.overlap else []
        seen = ["reference"] if self.reference else []
        return f"{self.model}: " + " · ".join([*sizes, *balanced, *replayed, *biased, *overlapped, *seen] or ["data"])

    @property
    def single_rank(self) -> Case:
        """The case in one process."""
        return replace(self, layout=Layout(), overlap=False)


FOUR = (
    Case("Llama, tied", Layout(tensor=2, pipeline=2), reference=True),
    Case("Llama-4", Layout(tensor=2, context=2, expert=4), balance=1.0, reference=True),
    Case("Llama-4", Layout(pipeline=2, context=2, expert=2), replay=True),
    Case("Llama-4", Layout(tensor=2, pipeline=2, expert=2), biased=True),
    Case("Qwen3-MoE", Layout(tensor=2, expert=2, expert_tensor=2), replay=True),
)
"""Layouts of four processes; the remaining factor is data parallel."""

FOUR_AT_NIGHT = (
    Case("Llama", Layout(pipeline=4)),
    Case("Qwen2", Layout(tensor=2, pipeline=2)),
    Case("Llama-4", Layout(expert=2), overlap=True),
    Case("Llama", Layout(tensor=2, context=2)),
    Case("Llama-4", Layout(expert=4)),
    Case("Llama-4", Layout(tensor=2, pipeline=2, expert=2), balance=1.0),
    Case("Qwen3-MoE", Layout(tensor=2, pipeline=2, expert_tensor=2), balance=1.0),
    Case("Qwen3-MoE", Layout(expert=2, context=2), biased=True),
)
"""Further ones, whose axes are all in others."""

CHOSEN = "cases"
"""File of the names of the cases that a test asks for."""

SCALE = 1e4
PROBE = OptimizerConfig(lr=SCALE * SCALE, eps=SCALE, weight_decay=0.0, warmup_steps=0, clip_grad=0.0)
"""AdamW whose first step is SCALE · gradient, as its ε is far above every gradient."""


def near_the_start(
    logprobs_T: torch.Tensor, entropy_T: torch.Tensor, extras: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The usual loss, and the squared distance from the log-probabilities under the first weights."""
    loss, metrics = weighted(logprobs_T, entropy_T, extras)
    apart_T = logprobs_T - extras[REFERENCE]
    return loss + apart_T.square().sum(), {
        **metrics,
        "reference_sum": extras[REFERENCE].sum(),
        "apart_max": apart_T.abs().max(),
    }


def probe(case: Case, rank: int = 0, world: int = 1, at: str | None = None) -> dict[str, Any]:
    """Everything about one training step, whole gradients included, and whether weights go out and in unchanged."""
    losses = {"balance": case.balance, "z_loss": case.balance / 10, "expert_bias": 0.25 * case.biased}
    settings = {"layout": case.layout, **losses, "optimizer": PROBE, "tokens_per_micro_batch": 60}
    settings |= {"overlap_gradients": case.overlap, "reference": case.reference}
    loss = near_the_start if case.reference else weighted
    one = trainer(MODELS[case.model], rank, world, at, **settings)
    start = weights(one)
    if case.biased:
        start = {name: uneven(tensor) if name.endswith(EXPERT_BIAS) else tensor for name, tensor in start.items()}
        one.load_weights(start)
    given = (lambda sequences: routed(sequences, MODELS[case.model])) if case.replay else list
    logprobs = one.logprobs(given(batch(99)))
    before = one.logprobs(given(batch(0)))
    result = one.train_step(given(batch(0)), loss, logprobs=True)
    moved = {name: (tensor - start[name]) / SCALE for name, tensor in one.export_weights()}
    biases = {name: moved.pop(name) * SCALE for name in list(moved) if name.endswith(EXPERT_BIAS)}
    shared, both = published(one), sent(one)
    later: dict[str, float] = {}
    if case.reference:
        one.load_weights({name: 1.25 * tensor for name, tensor in start.items()})
        later = one.train_step(given(batch(0)), loss).metrics
    one.load_weights(start)
    back = all(torch.equal(tensor, start[name]) for name, tensor in one.export_weights())
    read = read_back(one, start) if world > 1 else {}
    one.close()
    told = {"start": start, "logprobs": [*logprobs, *before], "result": result, "gradients": moved, "biases": biases}
    told["later"] = later
    return {**told, "back": back, "published": shared, "sent": both, **read}


def read_back(one: Trainer, start: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Entries that this rank reads of a folder beside those that it has to, and whether all arrive unchanged."""
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    one.save_hf(folder[0])
    dist.barrier()
    with torch.no_grad():
        for param in one.model.parameters():
            param.zero_()
    read, entries = FolderWeights.read_into, []

    def counted(self: FolderWeights, out: torch.Tensor, name: str, first: int = 0) -> None:
        entries.append(out.numel())
        read(self, out, name, first)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderWeights, "read_into", counted)
        one.load_weights(folder[0])
    arrived = all(torch.equal(tensor, start[name]) for name, tensor in one.export_weights())
    dist.barrier()
    if one.rank == 0:
        shutil.rmtree(folder[0])
    return {"read": sum(entries), "needed": sum(map(needed, one.model.parameters())), "arrived": arrived}


def needed(param: torch.Tensor) -> int:
    """Entries that a rank reads for what it holds of a parameter: whole experts, and others whole if cut by columns."""
    cut, expert = getattr(param, "tensor_model_parallel", False), param.dim() == 3
    if expert:
        return param.numel() * (parallel_state.get_expert_tensor_parallel_world_size() if cut else 1)
    columns = cut and param.partition_dim == 1
    return param.numel() * (parallel_state.get_tensor_model_parallel_world_size() if columns else 1)


def published(one: Trainer) -> bool:
    """True if all ranks publish what they export, read on their machine, on another one, and again."""
    same = []
    for version, machine in enumerate((None, "another", None)):
        segments: list[Any] = [None] * one.world
        dist.all_gather_object(segments, one.publish(version))
        snapshot = Snapshot(segments, machine=machine)
        dist.barrier()
        exported = dict(one.export_weights())
        found = dict(snapshot.weights(one.hf_config))
        same.append(exported.keys() == found.keys())
        same += [torch.equal(tensor, found[name]) for name, tensor in exported.items()]
        dist.barrier()  # nobody replaces what another still opens
        snapshot.close()
    return all(same)


ROWS = 7
"""Most rows of a vocabulary's matrix in a parcel."""


def sent(one: Trainer) -> bool:
    """True if parcels give the weights that are exported, as they were listed, on whatever ranks."""
    exported, limit = dict(one.export_weights()), ROWS * one.hf_config["hidden_size"] * 4
    for name in [name for name in exported if name.endswith("experts.gate_up_proj")]:  # [E, H, gate and up]
        stack, down = exported.pop(name), exported.pop(name.replace("gate_up", "down"))
        for number, (gate_up, back) in enumerate(zip(stack, down, strict=True)):
            gate, up = gate_up.T.chunk(2)
            parts = {"gate_proj": gate, "up_proj": up, "down_proj": back.T}
            exported |= {name.replace("gate_up_proj", f"{number}.{key}.weight"): part for key, part in parts.items()}

    parcels = [(name, tensor.clone()) for name, tensor in one.export_parcels(limit)]
    listed = [part for parcel in one.parcels(limit) for part in parcel.parts()]
    same = [[(name, tensor.shape) for name, tensor in parcels][: len(listed)] == listed]
    same += [len(tensor) <= ROWS for name, tensor in parcels if whole_and_first(name)[1] is not None]

    return all(same) and arrived(parcels, exported)


def arrived(sent: list[tuple[str, torch.Tensor]], exported: dict[str, torch.Tensor]) -> bool:
    """True if tensors, whose rows come one behind the other, are those that are exported."""
    whole: dict[str, torch.Tensor] = {}
    for name, tensor in sent:
        name, first = whole_and_first(name)
        if len(whole.get(name, ())) != (first or 0):
            return False
        whole[name] = torch.cat([whole[name], tensor]) if name in whole else tensor
    return whole.keys() == exported.keys() and all(torch.equal(whole[name], exported[name]) for name in whole)


def uneven(bias_E: torch.Tensor) -> torch.Tensor:
    """Biases that change the choice of many tokens."""
    return torch.linspace(-2, 2, len(bias_E))


def largest_difference(single_rank: dict[str, Any], together: dict[str, Any]) -> float:
    """The largest relative norm of the gradients' difference over all tensors."""
    pairs = [(together["gradients"][name], gradient) for name, gradient in single_rank["gradients"].items()]
    return max(((a - b).norm() / b.norm()).item() for a, b in pairs)


def spawn(world: int, folder: Path, module: str = "tests.helpers.moe_ranks", deadline: float = 900) -> list[Any]:
    """Run a module as every rank, and load the result that each writes to ``rankN.pt``."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", module]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world), folder], env=environment, cwd=ROOT) for rank in range(world)
    ]
    try:
        codes = [rank.wait(deadline) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0] * world
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(world)]


def vocabulary_problem() -> dict[str, torch.Tensor]:
    """Inputs of `moe.model.head.token_logprobs` and gradients of its outputs."""
    stream = torch.Generator().manual_seed(0)
    return {
        "hidden": torch.randn(13, 8, generator=stream),
        "weight": torch.randn(24, 8, generator=stream),
        "targets": torch.randint(24, (13,), generator=stream),
        "grads": torch.randn(2, 13, generator=stream),
    }


def vocabulary_share(rank: int, world: int) -> dict[str, torch.Tensor]:
    """Outputs and gradients of the head with this rank's slice of the vocabulary."""
    problem = vocabulary_problem()
    hidden = problem["hidden"].requires_grad_()
    weight = problem["weight"].chunk(world)[rank].clone().requires_grad_()
    group = torch.distributed.group.WORLD
    out = torch.stack(token_logprobs(hidden, weight, problem["targets"], chunk=4, group=group))
    out.backward(problem["grads"])
    return {"out": out.detach(), "hidden": hidden.grad, "weight": weight.grad}


OVERLAPPED = (
    Case("Llama, tied", Layout(pipeline=2), overlap=True),
    Case("Llama-4", Layout(expert=2), overlap=True),
)
"""Cases whose parameters are gathered after the step, too."""


def gathered_late(case: Case, rank: int, world: int, meetings: Iterator[str]) -> dict[str, Any]:
    """Weights and log-probabilities after two steps, with every parameter in a bucket of its own.

    Args:
        case: model and layout.
        rank: this rank.
        world: number of ranks.
        meetings: where they meet, one after the other.

    Returns:
        Log-probabilities when parameters are gathered within the step ("within"), right after it ("after"), or each
        only when a module waits for it ("lazily"): what is read without being waited for is then certainly old. For
        the first two the weights as well, and how many buckets were under way after the second step.
    """
    found: dict[str, Any] = {"logprobs": {}, "weights": {}, "under way": {}}
    for when in ("within", "after", "lazily"):
        late = {"overlap_gradients": True, "overlap_parameters": when != "within"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                optimizer, "DistributedDataParallelConfig", partial(DistributedDataParallelConfig, bucket_size=1)
            )
            one = trainer(MODELS[case.model], rank, world, next(meetings), layout=case.layout, **late)
        ddp = one.optimizer.ddp
        if when == "lazily":
            ddp.start_param_sync = lambda: None
        for step in range(2):
            one.train_step(batch(step), weighted, lr=0.1)
        groups = ddp.bucket_groups + ddp.expert_parallel_bucket_groups
        found["under way"][when] = sum(group.param_gather_handle is not None for group in groups)
        if when != "lazily":
            found["weights"][when] = weights(one)
        found["logprobs"][when] = one.logprobs(batch(2))
        one.close()
    return found


BIAS_RATE = 0.1
"""Bias rate of the trainers whose checkpoints travel."""
TRAVELS = (Layout(tensor=2, pipeline=2, expert=2), Layout(context=2, expert=2, expert_tensor=2))
"""Layouts through which a checkpoint goes, a step at each."""


def travel(layout: Layout, came: Path, goes: Path, step: int, rank: int, world: int, at: str) -> dict[str, Any]:
    """Load a checkpoint, take one step, save it elsewhere."""
    one = trainer(MODELS["Llama-4"], rank, world, at, layout=layout, seed=7, expert_bias=BIAS_RATE)
    one.load(came)
    loaded = weights(one)
    result = one.train_step(batch(step), weighted)
    one.save(goes)
    one.save_hf(goes.with_suffix(".hf"))
    told = {"loaded": loaded, "result": result, "weights": weights(one)}
    one.close()
    return told


def main(rank: int, world: int, folder: Path) -> None:
    """The work of one of several ranks; results go to the folder."""
    meetings = (f"file://{folder}/meeting{number}" for number in itertools.count())
    names = (folder / CHOSEN).read_text().splitlines()
    chosen = [case for case in (*FOUR, *FOUR_AT_NIGHT) if case.name in names]
    told: dict[str, Any] = {case.name: probe(case, rank, world, next(meetings)) for case in chosen}
    stations = [folder / "station0", folder / "station1", folder / "station2"]
    told["travels"] = [
        travel(layout, stations[i], stations[i + 1], 2 + i, rank, world, next(meetings))
        for i, layout in enumerate(TRAVELS)
    ]
    told["late"] = {case.name: gathered_late(case, rank, world, meetings) for case in OVERLAPPED}
    last = trainer(MOE, rank, world, next(meetings))
    told["vocabulary"] = vocabulary_share(rank, world)
    told["lost"] = bereaved(last, rank)
    torch.save(told, folder / f"rank{rank}.pt")


def bereaved(ranks: Any, rank: int) -> str:
    """The error of rank 0 when the others have gone."""
    if rank == 0:
        try:
            ranks.train_step(batch(0), weighted)
        except MoeError as error:
            return str(error)
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
