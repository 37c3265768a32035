"""Messages of C++ code go to a file of the run, and the terminal shows the lab's lines alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WRITE = """
import os, subprocess, sys
from contextlib import ExitStack
from pathlib import Path
from scalelab.session.native_output import native_stderr_to, python_stderr_apart
def speak(place):
    print(f"Python {place}", file=sys.stderr)
    os.write(2, f"[2026-11-22 E core_worker.cc] C++ {place}\\n".encode())
    subprocess.run(["sh", "-c", f"echo child {place} >&2"], check=True)
with ExitStack() as stack:
    if sys.argv[2] == "apart":
        stack.enter_context(python_stderr_apart())
    with native_stderr_to(Path(sys.argv[1])):
        speak("inside")
    os.write(2, b"C++ after\\n")
print("Python in the end", file=sys.stderr)
with python_stderr_apart(), native_stderr_to(Path(sys.argv[1] + ".quiet")):
    print("Python again", file=sys.stderr)
"""


def written(path: Path, how: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(path), how], capture_output=True, text=True, timeout=900, check=True
    )
    assert not path.with_name(path.name + ".quiet").exists(), "a file that stays empty is deleted"
    return done.stderr.splitlines()


def test_what_native_code_says_goes_to_the_file_and_python_to_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "ray.log"
    file.write_text("of an earlier process\n")
    assert written(file, "apart") == ["Python inside", "C++ after", "Python in the end", "Python again"]
    assert file.read_text().splitlines() == [
        "of an earlier process",
        "[2026-11-22 E core_worker.cc] C++ inside",
        "child inside",
    ]


def test_python_s_own_lines_are_never_hidden_in_the_file(tmp_path: Path) -> None:
    """A program that calls the lab without moving Python's standard error loses no line of it."""
    told = written(tmp_path / "ray.log", "together")
    assert "Python inside" in told
    assert "child inside" in told
    assert not (tmp_path / "ray.log").exists()
