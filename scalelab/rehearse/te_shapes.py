"""Transformer Engine's own Python on fake tensors: its compiled module is replaced by the shapes of its kernels.

Transformer Engine's layers, optimiser and permutation are Python, which calls the compiled module
`transformer_engine_torch` for every product, norm and step. `offer` puts a module of that name there, whose functions
make tensors of the shapes, types and device that the kernels would make, as torch's own do on fake tensors. They were
written from the C++ that each one names, that of version 2.20.2. What is not here raises an error with its name as
soon as it is called.

The permutation is in Triton, and Transformer Engine brings its shapes itself (`pytorch/permutation.py`).
"""

from __future__ import annotations

import enum
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # as `scalelab.rehearse.simulate` does, which is imported after this

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

PACKAGE, COMPILED = "transformer_engine", "transformer_engine_torch"
_UNUSED = ("pytorch.onnx_extensions", "jax")
"""Modules of Transformer Engine for what is never done here, and that want packages of their own."""


def offer() -> bool:
    """Let Transformer Engine be imported with the kernels below; False where its Python is not installed.

    Megatron looks for it once, when it is imported itself: this must come first.
    """
    sys.modules.pop(PACKAGE, None)  # it may be hidden
    if importlib.util.find_spec(PACKAGE) is None:
        sys.modules[PACKAGE] = None  # type: ignore[assignment]
        return False
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # no libraries are loaded then
    torch_part = f"{PACKAGE}.pytorch"
    sys.modules[torch_part] = None  # type: ignore[assignment]  # until its loader is replaced
    for name in _UNUSED:
        sys.modules[f"{PACKAGE}.{name}"] = _Names(f"{PACKAGE}.{name}")
    importlib.import_module(PACKAGE)
    common = importlib.import_module(f"{PACKAGE}.common")
    common.load_framework_extension = lambda framework: None  # type: ignore[attr-defined]
    sys.modules[COMPILED] = _Compiled(COMPILED)
    del sys.modules[torch_part]
    importlib.import_module(torch_part)
    return True


def rehearsed_version() -> str | None:
    """Version of the Transformer Engine whose Python is rehearsed; None if none is."""
    return importlib.metadata.version(PACKAGE) if isinstance(sys.modules.get(COMPILED), _Compiled) else None


class _NotCovered(type):
    """A name that can be imported, passed on and compared; calling it, or asking for its value, is an error."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"a rehearsal has no shapes of {cls.__name__} (scalelab/rehearse/te_shapes.py)")

    def __bool__(cls) -> bool:
        return bool(cls())

    def __int__(cls) -> int:
        return int(cls())

    def __getattr__(cls, name: str) -> _NotCovered:
        return _not_covered(cls, name)


class _Names(ModuleType):
    """A module in which every name is there, and those that nothing was put under are not covered."""

    def __getattr__(self, name: str) -> _NotCovered:
        return _not_covered(self, name)


class _Compiled(_Names):
    """The module in place of the compiled one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        vars(self).update(_ENUMERATIONS, **{kernel.__name__: kernel for kernel in _KERNELS})


def _not_covered(owner: type | ModuleType, name: str) -> _NotCovered:
    """Make a name of a class or a module, the same one every time."""
    if name.startswith("__"):
        raise AttributeError(name)
    made = _NotCovered(f"{owner.__name__}.{name}", (), {})
    setattr(owner, name, made)
    return made


def _enumeration(name: str, members: str) -> type[enum.IntEnum]:
    """Make an enumeration from "NAME=NUMBER NAME=NUMBER"."""
    pairs = [member.split("=") for member in members.split()]
    return enum.IntEnum(name, [(key, int(number)) for key, number in pairs])  # type: ignore[return-value]


