"""Messages of libraries go to a file of the run, and the terminal shows the lab's lines alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scalelab.cli import main
from scalelab.errors import LabError
from scalelab.session import session

WRITE = """
import os, subprocess, sys, sysconfig, warnings
from contextlib import ExitStack
from pathlib import Path
from scalelab.session.native_output import libraries_to, python_stderr_apart, without_library_warnings
installed_file = os.path.join(sysconfig.get_path("purelib"), "library.py")
def speak(place):
    print(f"Python {place}", file=sys.stderr)
    os.write(2, f"[2026-11-22 E core_worker.cc] C++ {place}\\n".encode())
    subprocess.run(["sh", "-c", f"echo child {place} >&2"], check=True)
    for file in (installed_file, installed_file, "experiment.py"):
        warnings.warn_explicit(f"warning {place}", FutureWarning, file, 3)
with ExitStack() as stack:
    if sys.argv[2] == "apart":
        stack.enter_context(python_stderr_apart())
    with libraries_to(Path(sys.argv[1])):
        speak("inside")
    os.write(2, b"C++ after\\n")
print("Python in the end", file=sys.stderr)
with without_library_warnings():
    for file in (installed_file, "own.py"):
        warnings.warn_explicit("warning hidden", FutureWarning, file, 3)
with python_stderr_apart(), libraries_to(Path(sys.argv[1] + ".quiet")):
    print("Python again", file=sys.stderr)
"""


def written(path: Path, how: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(path), how], capture_output=True, text=True, timeout=900, check=True
    )
    assert not path.with_name(path.name + ".quiet").exists(), "a file that stays empty is deleted"
    return done.stderr.splitlines()


def test_what_libraries_say_goes_to_the_file_and_python_to_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "libraries.log"
    file.write_text("of an earlier process\n")
    told = ["Python inside", "experiment.py:3: FutureWarning: warning inside"]
    own = "own.py:3: FutureWarning: warning hidden"
    assert written(file, "apart") == [*told, "C++ after", "Python in the end", own, "Python again"]
    *lines, warned = file.read_text().splitlines()
    assert lines == ["of an earlier process", "[2026-11-22 E core_worker.cc] C++ inside", "child inside"]
    assert warned.endswith("library.py:3: FutureWarning: warning inside")


def test_python_s_own_lines_are_never_hidden_in_the_file(tmp_path: Path) -> None:
    """A program that calls the lab without moving Python's standard error loses no line of it."""
    told = written(tmp_path / "libraries.log", "together")
    assert "Python inside" in told
    assert "child inside" in told
    assert sum("FutureWarning: warning inside" in line for line in told) == 3
    assert not (tmp_path / "libraries.log").exists()


def test_the_rest_of_an_error_that_the_terminal_has_one_line_of_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        try:
            raise RuntimeError("Ninja build failed. Ninja output:\n/bin/sh: 1: nvcc: not found")
        except RuntimeError as cause:
            raise LabError("generator 0 to start failed: RuntimeError: Ninja build failed.") from cause

    monkeypatch.setattr(session, "_run", fails)
    out = tmp_path / "run"
    assert main(["run", "quickstart", "--virtual", "--out", str(out)]) == 1
    told = capsys.readouterr()
    file = out / "libraries.log"
    assert f"all of the error is in {file}" in told.err + told.out
    assert "nvcc: not found" in file.read_text()
