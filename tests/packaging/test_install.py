"""The install scripts, with stand-ins for Python and apt-get, and the files of the images."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = ["tools/cluster/Dockerfile", "tools/cluster/cpu.Dockerfile"]
NEEDED = ("bash", "cat", "chmod", "cut", "dirname", "env", "mkdir", "rm", "sha256sum", "touch")
"""Programs that are there beside the stand-ins: none that the scripts look for."""

PYTHON = """#!/bin/sh
case "$*" in
    "-m venv .venv")
        mkdir -p .venv/bin
        for one in python uv; do cat "$0" > .venv/bin/$one; chmod +x .venv/bin/$one; done;;
    *libnuma*) exit 1;;
esac
"""
APT = """#!/bin/sh
echo "$@" >> calls
case "$2" in
    update) [ -e lists_free ] || { touch lists_free; exit 100; };;
    *) exit "$APT_RESULT";;
esac
"""


def install(tree: Path, apt_result: int) -> subprocess.CompletedProcess[str]:
    """Run `tools/install.sh` in a copy of what it needs, as root on a machine without bubblewrap, g++ and Node.js."""
    for name in ("tools/install.sh", "tools/apt_install.sh", "requirements/cpu.txt", "pyproject.toml"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    programs = tree / "programs"
    programs.mkdir(exist_ok=True)
    for name in NEEDED:
        (programs / name).unlink(missing_ok=True)
        (programs / name).symlink_to(str(shutil.which(name)))
    stand_ins = {"python3.11": PYTHON, "apt-get": APT, "id": "#!/bin/sh\necho 0\n", "sleep": "#!/bin/sh\n"}
    for name, code in stand_ins.items():
        (programs / name).write_text(code)
        (programs / name).chmod(0o755)
    environment = {"PATH": str(programs), "APT_RESULT": str(apt_result)}
    command = [str(shutil.which("bash")), str(tree / "tools" / "install.sh")]
    return subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, check=True, timeout=900)


def test_a_set_up_waits_for_another_apt_get(tmp_path: Path) -> None:
    first = install(tmp_path, apt_result=0)
    assert (first.stderr, re.sub(r"\d+", "N", first.stdout)) == ("", "installed in N s\n")
    update, again, installing = (tmp_path / "calls").read_text().splitlines()
    assert update == again == "-qq update", "the first finds the lists locked"
    assert installing == "-qq -o DPkg::Lock::Timeout=300 install -y bubblewrap g++ nodejs libnuma1"
    assert install(tmp_path, apt_result=0).stdout == "", "there is nothing to do any more"


def test_a_set_up_that_lacks_something_says_so_every_time(tmp_path: Path) -> None:
    for _ in range(2):
        done = install(tmp_path, apt_result=100)
        assert "could not be installed: bubblewrap g++ nodejs libnuma1" in done.stderr
        assert done.stderr.count("\n") == 1
    assert not list((tmp_path / ".venv").glob("installed-*"))


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_gets_all_that_its_commands_and_the_package_need(image: str) -> None:
    text = (ROOT / image).read_text().replace("\\\n", " ")
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied: set[str] = set()
    for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists(), line
            assert source.split("/")[0] not in ignored, line
        copied.update(sources)
    for command in re.findall(r"^RUN (.+)$", text, re.MULTILINE):
        subprocess.run(["sh", "-n", "-c", command], check=True, timeout=900)
        for script in re.findall(r"tools/\S+\.sh", command):
            assert any(script == one or script.startswith(f"{one}/") for one in copied), script
            assert os.access(ROOT / script, os.X_OK), script
            for named in re.findall(r"\b(?:requirements|tools)/[\w/.-]+\w", (ROOT / script).read_text()):
                if named.endswith((".txt", ".sh")):
                    assert any(named == one or named.startswith(f"{one}/") for one in copied), (script, named)
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages <= copied
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= copied


def test_gpu_packages_are_pinned_as_the_package_asks_and_as_on_a_cpu() -> None:
    """Trainer, engines and tasks are the same code on both; torch, vLLM and what they bring differ."""
    gpu, cpu = (pins(ROOT / "requirements" / f"{device}.txt") for device in ("gpu", "cpu"))
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu"]
    exact = dict(one.split("==") for one in wanted if "==" in one)
    assert {name: gpu.get(name) for name in exact} == exact
    assert {re.split(r"[^\w-]", one)[0] for one in wanted} <= gpu.keys()
    shared = ("megatron-core", "transformers", "ray", "math-verify", "reasoning-gym", "datasets", "numpy", "scipy")
    assert {name: gpu[name] for name in shared} == {name: cpu[name] for name in shared}


def pins(file: Path) -> dict[str, str]:
    """Versions of a lock file by package; every line is a pin."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith(("#", "-"))]
    return {name.replace("_", "-").lower(): version for name, version in (line.split("==") for line in lines)}
