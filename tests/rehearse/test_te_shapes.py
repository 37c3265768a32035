"""Shapes in place of Transformer Engine's kernels are those of plain torch; a kernel without shapes says so."""

import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from scalelab.rehearse import te_shapes
from scalelab.rehearse.flops import counter

pytestmark = pytest.mark.slow

BF16: Any = te_shapes._ENUMERATIONS["DType"]["kBFloat16"]


@pytest.fixture(autouse=True)
def fake() -> Iterator[None]:
    with FakeTensorMode():
        yield


def on_device(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def gemm(a: torch.Tensor, transa: bool, b: torch.Tensor, transb: bool, **changed: Any) -> Any:
    """A product with the arguments that `general_gemm` gives."""
    given = {
        **dict.fromkeys(("out", "quantizer", "bias", "gelu_in"), None),
        **dict.fromkeys(("gelu", "grad", "accumulate", "use_split_accumulator"), False),
        **{"out_dtype": BF16, "bias_dtype": BF16, "workspace": on_device(1), "workspace_size": 1},
    }
    product, of_bias, *_ = te_shapes.generic_gemm(a, transa, b, transb, **{**given, **changed})
    return (product, of_bias) if changed.get("grad") else product


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 9), st.integers(1, 9))
def test_the_three_products_of_a_layer_are_torchs_in_shape_and_flops(rows: list[int], inner: int, outer: int) -> None:
    with FakeTensorMode():
        like_x = torch.empty(*rows, inner, dtype=torch.bfloat16, requires_grad=True)
        like_weight = torch.empty(outer, inner, dtype=torch.bfloat16, requires_grad=True)
        with counter() as wanted:
            like_y = torch.nn.functional.linear(like_x, like_weight)
            like_y.backward(torch.empty_like(like_y))
        x, weight, gradient = on_device(*rows, inner), on_device(outer, inner), on_device(*rows, outer)
        with counter() as found:
            forward = gemm(weight, True, x, False)  # "TN", "NN" and "NT" of `module/linear.py`
            of_x = gemm(weight, False, gradient, False)
            of_weight = gemm(x, False, gradient, True)
    for made, like in ((forward, like_y), (of_x, like_x.grad), (of_weight, like_weight.grad)):
        assert (made.shape, made.dtype, made.device) == (like.shape, like.dtype, x.device)
    assert found.get_total_flops() == wanted.get_total_flops()


def test_a_bias_is_added_and_has_a_gradient_of_its_own_shape() -> None:
    x, weight, bias, gradient = on_device(2, 3, 4), on_device(5, 4), on_device(5), on_device(2, 3, 5)
    assert gemm(weight, True, x, False, bias=bias).shape == (2, 3, 5)
    of_weight, of_bias = gemm(x, False, gradient, True, bias=bias, grad=True)
    assert (of_weight.shape, of_bias.shape, of_bias.dtype) == (weight.shape, bias.shape, bias.dtype)
    with pytest.raises(RuntimeError, match=r"generic_gemm: a bias of \(4,\) on 5"):
        gemm(weight, True, x, False, bias=on_device(4))


def test_a_norm_keeps_a_number_of_fp32_for_each_row() -> None:
    x, weight = on_device(6, 4), on_device(4)
    y, mean, rsigma = te_shapes.rmsnorm_fwd(x, weight, 1e-5, None, None, BF16, 0, False)
    like = torch.nn.functional.rms_norm(x, (4,), weight)
    assert (y.shape, y.dtype, mean) == (like.shape, like.dtype, None)
    assert (rsigma.shape, rsigma.dtype) == ((6,), torch.float32)
    of_x, of_weight = te_shapes.rmsnorm_bwd(y, x, rsigma, weight, 0, False)
    assert (of_x.shape, of_x.dtype, of_weight.shape, of_weight.dtype) == (x.shape, x.dtype, weight.shape, weight.dtype)
    with pytest.raises(RuntimeError, match=r"rmsnorm_fwd: rows of 4 and a weight of \(5,\)"):
        te_shapes.rmsnorm_fwd(x, on_device(5), 1e-5, None, None, BF16, 0, False)


def test_a_norm_of_gradients_is_one_number() -> None:
    lists = [[on_device(3), on_device(2, 5)]]
    norm, each = te_shapes.multi_tensor_l2norm(2048, on_device(1), lists, False)
    assert (norm.shape, norm.dtype, each.shape) == ((1,), torch.float32, (0,))
    assert te_shapes.multi_tensor_l2norm(2048, on_device(1), lists, True)[1].shape == (2,)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"second": torch.float32}, "moments in torch.bfloat16 and torch.float32"),
        ({"weight": torch.float32}, "a weight in torch.float32"),
        ({"rest": torch.float32}, r"a fifth tensor in \[torch.float32\], not torch.int16"),
        ({"size": 5}, r"tensors of .* elements side by side"),
    ],
)
def test_a_step_refuses_what_its_kernel_refuses(changed: dict[str, torch.dtype | int], said: str) -> None:
    kinds = {"gradient": torch.float32, **dict.fromkeys(("weight", "first", "second"), torch.bfloat16)}
    kinds["rest"] = torch.int16
    lists = [[on_device(4, dtype=kind)] for kind in kinds.values()]
    te_shapes.multi_tensor_adam_param_remainder(2048, on_device(1), lists)
    size = changed.pop("size", 4)
    wrong = [[on_device(4, dtype=kind)] for kind in {**kinds, **changed}.values()]
    wrong[0] = [on_device(size, dtype=torch.float32)]
    with pytest.raises(RuntimeError, match=said):
        te_shapes.multi_tensor_adam_param_remainder(2048, on_device(1), wrong)


def test_tensors_of_the_host_are_refused() -> None:
    with pytest.raises(RuntimeError, match="multi_tensor_l2norm: a tensor is on the host"):
        te_shapes.multi_tensor_l2norm(2048, on_device(1), [[torch.empty(3)]])
    with pytest.raises(RuntimeError, match="generic_gemm: a tensor is on the host"):
        gemm(on_device(3, 2), True, torch.empty(4, 2, dtype=torch.bfloat16), False)


@pytest.mark.parametrize("used", ["out", "gelu", "quantizer", "comm_overlap"])
def test_an_argument_that_is_not_covered_is_named(used: str) -> None:
    with pytest.raises(NotImplementedError, match=f"generic_gemm with {used}"):
        gemm(on_device(3, 2), True, on_device(4, 2), False, **{used: on_device(1)})


def test_a_name_that_is_not_covered_says_so_when_it_is_used() -> None:
    compiled = te_shapes._Compiled("compiled")
    assert compiled.generic_gemm is te_shapes.generic_gemm
    assert int(compiled.DType.kBFloat16) == 6
    assert compiled.CommOverlapType.RS is compiled.CommOverlapType.RS is not compiled.CommOverlapType.AG
    for use in (lambda: compiled.quantize(1), lambda: int(compiled.quantize), lambda: bool(compiled.quantize)):
        with pytest.raises(NotImplementedError, match=r"no shapes of compiled\.quantize"):
            use()


def test_without_its_python_transformer_engine_stays_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, te_shapes.PACKAGE, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not te_shapes.offer()
    assert sys.modules[te_shapes.PACKAGE] is None
    assert te_shapes.rehearsed_version() is None
