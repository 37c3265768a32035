"""A file of completions that was damaged is refused, or read; it never ends the process that reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from scalelab.errors import LabError
from scalelab.parquet import take_rows
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


FIND = """
import os, sys
from pathlib import Path
from pyarrow import parquet
path, content = Path(sys.argv[1]), Path(sys.argv[1]).read_bytes()
for at in range(len(content)):
    for bit in range(8):
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :])
        if os.fork() == 0:
            os.close(2)
            try:
                group = parquet.ParquetFile(path).metadata.row_group(0)
                [group.column(index) for index in range(group.num_columns)]
            except BaseException:
                pass
            os._exit(0)
        if os.waitstatus_to_exitcode(os.wait()[1]) < 0:
            sys.exit()  # and the file stays so
"""
"""Damages a file so that pyarrow ends the process that asks for the counts of its columns."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_lists_with_damaged_counts_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens.parquet"
    parquet.write_table(pyarrow.table({"tokens": [[1, 2], [], [3]], "task": ["a", "b", "a"]}), file)
    assert take_rows(file, [1, 2], ["tokens"]) == {"tokens": [[], [3]]}
    whole = file.read_bytes()
    subprocess.run([sys.executable, "-c", FIND, str(file)], timeout=200, check=True)
    assert file.read_bytes() != whole
    with pytest.raises(LabError, match="its counts of tokens are damaged"):
        take_rows(file, None, ["tokens"])
