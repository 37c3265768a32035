"""A file of completions that was damaged is refused, or read; it never ends the process that reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.small_runs import write_run

READ = """
import sys
from pathlib import Path
from scalelab.errors import LabError
from scalelab.parquet import read_columns, take_rows
columns = ("task", "prompt_id", "reward", "outcome")
path, content = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()
for at in range(len(content)):
    for bit in range(8):
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :])
        for read in (lambda: take_rows(path, None, columns), lambda: read_columns(path)):
            try:
                read()
            except LabError:
                pass
print("all read")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_bit_of_a_file_that_flips_ends_the_process(tmp_path: Path) -> None:
    [file, *_] = sorted((write_run(tmp_path / "run", 3) / "rollouts").glob("*.parquet"))
    command = [sys.executable, "-c", READ, str(tmp_path / "damaged.parquet"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert (done.stdout.strip(), done.returncode) == ("all read", 0), done.stderr[-600:]
