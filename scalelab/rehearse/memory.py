"""Device memory of a rank by kind and phase, live bytes and peak, counted from the tensors that it makes.

Every operator's results are seen as they are made and as they are let go. What kernels take inside themselves
(workspaces), the CUDA context, NCCL's buffers and fragmentation are not seen: `scalelab plan` reserves for them.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

_BLOCK = 512  # bytes to which torch's allocator rounds up
OTHER = "activations"
"""The kind of whatever was not said to be of another."""


@dataclass
class Peak:
    """The peak memory of a phase.

    Attributes:
        bytes: live at its fullest moment.
        kinds: the same by kind.
    """

    bytes: int = 0
    kinds: dict[str, int] = field(default_factory=dict)


class Memory:
    """Follow the storages of all tensors made on the device.

    Args:
        device: type of the device: "cuda", or "cpu" where fake tensors have the CPU's label.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._sizes: dict[int, tuple[str, int]] = {}  # storage → (kind, bytes)
        self._left: set[int] = set()
        self._live: Counter[str] = Counter()
        self._total = 0
        self._peaks: list[Peak] = []

    def follow(self, made: Any) -> None:
        """Follow the tensors that an operator made, as far as they are on the device."""
        for leaf in (made,) if isinstance(made, FakeTensor) else tree_leaves(made):
            if isinstance(leaf, FakeTensor) and leaf.fake_device.type == self._device:
                self._follow(leaf)

    @contextlib.contextmanager
    def phase(self) -> Iterator[Peak]:
        """Record the peak memory of a block; blocks may be nested."""
        peak = Peak(self._total, dict(self._live))
        self._peaks.append(peak)
        try:
            yield peak
        finally:
            self._peaks.remove(peak)

    def classify(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Assign tensors to a kind of memory from now on."""
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            if key in self._sizes:
                before, size = self._sizes[key]
                self._live[before] -= size
                self._live[kind] += size
                self._sizes[key] = kind, size

    def leave(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors no longer: they stand for some that are in host memory."""
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            self._forget(key)
            self._left.add(key)

    def _follow(self, tensor: FakeTensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, -(-storage.nbytes() // _BLOCK) * _BLOCK
        kind, known = self._sizes.get(key, (OTHER, None))
        if known == size or key in self._left:
            return
        if known is None:
            weakref.finalize(storage, self._forget, key).atexit = False
        self._sizes[key] = kind, size
        self._live[kind] += size - (known or 0)
        self._total += size - (known or 0)
        for peak in self._peaks:
            if self._total > peak.bytes:
                peak.bytes, peak.kinds = self._total, dict(self._live)

    def _forget(self, key: int) -> None:
        self._left.discard(key)
        kind, size = self._sizes.pop(key, (OTHER, 0))
        self._live[kind] -= size
        self._total -= size
