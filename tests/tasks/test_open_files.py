"""Too few open files are named as such, by the command that meets the limit."""

from __future__ import annotations

import subprocess
import sys

import pytest

SOURCE = "import resource; from tasks.open_files import allow_files; allow_files(); print(resource.getrlimit(7)[0])"


@pytest.mark.parametrize(("limits", "left"), [((40, 1000), "1000"), ((40, 20_000), "4096"), ((5000, 6000), "5000")])
def test_the_limit_of_open_files_is_raised_as_far_as_it_may(limits: tuple[int, int], left: str) -> None:
    assert limited(limits).stdout.strip() == left


def test_too_few_open_files_are_named_with_what_to_do() -> None:
    last = limited((40, 100)).stderr.splitlines()[-1]
    assert "may have 100 files open at once, and needs 256: raise the limit with `ulimit -Hn 4096`" in last


def limited(limits: tuple[int, int]) -> subprocess.CompletedProcess[str]:
    """Run the source where so many files may be open (7 is the limit's number on Linux)."""
    source = f"import resource; resource.setrlimit(7, {limits}); {SOURCE}"
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=100, check=False)
