"""Run one command of the lab as KubeRay's job, and end it in order before its pods end.

The job's entrypoint is `run`, on Ray's head. Every pod's preStop hook is `end`: Kubernetes waits for it, within the
pod's grace, before it ends the pod's Ray. A pod of workers tells Ray that it goes, and waits for its part of the run
alone: other engines get its requests, and if the trainer is there, a checkpoint is taken.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalelab.launcher.slurm_job import begun

MODULE = "scalelab.launcher.kuberay_job"
ASK = signal.SIGUSR1
LOOK_SECONDS = 0.5
RAY_SECONDS = 30.0
"""Seconds that a command of Ray may take."""
_ENTRY = f"-m\0{MODULE}\0run\0".encode()


def run(out: Path, words: Sequence[str]) -> int:
    """Run a command of the lab, go on with its run if that is begun, and return the exit code.

    A run that is asked a second time stops at once. Ray's stop of a job is TERM to all processes below it; `end` asks
    this one alone, and it asks the run where Ray did not.
    """
    asked = False
    resumed = ["--resume"] if words[0] == "run" and begun(out) else []  # a fine-tuning goes on by itself
    with subprocess.Popen(["scalelab", *words, *resumed]) as lab:

        def stop(number: int, _: Any) -> None:
            nonlocal asked
            if number == ASK and not asked:
                lab.terminate()
            asked = True

        for number in (ASK, signal.SIGTERM):
            signal.signal(number, stop)
        code = lab.wait()
    return code if code >= 0 else 128 - code


def end(grace: int) -> None:
    """Ask the run to stop if this pod has it, else drain this pod's node; wait until it has no process of a run.

    Args:
        grace: seconds until the kubelet ends the pod.
    """
    entries = list(_processes(entries=True))
    for pid in entries:
        with suppress(ProcessLookupError):
            os.kill(pid, ASK)
    drains = not entries and any(_processes())
    if drains:
        why = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "Kubernetes ends the pod"]
        _ray("drain-node", *why, "--deadline-remaining-seconds", str(grace))
    while any(_processes()):  # the kubelet ends this wait with the pod's grace
        time.sleep(LOOK_SECONDS)
    if drains:
        _ray("stop", "--force")  # a node that drains, and whose head is gone, does not end by TERM


def _ray(*words: str) -> None:
    """Give a command to Ray; a head that is gone answers none."""
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(["ray", *words], check=False, timeout=RAY_SECONDS)


def _processes(*, entries: bool = False) -> Iterator[int]:
    """This pod's processes of a run: `run` above, and unless it is asked for these alone, Ray's that work for a job."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = path.read_bytes()
            works = command.startswith(b"ray::") and not command.startswith(b"ray::IDLE")
            # Ray's agents have such names, too, and no job.
            if _ENTRY in command or (
                works and not entries and b"\0RAY_JOB_ID=" in path.with_name("environ").read_bytes()
            ):
                yield int(path.parent.name)


if __name__ == "__main__":
    if sys.argv[1] == "end":
        end(int(sys.argv[2]))
    else:
        sys.exit(run(Path(sys.argv[2]), sys.argv[3:]))
