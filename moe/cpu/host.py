"""Run Megatron on a host without CUDA: all replacements of what it expects of a GPU, in this one place.

megatron-core 0.16.1 names CUDA in places that have nothing to do with kernels: ``torch.cuda.current_device()``
for the device of buffers, ``device="cuda"`` for scalar tensors in the optimiser and the schedules,
``Tensor.type()`` compared with ``"torch.cuda.FloatTensor"`` when parameters are sorted by type, streams
around copies that are already on the host, pinned memory, and the CUDA random state around recomputation.
`megatron()` answers those with the CPU for as long as it is entered, and puts everything back afterwards.
With CUDA it does nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

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


# Functions that Megatron gives a device by name. They are replaced one by one, since a `TorchFunctionMode` would send
# every other call of torch through Python as well: 2 to 3 % of a training step of the miniatures.
_MAKERS = (
    *("tensor", "as_tensor", "empty", "zeros", "ones", "full", "arange", "rand", "randn", "randint"),
    *("empty_like", "zeros_like", "ones_like", "full_like"),
)


def _made_on_cpu(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function of torch: it reads ``device="cuda"`` as the CPU and pins no memory."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Tensor:
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = _CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return make(*args, **kwargs)

    return made


def _type_as_on_cuda(of: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.type`, which reports CPU tensors' types as the CUDA types that Megatron expects."""

    @functools.wraps(of)
    def type_of(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        name = of(tensor, *args, **kwargs)
        if args or kwargs or ".cuda." in name:
            return name
        return name.replace("torch.", "torch.cuda.", 1)

    return type_of


@contextlib.contextmanager
def replaced(owner: object, **attributes: object) -> Iterator[None]:
    """Set attributes of a module or class while this is entered."""
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
    makers = {name: _made_on_cpu(getattr(torch, name)) for name in _MAKERS}
    methods = {
        "cuda": lambda tensor, *args, **kwargs: tensor,
        "pin_memory": lambda tensor, *args, **kwargs: tensor,
        "type": _type_as_on_cuda(Tensor.type),
    }
    with (
        replaced(torch.cuda, **cuda),
        replaced(megatron_random, **random),
        replaced(torch, **makers),
        replaced(Tensor, **methods),
    ):
        yield


def megatron() -> contextlib.AbstractContextManager[None]:
    """A context in which megatron-core can be built, run and saved on this host; may be nested."""
    return contextlib.nullcontext() if torch.cuda.is_available() else _on_cpu()
