"""Files of strangers: every command is done in time and memory, and prints nothing that a terminal obeys."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab import guarded
from scalelab.cli import main
from scalelab.errors import LabError
from scalelab.guarded import gunzip, inside, read_whole
from scalelab.reading import read_sources
from scalelab.terminal import plain_line, plain_output, plain_text

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b]8;;http://evil/\x07link\x1b]8;;\x07\u202eabc\u2066\x9b31m\u2028\ufeff\n"
"""Title, cleared screen, link, writing from right to left, and a line feed."""

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from scalelab.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""A command that has 2 GiB of addresses, libraries included."""

ROWS = [{"step": 10 * at, "compute": at, "pass_rate": 0.2 + at / 40, "n_prompts": 100} for at in range(12)]


def write_run(folder: Path, task: str = "math", **facts: object) -> Path:
    """A run folder with a dozen evaluations."""
    folder.mkdir(parents=True)
    (folder / "evals.jsonl").write_text("".join(json.dumps({**row, "task": task}) + "\n" for row in ROWS))
    for name in ("metrics", "alarms", "faults", "undone"):
        (folder / f"{name}.jsonl").write_text("")
    manifest = {"status": "finished", "experiment": task, "held_out": {task: 1}, **facts}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "config.gin").write_text("Run.seed = 0\n")
    return folder


def commands(source: Path, out: Path) -> list[list[str]]:
    """Every command that reads a run or a log."""
    path = str(source)
    return [
        ["read", path], ["fit", path], ["forecast", path, "--at", "20"], ["compare", path, path],
        ["law", path, "--axis", "batch"], ["design", path, "--difference", "0.02"], ["check", path], ["status", path],
        ["rollouts", path], ["report", path, "-o", str(out / "page.html")],
        ["show", str(source / "config.gin") if source.is_dir() else path],
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["evals.jsonl", "manifest.json", "config.gin", "metrics.jsonl", "status.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
@pytest.mark.timeout(900)
def test_no_command_waits_for_a_pipe_or_reads_a_device_or_a_link_out_of_the_folder(
    tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).unlink(missing_ok=True)
    (tmp_path / "secret").write_text('{"secret_word": 1}\n')
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero" if kind == "device" else tmp_path / "secret")
    before = time.monotonic()
    for argv in commands(folder, tmp_path):
        assert main(argv) in (0, 1, 2)
        said = capsys.readouterr()
        assert "secret_word" not in said.out
        assert len(said.err.splitlines()) <= 2
    assert main(["fit", str(folder)]) == (0 if name in ("metrics.jsonl", "status.json") else 1)
    assert time.monotonic() - before < 800  # that nothing waits; not a measurement


@pytest.mark.timeout(900)
def test_check_does_not_wait_for_a_checkpoint_that_is_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "checkpoints/step_000010").mkdir(parents=True)
    os.mkfifo(folder / "checkpoints/step_000010/checkpoint.json")
    assert main(["check", str(folder)]) == 1
    assert "not a regular file" in capsys.readouterr().out


@pytest.mark.slow
def test_whatever_reads_a_run_opens_its_files_so_that_a_pipe_cannot_hold_it_up(tmp_path: Path) -> None:
    from scalelab.plan.lengths import Recorded
    from scalelab.store.folder import RunFolder
    from scalelab.store.lease import Lease
    from scalelab.store.recovery import choose
    from scalelab.store.trunk import read_trunk
    from scalelab.store.waiting_rollouts import read_rollouts
    from scalelab.view.pieces import FILE, read_pieces
    from tests.helpers.crash_world import live, settings

    folder = tmp_path / "run"
    live(folder, settings())
    (folder / FILE).parent.mkdir()
    (folder / FILE).write_text('{"model": {"vocab": {"a": 0}}}')
    (folder / "lease.7").write_text("{}")  # of a process that is gone
    waiting: dict[str, str] = {}

    def opened(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str | Path) or arguments[2] is None:
            return
        path, flags = Path(arguments[0]), arguments[2]
        reads = flags & os.O_ACCMODE == os.O_RDONLY and not flags & os.O_NONBLOCK
        if reads and path.is_relative_to(folder) and path.is_file():
            place = traceback.extract_stack()[-2]
            if not place.filename.endswith("durable.py"):  # which syncs what the process itself has written
                waiting[str(path.relative_to(folder))] = f"{place.filename}:{place.lineno}"

    sys.addaudithook(opened)
    for argv in commands(folder, tmp_path):
        main(argv)
    main(["run", str(folder), "--resume"])
    read_pieces(folder)
    Recorded.read(folder)
    read_trunk(folder, None, lambda state: True)
    chosen = choose(folder)
    if chosen.state["rollouts"]:
        read_rollouts(folder / "checkpoints", chosen.state["rollouts"])
    RunFolder(folder, Lease(folder, late=0.0)).close()
    folder = tmp_path / "nothing"
    assert waiting == {}


def test_a_pipe_a_device_and_a_long_file_are_refused_before_they_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    with open(tmp_path / "long.csv", "wb") as file:
        file.truncate(guarded.LONGEST_TABLE + 1)  # no byte of it is on the disk
    for name, reason in (("pipe", "not a regular file"), ("zero", "not a regular file"), ("long", "files of up to")):
        with pytest.raises(LabError, match=reason):
            read_sources([tmp_path / f"{name}.csv"])


def test_a_file_that_does_not_arrive_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * (2 * guarded._CHUNK))
    with pytest.raises(LabError, match=r"4,194,304 bytes had not arrived after 0 s"):
        read_whole(tmp_path / "f", seconds=0.0)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4), st.integers(0, 300))
