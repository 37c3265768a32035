"""README's first block, line by line, in the environment that it names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.packaging.test_wheel import ENVIRONMENT, ROOT, tracked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def first_block() -> list[str]:
    """Commands of the first block of README, without their remarks."""
    text = (ROOT / "README.md").read_text()
    [block, *_] = re.findall(r"(?:^    .+\n)+", text, re.MULTILINE)
    return [line.partition("  #")[0].strip() for line in block.splitlines()]


def test_the_first_block_of_the_readme_works_line_by_line(tmp_path: Path) -> None:
    """In a copy of the checkout; `demo` until its page answers, and `make quickstart` as far as make plans it."""
    copy = tmp_path / "checkout"
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    settings = ENVIRONMENT | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    venv, install, demo, everything = first_block()
    assert everything == "make quickstart"
    planned = subprocess.run(["make", "-n", "quickstart"], cwd=copy, capture_output=True, text=True, check=True)
    assert "scalelab run experiments/quickstart.py" in planned.stdout
    both = f"set -e\n{venv}\n{install}\n"
    done = subprocess.run(["bash", "-c", both], cwd=copy, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    command = f". core/bin/activate && exec {demo} --port 0"
    page = subprocess.Popen(["bash", "-c", command], cwd=copy, env=settings, stdout=subprocess.PIPE, text=True)
    try:
        assert page.stdout is not None
        address = page.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=120) as answer:
            assert "<html" in answer.read().decode()
    finally:
        page.terminate()
        page.wait(timeout=60)
    for word in ("fit", "compare", "forecast", "plan", "view"):
        subprocess.run(
            [copy / "core" / "bin" / "scalelab", word, "--help"], env=settings, check=True, capture_output=True
        )
