"""Say whether this machine can run the whole lab, before anything is downloaded: `python -I scalelab/machine.py cpu`.

Nothing but the standard library is imported: set-up runs this file before a package is installed. `doctor` takes the
limits from here.
"""

from __future__ import annotations

import os
import platform
import shutil
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30
MEMORY_GIB = 4
"""Memory of the smallest run."""
DISK_GIB = {"cpu": 6, "cuda-torch": 12, "gpu": 14}
"""Sizes of the environments, with room for what pip downloads; `cuda-torch` is the CPU's set with PyPI's torch."""
GLIBC = (2, 31)
"""Oldest C library that all pinned wheels are built for (llguidance)."""
GLIBC_ARM_GPUS = (2, 34)
"""Oldest C library for GPUs beside Arm processors (tilelang, z3-solver)."""
PROCESSORS = ("x86_64", "aarch64")
CORE_ALONE = "curves, plans and pages work without it: pip install ."


@dataclass(frozen=True)
class HostFacts:
    """Facts that set-up asks of a machine."""

    system: str
    processor: str
    bits: int
    glibc: tuple[int, ...] | None
    """None where the C library is another, such as musl."""
    avx2: bool
    memory: float
    """Bytes, within the container's limit."""
    disk: float
    """Bytes that are free where the environment goes."""


def this_machine(folder: Path, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> HostFacts:
    """Look at this machine.

    Args:
        folder: where the environment goes.
        proc: the kernel's files on processors and memory.
        groups: the control group's files, which hold a container's limit.
    """
    return HostFacts(
        system=sys.platform,
        processor=platform.machine(),
        bits=8 * struct.calcsize("P"),
        glibc=_glibc(),
        avx2=" avx2" in _text(proc / "cpuinfo"),
        memory=_memory(proc, groups),
        disk=shutil.disk_usage(folder).free,
    )


def problems(machine: HostFacts, kind: str) -> list[str]:
    """Obstacles to running the whole lab on a machine, one sentence each with what to do.

    Args:
        machine: what `this_machine` found.
        kind: the set of packages, `cpu`, `cuda-torch` or `gpu`.
    """
    found = []
    if machine.system != "linux":
        found.append(f"the whole lab needs Linux (on Windows: WSL), and this is {machine.system}; {CORE_ALONE}")
    if machine.bits != 64 or machine.processor not in PROCESSORS:
        found.append(
            f"the engines need a 64-bit Python on x86-64 or Arm (aarch64); this one has {machine.bits} bits on "
            f"{machine.processor}; {CORE_ALONE}"
        )
    oldest = oldest_glibc(kind, machine.processor)
    if machine.system == "linux" and (machine.glibc is None or machine.glibc < oldest):
        here = "another C library (musl?)" if machine.glibc is None else f"glibc {_dotted(machine.glibc)}"
        systems = "Debian 11, Ubuntu 20.04" if oldest == GLIBC else "Debian 12, Ubuntu 22.04"
        found.append(
            f"the engines are built for glibc {_dotted(oldest)} or newer, and this system has {here}: take {systems} "
            f"or newer, or a container of one (tools/cluster); {CORE_ALONE}"
        )
    if kind == "cpu" and machine.processor == "x86_64" and not machine.avx2:
        found.append(f"vLLM's CPU kernels need AVX2, which this processor does not have; {CORE_ALONE}")
    if machine.memory < MEMORY_GIB * GIB:
        found.append(
            f"{machine.memory / GIB:.1f} GiB of memory, and the smallest run needs {MEMORY_GIB}: give the machine or "
            f"container more; {CORE_ALONE}"
        )
    if machine.disk < DISK_GIB[kind] * GIB:
        found.append(
            f"{machine.disk / GIB:.1f} GiB of disk are free, and the packages need {DISK_GIB[kind]}: free some, or put "
            f"the checkout on another disk; {CORE_ALONE}"
        )
    return found


def oldest_glibc(kind: str, processor: str) -> tuple[int, int]:
    """Oldest C library for a set of packages, `cpu` or `gpu`, on a processor."""
    return GLIBC_ARM_GPUS if (kind, processor) == ("gpu", "aarch64") else GLIBC


def cores() -> int:
    """Number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux alone
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _glibc() -> tuple[int, ...] | None:
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError, AttributeError):
        return None
    return tuple(int(part) for part in version.split(".")[:2]) if name == "glibc" else None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _memory(proc: Path, groups: Path) -> float:
    """Bytes of memory, or of the control group where it allows less; infinite where the system does not say."""
    return min(_total_memory(proc), group_memory(groups)[0])


def group_memory(groups: Path = Path("/sys/fs/cgroup")) -> tuple[float, float]:
    """Bytes that this process's control group may have (infinite without a limit), and bytes that it has.

    Args:
        groups: the control group's files, of the kernel's second version or its first.
    """
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, now = _text(groups / limit).strip(), _text(groups / used).strip()
        if most.isdigit():
            return int(most), int(now) if now.isdigit() else 0
    return float("inf"), 0


def _total_memory(proc: Path) -> float:
    lines = [line for line in _text(proc / "meminfo").splitlines() if line.startswith("MemTotal")]
    return int(lines[0].split()[1]) * 1024 if lines else float("inf")


if __name__ == "__main__":
    sentences = problems(this_machine(Path.cwd()), sys.argv[1])
    for sentence in sentences:
        print(f"scalelab: {sentence}", file=sys.stderr)
    sys.exit(bool(sentences))
