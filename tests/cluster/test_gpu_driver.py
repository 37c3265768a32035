"""A torch that cannot use the machine's GPUs is known from files alone, with what would do."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from moe.settings import OptimizerConfig, TrainerSetup
from scalelab import gpu_driver
from scalelab.cluster.gpu_nodes import differing_drivers, unreachable
from scalelab.gpu_driver import driver_version, problem_here, smallest_memory

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Sep 24 2025\nGCC version:  gcc 12\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs)\n"


@pytest.mark.parametrize("text", [CLOSED, OPEN])
@pytest.mark.parametrize(
    ("cuda", "driver", "said"),
    [
        ("13.0", "535.104.05", "the NVIDIA driver is 535.104.05, and CUDA 13.0 wants 580 or newer: update the driver"),
        ("13.0", "580.65.06", None),
        ("12.8", "535.104", None),
        ("12.8", "470.57.02", "the NVIDIA driver is 470.57.02, and CUDA 12.8 wants 525 or newer: update the driver"),
        ("19.0", "1.2", None),
    ],
)
def test_an_old_driver_is_said(text: str, cuda: str, driver: str, said: str | None, tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.13.0'\ncuda: Optional[str] = '{cuda}'\nhip = None\n")
    (tmp_path / "driver").write_text(text.format(driver))
    assert problem_here({}, tmp_path / "driver", tmp_path) == said
    assert driver_version(tmp_path / "driver") == driver


def test_nodes_with_different_drivers_that_are_all_new_enough_are_named_in_one_line() -> None:
    nodes = [(f"10.0.0.{number}", "580.65.06") for number in range(1, 6)]
    assert differing_drivers([*nodes, ("10.0.0.6", None)]) is None
    said = differing_drivers([("10.0.0.9", "581.15"), *nodes, ("10.0.0.6", None)])
    assert said == (
        "nodes differ in their NVIDIA drivers: 580.65.06 on 10.0.0.1, 10.0.0.2, 10.0.0.3 and 2 more; "
        "581.15 on 10.0.0.9. If only some of them fail, make them alike"
    )


def test_a_node_that_others_find_at_themselves_is_refused_and_nodes_of_one_machine_are_not() -> None:
    assert unreachable(["10.0.0.1", "10.0.0.2", "fd00::3"]) is None
    assert unreachable(["127.0.0.1", "127.0.0.1"]) is None
    assert unreachable([]) is None
    for own in ("127.0.1.1", "::1"):
        said = unreachable(["10.0.0.2", own, "10.0.0.3"])
        assert said == (
            f"a node of the Ray cluster is known by {own}, at which the other 2 do not find it: "
            "start it again with --node-ip-address"
        )


@pytest.mark.parametrize("status", [0, 9, None])
def test_a_missing_driver_is_said_unless_its_library_answers(
    status: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may hide the module's file; NVML returns 9 where no driver is loaded, and is missing without one."""

    def load(name: str) -> SimpleNamespace:
        if status is None:
            raise OSError(f"{name}: cannot open shared object file")
        return SimpleNamespace(nvmlInit_v2=lambda: status)

    monkeypatch.setattr(gpu_driver.ctypes, "CDLL", load)
    (tmp_path / "version.py").write_text("__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\nhip = None\n")
    said = problem_here({}, tmp_path / "nowhere", tmp_path)
    assert (said is None) == (status == 0)
    assert said is None or said.startswith("there is no NVIDIA driver here (")


def test_a_package_that_a_setting_needs_is_missed_by_name() -> None:
    settings = TrainerSetup(
        dtype="bfloat16",
        kernels="transformer_engine",
        optimizer=OptimizerConfig(moments="bfloat16"),
    ).packages
    assert list(settings) == ["transformer_engine"]
    assert "kernels = 'transformer_engine' needs the package transformer_engine" in str(problem_here(settings))
    assert TrainerSetup().packages == {}


def test_this_torch_is_judged_by_its_own_file() -> None:
    import torch

    said = problem_here(driver=Path("/nowhere")) or ""
    assert ("is built without CUDA" in said) == (torch.version.cuda is None)


def test_the_smallest_gpu_counts_and_a_driver_that_cannot_be_asked_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def broken() -> None:
        raise NVMLError("Driver Not Loaded")

    sizes = [80 * 2**30, 40 * 2**30]
    library = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(sizes),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=sizes[handle]),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert smallest_memory() == 40.0
    sizes.clear()
    assert smallest_memory() is None
    library.nvmlInit = broken
    assert smallest_memory() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert smallest_memory() is None
