"""Let vLLM's engines for the memory of a shared GPU run on a computer without one.

What is replaced is what CUDA alone has: streams, the current device and its name, and the handles through which one
process shows its memory to another; memory with a file descriptor is taken for these. Rank n and engine n are told
that they are on GPU n.
"""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from scalelab.cluster.trainer import TrainerRank
from tests.helpers.nccl_stand_in import MESSAGE, PARCEL, StandInEngine, Stream, run_with
from tests.helpers.rdt_stand_in import seen, shown


def stand_in(device: int) -> None:
    """Replace what is missing in a process on a GPU of this number."""
    from torch.multiprocessing import reductions
    from vllm.distributed.weight_transfer import packed_tensor

    make = torch.empty

    def empty(*args: Any, **kwargs: Any) -> torch.Tensor:
        return make(*args, **{**kwargs, "device": "cpu"} if kwargs.get("device") == "cuda" else kwargs)

    torch.empty = empty  # type: ignore[assignment]
    torch.cuda.current_stream = Stream  # type: ignore[assignment]
    torch.cuda.ipc_collect = lambda: None
    torch.cuda.synchronize = lambda device=None: None  # type: ignore[assignment]
    torch.cuda.get_device_properties = lambda index: SimpleNamespace(uuid=f"GPU-{device}")  # type: ignore[assignment]
    torch.accelerator.current_device_index = lambda: 0  # type: ignore[assignment]
    torch.accelerator.synchronize = lambda device=None: None  # type: ignore[assignment]
    packed_tensor.reduce_tensor = shown
    reductions.rebuild_cuda_tensor = seen  # type: ignore[assignment]


class StandInRank(TrainerRank):
    """A trainer rank whose memory an engine reads without a GPU."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        stand_in(args[2])
        from scalelab.transfer import broadcast, ipc

        ipc.MESSAGE, broadcast.PARCEL = MESSAGE, PARCEL


class ReadingEngine(StandInEngine):
    """An engine on GPU 0."""

    stand_in = staticmethod(partial(stand_in, 0))


class SecondReadingEngine(StandInEngine):
    """An engine on GPU 1."""

    stand_in = staticmethod(partial(stand_in, 1))


def main(arguments: list[str]) -> int:
    """Run the command line on one core, which stands for a GPU: `python -m tests.helpers.ipc_stand_in run …`."""
    return run_with([*arguments, "--set", "Cluster.share_devices=True"], "ipc", StandInRank, ReadingEngine)


if __name__ == "__main__":
    from tests.helpers import ipc_stand_in  # whose classes actors can import

    sys.exit(ipc_stand_in.main(sys.argv[1:]))
