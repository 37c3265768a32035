"""A file of completions that was damaged is refused, or read; it never ends the process that reads it."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from scalelab.cli import main
from scalelab.curves.paired import _rewards
from scalelab.errors import LabError
from scalelab.parquet import read_columns, take_rows
from scalelab.plan.lengths import Recorded
from scalelab.view.rollouts import Rollouts
from tests.helpers.small_runs import write_run

READ = """
import sys
from pathlib import Path
from scalelab.errors import LabError
from scalelab.parquet import read_columns, take_rows
columns = ("task", "prompt_id", "reward", "outcome")
path, content = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()
for at in range(len(content)):
    for bit in range((int(sys.argv[3]) + at) % 4, 8, 4):
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
@pytest.mark.parametrize("first", [0, *(pytest.param(one, marks=pytest.mark.nightly) for one in (1, 2, 3))])
def test_no_bit_of_a_file_that_flips_ends_the_process(first: int, tmp_path: Path) -> None:
    [file, *_] = sorted((write_run(tmp_path / "run", 3) / "rollouts").glob("*.parquet"))
    command = [sys.executable, "-c", READ, str(tmp_path / "damaged.parquet"), str(file), str(first)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert (done.stdout.strip(), done.returncode) == ("all read", 0), done.stderr[-600:]


FIND = """
import sys
from pathlib import Path
from pyarrow import parquet
path, content = Path(sys.argv[1]), Path(sys.argv[1]).read_bytes()
for at in reversed(range(len(content))):  # the counts stand near the end
    for bit in range(8):
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :])
        try:
            group = parquet.ParquetFile(path).metadata.row_group(0)
            [group.column(index) for index in range(group.num_columns)]
        except BaseException:
            pass
path.write_bytes(content)
"""
"""Damages a file until pyarrow ends the process that asks for the counts of its columns."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_lists_with_damaged_counts_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens.parquet"
    parquet.write_table(pyarrow.table({"tokens": [[1, 2], [], [3]], "task": ["a", "b", "a"]}), file)
    assert take_rows(file, [1, 2], ["tokens"]) == {"tokens": [[], [3]]}
    whole = file.read_bytes()
    ended = subprocess.run([sys.executable, "-c", FIND, str(file)], timeout=200, check=False, stderr=subprocess.DEVNULL)
    assert ended.returncode < 0
    assert file.read_bytes() != whole
    with pytest.raises(LabError, match="its counts of tokens are damaged"):
        take_rows(file, None, ["tokens"])


def test_lists_are_read_where_packages_lie_beside_the_interpreter(tmp_path: Path) -> None:
    """A process without the user's folders finds no pyarrow, as after `pip install --user`."""
    file, bare = tmp_path / "tokens.parquet", tmp_path / "python"
    parquet.write_table(pyarrow.table({"tokens": [[1, 2], [3]]}), file)
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    script = f"""
import sys
from pathlib import Path
from scalelab.parquet import take_rows
sys.executable = {str(bare)!r}
print(take_rows(Path({str(file)!r}), None, ["tokens"]))
"""
    beside = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([bare, "-c", script], env=beside, capture_output=True, text=True, check=False)
    assert done.stdout == "{'tokens': [[1, 2], [3]]}\n", done.stderr


def _grown(read: Callable[[], Any]) -> float:
    """MiB by which reading makes a process of its own larger; what it cannot read is refused."""
    child = os.fork()
    if child == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            read()
        except LabError:
            pass
        finally:
            os._exit(min(255, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 12))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) * 4


@pytest.mark.parametrize(("name", "groups"), [("task", 1), ("reward", 1), ("reward", 3)])
def test_a_small_file_of_long_texts_takes_little_memory(tmp_path: Path, name: str, groups: int) -> None:
    file = tmp_path / "texts.parquet"
    if name == "task":  # whose text is a dictionary's
        word = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 8000, pyarrow.int32()), ["z" * 100_000])
        parquet.write_table(pyarrow.table({name: word}), file)
    else:
        with parquet.ParquetWriter(
            file, pyarrow.schema([(name, pyarrow.string())]), compression="zstd", use_dictionary=False
        ) as writer:
            for _ in range(groups):
                writer.write_table(pyarrow.table({name: ["z" * 20_000] * (30_000 // groups)}))
    assert file.stat().st_size < 1 << 20
    assert _grown(lambda: take_rows(file, None, [name])) < 200


def _columns(path: Path, change: Callable[[pyarrow.Table], pyarrow.Table]) -> Path:
    """A run whose files of completions have other columns."""
    shutil.rmtree(path, ignore_errors=True)
    for file in (write_run(path, 3) / "rollouts").glob("*.parquet"):
        parquet.write_table(change(parquet.read_table(file)), file)
    return path


def _with(name: str, values: list[Any]) -> Callable[[pyarrow.Table], pyarrow.Table]:
    """A change that sets a column."""
    return lambda table: table.drop([name] if name in table.schema.names else []).append_column(name, [values * 8])


def test_a_column_that_is_missing_or_of_another_type_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page, `check`, `simulate --lengths` and comparisons by prompt refuse it in a line."""
    run = _columns(tmp_path, lambda table: table.drop(["outcome"]))
    view = Rollouts(run)
    assert view.steps() == []
    assert "step_000000.parquet has no column outcome" in view.problems
    with pytest.raises(LabError, match="does not say how many tokens"):
        Recorded.read(run)
    with pytest.raises(LabError, match="does not say how many tokens"):
        Recorded.read(_columns(tmp_path, _with("tokens", [None])))
    with pytest.raises(LabError, match="holds no completions"):
        Recorded.read(_columns(tmp_path, lambda table: _with("tokens", [5])(table).slice(0, 0)))
    for reward in (None, "1", [1.0]):
        run = _columns(tmp_path, _with("reward", [reward]))
        assert main(["check", str(run)]) == 1
        assert "evaluation 3, math: the completions have rewards that are no numbers" in capsys.readouterr().out
        if reward is not None:
            with pytest.raises(LabError, match="rewards that are no numbers"):
                _rewards(run, "math", 0)
    run = _columns(tmp_path, _with("task", [["math"]]))
    assert Rollouts(run).steps() == []
    with pytest.raises(LabError, match="can be read"):
        _rewards(run, "math", 0)


def test_columns_that_pyarrow_refuses_by_their_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "table.parquet"
    twice = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], ["task", "task"])
    nowhere = pyarrow.table({"task": pyarrow.array([1], pyarrow.timestamp("us", tz="No/Where"))})
    for table in (twice, nowhere):
        parquet.write_table(table, file)
        for read in (lambda: take_rows(file, None, ["task"]), lambda: read_columns(file)):
            with pytest.raises(LabError):
                read()
