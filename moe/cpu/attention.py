"""Causal attention within the segments of a packed row, on one core: nothing is padded, copied or looked at in vain.

A miniature's scores of one head fit the second cache, so a head of a segment is two products of matrices (BLAS) and a
loop over its scores; the backward pass computes the probabilities again from the log of their sum (Dao et al., 2022).

Axes: T packed tokens, H query heads, K key heads, D features of a head; n tokens of a segment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable

from moe.cpu.kernels import _COMPILED, KEPT, _exp, _narrow, _wide, arrays


@njit(inline="always", **_COMPILED)
def _load(rows_TKD, first, head, scale, out_nD):  # type: ignore[no-untyped-def]
    """Copy a head's rows of a segment, times a factor, to fp32."""
    for j in range(out_nD.shape[0]):
        for d in range(out_nD.shape[1]):
            out_nD[j, d] = _wide(rows_TKD[first + j, head, d]) * scale


@njit(nogil=True, cache=KEPT, fastmath=True)
def _largest(row_n, count):  # type: ignore[no-untyped-def]
    """The largest of the first; anything where one is not a number, which the exponentials then show."""
    most = row_n[0]
    for j in range(count):
        most = max(most, row_n[j])
    return most


@njit(**_COMPILED)
def _forward(q_THD, k_TKD, v_TKD, borders, scale, out_THD, log_sum_TH):  # type: ignore[no-untyped-def]
    """Softmax(scale · q kᵀ) v within segments, and the log of every softmax's sum."""
    size, shared = q_THD.shape[2], q_THD.shape[1] // k_TKD.shape[1]
    one = np.float32(1)
    for s in range(len(borders) - 1):
        first, n = borders[s], borders[s + 1] - borders[s]
        q_nD, k_nD = np.empty((n, size), np.float32), np.empty((n, size), np.float32)
        v_nD, sum_nD = np.empty((n, size), np.float32), np.empty((n, size), np.float32)
        p_nn = np.empty((n, n), np.float32)
        for key in range(k_TKD.shape[1]):
            _load(k_TKD, first, key, one, k_nD)
            _load(v_TKD, first, key, one, v_nD)
            for head in range(key * shared, (key + 1) * shared):
                _load(q_THD, first, head, scale, q_nD)
                np.dot(q_nD, k_nD.T, p_nn)
                for i in range(n):
                    most, total = _largest(p_nn[i], i + 1), np.float32(0)
                    for j in range(i + 1):
                        p_nn[i, j] = _exp(p_nn[i, j] - most)
                        total += p_nn[i, j]
                    for j in range(i + 1):
                        p_nn[i, j] /= total
                    for j in range(i + 1, n):
                        p_nn[i, j] = np.float32(0)
                    log_sum_TH[first + i, head] = most + np.log(total)
                np.dot(p_nn, v_nD, sum_nD)
                for i in range(n):
                    for d in range(size):
                        out_THD[first + i, head, d] = _narrow(sum_nD[i, d], q_THD[0, 0, 0])


@njit(**_COMPILED)
def _backward(  # type: ignore[no-untyped-def]
    grad_THD, q_THD, k_TKD, v_TKD, out_THD, log_sum_TH, borders, scale, to_q_THD, to_k_TKD, to_v_TKD
):
    """With P the probabilities: dV = Pᵀ dO, dS = P ∘ (dO Vᵀ − rows' sums of dO ∘ O), dQ = scale · dS K, dK likewise."""
    size, shared = q_THD.shape[2], q_THD.shape[1] // k_TKD.shape[1]
    one, like = np.float32(1), q_THD[0, 0, 0]
    for s in range(len(borders) - 1):
        first, n = borders[s], borders[s + 1] - borders[s]
        q_nD, k_nD = np.empty((n, size), np.float32), np.empty((n, size), np.float32)
        v_nD, g_nD = np.empty((n, size), np.float32), np.empty((n, size), np.float32)
        sum_nD, p_nn, ds_nn = (
            np.empty((n, size), np.float32),
            np.empty((n, n), np.float32),
            np.empty((n, n), np.float32),
        )
        for key in range(k_TKD.shape[1]):
            _load(k_TKD, first, key, one, k_nD)
            _load(v_TKD, first, key, one, v_nD)
            dk_nD, dv_nD = np.zeros((n, size), np.float32), np.zeros((n, size), np.float32)
            for head in range(key * shared, (key + 1) * shared):
                _load(q_THD, first, head, scale, q_nD)
                _load(grad_THD, first, head, one, g_nD)
                np.dot(q_nD, k_nD.T, p_nn)
                np.dot(g_nD, v_nD.T, ds_nn)
                for i in range(n):
                    row, log_sum = np.float32(0), log_sum_TH[first + i, head]
                    for d in range(size):
                        row += g_nD[i, d] * _wide(out_THD[first + i, head, d])
                    for j in range(i + 1):
                        p_nn[i, j] = _exp(min(np.float32(0), p_nn[i, j] - log_sum))
                        ds_nn[i, j] = p_nn[i, j] * (ds_nn[i, j] - row)
                    for j in range(i + 1, n):
                        p_nn[i, j] = ds_nn[i, j] = np.float32(0)
                np.dot(ds_nn, k_nD, sum_nD)
                for i in range(n):
                    for d in range(size):
                        to_q_THD[first + i, head, d] = _narrow(sum_nD[i, d] * scale, like)
                np.dot(ds_nn.T, q_nD, sum_nD)
                dk_nD += sum_nD
                np.dot(p_nn.T, g_nD, sum_nD)
                dv_nD += sum_nD
            for j in range(n):
                for d in range(size):
                    to_k_TKD[first + j, key, d] = _narrow(dk_nD[j, d], like)
                    to_v_TKD[first + j, key, d] = _narrow(dv_nD[j, d], like)


class _Attend(torch.autograd.Function):
    """See `attend_segments`."""

    @staticmethod
    def forward(ctx: Any, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, borders: Tensor) -> Tensor:
        out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype)
        log_sum_TH = torch.empty(q_THD.shape[:2])
        given = arrays(q_THD, k_TKD, v_TKD, borders)
        _forward(*given, np.float32(q_THD.shape[2] ** -0.5), *arrays(out_THD, log_sum_TH))
        ctx.save_for_backward(q_THD, k_TKD, v_TKD, out_THD, log_sum_TH, borders)
        return out_THD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_THD: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q_THD, k_TKD, v_TKD, out_THD, log_sum_TH, borders = ctx.saved_tensors
        to = [torch.empty(x.shape, dtype=x.dtype) for x in (q_THD, k_TKD, v_TKD)]
        given = arrays(grad_THD, q_THD, k_TKD, v_TKD, out_THD, log_sum_TH, borders)
        _backward(*given, np.float32(q_THD.shape[2] ** -0.5), *arrays(*to))
        return to[0], to[1], to[2], None


def attend_segments(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, borders: Tensor) -> Tensor:
    """Causal attention within segments, with scores scaled by 1/√D; H / K query heads share a key head.

    Args:
        q_THD: queries.
        k_TKD: keys.
        v_TKD: values.
        borders: where each segment begins and the last one ends, int32 [segments + 1].

    Returns:
        [T, H, D] in the queries' type, summed in fp32.
    """
    return _Attend.apply(q_THD, k_TKD, v_TKD, borders)
