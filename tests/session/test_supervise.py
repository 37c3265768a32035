"""A supervisor goes on with a run that was killed while it brings steps, and leaves alone what people must mend."""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalelab.errors import BROKEN_OFF
from scalelab.session import supervise as supervise_module
from scalelab.session.supervise import attend, supervise
from scalelab.store.audit import audit
from scalelab.store.manifest import read_run_manifest

BEGIN = "import pathlib, sys; path = pathlib.Path(sys.argv[1]); (path / 'manifest.json').write_text('{}');"
STEP = "import pathlib, sys; path = pathlib.Path(sys.argv[1]); open(path / 'metrics.jsonl', 'a').write('{}\\n');"
KILLED = "import os; os.kill(os.getpid(), 9)"


PR_GET_CHILD_SUBREAPER = 37


def program(source: str, path: Path) -> list[str]:
    return [sys.executable, "-c", source, str(path)]


def test_a_killed_run_goes_on_until_it_ends(tmp_path: Path) -> None:
    said: list[str] = []
    finish = f"{STEP} lines = len(open(path / 'metrics.jsonl').readlines())\nif lines < 4: {KILLED}"
    code = supervise(program(BEGIN + KILLED, tmp_path), program(finish, tmp_path), tmp_path, said.append, (0.0, 0.0))
    assert code == 0
    assert len(said) == 8, "each step gives it all its attempts again"
    assert "the run's process was ended by SIGKILL without a word" in said[0]
    adopts = ctypes.c_int(1)
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts))
    assert adopts.value == 0, "orphans of later processes would stay as zombies"


def test_a_run_that_brings_no_step_is_given_up(tmp_path: Path) -> None:
    said: list[str] = []
    code = supervise(program(BEGIN + KILLED, tmp_path), program(KILLED, tmp_path), tmp_path, said.append, (0.0, 0.0))
    assert code == BROKEN_OFF
    assert "took no step since it was started 2 times" in said[-1]


@pytest.mark.parametrize(("code", "starts"), [(0, 1), (1, 1), (2, 1), (130, 1), (BROKEN_OFF, 2)])
def test_what_people_must_mend_is_left_to_them(tmp_path: Path, code: int, starts: int) -> None:
    begin = f"{BEGIN} open(path / 'starts', 'a').write('1'); sys.exit({code})"
    resume = "import pathlib, sys; open(pathlib.Path(sys.argv[1]) / 'starts', 'a').write('1')"
    ended = supervise(program(begin, tmp_path), program(resume, tmp_path), tmp_path, lambda _: None, (0.0,))
    assert (tmp_path / "starts").read_text() == "1" * starts
    assert ended == (0 if code == BROKEN_OFF else code)


def test_a_run_that_never_began_is_not_started_again(tmp_path: Path) -> None:
    assert supervise(program(KILLED, tmp_path), program("", tmp_path), tmp_path, lambda _: None) == 137


