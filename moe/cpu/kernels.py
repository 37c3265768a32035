"""Norm, rotation, gated activation and attention on one core, each as one loop over memory, compiled by numba.

A miniature's step spends most of its time in small operators: each of torch's reads and writes a whole tensor, and a
norm takes eight of them. All sums are fp32. Arrays hold float32, or the bits of bfloat16 as uint16, rounded to the
nearest with ties to even. What is compiled is kept on disk (numba's cache), so it takes seconds once on a machine.

Axes: T packed tokens, D features (of a row or a head), I inner size of a feed-forward, H heads, K key heads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from llvmlite.binding import ffi
from numba import njit, types
from numba.extending import intrinsic


def _nothing() -> None:
    """Do nothing."""


def _keeps() -> bool:
    """True if there is a folder to keep what is compiled in: beside this file, or the user's cache."""
    try:
        njit(cache=True)(_nothing)
    except RuntimeError:
        return False
    return True


KEPT = _keeps()


def _without_special_names(lookup: Any) -> Any:
    """Let llvmlite's library have no `__dict__`: vLLM, which looks through all modules, takes a function for it."""

    def found(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lookup(self, name)

    return found


type(ffi.lib).__getattr__ = _without_special_names(type(ffi.lib).__getattr__)

_COMPILED = {"nogil": True, "cache": KEPT, "error_model": "numpy", "fastmath": {"reassoc", "nsz", "contract", "arcp"}}
_WORD = ir.IntType(32)


def arrays(*tensors: torch.Tensor) -> list[np.ndarray]:
    """Contiguous tensors as the kernels take them, without a copy where they are contiguous."""
    plain = (tensor.detach().contiguous() for tensor in tensors)
    return [(one.view(torch.uint16) if one.dtype is torch.bfloat16 else one).numpy() for one in plain]


@intrinsic
def _as_float(typing, bits):  # type: ignore[no-untyped-def]
    """The float32 of these bits."""
    return types.float32(types.uint32), lambda context, builder, _, args: builder.bitcast(args[0], ir.FloatType())


@intrinsic
def _wide(typing, value):  # type: ignore[no-untyped-def]
    """An array's value as float32."""
    if isinstance(value, types.Float):
        return types.float32(types.float32), lambda context, builder, _, args: args[0]

    def widen(context: Any, builder: Any, _: Any, args: Any) -> Any:
        return builder.bitcast(builder.shl(builder.zext(args[0], _WORD), _WORD(16)), ir.FloatType())

    return types.float32(types.uint16), widen


@intrinsic
def _narrow(typing, value, like):  # type: ignore[no-untyped-def]
    """A float32 as an array of the type of `like` holds it."""
    if isinstance(like, types.Float):
        return types.float32(types.float32, like), lambda context, builder, _, args: args[0]

    def narrow(context: Any, builder: Any, _: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], _WORD)
        odd = builder.and_(builder.lshr(bits, _WORD(16)), _WORD(1))
        rounded = builder.add(builder.add(bits, _WORD(0x7FFF)), odd)
        return builder.trunc(builder.lshr(rounded, _WORD(16)), ir.IntType(16))

    return types.uint16(types.float32, types.uint16), narrow


@njit(inline="always", **_COMPILED)
def _exp(x):  # type: ignore[no-untyped-def]
    """e^x for x ≤ 0 to 2 ulp, by 2^n · e^r with |r| ≤ ln 2 / 2 (Cephes, expf), so that a loop of it is vectorised."""
    x = max(np.float32(-87.0), x)  # in this order, what is not a number stays so
    n = np.int32(x * np.float32(1.44269504) - np.float32(0.5))
    r = x - np.float32(n) * np.float32(0.693359375) + np.float32(n) * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    return (p * r * r + r + np.float32(1)) * _as_float(np.uint32(n + np.int32(127)) << np.uint32(23))


@njit(**_COMPILED)
def rms_forward(x_TD, weight_D, eps, out_TD, scale_T):  # type: ignore[no-untyped-def]
    """out = w · x · scale, and scale = 1 / √(mean(x²) + ε) of every row; rounded before the weight, too."""
    rows, size = x_TD.shape
    for t in range(rows):
        total = np.float32(0)
        for d in range(size):
            total += _wide(x_TD[t, d]) * _wide(x_TD[t, d])
        scale = np.float32(1) / np.sqrt(total / np.float32(size) + np.float32(eps))
        scale_T[t] = scale
        for d in range(size):
            normed = _narrow(_wide(x_TD[t, d]) * scale, x_TD[t, d])
            out_TD[t, d] = _narrow(_wide(normed) * _wide(weight_D[d]), x_TD[t, d])


