"""Transformer Engine's Python without its compiled modules: in their place kernels that say only what they would return.

A rehearsal runs Transformer Engine's own layers, permutation and optimiser on fake tensors. Its Python calls the
compiled module `transformer_engine_torch` for every product, norm and step. `offer` puts a module of that name there,
whose functions make tensors of the kernels' shapes, types and devices, as torch's own kernels do on fake tensors. They
were written from the C++ of version 2.20.2 (`transformer_engine_torch`'s source distribution), which each one names.
What is not here raises an error with its name when it is called.

The permutation is written in Triton, and Transformer Engine itself brings its shapes (`pytorch/permutation.py`,
`register_fake`).
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

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # as `scalelab.rehearse.pretend`, which comes later

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

PACKAGE, COMPILED = "transformer_engine", "transformer_engine_torch"
_UNUSED = ("pytorch.onnx_extensions", "jax")
"""Modules of Transformer Engine that it imports for exports and for JAX, and that want packages of their own."""


def offer() -> bool:
    """Make Transformer Engine importable with the kernels below; False where its Python is not installed.

    Megatron looks for it when it is imported, so this comes first.
    """
    sys.modules.pop(PACKAGE, None)
    if importlib.util.find_spec(PACKAGE) is None:
        sys.modules[PACKAGE] = None  # type: ignore[assignment]
        return False
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # it then loads no libraries
    torch_part = f"{PACKAGE}.pytorch"
    sys.modules[torch_part] = None  # type: ignore[assignment]  # not before its loader is replaced, see below
    for name in _UNUSED:
        sys.modules[f"{PACKAGE}.{name}"] = _Names(f"{PACKAGE}.{name}")
    importlib.import_module(PACKAGE)
    common = importlib.import_module(f"{PACKAGE}.common")
    common.load_framework_extension = lambda framework: None  # type: ignore[attr-defined]
    sys.modules[COMPILED] = _Compiled()
    del sys.modules[torch_part]
    importlib.import_module(torch_part)
    return True


def rehearsed_version() -> str | None:
    """Version of the Transformer Engine whose Python is rehearsed; None if it is not."""
    return importlib.metadata.version(PACKAGE) if isinstance(sys.modules.get(COMPILED), _Compiled) else None


class _NotCovered(type):
    """A name that may be imported, passed on and compared, but not called, asked for its value or for its truth."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{cls.__name__} has no shapes in a rehearsal (scalelab/rehearse/te_shapes.py)")

    def __bool__(cls) -> bool:
        return bool(cls())

    def __getattr__(cls, name: str) -> _NotCovered:
        if name.startswith("__"):
            raise AttributeError(name)
        member = _NotCovered(f"{cls.__name__}.{name}", (), {})
        setattr(cls, name, member)
        return member


class _Names(ModuleType):
    """A module in which every name is there, and none can be called."""

    def __getattr__(self, name: str) -> _NotCovered:
        if name.startswith("__"):
            raise AttributeError(name)
        member = _NotCovered(f"{self.__name__}.{name}", (), {})
        setattr(self, name, member)
        return member


_ENUMERATIONS = {
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
}
"""Enumerations whose numbers Transformer Engine reads when it is imported, as its headers have them."""
_ENUMS = {
    name: enum.IntEnum(name, [(key, int(number)) for key, number in (member.split("=") for member in members.split())])
    for name, members in _ENUMERATIONS.items()
}
DType = _ENUMS["DType"]

_TORCH = {DType.kFloat32: torch.float32, DType.kFloat16: torch.float16, DType.kBFloat16: torch.bfloat16}

def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse tensors that are not on the device: the kernel would take their addresses for the device's."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and leaf.device.type != "cuda":
                raise RuntimeError(f"{COMPILED}.{function.__name__} was given a tensor on {leaf.device}")
        return function(*args, **kwargs)

    return checked


