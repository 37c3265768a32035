"""Products of bfloat16 matrices on processors without instructions for them: computed in fp32, rounded at the end.

torch 2.13.0 multiplies bfloat16 matrices with oneDNN if the processor has AVX-512. Otherwise it takes a plain loop,
which was 15 times as slow as this (600 × 128 times 128 × 512, AVX2, one core). Both sum up in fp32.
"""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import torch
from torch import Tensor

from moe.cpu.portable import portable


def needed() -> bool:
    """True if torch would multiply bfloat16 matrices with the plain loop here, or by whatever this processor has."""
    return portable() or not torch.ops.mkldnn._is_mkldnn_bf16_supported()


@cache
def install() -> None:
    """Replace torch's products of matrices on the CPU, in this process, if that is needed.

    Other types than bfloat16 stay the same, unless arithmetic is to be portable.

    Engine and trainer both call it. A replacement at torch's dispatcher is the one place that serves the linear layers
    of Megatron and of vLLM, forward and backward.
    """
    if not needed():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that torch's own product is replaced
        for name, replacement in (PORTABLE if portable() else PRODUCTS).items():
            _LIBRARY.impl(name, replacement, "CPU")


_LIBRARY = torch.library.Library("aten", "IMPL")  # what is registered lives as long as this object
_ATEN = torch.ops.aten  # the forms with `out` are operators of their own, which are not replaced


def _mm(a: Tensor, b: Tensor) -> Tensor:
    wide, dtype = _wide(a), a.dtype
    return _ATEN.mm.out(wide, _wide(b), out=wide.new_empty(a.shape[0], b.shape[1])).to(dtype)


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    wide, dtype = _wide(a), a.dtype
    return _ATEN.bmm.out(wide, _wide(b), out=wide.new_empty(a.shape[0], a.shape[1], b.shape[2])).to(dtype)


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    wide, dtype = _wide(a), a.dtype
    out = wide.new_empty(a.shape[0], b.shape[1])
    return _ATEN.addmm.out(_wide(c), wide, _wide(b), beta=beta, alpha=alpha, out=out).to(dtype)


def _baddbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    wide, dtype = _wide(a), a.dtype
    out = wide.new_empty(a.shape[0], a.shape[1], b.shape[2])
    return _ATEN.baddbmm.out(_wide(c), wide, _wide(b), beta=beta, alpha=alpha, out=out).to(dtype)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype is torch.bfloat16 else x


PRODUCTS = {"mm": _mm, "bmm": _bmm, "addmm": _addmm, "baddbmm": _baddbmm}
"""Replacements of torch's operators, by name."""


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Product of two matrices or of two stacks of them, in fp32 by numpy's OpenBLAS, and rounded to their type."""
    wide = np.matmul(a.float().numpy(force=True), b.float().numpy(force=True))
    return torch.from_numpy(wide).to(a.dtype)


def _added(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """β c + α a b, in fp32 and rounded at the end."""
    return (c.float() * beta + _product(a.float(), b.float()) * alpha).to(a.dtype)


PORTABLE = {"mm": _product, "bmm": _product, "addmm": _added, "baddbmm": _added}
"""Replacements that give the same bytes on processors of several kinds, by name."""
