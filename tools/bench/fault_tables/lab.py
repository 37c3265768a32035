"""Run that takes faults: started, watched, broken, resumed and audited by its files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from smallest_run import SMALLEST

from moe.checkpoint.folder import finished_checkpoints, read_state
from moe.errors import MoeError
from scalelab.store.audit import audit
from scalelab.store.lines import read_lines

FAULTS = {
    **SMALLEST,
    "Recipe.zero_variance": '"keep"',
    "Budget.steps": 100_000,
    "Evaluation.every": 100,
    "Evaluation.prompts": 4,
    "Evaluation.samples": 2,
    "Run.checkpoint_every": 3,
    "Cluster.hang_seconds": 30.0,
    "Cluster.generator_restarts": 100,
    "Cluster.trainer_restarts": 100,
}
"""Settings of a run that takes faults."""

_RAW = re.compile(r"^(?:\[20\d\d-\d\d-\d\d |\((?:raylet|pid=|\w+ pid=))", re.MULTILINE)
"""Beginnings of lines that Ray's C++ code writes, or that it prints for others."""

# Command line of a role's processes, as Ray names them.
ROLES = {
    "generator": "ray::EngineActor",
    "verifier": "ray::GraderActor",
    "trainer": "ray::TrainerRank",
    "gcs": "gcs_server",
    "raylet": "raylet",
}
BESIDE = {
    "runtime agent": "ray::RuntimeEnvAgent",
    "dashboard agent": "ray::DashboardAgent",
    "dashboard": "ray/dashboard/dashboard.py",
    "autoscaler": "ray/autoscaler/_private/monitor.py",
    "log monitor": "ray/_private/log_monitor.py",
}
"""Ray's processes beside head and node: command line, or a word's end in it."""


@dataclass
class FaultLab:
    """One run's folder, and the process that works on it."""

    path: Path
    messages: Path
    """File for the run's output, on another disk, because the run's own may be full."""
    deadline: float
    supervised: bool = False
    """True if the run is under `--supervise`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0

    def start(self, **more: str) -> None:
        """Start the run; `more` are values over those of the smallest, with `__` for the dot."""
        values = {**FAULTS, **{name.replace("__", "."): value for name, value in more.items()}}
        sets = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
        self._run("quickstart", "--out", str(self.path), *sets)

    def resume(self) -> None:
        """Go on with the run."""
        self._run(str(self.path), "--resume")

    def _run(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "scalelab", "run", *arguments, *(["--supervise"] if self.supervised else [])]
        self.started = time.time()
        with open(self.messages, "ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                preexec_fn=_heed_hang_ups,
            )

    def __enter__(self) -> FaultLab:
        """Return the lab; nothing is started yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process behind: Ray's own end with the one that started them."""
        driver = self.driver()
        if driver is not None:
            driver.kill()
        if self.process is not None:
            self.process.kill()
            self.process.wait(self.deadline)

    def driver(self) -> psutil.Process | None:
        """The process that runs the loop: the child of the one that was started."""
        if self.process is None or self.process.poll() is not None:
            return None
        return next(iter(psutil.Process(self.process.pid).children()), None)

    @property
    def log(self) -> str:
        """Output of the run."""
        return self.messages.read_text(errors="replace")

    def processes(self, role: str) -> list[psutil.Process]:
        """The live processes of a role, all of them descendants of this very process."""
        found = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                line, name = process.cmdline(), (ROLES | BESIDE)[role]
                if line and (line[0].startswith(name) or any(word.endswith(f"/{name}") for word in line[:4])):
                    found.append(process)
        return found

    def family(self) -> list[psutil.Process]:
        """The live processes of all roles. Ray's agents are no part of it: where its head is gone, they look for it for
        another minute before they end."""
        return [process for role in ROLES for process in self.processes(role)]

    def status(self) -> dict[str, Any]:
        """Content of `status.json`, if there is one."""
        try:
            return json.loads((self.path / "status.json").read_bytes())
        except (OSError, ValueError):
            return {}

    def until(self, done: Callable[[], bool], what: str, pause: float = 0.05) -> None:
        """Wait for something while the run lives."""
        assert self.process is not None
        end = time.monotonic() + self.deadline
        while not done():
            if self.process.poll() is not None:
                raise SystemExit(f"the run ended while {what} was waited for:\n{self.log[-2000:]}")
            if time.monotonic() > end:
                raise SystemExit(f"waited {self.deadline:.0f} s for {what}:\n{self.log[-2000:]}")
            time.sleep(pause)

    def lines(self, name: str) -> list[dict]:
        """Records of one of the run's files."""
        file = self.path / name
        return read_lines(file) if file.exists() else []

    def step_after(self, since: float) -> float:
        """Wait for an optimiser step written after `since`; returns when that was."""

        def there() -> bool:
            lines = self.lines("metrics.jsonl")
            return bool(lines) and lines[-1]["time"] > since

        self.until(there, "an optimiser step")
        return next(line["time"] for line in self.lines("metrics.jsonl") if line["time"] > since)

    def steps(self, count: int) -> int:
        """Wait until the run has taken so many steps; returns how many they are by then."""
        self.until(lambda: len(self.lines("metrics.jsonl")) >= count, f"step {count}", pause=0.5)
        return len(self.lines("metrics.jsonl"))

    def warm(self, steps: int = 5) -> None:
        """Let the run take some steps, so that its pipeline is full and a checkpoint is there."""
        for _ in range(steps):
            self.step_after(time.time())

    def ended(self) -> str:
        """Wait for the run's process to end; returns its last line."""
        assert self.process is not None
        self.process.wait(self.deadline)
        return (self.log.strip().splitlines() or [""])[-1]


def _heed_hang_ups() -> None:
    """Let SIGHUP end the run also where this tool itself was started by `nohup`."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def lost_and_doubled(path: Path) -> tuple[int, int]:
    """(lost, duplicated) groups by a run's own books, as of its newest checkpoint.

    Raises:
        SystemExit: `scalelab check` finds something wrong, whatever it is.
    """
    problems = audit(path).problems
    if problems:
        raise SystemExit("\n".join(["the books do not balance:", *problems]))
    state = _newest_state(path / "checkpoints")
    lines = [
        line for line in read_lines(path / "metrics.jsonl") if line["step"] <= state["schedule"]["trainer_version"]
    ]
    settled = Counter([name for line in lines for name in line["groups"]] + list(state["groups"]))
    drawn = {f"group{number}" for number in range(state["drawn"])}
    return len(drawn - settled.keys()), sum(count - 1 for count in settled.values())


def _newest_state(root: Path) -> dict[str, Any]:
    """State of the newest checkpoint; one that the run deletes meanwhile has a newer one behind it."""
    for _ in range(10):
        with suppress(MoeError):
            for newest in finished_checkpoints(root)[-1:]:
                return read_state(newest)
    raise SystemExit(f"no checkpoint in {root} can be read")


def tracebacks(messages: str) -> int:
    """Stack traces and raw lines of Ray's own code in what a run said."""
    traces = sum(messages.count(mark) for mark in ("Traceback (most recent call last)", "*** SIG", "Stack trace:"))
    return traces + len(_RAW.findall(messages))
