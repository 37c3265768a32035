"""Endings of a run from outside are noticed and orderly: signals from the first moment, and dead or stopped Ray."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scalelab.cluster import actors
from scalelab.cluster.actors import RayProcesses
from scalelab.errors import BROKEN_OFF, BrokenOffError
from scalelab.signals import SAME_SECONDS

BEFORE_THE_LOOP = """
import signal, sys, time
from scalelab.signals import heed_signals
signal.signal(signal.SIGTERM, lambda *_: print("a library's handler"))
heed_signals()
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""
IN_THE_LOOP = """
import asyncio
from scalelab.run.coroutines import Changes
from scalelab.watch.progress import Progress
from scalelab.session.drive import drive

class Loop:
    stopping = False
    def __init__(self):
        self.changes = Changes()
    def stop(self):
        self.stopping = True
        self.changes.notify()

async def main(attach):
    loop = Loop()
    attach(loop)
    print("ready", flush=True)
    await loop.changes.until(lambda: loop.stopping, "a signal")
    print("step finished and saved")

try:
    drive(main, asyncio.new_event_loop, Progress())
except KeyboardInterrupt:
    print("interrupted")
"""


def told(source: str, number: signal.Signals, *wrapper: str, again: float | None = None) -> list[str]:
    """Lines of a program that is sent a signal once it is ready, and once more after some seconds."""
    with subprocess.Popen(
        [*wrapper, sys.executable, "-c", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # whether or not these tests run under nohup
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        if again is not None:
            time.sleep(again)
            process.send_signal(number)
        return process.communicate(timeout=900)[0].splitlines()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_interrupts_what_comes_before_the_loop(number: signal.Signals) -> None:
    assert told(BEFORE_THE_LOOP, number) == ["interrupted"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_the_loop_after_its_step(number: signal.Signals) -> None:
    assert told(IN_THE_LOOP, number) == ["step finished and saved", "interrupted"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("again", "lines"), [(0.2, ["step finished and saved", "interrupted"]), (SAME_SECONDS + 0.5, ["interrupted"])]
)
def test_a_signal_that_comes_twice_at_once_is_one_and_a_later_one_ends_the_loop(again: float, lines: list[str]) -> None:
    saving = '    print("step finished'
    source = IN_THE_LOOP.replace(saving, f"    await asyncio.sleep({SAME_SECONDS + 2})\n{saving}")
    assert told(source, signal.SIGTERM, again=again) == lines


def test_a_closed_terminal_ends_nothing_under_nohup() -> None:
    source = BEFORE_THE_LOOP.replace("time.sleep(60)", 'time.sleep(1); print("went on")')
    assert told(source, signal.SIGHUP, "nohup") == ["went on"]


@pytest.fixture
def raylet(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child of this process with the name of one of Ray's."""
    program = shutil.copy(shutil.which("sleep") or "", tmp_path / "raylet")
    with subprocess.Popen([program, "100"]) as process:
        yield process
        process.kill()


def test_a_process_of_ray_that_died_is_named(raylet: subprocess.Popen[bytes]) -> None:
    looked_at = RayProcesses()
    looked_at.check()
    raylet.kill()
    with pytest.raises(BrokenOffError, match=r"Ray's raylet died .*go on with --resume"):
        until_found(looked_at)


def test_a_process_of_ray_that_stands_still_is_ended(
    raylet: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = RayProcesses()
    looked_at.check()
    raylet.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(actors, "STOPPED_SECONDS", 0.0)
    with pytest.raises(BrokenOffError, match="Ray's raylet"):
        until_found(looked_at)
    assert raylet.wait(30) == -signal.SIGKILL, "it would not heed the end of the run"


IN_A_CALL_OF_RAYS = """
import os, shutil, signal, subprocess, sys, time
from scalelab.cluster import actors
program = shutil.copy(shutil.which("sleep"), sys.argv[1] + "/raylet")
child = subprocess.Popen([program, "100"])
actors.GUARD_SECONDS = 0.5
actors.guard_ray(lambda reason: print(child.pid, reason, flush=True))
child.send_signal(signal.SIGSTOP)
time.sleep(60)
"""


def test_a_stopped_process_of_ray_ends_the_run_while_a_call_of_rays_holds_the_loop_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CALL_OF_RAYS, str(tmp_path)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == BROKEN_OFF, done.stderr
    pid, _, reason = done.stdout.strip().partition(" ")
    assert "raylet was stopped" in reason
    assert "--resume" in reason
    assert psutil.wait_procs([psutil.Process(int(pid))] if psutil.pid_exists(int(pid)) else [], 10)[1] == []


IN_A_RESTART = """
import asyncio, shutil, subprocess, sys, time
from scalelab.cluster import actors
from scalelab.errors import LabError
program = shutil.copy(shutil.which("sleep"), sys.argv[1] + "/raylet")
child = subprocess.Popen([program, "100"])
actors.DEAD_SECONDS = 0.5
actors.guard_ray(lambda reason: print(reason, flush=True))
async def main():
    waiting = asyncio.create_task(asyncio.to_thread(time.sleep, 1000))  # for an actor that cannot come
    await asyncio.sleep(0.2)
    child.kill()
    raise LabError("an actor died")
asyncio.run(main())
"""


def test_a_dead_process_of_ray_ends_the_run_while_its_end_waits_for_an_actor(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_RESTART, str(tmp_path)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == BROKEN_OFF, done.stderr
    assert "Ray's raylet died" in done.stdout
    assert "--resume" in done.stdout


def until_found(looked_at: RayProcesses) -> None:
    """Look again and again, for at most half a minute."""
    end = time.monotonic() + 900
    while time.monotonic() < end:
        looked_at.check()
        time.sleep(0.01)
