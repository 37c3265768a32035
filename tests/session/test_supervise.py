"""A supervisor goes on with a run that was killed while it brings steps, and leaves alone what people must mend."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalelab.errors import BROKEN_OFF
from scalelab.session.supervise import supervise

BEGIN = "import pathlib, sys; path = pathlib.Path(sys.argv[1]); (path / 'manifest.json').write_text('{}');"
STEP = "import pathlib, sys; path = pathlib.Path(sys.argv[1]); open(path / 'metrics.jsonl', 'a').write('{}\\n');"
KILLED = "import os; os.kill(os.getpid(), 9)"


def program(source: str, path: Path) -> list[str]:
    return [sys.executable, "-c", source, str(path)]


def test_a_killed_run_goes_on_until_it_ends(tmp_path: Path) -> None:
    said: list[str] = []
    finish = f"{STEP} lines = len(open(path / 'metrics.jsonl').readlines())\nif lines < 4: {KILLED}"
    code = supervise(program(BEGIN + KILLED, tmp_path), program(finish, tmp_path), tmp_path, said.append, (0.0, 0.0))
    assert code == 0
    assert len(said) == 4, "each step gives it all its attempts again"
    assert "was ended by SIGKILL; going on with it in 0 s" in said[0]


def test_a_run_that_brings_no_step_is_given_up(tmp_path: Path) -> None:
    said: list[str] = []
    code = supervise(program(BEGIN + KILLED, tmp_path), program(KILLED, tmp_path), tmp_path, said.append, (0.0, 0.0))
    assert code == 128 + signal.SIGKILL
    assert len(said) == 3
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


def test_a_signal_is_passed_on_and_ends_both(tmp_path: Path) -> None:
    sleeper = f"{BEGIN} import time\ntry: time.sleep(50)\nexcept KeyboardInterrupt: sys.exit(130)"
    command = program(sleeper, tmp_path)
    source = (
        "import sys; from pathlib import Path; from scalelab.session.supervise import supervise\n"
        f"sys.exit(supervise({command!r}, ['false'], Path({str(tmp_path)!r}), print))"
    )
    process = subprocess.Popen([sys.executable, "-c", source])
    try:
        while not (tmp_path / "manifest.json").exists():
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
