"""Arithmetic that all x86-64 processors with AVX2 share: one set of kernels, whatever else a processor has.

torch, its libraries, numpy, numba and vLLM choose kernels by the processor, and kernels differ in the order of their
sums. The variables of `ENVIRONMENT` hold all of them to AVX2; libraries read them when they are loaded, so a process
is started with them. vLLM asks torch (`hide_wider`). MKL has other kernels for other makers' processors unless it keeps
to its oldest, which are slow: it is left with exponentials and logarithms, and products of matrices are OpenBLAS's
(`moe.cpu.bfloat16`).
"""

from __future__ import annotations

import os
import sys

ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Haswell",
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe,+popcnt",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
}
"""Variables of a process whose arithmetic is portable."""


def portable() -> bool:
    """True if this process was started with the variables of portable arithmetic."""
    return all(os.environ.get(name) == value for name, value in ENVIRONMENT.items())


def start_anew() -> None:
    """Replace this process by one of the same command with the variables of portable arithmetic.

    Descriptors that may be inherited stay open. Nothing is done in a process that has the variables.
    """
    if not portable():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **ENVIRONMENT})


def hide_wider() -> None:
    """Have vLLM load its library for AVX2, before it is imported; nothing where arithmetic need not be portable."""
    if portable():
        import torch

        for name in ("_is_avx512_supported", "_is_avx512_bf16_supported", "_is_amx_tile_supported"):
            setattr(torch.cpu, name, lambda: False)
