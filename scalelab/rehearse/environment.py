"""The separate environment with a simulated CUDA device: its Python, or how to install it; importable without torch."""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from scalelab.environment import ProcessRole, environment
from scalelab.hardware import Device
from scalelab.rehearse.forks import MEMORY_GIB
from scalelab.rehearse.processes import ROOT, Interpreter

FOLDER, SCRIPT = ".rehearse", "tools/rehearse/install.sh"
LIBRARIES = ("cudart.so", "libcuda.so.1", "libnvidia-ml.so.1")


def simulated_cuda(hardware: Device, root: Path = ROOT) -> Interpreter | None:
    """The Python with torch's CUDA build and a simulated runtime; None where `tools/rehearse/install.sh` never ran.

    Args:
        hardware: the GPU that is simulated.
        root: the checkout.
    """
    folder = root / FOLDER
    python = folder / "env/bin/python"
    if not all(path.exists() for path in (python, *(folder / name for name in LIBRARIES))):
        return None
    libraries = os.pathsep.join(path for path in (str(folder), os.environ.get("LD_LIBRARY_PATH")) if path)
    environment = {
        "LD_PRELOAD": str(folder / LIBRARIES[0]),
        "LD_LIBRARY_PATH": libraries,
        "SIMULATED_CAPABILITY_MAJOR": str(hardware.capability[0]),
        MEMORY_GIB: str(int(hardware.memory_gib)),
        "CUDA_VISIBLE_DEVICES": "0",  # where there are real GPUs, no more than the one that is simulated
    }
    return Interpreter(str(python), tuple(environment.items()))


def interpreters(simulated: Interpreter | None) -> dict[str, Interpreter]:
    """The Python of each kind of role, with the variables that its processes have in a run.

    Args:
        simulated: with a simulated device, for the trainer and the tuner; None has them run without one.
    """
    kinds: tuple[ProcessRole, ...] = ("trainer", "engine", "verifier")
    pythons = {kind: Interpreter() for kind in kinds} | ({"trainer": simulated} if simulated else {})
    found = {"cluster": Interpreter(environment=_of_ray())}
    for kind, one in pythons.items():
        found[kind] = replace(one, environment=tuple({**_variables(kind), **dict(one.environment)}.items()))
    return {**found, "tuner": found["trainer"]}


@lru_cache(maxsize=1)
def _of_ray() -> tuple[tuple[str, str], ...]:
    """Variables of a Ray that nobody else finds, read when it is imported; a token as `launch` gives its nodes one."""
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # in place of the user's, which stays as it is
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps to the loopback (`scalelab.cluster.surroundings`)
        "RAY_worker_niceness": "0",
    }
    return tuple(variables.items())


def _variables(kind: ProcessRole) -> dict[str, str]:
    return {name: value for name, value in environment(kind).items() if name != "PYTHONPATH"}


def how_to_set_up(root: Path = ROOT) -> str:
    """Name the command that installs the environment, in one line."""
    if not (root / SCRIPT).is_file():
        return f"there is no {SCRIPT} here to simulate a CUDA device with: run from a checkout of the lab"
    first = "" if shutil.which("gcc") else "install gcc, then "
    return f"no simulated CUDA device is set up: {first}run {SCRIPT} (3 GB to download, 5 GB on disk)"
