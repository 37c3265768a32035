"""KubeRay's job asks its run to stop once, whoever asks the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalelab.launcher import kuberay_job

LAB = f"""\
#!{sys.executable}
import signal, sys, time
from pathlib import Path
told = Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: told.open("a").write("asked\\n"))
told.write_text("up\\n")
while not told.with_name("over").exists():
    time.sleep(0.02)
sys.exit(75)
"""


@pytest.mark.parametrize(
    ("numbers", "asked"),
    [
        ((kuberay_job.ASK, kuberay_job.ASK), 1),
        ((signal.SIGTERM, kuberay_job.ASK), 0),  # Ray has sent TERM to the run itself
    ],
)
def test_a_run_is_asked_to_stop_once(numbers: tuple[signal.Signals, ...], asked: int, tmp_path: Path) -> None:
    (tmp_path / "scalelab").write_text(LAB)
    (tmp_path / "scalelab").chmod(0o755)
    told, ends = tmp_path / "told", time.monotonic() + 60
    command = [sys.executable, "-m", kuberay_job.MODULE, "run", str(tmp_path / "out"), str(told)]
    with subprocess.Popen(command, env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}) as job:
        while not (told.exists() and told.read_text()):
            assert time.monotonic() < ends
            time.sleep(0.02)
        for number in numbers:
            job.send_signal(number)
            time.sleep(0.5)
        (tmp_path / "over").touch()
        assert job.wait(60) == 75
    assert told.read_text() == "up\n" + "asked\n" * asked
