"""Weights in a few flat buffers, for publication from trainer to generator: few calls, no copies on the way.

Needs torch and NumPy only, so that a generator can read buckets without Megatron.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class BucketEntry:
    """A tensor's place in its bucket.

    Attributes:
        name: Hugging Face name.
        dtype: torch's name of the type, such as ``bfloat16``.
        shape: its shape.
        offset: first byte in the bucket.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Bucket:
    """A flat buffer and what lies in it; Ray's object store maps it without copying.

    Attributes:
        data: uint8 [bytes].
        entries: the tensors in it.
    """

    data: np.ndarray
    entries: tuple[BucketEntry, ...]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of every entry; the tensors are views of the buffer and must not be written to."""
        # a buffer out of an object store is read-only, which torch warns of; we only read
        flat = torch.frombuffer(self.data, dtype=torch.uint8) if self.data.flags.writeable else _readonly(self.data)
        for entry in self.entries:
            dtype = getattr(torch, entry.dtype)
            count = int(np.prod(entry.shape, dtype=np.int64)) * dtype.itemsize
            yield entry.name, flat[entry.offset : entry.offset + count].view(dtype).view(entry.shape)


def _readonly(data: np.ndarray) -> Tensor:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(data)


def fill(weights: Iterable[tuple[str, Tensor]], bucket_bytes: int = 256 * 2**20) -> Iterator[Bucket]:
    """Copy weights into buckets of about ``bucket_bytes``; a larger tensor makes a bucket alone."""
    held: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in weights:
        if held and size + tensor.nbytes > bucket_bytes:
            yield _bucket(held)
            held, size = [], 0
        held.append((name, tensor))
        size += tensor.nbytes
    if held:
        yield _bucket(held)


_ALIGNMENT = 16


def _bucket(held: list[tuple[str, Tensor]]) -> Bucket:
    entries: list[BucketEntry] = []
    offset = 0
    for name, tensor in held:
        entries.append(BucketEntry(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset))
        offset += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    data = np.zeros(offset, np.uint8)
    flat = torch.from_numpy(data)
    for entry, (_, tensor) in zip(entries, held):
        flat[entry.offset : entry.offset + tensor.nbytes] = tensor.contiguous().flatten().view(torch.uint8)
    return Bucket(data, tuple(entries))
