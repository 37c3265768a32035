"""Code shared by `scalelab import` and `scalelab export`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from scalelab.commands.output import print_json

if TYPE_CHECKING:
    from moe.weights.convert import Converted


_M_MMAP_THRESHOLD = -3
"""glibc's name for the size, in bytes, from which every allocation is a mapping of its own."""


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Keep conversions in host memory, where Megatron would use a GPU; enter it before torch is imported.

    Its remarks about packages for GPUs that are not installed are left out: nobody needs them here. And memory that is
    freed goes back to the system: glibc would keep it for later, in pieces that soon are too small.
    """
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**20)
    warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        yield
    finally:  # what this process starts afterwards may use the GPUs
        if visible is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible


def tell(converted: Converted, json: bool) -> None:
    """Print a summary of a conversion."""
    if json:
        facts = asdict(converted)
        print_json({**facts, "parameters": {"total": facts.pop("parameters"), "active": facts.pop("active")}})
        return
    size = f"{converted.parameters / 1e9:.3g}B parameters"
    if converted.active != converted.parameters:
        size += f", {converted.active / 1e9:.3g}B of them active"
    tokenizer = "with its tokenizer" if converted.tokenizer else "without a tokenizer: there was none"
    print(f"{converted.path}: {converted.model_type}, {size}, {converted.dtype}, {tokenizer}")
