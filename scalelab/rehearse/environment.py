"""The separate environment with a simulated CUDA device: its Python, or how to install it; importable without torch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from scalelab.hardware import Device
from scalelab.rehearse.processes import ROOT, Interpreter
from scalelab.rehearse.worker import PRETENDED

FOLDER, SCRIPT = ".rehearse", "tools/rehearse/install.sh"


def simulated_cuda(hardware: Device, root: Path = ROOT) -> Interpreter | None:
    """The Python with torch's CUDA build and a simulated runtime; None where `tools/rehearse/install.sh` never ran.

    Args:
        hardware: the GPU that is simulated.
        root: the checkout.
    """
    folder = root / FOLDER
    python, runtime = folder / "env/bin/python", folder / "cudart.so"
    if not (python.exists() and runtime.exists() and (folder / "libcuda.so.1").exists()):
        return None
    libraries = os.pathsep.join(path for path in (str(folder), os.environ.get("LD_LIBRARY_PATH")) if path)
    environment = {
        "LD_PRELOAD": str(runtime),
        "LD_LIBRARY_PATH": libraries,
        "PRETENDED_CAPABILITY_MAJOR": str(hardware.capability[0]),
        PRETENDED: str(int(hardware.memory_gib)),
        "CUDA_VISIBLE_DEVICES": "0",  # where there are real GPUs, no more than the one that is simulated
    }
    return Interpreter(str(python), environment)


def how_to_set_up(root: Path = ROOT) -> str:
    """Name the command that installs the environment, in one line."""
    if not (root / SCRIPT).is_file():
        return f"there is no {SCRIPT} here to simulate a CUDA device with: run from a checkout of the lab"
    first = "" if shutil.which("gcc") else "install gcc, then "
    return f"no simulated CUDA device is set up: {first}run {SCRIPT} (3 GB to download, 5 GB on disk)"