_ENUMERATIONS = {
    name: _enumeration(name, members)
    for name, members in {
        # common/include/transformer_engine/transformer_engine.h
        "DType": "kByte=0 kInt32=2 kFloat32=4 kFloat16=5 kBFloat16=6 kFloat8E4M3=7 kFloat8E5M2=8 kFloat4E2M1=10",
        # csrc/common.h
        "FP8FwdTensors": "GEMM1_INPUT=0 GEMM1_WEIGHT=1 GEMM1_OUTPUT=2 GEMM2_INPUT=3 GEMM2_WEIGHT=4 GEMM2_OUTPUT=5 "
        "GEMM3_INPUT=6 GEMM3_WEIGHT=7 GEMM3_OUTPUT=8",
        "FP8BwdTensors": "GRAD_OUTPUT1=0 GRAD_INPUT1=1 GRAD_OUTPUT2=2 GRAD_INPUT2=3 GRAD_OUTPUT3=4 GRAD_INPUT3=5",
        # common/include/transformer_engine/fused_attn.h
        "NVTE_Fused_Attn_Backend": "NVTE_No_Backend=-1 NVTE_F16_arbitrary_seqlen=1 NVTE_FP8=2",
        "NVTE_QKV_Format": "NVTE_SBHD=0 NVTE_BSHD=1 NVTE_THD=2 NVTE_BSHD_2SBHD=3 NVTE_SBHD_2BSHD=4 NVTE_THD_2BSHD=5 "
        "NVTE_THD_2SBHD=6 NVTE_BHSD=7 NVTE_QKV_Format_NOT_SET=8",
        # common/include/transformer_engine/fused_router.h
        "NVTERoutingMapFormat": "BYTEMAP=0 BITMAP_U8=1",
        "NVTEQBHistogramMode": "TWO_KERNEL=0 FUSED_ATOMIC=1",
    }.items()
}
"""The enumerations whose numbers are read when Transformer Engine is imported, as its headers have them."""

_TYPES = {4: torch.float32, 5: torch.float16, 6: torch.bfloat16}
"""torch's types by the numbers of `DType`; types of 8 bits and fewer are not covered."""


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse tensors of the host: a kernel would take their addresses for the device's."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            _require(not isinstance(leaf, Tensor) or leaf.is_cuda, function, "a tensor is on the host")
        return function(*args, **kwargs)

    return checked


def _require(holds: bool, function: Callable[..., Any], wrong: str) -> None:
    if not holds:
        raise RuntimeError(f"{COMPILED}.{function.__name__}: {wrong}")


def _without(function: Callable[..., Any], **unused: Any) -> None:
    """Refuse arguments whose effect on shapes is not covered."""
    if used := [name for name, value in unused.items() if value is not None and value is not False]:
        raise NotImplementedError(f"a rehearsal has no shapes of {COMPILED}.{function.__name__} with {used[0]}")


@_kernel
def generic_gemm(
    a: Tensor,
    transa: bool,
    b: Tensor,
    transb: bool,
    out: Tensor | None,
    quantizer: Any,
    out_dtype: int | None,
    bias: Tensor | None,
    bias_dtype: int,
    gelu: bool,
    gelu_in: Tensor | None,
    grad: bool,
    workspace: Tensor,
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    comm_overlap: Any = None,
    comm_type: Any = None,
    extra_output: Tensor | None = None,
    bulk_overlap: bool = False,
    alpha: float = 1.0,
    beta: float | None = None,
) -> tuple[Tensor, Tensor | None, None, None]:
    """Product b·a of what cuBLAS, column by column, calls a·b; torch's counter sees it (`csrc/extensions/gemm.cpp`).

    A bias is added to the product; with `grad` its gradient, the sum of b's rows, is returned beside it.
    """
    _without(generic_gemm, out=out, quantizer=quantizer, gelu=gelu, accumulate=accumulate)
    _without(generic_gemm, comm_overlap=comm_overlap, extra_output=extra_output)
    if out_dtype is not None and _TYPES.get(out_dtype) is not a.dtype:
        _without(generic_gemm, out_dtype=out_dtype)
    left, right = b.view(-1, b.shape[-1]), a.view(-1, a.shape[-1])
    product = torch.mm(left.t() if transb else left, right.t() if transa else right)
    if bias is not None and not grad:
        _require(
            bias.shape == product.shape[-1:], generic_gemm, f"a bias of {tuple(bias.shape)} on {product.shape[-1]}"
        )
    of_bias = product.new_empty(b.shape[-1]) if bias is not None and grad else None
    return product if transb else product.view(*b.shape[:-1], -1), of_bias, None, None