def catches(pid: int, number: int) -> bool:
    """True once a process has a handler of its own for a signal."""
    [mask] = re.findall(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_a_signal_is_passed_on_and_ends_both(tmp_path: Path) -> None:
    sleeper = (
        f"{BEGIN} import time\ntry: (path / 'ready').touch(); time.sleep(1000)\nexcept KeyboardInterrupt: sys.exit(130)"
    )
    command = program(sleeper, tmp_path)
    source = (
        "import sys; from pathlib import Path; from scalelab.session.supervise import supervise\n"
        f"sys.exit(supervise({command!r}, ['false'], Path({str(tmp_path)!r}), print))"
    )
    process = subprocess.Popen([sys.executable, "-c", source])
    try:
        while not ((tmp_path / "ready").exists() and catches(process.pid, signal.SIGTERM)):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == 130
    finally:
        process.kill()


BEGUN = """
import os, subprocess, sys, time
from pathlib import Path
from scalelab.session import told
from scalelab.session.told import show_life, tell, tell_reason
from scalelab.store.folder import RunFolder
from scalelab.store.lease import Lease
path = Path(sys.argv[1])
path.mkdir(exist_ok=True)
folder = RunFolder(path, Lease(path))
folder.begin("Run.seed = 1", status="running")
told.ALIVE_SECONDS = 0.5
show_life(int(sys.argv[-1]))
tell(int(sys.argv[-1]), path)
"""
ENDINGS = {
    "ended by Ray": ("os._exit(1)", BROKEN_OFF, "failed", "ended with code 1 without a word"),
    "killed": ("os.kill(os.getpid(), 9)", BROKEN_OFF, "failed", "was ended by SIGKILL without a word"),
    "failed with a reason": ("folder.describe(status='failed', reason='mine'); os._exit(1)", 1, "failed", "mine"),
    "failed with a full disk": ("tell_reason(int(sys.argv[-1]), OSError('full')); os._exit(1)", 1, "failed", "full"),
    "finished": ("folder.describe(status='finished')", 0, "finished", None),
    "killed when it was finished": ("folder.describe(status='finished'); os.kill(os.getpid(), 9)", 0, "finished", None),
    "killed before its manifest said so": (
        "folder._journal.append('facts', facts={'status': 'finished'}); os.kill(os.getpid(), 9)",
        0,
        "finished",
        None,
    ),
    "interrupted": ("folder.describe(status='interrupted'); os._exit(130)", 130, "interrupted", None),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_ending_is_silent(tmp_path: Path, ending: str) -> None:
    source, wanted, status, reason = ENDINGS[ending]
    said: list[str] = []
    code, asked = attend(program(BEGUN + source, tmp_path / "run"), said.append)
    assert (code, asked) == (wanted, False)
    manifest = read_run_manifest(tmp_path / "run")
    assert manifest["status"] == status
    assert (reason or "") in (manifest.get("reason") or "")
    assert audit(tmp_path / "run").problems == []
    late = ending.startswith("killed ")
    assert [
        line for line in said if ("the run is finished; then its process" if late else "--resume") not in line
    ] == []
    assert bool(said) == (wanted == BROKEN_OFF or late)


def test_a_process_that_stands_still_is_killed_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise_module, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(supervise_module, "SILENT_SECONDS", 3.0)
    said: list[str] = []
    stopped = "time.sleep(4)\nos.kill(os.getpid(), 19)"  # alive for longer than a silence may be
    began = time.monotonic()
    assert attend(program(BEGUN + stopped, tmp_path / "run"), said.append) == (BROKEN_OFF, False)
    assert time.monotonic() - began > 4
    assert said == [
        "scalelab: the run's process gave no sign of life for 3 s, as when it is stopped, and was killed: go on with "
        "--resume"
    ]
    assert read_run_manifest(tmp_path / "run")["status"] == "failed"
    assert audit(tmp_path / "run").problems == []


def test_no_process_outlives_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise_module, "LEFT_SECONDS", 0.3)
    left = (
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True); "
        "(path / 'child').write_text(str(child.pid)); os.kill(os.getpid(), 9)"
    )
    attend(program(BEGUN + left, tmp_path / "run"), lambda _: None)
    assert not Path(f"/proc/{(tmp_path / 'run/child').read_text()}").exists()


def test_a_run_ends_in_order_when_its_parent_dies(tmp_path: Path) -> None:
    child = (
        BEGUN
        + """
import signal
signal.signal(signal.SIGTERM, lambda *_: ((path / "ended").touch(), os._exit(130)))
(path / "ready").touch()
time.sleep(1000)
"""
    )
    source = f"from scalelab.session.supervise import attend\nattend({program(child, tmp_path / 'run')!r}, print)"
    parent = subprocess.Popen([sys.executable, "-c", source])
    ends = time.monotonic() + 600
    while not (tmp_path / "run/ready").exists():
        assert time.monotonic() < ends
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    while not (tmp_path / "run/ended").exists():
        assert time.monotonic() < ends, "the run goes on without its parent"
        time.sleep(0.05)