def test_what_gzip_unpacks_is_what_was_packed_or_refused(parts: list[bytes], most: int) -> None:
    whole = b"".join(parts)
    packed = b"".join(map(gzip.compress, parts))
    if len(whole) > most:
        with pytest.raises(LabError, match="unpacks to more than"):
            gunzip(packed, Path("f"), most)
        return
    assert gunzip(packed, Path("f"), most) == whole
    with pytest.raises(LabError, match=r"cut off|damaged"):
        gunzip(packed[:-9], Path("f"), most)


@pytest.mark.timeout(900)
def test_small_files_that_grow_are_refused_in_little_memory(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zeros = pyarrow.DictionaryArray.from_arrays([0] * 12_000_000, [0.5])
    parquet.write_table(pyarrow.table({"compute": zeros, "pass_rate": zeros}), tmp_path / "rows.parquet")
    twelve = range(12)
    columns = {"compute": [1.0 * at for at in twelve], "pass_rate": [at / 20 for at in twelve]}
    texts = pyarrow.table({**columns, "x": ["A" * 50_000_000] * 12})
    parquet.write_table(texts, tmp_path / "texts.parquet", compression="zstd")
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"0" * (guarded.LONGEST_TABLE + 1), 9))
    deep = "[" * 200_000
    (tmp_path / "deep.json").write_text(deep)
    (tmp_path / "wide.csv").write_text(",".join(f"c{at}" for at in range(100_000)) + "\n" + "1," * 99_999 + "1\n")
    (tmp_path / "field.csv").write_text('compute,pass_rate\n1,"' + "x" * 3_000_000)
    (tmp_path / "tasks.csv").write_text("compute,pass_rate,task\n" + "".join(f"1,0.5,t{at}\n" for at in range(20_000)))
    for name in ("rows.parquet", "texts.parquet", "bomb.csv.gz", "deep.json", "wide.csv", "field.csv", "tasks.csv"):
        found = subprocess.run(
            [sys.executable, "-c", LIMITED, "read", name], cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        if name == "texts.parquet":
            assert found.returncode == 0, found.stderr
            continue
        assert (found.returncode, len(found.stderr.splitlines())) == (1, 1), (name, found.stderr)
        assert re.search(r"rows|unpacks to more than|not JSON|columns|field of more than|more than 5,000", found.stderr)


@pytest.mark.timeout(900)
def test_no_name_from_a_file_reaches_the_terminal_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", HOSTILE, status=HOSTILE, reason=HOSTILE)
    table = tmp_path / "points.csv"
    quoted = '"' + HOSTILE.replace('"', "") + '"'
    table.write_text(
        f"run,task,{quoted},compute,pass_rate\n"
        + "".join(f"{quoted}{run},{quoted},1,{row['compute']},{row['pass_rate']}\n" for run in "ab" for row in ROWS),
        newline="",
    )
    seen = 0
    for source in (folder, table):
        for argv in commands(source, tmp_path):
            for extra in ([], ["--json"]):
                with_json = argv[0] in ("read", "fit", "forecast", "compare", "check", "status", "law", "design")
                if extra and not with_json:
                    continue
                main([*argv, *extra])
                said = capsys.readouterr()
                printed = (said.out + said.err).replace("\n", "").replace("\t", "")
                assert printed.isprintable(), argv
                seen += "owned" in printed
                if extra and said.out.strip():
                    json.loads(said.out)
    assert seen >= 10


def test_json_holds_what_the_file_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", HOSTILE)
    main(["fit", str(folder), "--json"])
    [found] = json.loads(capsys.readouterr().out)["fits"]
    assert found["task"] == HOSTILE


@given(st.text())
def test_plain_text_is_printable_and_keeps_what_was(text: str) -> None:
    line = plain_line(text)
    assert line.isprintable()
    assert plain_text(text, lines=True).replace("\n", "").replace("\t", "").isprintable()
    if text.isprintable():
        assert line == text


def test_the_reset_of_colours_at_the_end_of_a_process_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with plain_output():
        stream = sys.stdout
        print("\033[0mtext\033[1m")
    stream.write("\033[0m")  # colorama holds the stream until the process ends
    assert capsys.readouterr().out == "⟨001b⟩[0mtext⟨001b⟩[1m\n"


def test_a_path_out_of_a_folder_is_none_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert inside(tmp_path / "run", "evals.jsonl") is None
    (tmp_path / "loop").symlink_to("loop")
    assert inside(tmp_path, "loop") is None
