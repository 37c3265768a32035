"""The locks agree with the package and with each other, and the images install from them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
IMAGES = ["tools/cluster/Dockerfile", "tools/cluster/cpu.Dockerfile"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = ("tools", "cpu", "torch-cuda", "gpu", "kuberay", "verifiers")


def pins(lock: str, **machine: str) -> dict[str, str]:
    """Versions of a lock by package, on one machine; every entry is a pin with hashes and nothing else."""
    found: dict[str, str] = {}
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    for entry in re.sub(r"\\\n *", "", text).splitlines():
        if entry.startswith("#"):
            continue
        pin, *hashes = entry.split(" --hash=sha256:")
        assert hashes, pin
        assert all(re.fullmatch(r"[0-9a-f]{64} ?", one) for one in hashes), pin
        requirement = Requirement(pin)
        if requirement.marker is None or Marker(str(requirement.marker)).evaluate(machine):
            assert requirement.name not in found, requirement.name
            found[requirement.name] = str(requirement.specifier).removeprefix("==")
    return found


def machines() -> list[dict[str, str]]:
    pythons = [f"3.{minor}" for minor in range(30) if f"3.{minor}" in SpecifierSet(PROJECT["requires-python"])]
    return [
        {"python_version": python, "python_full_version": f"{python}.1", "platform_machine": processor}
        for python in pythons
        for processor in ("x86_64", "aarch64")
    ]


@pytest.mark.parametrize("machine", machines(), ids=str)
def test_each_machine_gets_one_version_of_every_package_and_the_same_on_a_cpu_and_on_gpus(
    machine: dict[str, str],
) -> None:
    """Trainer, engines and tasks are the same code on both; torch, vLLM and what they bring differ."""
    cpu, gpu = pins("cpu", **machine), pins("gpu", **machine)
    both = cpu.keys() & gpu.keys() - {"apache-tvm-ffi"}  # of which the GPU's kernels want an older one
    assert {"megatron-core", "transformers", "ray", "torch", "numpy", "scipy", "reasoning-gym"} <= both
    assert {name: gpu[name] for name in both} == {name: cpu[name] for name in both}
    extras = PROJECT["optional-dependencies"]
    wanted = {"gpu": extras["gpu"], "cpu": [one for name, some in extras.items() if name != "gpu" for one in some]}
    for lock, found in (("cpu", cpu), ("gpu", gpu)):
        for text in (*PROJECT["dependencies"], *wanted[lock]):
            requirement = Requirement(text)
            if requirement.name != "pycosat":  # needs a compiler (tasks/puzzles.py)
                assert requirement.specifier.contains(found[requirement.name]), text


OPTIONAL = {"mlflow", "trackio", "verifiers", "wandb"}
"""Modules of packages that the code asks for where they are, or names in its message."""
ANOTHER_NAME = {"pynvml": "nvidia-ml-py"}


def test_what_the_code_imports_is_locked_for_gpus() -> None:
    """The CPU's set has what tests need, too, so that no test there misses a package."""
    locked = pins("gpu", **machines()[0])
    imported = set()
    for path in (path for room in ("scalelab", "moe", "tasks") for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).split(".")[0])
    imported -= sys.stdlib_module_names | {"scalelab", "moe", "tasks", "experiments"} | OPTIONAL
    brought = packages_distributions()
    for module in imported:
        packages = [canonicalize_name(name).removesuffix("-cpu") for name in brought.get(module, ())]
        assert {ANOTHER_NAME.get(module), *packages} & locked.keys(), module


def test_no_lock_holds_what_breaks_vllm_on_a_cpu_or_takes_a_compiler() -> None:
    cpu = pins("cpu", **machines()[0])
    assert not cpu.keys() & {"torchvision", "torchaudio", "torchcodec", "pycosat"}
    assert not [name for name in cpu if name.startswith(("nvidia-", "cuda-"))]


def test_torch_may_be_the_cpu_build_of_every_python_and_processor_that_the_lock_holds_for() -> None:
    text = (ROOT / "requirements" / "cpu.txt").read_text()
    [entry] = re.findall(r"^torch==.*\n(?:    .*\n)*", text, re.MULTILINE)
    lines = (ROOT / "requirements" / "torch_cpu.sha256").read_text().splitlines()
    files = {file: digest for digest, file in (line.split() for line in lines if not line.startswith("#"))}
    assert all(digest in entry for digest in files.values())
    named = {tuple(re.findall(r"cp3(\d+)-manylinux_2_28_(\w+)\.whl", file)[0]) for file in files}
    assert named == {(one["python_version"].partition(".")[2], one["platform_machine"]) for one in machines()}


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_gets_all_that_its_commands_and_the_package_need(image: str) -> None:
    text = (ROOT / image).read_text().replace("\\\n", " ")
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied: set[str] = set()
    for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE):
        *sources, folder = line.split()
        for source in sources:
            assert (ROOT / source).exists(), line
            assert source.split("/")[0] not in ignored, line
            whole = source.rsplit("/", 1)[0] + "/" if "/" in source else ""
            assert folder in ("./", source, whole), f"{line}: the scripts look for {source}"
        copied.update(sources)
    for command in re.findall(r"^RUN (.+)$", text, re.MULTILINE):
        subprocess.run(["sh", "-n", "-c", command], check=True, timeout=900)
        scripts = [script for script in re.findall(r"tools/\S+\.sh", command) if (ROOT / script).exists()]
        while scripts:
            script = scripts.pop()
            assert any(script == one or script.startswith(f"{one}/") for one in copied), script
            named = set(re.findall(r"\b(?:requirements|tools|scalelab)/[\w/.-]+\w", (ROOT / script).read_text()))
            scripts += [one for one in named if one.endswith(".sh") and one != script]
            for one in named:
                if (ROOT / one).is_file():
                    assert any(one == two or one.startswith(f"{two}/") for two in copied), (script, one)
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages <= copied
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= copied


def test_an_image_has_a_python_that_the_locks_hold_for() -> None:
    cpu = (ROOT / "tools/cluster/cpu.Dockerfile").read_text()
    [python] = re.findall(r"^FROM python:(3\.\d+)-", cpu, re.MULTILINE)
    assert python in SpecifierSet(PROJECT["requires-python"])
    gpu = (ROOT / "tools/cluster/Dockerfile").read_text()
    assert "ubuntu24.04" in gpu
    assert "3.12" in SpecifierSet(PROJECT["requires-python"]), "the Python of Ubuntu 24.04"
    assert {"python3", "python3-venv"} <= set(gpu.split())


@pytest.mark.parametrize("machine", machines(), ids=str)
def test_the_gpu_image_has_the_dashboard_that_kuberay_gives_jobs_to(machine: dict[str, str]) -> None:
    """Ray names the packages of its dashboard as its extra `default`."""
    extra = machine | {"extra": "default"}
    wanted = [one for one in map(Requirement, requires("ray") or ()) if one.marker and one.marker.evaluate(extra)]
    gpu, beside = pins("gpu", **machine), pins("kuberay", **machine)
    assert not gpu.keys() & beside.keys()
    for one in wanted:
        assert one.specifier.contains((gpu | beside)[canonicalize_name(one.name)]), one
    assert "opencensus" in beside
    image = (ROOT / "tools/cluster/Dockerfile").read_text()
    assert " -r requirements/kuberay.txt\n" in image
    assert " wget " in image