def _refuse(function: str, **given: Any) -> None:
    """Refuse arguments whose effect the shapes do not have."""
    if used := [name for name, value in given.items() if value is not None and value is not False]:
        raise NotImplementedError(f"{COMPILED}.{function} with {', '.join(used)} has no shapes in a rehearsal")


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
) -> tuple[Tensor, None, None, None]:
    """Product in torch's order of what cuBLAS calls A and B; torch's counter sees it (`csrc/extensions/gemm.cpp`)."""
    given = {"quantizer": quantizer, "bias": bias, "gelu": gelu, "comm_overlap": comm_overlap}
    _refuse("generic_gemm", out=out, accumulate=accumulate, extra_output=extra_output, **given)
    if out_dtype is not None and _TORCH.get(DType(out_dtype)) is not a.dtype:
        raise NotImplementedError(f"{COMPILED}.generic_gemm of {a.dtype} to {DType(out_dtype).name} has no shapes")
    rows, columns = b.view(-1, b.shape[-1]), a.view(-1, a.shape[-1])
    product = torch.mm(rows.t() if transb else rows, columns.t() if transa else columns)
    return product if transb else product.view(*b.shape[:-1], -1), None, None, None


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
    """The normed input and 1/rms, fp32, of every row (`csrc/extensions/normalization.cpp`)."""
    _refuse("rmsnorm_fwd", out=out, quantizer=quantizer)
    if weight.shape != x.shape[-1:]:
        raise RuntimeError(f"a norm of {tuple(x.shape)} by a weight of {tuple(weight.shape)}")
    rows = x.numel() // x.shape[-1]
    return x.new_empty(x.shape, dtype=_TORCH[DType(out_dtype)]), None, x.new_empty(rows, dtype=torch.float32)


@_kernel
def rmsnorm_bwd(
    dz: Tensor, x: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of the input and the weight (`csrc/extensions/normalization.cpp`)."""
    if dz.shape != x.shape:
        raise RuntimeError(f"the gradient of a norm of {tuple(x.shape)} has shape {tuple(dz.shape)}")
    return torch.empty_like(x.contiguous()), torch.empty_like(gamma.contiguous())


@_kernel
def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Norm of all tensors, and of each if asked for (`csrc/extensions/multi_tensor/l2norm.cpp`)."""
    (tensors,) = tensor_lists
    norm = tensors[0].new_empty(1, dtype=torch.float32)
    return norm, norm.new_empty(len(tensors) if per_tensor else 0)


@_kernel
def multi_tensor_scale(
    chunk_size: int, is_infinite: Tensor, tensor_lists: list[list[Tensor]], scale: float
) -> None:
    """Write scaled tensors into others (`csrc/extensions/multi_tensor/scale.cpp`)."""
    _check_alike("multi_tensor_scale", tensor_lists, 2)


@_kernel
def multi_tensor_adam(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], *settings: Any) -> None:
    """Step of AdamW in place: gradients, weights, moments (`csrc/extensions/multi_tensor/adam.cpp`)."""
    _check_alike("multi_tensor_adam", tensor_lists, 4)


@_kernel
def multi_tensor_adam_param_remainder(
    chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], *settings: Any
) -> None:
    """The same, with what the fp32 weights have beyond bf16 ones (`csrc/extensions/multi_tensor/adam.cpp`)."""
    _check_alike("multi_tensor_adam_param_remainder", tensor_lists, 5)


def _check_alike(function: str, tensor_lists: list[list[Tensor]], lists: int) -> None:
    """Refuse lists of another number, and tensors that do not have as many elements as those beside them."""
    if len(tensor_lists) != lists:
        raise RuntimeError(f"{COMPILED}.{function} was given {len(tensor_lists)} lists, not {lists}")
    for beside in zip(*tensor_lists, strict=True):
        if len({tensor.numel() for tensor in beside}) > 1:
            raise RuntimeError(f"{COMPILED}.{function}: {[tuple(tensor.shape) for tensor in beside]} do not fit")


_KERNELS = (
    *(generic_gemm, rmsnorm_fwd, rmsnorm_bwd, multi_tensor_l2norm, multi_tensor_scale),
    *(multi_tensor_adam, multi_tensor_adam_param_remainder),
)


class _Compiled(_Names):
    """The module that takes the compiled one's place."""

    def __init__(self) -> None:
        super().__init__(COMPILED)
        vars(self).update(_ENUMS, **{kernel.__name__: kernel for kernel in _KERNELS})
