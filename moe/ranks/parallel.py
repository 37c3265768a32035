"""The ranks of one trainer: process group and Megatron's model-parallel groups, with a deadline on every wait."""

from __future__ import annotations

import contextlib
import datetime
import resource
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from moe.cpu import host as cpu_host
from moe.cpu.groups import shared_when_alone
from moe.errors import MoeError
from moe.model.packing import Share
from moe.ranks.meeting import meet
from moe.settings import Layout


def check_device(device: str) -> None:
    """Refuse to train on another device than the one that was asked for.

    Args:
        device: "cpu", "gpu", or "auto" for what there is.

    Raises:
        MoeError: saying what is in the way.
    """
    there = torch.cuda.is_available()
    if device == "gpu" and not there:
        raise MoeError(
            f"this rank is to train on a GPU, and {_why_no_cuda()}; or bind Cluster.device = 'cpu' to train on cores"
        )
    if device == "cpu" and there:
        raise MoeError("this rank is to train on a CPU, and CUDA sees a GPU: hide it with CUDA_VISIBLE_DEVICES=''")


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA: install the GPU packages (make install-gpu)"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f"CUDA does not start ({str(error).splitlines()[0]}): look at nvidia-smi and CUDA_VISIBLE_DEVICES"
    return "CUDA sees none: look at nvidia-smi and CUDA_VISIBLE_DEVICES"


def join(layout: Layout, rank: int, world: int, rendezvous: str | None, deadline: float) -> None:
    """Meet the other ranks and form Megatron's groups; one trainer per process at a time.

    Args:
        layout: how the model is cut, see `moe.train.layout.check_layout`.
        rank: this process, 0 … world − 1.
        world: number of trainer processes.
        rendezvous: ``tcp://host:port`` (rank 0 listens there alone) or ``file:///path`` on a shared disk; another one
            for every meeting, for a rank that comes early to the next would meet the last one's remains. None shares
            the process group of one that this process has already (an inference engine's), and leaves it alone.
        deadline: seconds to wait for the other ranks, here and in every collective operation.

    Raises:
        MoeError: if the others do not come in time.
    """
    if rendezvous is None:
        if world > 1 or not dist.is_initialized() or dist.get_world_size() > 1:
            raise MoeError("only one rank alone can share this process's group: name a rendezvous")
        _form_groups(layout, deadline)
        return
    if dist.is_initialized():
        raise MoeError("this process already holds a trainer; close() it before making another")
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    try:
        dist.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo",
            store=meet(rendezvous, rank, world, deadline),
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=deadline),
        )
    except (RuntimeError, dist.DistError) as error:
        raise MoeError(
            f"rank {rank} of {world} did not meet the others at {rendezvous} within {deadline:.0f} s: {error}"
        ) from error
    _form_groups(layout, deadline)


def _form_groups(layout: Layout, deadline: float) -> None:
    """Form Megatron's groups within torch's process group."""
    with cpu_host.megatron(), shared_when_alone():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tensor,
            pipeline_model_parallel_size=layout.pipeline,
            context_parallel_size=layout.context,
            expert_model_parallel_size=layout.expert,
            expert_tensor_parallel_size=layout.expert_tensor,
            distributed_timeout_minutes=max(1, round(deadline / 60)),
        )
        # no dropout anywhere, so that no per-rank random streams are needed
        tensor_parallel.random.initialize_rng_tracker(inference_rng_tracker=True)


def share_of_row() -> Share:
    """The stretch of every packed row that this rank holds."""
    return Share(
        parallel_state.get_context_parallel_rank(),
        parallel_state.get_context_parallel_world_size(),
        parallel_state.get_tensor_model_parallel_world_size(),
    )


def from_last_stage(value: Any) -> Any:
    """A picklable value of the last pipeline stage, on every stage; collective."""
    if parallel_state.get_pipeline_model_parallel_world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(
        box, parallel_state.get_pipeline_model_parallel_last_rank(), parallel_state.get_pipeline_model_parallel_group()
    )
    return box[0]


def most_memory(device: torch.device) -> int:
    """Find the most bytes that any rank has held so far: of its GPU, or of its process on a CPU; collective."""
    if device.type == "cuda":
        held = torch.cuda.max_memory_allocated(device)
    else:
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    most = torch.tensor(held, dtype=torch.int64, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most)


@contextlib.contextmanager
def one_does(what: str) -> Iterator[bool]:
    """Enter a block in which rank 0 alone acts; yields True on rank 0.

    Raises:
        MoeError: on every rank, after the block, if rank 0 met an `OSError` in it.
    """
    message: list[str | None] = [None]
    try:
        yield dist.get_rank() == 0
    except OSError as error:
        message = [f"cannot {what}: {error}"]
    dist.broadcast_object_list(message, src=0)
    if message[0] is not None:
        raise MoeError(message[0])


def leave(shared: bool = False) -> None:
    """Dissolve Megatron's groups, and torch's process group unless it is shared."""
    parallel_state.destroy_model_parallel()
    if dist.is_initialized() and not shared:
        dist.destroy_process_group()
