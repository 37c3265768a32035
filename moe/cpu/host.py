"""Run Megatron on a host without CUDA: all replacements of what it expects of a GPU, in this one place.

megatron-core 0.16.1 names CUDA in places that have nothing to do with kernels: ``torch.cuda.current_device()``
for the device of buffers, ``device="cuda"`` for scalar tensors in the optimiser and the schedules,
``Tensor.type()`` compared with ``"torch.cuda.FloatTensor"`` when parameters are sorted by type, streams
around copies that are already on the host, pinned memory, and the CUDA random state around recomputation.
`megatron()` answers those with the CPU for as long as it is entered, and puts everything back afterwards.
With CUDA it only says whether Transformer Engine is installed, where Megatron takes that for granted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


class _Stream:
    """A stand-in for a CUDA stream: host code runs in order, so waits return at once."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def wait_stream(self, *args: object) -> None: ...

    def wait_event(self, *args: object) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, *args: object) -> _Event:
        return _Event()


class _Event:
    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def record(self, *args: object) -> None: ...

    def wait(self, *args: object) -> None: ...

    def synchronize(self) -> None: ...


def _is_cuda(device: object) -> bool:
    return str(device).startswith("cuda")


class _CudaMeansCpu(TorchFunctionMode):
    """Read ``device="cuda"`` as the CPU, and report CPU tensors' types as the CUDA types Megatron expects."""

    # It sees every call, which costs 2 to 3 % of a miniature's training step. Replacing the functions themselves costs
    # less, but torch keeps them in a set (`torch.utils._device`): ``torch.device("meta")`` would not know the others.

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            name = func(*args)
            return name if ".cuda." in name else name.replace("torch.", "torch.cuda.", 1)
        if kwargs and _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        if kwargs and kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)


@contextlib.contextmanager
def replaced(owner: object, **attributes: object) -> Iterator[None]:
    """Set attributes of a module while this is entered."""
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextlib.contextmanager
def _on_cpu() -> Iterator[None]:
    from megatron.core.tensor_parallel import random as megatron_random

    stream = _Stream()
    cuda = {
        "current_device": lambda: _CPU,
        "current_stream": lambda *args: stream,
        "default_stream": lambda *args: stream,
        "synchronize": lambda *args: None,
        "stream": lambda *args: contextlib.nullcontext(),
        "Stream": _Stream,
        "Event": _Event,
    }
    random = {
        "_get_cuda_rng_state": lambda *args, **kwargs: torch.empty(0, dtype=torch.uint8),
        "_set_cuda_rng_state": lambda *args, **kwargs: None,
    }
    with replaced(torch.cuda, **cuda), replaced(megatron_random, **random), _CudaMeansCpu():
        yield


@contextlib.contextmanager
def megatron() -> Iterator[None]:
    """Let megatron-core be built, run and saved on this host while this is entered; may be nested."""
    from megatron.core.extensions.transformer_engine import HAVE_TE
    from megatron.core.transformer import multi_latent_attention

    # that module takes Transformer Engine for installed wherever Megatron's own wrapper of it can be imported
    host = contextlib.nullcontext() if torch.cuda.is_available() else _on_cpu()
    with replaced(multi_latent_attention, HAVE_TE=HAVE_TE), host:
        yield
