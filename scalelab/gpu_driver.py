"""Compare torch's CUDA with the NVIDIA driver here, look for packages, measure memory; nothing heavy is imported."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

OLDEST = {12: 525, 13: 580}
"""Oldest driver for each major version of CUDA (NVIDIA, CUDA release notes, table of minimum required drivers)."""
DRIVER = Path("/proc/driver/nvidia/version")
INSTALL = "install the GPU packages (make install-gpu)"
VISIBLE = "install it, or start the container with its GPUs (--gpus all)"


def problem_here(
    packages: Mapping[str, str] | None = None, driver: Path = DRIVER, torch: Path | None = None
) -> str | None:
    """Say why a run cannot use this machine's GPUs, and what would do; None if nothing is known to be wrong.

    Args:
        packages: modules that the run needs, with the setting that needs each.
        driver: file of the driver's kernel module; where the system does not show it, the driver is asked whether it
            is there.
        torch: folder of torch's package; None finds it.
    """
    for module, setting in (packages or {}).items():
        if importlib.util.find_spec(module) is None:
            return f"{setting} needs the package {module}, which is not installed: install it, or leave the setting out"
    if torch is None:
        found = importlib.util.find_spec("torch")
        if found is None or found.origin is None:
            return f"torch is not installed: {INSTALL}"
        torch = Path(found.origin).parent
    cuda = re.search(r"^cuda\b[^=]*= '(\d+)\.(\d+)'", (torch / "version.py").read_text(), re.MULTILINE)
    if cuda is None:
        return f"torch {importlib.metadata.version('torch')} is built without CUDA: {INSTALL}"
    if not driver.is_file():
        return None if _driver_answers() else f"there is no NVIDIA driver here ({driver} is missing): {VISIBLE}"
    have, oldest = driver_version(driver), OLDEST.get(int(cuda[1]))
    if have is None or oldest is None or int(have.partition(".")[0]) >= oldest:
        return None
    return f"the NVIDIA driver is {have}, and CUDA {cuda[1]}.{cuda[2]} wants {oldest} or newer: update the driver"


def driver_version(driver: Path = DRIVER) -> str | None:
    """The version of the NVIDIA driver here, such as 580.65.06; None where the system does not show it."""
    if not driver.is_file():
        return None
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", driver.read_text())
    return None if found is None else found[1]


def _driver_answers() -> bool:
    """True if the driver's library can be loaded and starts, which needs no package."""
    try:
        return ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2() == 0
    except (OSError, AttributeError):
        return False


def smallest_memory() -> float | None:
    """GiB of the smallest GPU of this machine, as the driver counts them; None where it cannot be asked."""
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore] # of requirements/gpu.txt alone
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return min((pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30 for handle in handles), default=None)
    except pynvml.NVMLError:
        return None


def look_here(packages: Mapping[str, str]) -> tuple[str | None, float | None, str | None]:
    """Return what `problem_here`, `smallest_memory` and `driver_version` say of this machine."""
    return problem_here(packages), smallest_memory(), driver_version()
