"""The chunked, recomputing head against a slow version in fp64 that holds all logits."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moe.model import head
from moe.model.head import product, token_logprobs, two_bf16


def slow(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy by definition, in fp64."""
    logp = (hidden.double() @ weight.double().t()).log_softmax(-1)
    return logp[range(len(targets)), targets], -(logp.exp() * logp).sum(-1)


def gradients(
    outputs: Sequence[torch.Tensor], grads: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(outputs, inputs, [g.to(o) for g, o in zip(grads, outputs)])


@given(
    tokens=st.integers(1, 20),
    vocabulary=st.integers(2, 40),
    chunk=st.integers(1, 24),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
    seed=st.integers(0, 10**6),
)
def test_values_and_gradients_equal_the_slow_version_at_any_chunk(
    tokens: int, vocabulary: int, chunk: int, scale: float, seed: int
) -> None:
    stream = torch.Generator().manual_seed(seed)
    hidden = (scale * torch.randn(tokens, 6, generator=stream)).requires_grad_()
    weight = torch.randn(vocabulary, 6, generator=stream).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), generator=stream)
    grads = torch.randn(1, tokens, generator=stream)
    fast = token_logprobs(hidden, weight, targets, chunk=chunk)
    reference = slow(hidden, weight, targets)
    for a, b in zip(fast, reference):
        torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=2e-5 * scale)
    for a, b in zip(gradients(fast[:1], grads, (hidden, weight)), gradients(reference[:1], grads, (hidden, weight))):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * scale)


def problem(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(3)
    hidden = torch.randn(9, 16, generator=stream).to(dtype)
    return hidden, torch.randn(30, 16, generator=stream).to(dtype), torch.arange(9)


def test_entropy_carries_no_gradient() -> None:
    hidden, weight, targets = problem()
    hidden.requires_grad_()
    logprobs, entropy = token_logprobs(hidden, weight, targets, chunk=4)
    assert logprobs.requires_grad
    assert not entropy.requires_grad


def test_inputs_are_left_alone() -> None:
    hidden, weight, targets = (x.clone() for x in problem())
    before = hidden.clone(), weight.clone()
    hidden.requires_grad_()
    token_logprobs(hidden, weight, targets, chunk=4)[0].sum().backward()
    assert torch.equal(hidden, before[0])
    assert torch.equal(weight, before[1])


def test_fp32_head_on_bf16_values_is_exact_where_the_bf16_product_is_not() -> None:
    hidden, weight, targets = problem(torch.bfloat16)
    exact = slow(hidden, weight, targets)[0]
    fp32, bf16 = (
        (token_logprobs(hidden, weight, targets, chunk=4, fp32=flag)[0] - exact).abs().max() for flag in (True, False)
    )
    assert fp32 < 1e-5 < 1e-3 < bf16


def test_gradients_come_back_in_the_type_of_the_inputs() -> None:
    hidden, weight, targets = (x.requires_grad_() if x.is_floating_point() else x for x in problem(torch.bfloat16))
    token_logprobs(hidden, weight, targets, chunk=4)[0].sum().backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """Remembers the largest tensor made while it is entered."""

    elements = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_logits_of_more_than_a_chunk_never_exist() -> None:
    hidden, weight = torch.randn(256, 8, requires_grad=True), torch.randn(500, 8, requires_grad=True)
    with Largest() as largest:
        token_logprobs(hidden, weight, torch.zeros(256, dtype=torch.long), chunk=16)[0].sum().backward()
    assert largest.elements == 16 * 500


def test_a_large_vocabulary_makes_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 5 * 500)
    hidden, weight = torch.randn(64, 8, requires_grad=True), torch.randn(500, 8, requires_grad=True)
    with Largest() as largest:
        token_logprobs(hidden, weight, torch.zeros(64, dtype=torch.long), chunk=64)[0].sum().backward()
    assert largest.elements == weight.numel()  # its gradient; logits of 5 tokens are fewer


def test_only_a_gpu_widens_bf16_products_and_only_for_the_fp32_head() -> None:
    kinds = {
        (device, dtype, fp32): product(device, dtype, fp32).name
        for device in ("cpu", "cuda")
        for dtype in (torch.float32, torch.bfloat16)
        for fp32 in (True, False)
    }
    assert [case for case, kind in kinds.items() if kind == "bf16 to fp32"] == [("cuda", torch.bfloat16, True)]
    assert {case[2] for case, kind in kinds.items() if kind == "low precision"} == {False}


def test_a_gradient_in_two_bf16_parts_keeps_sixteen_bits() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    high, low = two_bf16(values)
    assert ((high.double() + low.double() - values).abs() <= values.abs() * 2.0**-16).all()


def test_the_widening_product_equals_fp32_where_torch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this host its products are spelled out; what surrounds them is what runs on a GPU."""
    hidden, weight, targets = (x.requires_grad_() if x.is_floating_point() else x for x in problem(torch.bfloat16))
    grads = torch.randn(1, 9, generator=torch.Generator().manual_seed(1))
    told = [gradients(token_logprobs(hidden, weight, targets, chunk=4)[:1], grads, (hidden, weight))]
    monkeypatch.setattr(torch, "mm", lambda a, b, out_dtype: a.to(out_dtype) @ b.to(out_dtype))
    monkeypatch.setitem(head._PRODUCTS, "fp32", head._Widening)
    told.append(gradients(token_logprobs(hidden, weight, targets, chunk=4)[:1], grads, (hidden, weight)))
    for a, b in zip(*told):
        torch.testing.assert_close(a, b, rtol=2**-7, atol=1e-4)  # the outputs are bf16
