"""Portable arithmetic: the same bytes on processors of several kinds, and products that are right."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from moe.cpu import bfloat16
from moe.cpu.portable import ENVIRONMENT, portable
from tests.helpers.processors import printed, simulated_processor

SUMS = "2afc3aba08c5bac5a9a3f5438cb86af6ae5937966c6360f134434dbffc5061c8"
"""Printed on an Intel Xeon with AVX-512, and on the same as an AMD EPYC without."""
COMMAND = [sys.executable, "-m", "tests.helpers.portable_sums"]


@pytest.mark.nightly
@pytest.mark.slow
def test_kernels_give_the_bytes_that_other_processors_gave() -> None:
    assert printed(COMMAND, ENVIRONMENT, 300) == SUMS


@pytest.mark.nightly
@pytest.mark.slow
def test_kernels_give_the_same_bytes_where_another_processor_is_shown(tmp_path: Path) -> None:
    if (shown := simulated_processor(tmp_path)) is None:
        pytest.skip("needs gcc, and a processor whose CPUID can be made to fault")
    name = "import llvmlite.binding as library; print(library.get_host_cpu_name())"
    assert printed([sys.executable, "-c", name], shown, 60) == "znver2"
    assert printed(COMMAND, {**ENVIRONMENT, **shown}, 300) == SUMS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_portable_products_are_those_of_double_precision_rounded(dtype: torch.dtype) -> None:
    draws = torch.Generator().manual_seed(1)
    a, b, c = (torch.randn(shape, generator=draws).to(dtype) for shape in ((3, 5, 7), (3, 7, 4), (3, 5, 4)))
    right: dict[str, Any] = bfloat16.PORTABLE
    exact = a.double() @ b.double()
    close = {"rtol": 2**-7 if dtype is torch.bfloat16 else 1e-5, "atol": 1e-5}
    torch.testing.assert_close(right["bmm"](a, b).double(), exact, **close)
    torch.testing.assert_close(right["mm"](a[0].T.contiguous().T, b[0]).double(), exact[0], **close)
    added = right["baddbmm"](c, a, b, beta=0.5, alpha=2.0)
    torch.testing.assert_close(added.double(), 0.5 * c.double() + 2 * exact, **close)
    assert added.dtype is dtype


def test_arithmetic_is_portable_only_with_all_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert portable()
    for name in ENVIRONMENT:
        with monkeypatch.context() as without:
            without.delenv(name)
            assert not portable()
