"""reasoning-gym, imported so that it also works without pycosat, which is C and has no wheels."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from functools import cache
from types import ModuleType
from typing import Any

from tasks.errors import TaskError

NEEDS_PYCOSAT = "zebra_puzzles"
"""The family whose generator solves with pycosat; all of reasoning-gym imports it."""


def reasoning_gym(module: str) -> Any:
    """Import a module of reasoning-gym.

    Imports a hundred generators and what they need; only a process that draws or grades problems should pay for it.

    Args:
        module: its name inside of the package, such as `factory`.
    """
    _has_pycosat()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return importlib.import_module(f"reasoning_gym.{module}")


def one_generator(module: str) -> Any:
    """Import one module of reasoning-gym without the hundred generators beside it.

    The packages that it lies in import all others when their own files run, and with them SymPy and Matplotlib. Those
    files are passed over, and what was imported is forgotten: whoever imports the package has it whole.

    Args:
        module: its name inside of the package, such as `arithmetic.chain_sum`.
    """
    if "reasoning_gym" in sys.modules:
        return reasoning_gym(module)
    name, before = f"reasoning_gym.{module}", set(sys.modules)
    try:
        for depth in range(name.count("."), 0, -1):
            package = name.rsplit(".", depth)[0]
            spec = importlib.util.find_spec(package)
            if spec is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
            sys.modules[package] = importlib.util.module_from_spec(spec)  # its file has not run
        return importlib.import_module(name)
    finally:
        for one in sys.modules.keys() - before:
            if one.partition(".")[0] == "reasoning_gym":
                del sys.modules[one]


def demand_solver(family: str) -> None:
    """Refuse a family that pycosat is missing for.

    Raises:
        TaskError: it is not installed.
    """
    if family == NEEDS_PYCOSAT and not _has_pycosat():
        raise TaskError(
            f"{family} needs pycosat, which is compiled when it is installed: sudo apt-get install gcc "
            "python3-dev, then pip install 'scalelab[puzzles]' (in a checkout: .venv/bin/pip install pycosat==0.6.6)"
        )


@cache
def _has_pycosat() -> bool:
    """True if pycosat is installed; else an empty module stands for it, so that the other families can be imported."""
    found = importlib.util.find_spec("pycosat") is not None
    if not found:
        sys.modules["pycosat"] = ModuleType("pycosat", "Stands for pycosat, which is not installed.")
    return found