@_kernel
def rmsnorm_fwd(
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor | None,
    quantizer: Any,
    out_dtype: int,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> tuple[Tensor, None, Tensor]:
    """Normed input, and 1/rms of every row in fp32 (`csrc/extensions/normalization.cpp`)."""
    _without(rmsnorm_fwd, out=out, quantizer=quantizer)
    _require(weight.shape == x.shape[-1:], rmsnorm_fwd, f"rows of {x.shape[-1]} and a weight of {tuple(weight.shape)}")
    rows = x.numel() // x.shape[-1]
    return x.new_empty(x.shape, dtype=_TYPES[out_dtype]), None, x.new_empty(rows, dtype=torch.float32)


@_kernel
def rmsnorm_bwd(
    dz: Tensor, x: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of the input and of the weight (`csrc/extensions/normalization.cpp`)."""
    _require(dz.shape == x.shape, rmsnorm_bwd, f"an input of {tuple(x.shape)} and a gradient of {tuple(dz.shape)}")
    return x.new_empty(x.shape), gamma.new_empty(gamma.shape)


@_kernel
def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Norm of all tensors together, and that of each if asked for (`csrc/extensions/multi_tensor/l2norm.cpp`)."""
    (tensors,) = tensor_lists
    norm = tensors[0].new_empty(1, dtype=torch.float32)
    return norm, norm.new_empty(len(tensors) if per_tensor else 0)


@_kernel
def multi_tensor_adam(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], *settings: Any) -> None:
    """AdamW in place on gradients, weights, moments, perhaps fp32 weights (`common/multi_tensor/adam.cu`)."""
    _check_adam(multi_tensor_adam, tensor_lists, None, torch.float32)


@_kernel
def multi_tensor_adam_param_remainder(
    chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], *settings: Any
) -> None:
    """AdamW in place, with the 16 bits that fp32 weights have beyond bf16 ones (`common/multi_tensor/adam.cu`)."""
    _require(len(tensor_lists) == 5, multi_tensor_adam_param_remainder, f"{len(tensor_lists)} lists, not 5")
    _check_adam(multi_tensor_adam_param_remainder, tensor_lists, torch.bfloat16, torch.int16)


def _check_adam(
    function: Callable[..., Any], lists: list[list[Tensor]], weights: torch.dtype | None, masters: torch.dtype
) -> None:
    """Check sizes and types as AdamW's kernels do, given the types of the weights (None: any) and of a fifth list."""
    _require(len(lists) in (4, 5), function, f"{len(lists)} lists, not 4 or 5")
    for beside in zip(*lists, strict=True):
        sizes, (grad, weight, first, second, *master) = {t.numel() for t in beside}, [t.dtype for t in beside]
        _require(len(sizes) == 1, function, f"tensors of {sizes} elements side by side")
        _require(grad is lists[0][0].dtype, function, "gradients of several types")
        _require(weight is (weights or lists[1][0].dtype), function, f"a weight in {weight}")
        moments = first is second and first in (torch.float32, torch.bfloat16)
        _require(moments, function, f"moments in {first} and {second}")
        _require(master in ([], [masters]), function, f"a fifth tensor in {master}, not {masters}")


_KERNELS = (
    *(generic_gemm, rmsnorm_fwd, rmsnorm_bwd),
    *(multi_tensor_l2norm, multi_tensor_adam, multi_tensor_adam_param_remainder),
)