@njit(**_COMPILED)
def rms_backward(grad_TD, x_TD, weight_D, scale_T, to_x_TD, to_weight_D):  # type: ignore[no-untyped-def]
    """With n = x · scale: scale · (g · w − n · mean(g · w · n)) for x; Σ_t g · n is added for the weight, in fp32."""
    rows, size = x_TD.shape
    for t in range(rows):
        scale, inner = scale_T[t], np.float32(0)
        for d in range(size):
            product = _wide(grad_TD[t, d]) * _wide(x_TD[t, d]) * scale
            to_weight_D[d] += product
            inner += product * _wide(weight_D[d])
        inner = inner / np.float32(size) * scale
        for d in range(size):
            value = (_wide(grad_TD[t, d]) * _wide(weight_D[d]) - _wide(x_TD[t, d]) * inner) * scale
            to_x_TD[t, d] = _narrow(value, x_TD[t, d])


@njit(**_COMPILED)
def rotate_pairs(x_THD, cos_TD, sin_TF, way, interleaved, out_THD):  # type: ignore[no-untyped-def]
    """Map pairs (a, b) to (a·cos − way·b·sin, b·cos + way·a·sin); F = D/2."""
    rows, heads, size = x_THD.shape
    half, way = size // 2, np.float32(way)
    for t in range(rows):
        for h in range(heads):
            if interleaved:
                for f in range(half):
                    a, b = _wide(x_THD[t, h, 2 * f]), _wide(x_THD[t, h, 2 * f + 1])
                    turn = way * sin_TF[t, f]
                    out_THD[t, h, 2 * f] = _narrow(a * cos_TD[t, 2 * f] - b * turn, x_THD[t, h, 0])
                    out_THD[t, h, 2 * f + 1] = _narrow(b * cos_TD[t, 2 * f + 1] + a * turn, x_THD[t, h, 0])
            else:
                for f in range(half):
                    a, b = _wide(x_THD[t, h, f]), _wide(x_THD[t, h, half + f])
                    turn = way * sin_TF[t, f]
                    out_THD[t, h, f] = _narrow(a * cos_TD[t, f] - b * turn, x_THD[t, h, 0])
                    out_THD[t, h, half + f] = _narrow(b * cos_TD[t, half + f] + a * turn, x_THD[t, h, 0])


@njit(inline="always", **_COMPILED)
def _sigmoid(x):  # type: ignore[no-untyped-def]
    e = _exp(-abs(x))
    return (np.float32(1) if x >= 0 else e) / (np.float32(1) + e)


@njit(**_COMPILED)
def swiglu_forward(gate_up_T2I, out_TI):  # type: ignore[no-untyped-def]
    """out = silu(gate) · up of both side by side; rounded after silu, too."""
    rows, size = out_TI.shape
    for t in range(rows):
        for i in range(size):
            gate = _wide(gate_up_T2I[t, i])
            opened = _narrow(gate * _sigmoid(gate), gate_up_T2I[t, i])
            out_TI[t, i] = _narrow(_wide(opened) * _wide(gate_up_T2I[t, size + i]), gate_up_T2I[t, i])


@njit(**_COMPILED)
def swiglu_backward(grad_TI, gate_up_T2I):  # type: ignore[no-untyped-def]
    """Write the gradients over gate and up: g · up · σ · (1 + gate · (1 − σ)), and g · silu(gate)."""
    rows, size = grad_TI.shape
    for t in range(rows):
        for i in range(size):
            gate, up = _wide(gate_up_T2I[t, i]), _wide(gate_up_T2I[t, size + i])
            grad, open_ = _wide(grad_TI[t, i]), _sigmoid(gate)
            to_gate = grad * up * open_ * (np.float32(1) + gate * (np.float32(1) - open_))
            gate_up_T2I[t, i] = _narrow(to_gate, grad_TI[t, i])
            gate_up_T2I[t, size + i] = _narrow(grad * gate * open_, grad_TI[t, i])
