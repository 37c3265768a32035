"""Environment variables of a run's processes, by role; imports neither torch nor Ray.

A launcher sets what a whole node needs (`scalelab.launcher`); what one role needs and another must not have is here.
"""

from __future__ import annotations

import os
from typing import Literal

ProcessRole = Literal["trainer", "engine", "verifier"]

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables that torch's allocator reads; the first that is set counts."""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Two threads on busy cores fall to a twentieth of the speed."""
_VLLM = {
    # Read at vLLM's import. Its start-up report and its telemetry are of no use inside a run.
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # On a CPU the processes of a tensor-parallel engine are not tied to cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""Variables that a user may set otherwise where the lab starts no process of its own."""
_ALL = {
    **ONE_THREAD,
    **_VLLM,
    # glibc gives threads heaps of their own, in which tensors of changing sizes leave ever more holes.
    "MALLOC_ARENA_MAX": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
_BY_ROLE: dict[ProcessRole, dict[str, str]] = {
    "trainer": {
        # Rows differ in length from step to step, which fragments the allocator's fixed segments.
        **dict.fromkeys(ALLOCATOR, "expandable_segments:True"),
        # Megatron overlaps communication and products by their order in one hardware queue.
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        # A collective that fails ends the rank, which the run then replaces, instead of hanging.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    },
    # vLLM's custom all-reduce hands buffers of CUDA graphs to other processes (cudaIpcGetMemHandle), which the driver
    # refuses for expandable segments. A node's own setting must not reach an engine, so it is said here.
    "engine": {
        **dict.fromkeys(ALLOCATOR, "expandable_segments:False"),
        # FlashInfer's sampler cuts distributions to their likeliest tokens, which no run asks for, and vLLM would
        # compile it at an engine's start: with nvcc, on every node.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        # Else vLLM starts a worker process on a CPU, whose weights nobody could reach between two steps.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # The processes of a tensor-parallel engine are started afresh, since an engine's own has threads.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    },
    # Ray hides a node's devices from an actor that holds some, and shows all of them to one that holds none.
    "verifier": {"CUDA_VISIBLE_DEVICES": ""},
}


def import_path() -> dict[str, str]:
    """Folders of the user's own modules in this process; actors on other nodes search them, too.

    They are absolute, as actors start in other directories. An empty one is this process's directory.
    """
    if not (path := os.environ.get("PYTHONPATH")):
        return {}
    return {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))}


def environment(role: ProcessRole) -> dict[str, str]:
    """Variables of every process of a role, whatever its node has."""
    return {**_ALL, **_BY_ROLE[role], **import_path()}


def take_engine() -> None:
    """Set what an engine needs in this process, which may be no engine's own, before vLLM is imported."""
    os.environ.update(_BY_ROLE["engine"])
    for name, value in _VLLM.items():
        os.environ.setdefault(name, value)
