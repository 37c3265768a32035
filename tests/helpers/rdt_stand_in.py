"""Let vLLM's engines for sharded transfers run on a computer without a GPU, over Ray's transport and NIXL as they are.

What is replaced is what CUDA alone has: streams, events and the current device, and the handles through which a rank
shows its memory to the server beside it; memory with a file descriptor is taken for these. NIXL moves host memory
through UCX.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import nullcontext
from typing import Any

import ray
import torch
from vllm.distributed.weight_transfer import sharded_rdt_trainer

from scalelab.cluster.trainer import TrainerRank
from scalelab.transfer import engine_side as transfer
from scalelab.transfer import puller
from tests.helpers.nccl_stand_in import StandInEngine, Stream, run_with

ROUNDED_TO = 2**16
"""Bytes that a buffer is a multiple of; vLLM rounds up to 256 MiB, and a small model has many buffers."""


class Event:
    """An event that has always happened."""

    def record(self, stream: Any = None) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""


class WaitingStream(Stream):
    """A stream that may wait for an event."""

    def wait_event(self, event: Event) -> None:
        """Do nothing."""


def _rounded(nbytes: int, presize: int = 0) -> int:
    return max(presize, -(-nbytes // ROUNDED_TO) * ROUNDED_TO)


def stand_in() -> None:
    """Replace what is missing in a process of an engine."""
    from vllm.distributed.weight_transfer import sharded_rdt_engine

    torch.cuda.Stream = WaitingStream  # type: ignore[assignment,misc]
    torch.cuda.Event = Event  # type: ignore[assignment,misc]
    torch.cuda.stream = lambda stream: nullcontext()  # type: ignore[assignment]
    torch.cuda.device = lambda device: nullcontext()  # type: ignore[assignment,misc]
    torch.cuda.set_device = lambda device: None
    sharded_rdt_engine.buffer_alloc_bytes = _rounded


def shown(tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
    """In place of CUDA's handle of a storage: the descriptor of the memory that it is moved to, and whose it is.

    torch's other way, files with names, needs a process of torch's (`torch_shm_manager`), which broke off in two runs.
    """
    descriptor, size = tensor.untyped_storage()._share_fd_cpu_()
    return None, (os.getpid(), descriptor, size, 0, 0, 0, "the device's number is put here")


def seen(pid: int, descriptor: int, size: int, *_: Any) -> torch.Tensor:
    """In place of CUDA's rebuilding of a tensor from its handle."""
    opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    try:
        storage = torch.UntypedStorage._new_shared_fd_cpu(opened, size)
    finally:
        os.close(opened)
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class Server(sharded_rdt_trainer._RDTProducerServer):
    """The server beside a rank, with memory of the host's."""

    def __init__(self, **kwargs: Any) -> None:
        torch.accelerator.current_device_index = lambda: 0  # type: ignore[assignment]
        sharded_rdt_trainer.rebuild_cuda_tensor = seen
        sharded_rdt_trainer.buffer_alloc_bytes = _rounded
        super().__init__(**kwargs)
        self._serve_device = torch.device("cpu")
        self._goes_on = threading.Event()
        self._goes_on.set()

    def hold(self, hold: bool) -> None:
        """Register no memory for engines, or go on."""
        if hold:
            self._goes_on.clear()
        else:
            self._goes_on.set()

    def reserve_serve_buffer(self, *args: Any) -> None:
        """Register memory for an engine, unless this is held."""
        self._goes_on.wait()
        super().reserve_serve_buffer(*args)

    def warmup_nixl(self) -> None:
        """Make NIXL's agent."""
        self._nixl_warmup_buf = torch.zeros(2**16, dtype=torch.uint8)
        sharded_rdt_trainer.register_nixl_memory(self._nixl_warmup_buf)


class StandInRank(TrainerRank):
    """A trainer rank that sends shards without a GPU."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        torch.Tensor.cuda = lambda self: self  # type: ignore[assignment,method-assign,misc]
        sharded_rdt_trainer._RDTProducerServer = Server  # type: ignore[misc]
        sharded_rdt_trainer.reduce_tensor = shown

    def kill_server(self) -> None:
        """End the server beside this rank."""
        ray.kill(self._sender._sender._server)

    def hold_server(self, hold: bool) -> None:
        """Let the server beside this rank register no memory for engines, or let it go on."""
        ray.get(self._sender._sender._server.hold.remote(hold))


def _pulled(worker: Any) -> float:
    engine = transfer._inner(worker).weight_transfer_engine
    own = sum(form.nbytes for _, forms in engine._twin.layers for form in forms.values())
    return engine.received()[1] / (own + sum(bias_E.nbytes for bias_E in engine._biases.values()))


def _threads(worker: Any) -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def _signal_in_pull(worker: Any, number: int) -> int:
    pull, pulled = puller._Engine._complete_pull, 0

    def signalled(engine: Any, pending: Any) -> Any:
        nonlocal pulled
        pulled += 1
        if pulled == 3:
            puller._Engine._complete_pull = pull  # type: ignore[method-assign]
            os.kill(os.getpid(), number)
        return pull(engine, pending)

    puller._Engine._complete_pull = signalled  # type: ignore[method-assign]
    return os.getpid()


class ShardEngine(StandInEngine):
    """An engine that pulls shards without a GPU."""

    stand_in = staticmethod(stand_in)

    def pulled(self) -> list[float]:
        """Bytes that each process pulled for the last version, over those of its parameters and biases."""
        return self._in_workers(_pulled)

    def threads(self) -> list[list[str]]:
        """The names of the threads of each process."""
        return self._in_workers(_threads)

    def signal_in_pull(self, number: int) -> list[int]:
        """Let each process send itself a signal once, when two pulls of the next version are done; gives their ids."""
        return self._in_workers(_signal_in_pull, number)


def main(arguments: list[str]) -> int:
    """Run the command line with shards on cores: `python -m tests.helpers.rdt_stand_in run quickstart …`."""
    return run_with(arguments, "sharded_rdt", StandInRank, ShardEngine)


if __name__ == "__main__":
    from tests.helpers import rdt_stand_in  # whose classes actors can import

    sys.exit(rdt_stand_in.main(sys.argv[1:]))
