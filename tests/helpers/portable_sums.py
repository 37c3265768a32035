"""Digest of products, norms, attention and exponentials on random numbers: a process prints it."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from moe.cpu import bfloat16
from moe.cpu.attention import attend_segments
from moe.cpu.kernels import arrays, rms_forward, swiglu_forward


def results(dtype: torch.dtype, draws: np.random.Generator) -> list[torch.Tensor]:
    """Results of one type's kernels on numbers of a miniature's sizes."""

    def drawn(*shape: int) -> torch.Tensor:
        return torch.from_numpy(draws.standard_normal(shape, dtype=np.float32)).to(dtype)

    x_TD, weight_DI = drawn(600, 128), drawn(128, 384)
    q_THD, k_TKD, v_TKD = (drawn(60, heads, 32).requires_grad_() for heads in (4, 2, 2))
    borders = torch.tensor([0, 25, 60], dtype=torch.int32)
    attended = attend_segments(q_THD, k_TKD, v_TKD, borders)
    attended.backward(drawn(60, 4, 32))
    normed, scale, gated = torch.empty_like(x_TD), torch.empty(600), torch.empty(600, 192, dtype=dtype)
    rms_forward(*arrays(x_TD, drawn(128)), 1e-5, *arrays(normed, scale))
    swiglu_forward(*arrays(x_TD @ weight_DI, gated))
    stacked = torch.bmm(drawn(3, 40, 20), drawn(3, 20, 50))
    products = [x_TD @ weight_DI, x_TD.T @ x_TD, stacked, torch.addmm(drawn(384), x_TD, weight_DI)]
    logits = products[0].float()
    curves = [logits.exp(), logits.abs().log(), torch.softmax(logits, -1), logits.logsumexp(-1), torch.tanh(logits)]
    gradients = [one.grad for one in (q_THD, k_TKD, v_TKD) if one.grad is not None]
    return [attended.detach(), normed, scale, gated, *products, *curves, *gradients]


def main() -> None:
    """Print the digest of both types' results."""
    torch.set_num_threads(1)
    bfloat16.install()
    digest, draws = hashlib.sha256(), np.random.default_rng(0)
    for dtype in (torch.float32, torch.bfloat16):
        for one in results(dtype, draws):
            digest.update(one.contiguous().view(torch.uint8).numpy().tobytes())
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
