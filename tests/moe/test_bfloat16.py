"""Products of bfloat16 matrices through fp32: rounded once, differentiable, and no other type is changed."""

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.cpu import bfloat16

PRODUCTS: dict[str, Any] = bfloat16.PRODUCTS
MM, BMM, ADDMM, BADDBMM = (PRODUCTS[name] for name in ("mm", "bmm", "addmm", "baddbmm"))
SIZES = st.integers(1, 9)


def rounded_once(exact: torch.Tensor, got: torch.Tensor) -> bool:
    """True if the result is the exact one, rounded to bfloat16 or to a neighbour (fp32's own error may tip a tie)."""
    ulp = torch.exp2(torch.floor(torch.log2(exact.abs().clamp_min(1e-30))) - 7)
    return bool(((got.double() - exact).abs() <= ulp * 0.51 + 1e-5).all())


@given(SIZES, SIZES, SIZES, st.integers(0, 2**31), st.sampled_from([torch.bfloat16, torch.float32, torch.float64]))
@settings(max_examples=60, deadline=None)
def test_every_product_is_that_of_the_exact_values(n: int, k: int, m: int, seed: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)

    a, b, c = matrix(n, k), matrix(k, m), matrix(n, m)
    a3, b3, c3 = matrix(2, n, k), matrix(2, k, m), matrix(2, n, m)
    row = matrix(m)
    exact = [x.double() for x in (a, b, c, a3, b3, c3, row)]
    pairs = [
        (MM(a, b), exact[0] @ exact[1]),
        (BMM(a3, b3), exact[3] @ exact[4]),
        (ADDMM(c, a, b, beta=0.5, alpha=2), 0.5 * exact[2] + 2 * (exact[0] @ exact[1])),
        (ADDMM(row, a, b), exact[6] + exact[0] @ exact[1]),
        (BADDBMM(c3, a3, b3, alpha=0.25), exact[5] + 0.25 * (exact[3] @ exact[4])),
        (BADDBMM(c3 * torch.nan, a3, b3, beta=0), exact[3] @ exact[4]),
    ]
    for got, wanted in pairs:
        assert got.dtype == dtype
        if dtype is torch.bfloat16:
            assert rounded_once(wanted, got)
        else:
            torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_gradients_pass_through_a_linear_layer() -> None:
    bfloat16.install()
    x = torch.randn(3, 5, 8).bfloat16().requires_grad_()
    weight = torch.nn.Parameter(torch.randn(4, 8).bfloat16())
    F.linear(x, weight).float().square().sum().backward()
    wide = x.detach().double().requires_grad_()
    F.linear(wide, weight.detach().double()).square().sum().backward()
    assert x.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=0.03, atol=0.3)


def test_installing_twice_changes_nothing() -> None:
    a, b = torch.randn(4, 4).bfloat16(), torch.randn(4, 4).bfloat16()
    bfloat16.install()
    before = a @ b
    bfloat16.install()
    assert torch.equal(a @ b, before)
    assert rounded_once(a.double() @ b.double(), before)
