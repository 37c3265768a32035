"""The trainer's own elementwise layers against torch's, values and gradients."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from moe.cpu.operators import swiglu, weigh
from moe.model.attention import rotate
from moe.model.layers import L2Norm, RmsNorm
from moe.model.packing import turn_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cores")]


@pytest.fixture(params=[1, 2], ids=["kernels of one core", "torch's operators"])
def cores(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def slow_swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def slow_rotation(interleaved: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def turn(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        phase = torch.polar(torch.ones_like(angles), angles)
        if interleaved:
            return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * phase).flatten(-2)
        turned = torch.complex(*x.chunk(2, dim=-1)) * phase
        return torch.cat([turned.real, turned.imag], dim=-1)

    return turn


def assert_same(fast: torch.Tensor, slow: torch.Tensor, x: torch.Tensor) -> None:
    grad = torch.randn_like(slow)
    torch.testing.assert_close(fast, slow, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        *(torch.autograd.grad(out, x, grad, retain_graph=True)[0] for out in (fast, slow)), rtol=1e-6, atol=1e-6
    )


def test_gated_activation_equals_torch() -> None:
    x = torch.randn(7, 3, 10, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert_same(swiglu(x.clone()), slow_swiglu(x), x)


def test_gated_activation_refuses_what_its_backward_pass_would_destroy() -> None:
    with pytest.raises(ValueError, match="writes its gradients over its input"):
        swiglu(torch.randn(3, 10, requires_grad=True))
    inner = torch.randn(3, 10, requires_grad=True) * 1
    both = inner.square().sum() + swiglu(inner).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        both.backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [RmsNorm, L2Norm])
def test_norms_equal_their_formula_in_fp64(kind: type[RmsNorm | L2Norm], dtype: torch.dtype) -> None:
    """x · w / √(mean(x²) + ε)."""
    stream = torch.Generator().manual_seed(0)
    norm = kind(SimpleNamespace(params_dtype=dtype, sequence_parallel=False), 10, eps=1e-3)
    x, grad = (torch.randn(7, 3, 10, generator=stream).to(dtype) for _ in range(2))
    exact_x = x.double().requires_grad_()
    inputs, exact_inputs = [x.requires_grad_()], [exact_x]
    exact = exact_x / (exact_x.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    if kind is RmsNorm:
        with torch.no_grad():
            norm.weight.copy_(torch.randn(10, generator=stream))
        weight = norm.weight.detach().double().requires_grad_()
        exact = exact * weight
        inputs, exact_inputs = [x, norm.weight], [exact_x, weight]
    close = {"rtol": 2e-2, "atol": 4e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(norm(x).double(), exact, **close)
    for fast, slow in zip(
        torch.autograd.grad(norm(x), inputs, grad), torch.autograd.grad(exact, exact_inputs, grad.double())
    ):
        torch.testing.assert_close(fast.double(), slow, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weighed_rows_equal_a_product_in_fp32_that_is_rounded_once(dtype: torch.dtype) -> None:
    stream = torch.Generator().manual_seed(2)
    rows = torch.randn(9000, 6, generator=stream).to(dtype).requires_grad_()
    weights = torch.rand(9000, generator=stream).requires_grad_()
    grad = torch.randn(9000, 6, generator=stream).to(dtype)
    fast, slow = weigh(rows, weights), (rows * weights.unsqueeze(1)).to(dtype)
    assert fast.dtype == dtype
    assert torch.equal(fast, slow)
    for ours, theirs in zip(
        torch.autograd.grad(fast, (rows, weights), grad), torch.autograd.grad(slow, (rows, weights), grad)
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotation_equals_complex_multiplication(interleaved: bool) -> None:
    stream = torch.Generator().manual_seed(1)
    x, angles = torch.randn(5, 2, 8, generator=stream).requires_grad_(), torch.randn(5, 1, 4, generator=stream)
    assert_same(rotate(x, *turn_of(angles, interleaved), interleaved), slow_rotation(interleaved)(x, angles), x)
