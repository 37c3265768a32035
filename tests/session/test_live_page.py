"""The page that `scalelab run` serves: there from the manifest on, gone with the run, never in its way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from scalelab.session.live_page import live_page
from tests.helpers.view_runs import made_run

pytestmark = pytest.mark.slow


def until(true: Callable[[], object], what: str, seconds: float = 150.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address + "api/overview", timeout=20) as answer:
            return bool(json.load(answer)["runs"])
    except OSError:  # no connection, or one that is broken off
        return False


def test_the_address_is_said_once_the_run_has_begun_and_serves_until_it_ends(tmp_path: Path) -> None:
    said: list[str] = []
    with live_page(tmp_path / "run", said.append, serve=True):
        assert said == []
        made_run(tmp_path / "run", evaluations=2, rollouts=False, status="running")
        until(lambda: said, "the address")
        address = said[0].removeprefix("live page: ")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        until(lambda: answers(address), "the page")
    assert not answers(address)


def test_without_anybody_to_look_the_command_is_said_and_nothing_started(tmp_path: Path) -> None:
    said: list[str] = []
    with live_page(tmp_path / "a run", said.append, serve=False):
        made_run(tmp_path / "a run", evaluations=2, rollouts=False)
        until(lambda: said, "the command")
    assert said == [f"live page: scalelab view '{tmp_path / 'a run'}'"]


def test_a_run_that_is_refused_says_nothing_of_a_page(tmp_path: Path) -> None:
    made_run(tmp_path / "run", evaluations=2, rollouts=False)
    said: list[str] = []
    with pytest.raises(RuntimeError), live_page(tmp_path / "run", said.append, serve=True):
        raise RuntimeError("not empty")
    assert said == []


def test_the_page_ends_when_the_run_is_killed(tmp_path: Path) -> None:
    made_run(tmp_path / "run", evaluations=2, rollouts=False)
    program = (
        "import os, sys, time; from pathlib import Path; from scalelab.session.live_page import live_page\n"
        "run = Path(sys.argv[1])\n"
        "with live_page(run, lambda line: print(line, flush=True), True):\n"
        "    os.utime(run / 'manifest.json'); time.sleep(300)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path / "run"], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        address = run.stdout.readline().strip().removeprefix("live page: ")
        until(lambda: answers(address), "the page")
        run.kill()
    until(lambda: not answers(address), "the page to end")
