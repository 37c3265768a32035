"""Processes with portable arithmetic, on this machine's processor and on one that is simulated."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("other_processor.c")
NO_FAULT = 77
"""Exit code where CPUID does not fault."""


def simulated_processor(folder: Path) -> dict[str, str] | None:
    """Variables that show a process another processor; None where that cannot be done."""
    library = folder / "other_processor.so"
    made = subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"], timeout=60, check=False)
    if made.returncode:
        return None
    shown = {"LD_PRELOAD": str(library), "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ"}
    tried = subprocess.run([sys.executable, "-c", ""], env={**os.environ, **shown}, timeout=60, check=False)
    return None if tried.returncode == NO_FAULT else shown


def printed(command: Sequence[str], variables: Mapping[str, str], seconds: float) -> str:
    """Output of a process that ends well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=seconds, check=False, cwd=root
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip()
