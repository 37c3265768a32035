"""State of a run by its files alone: while it goes on, and after it has ended, in order or not."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalelab.store.account import METRICS
from scalelab.store.lines import read_lines
from scalelab.store.manifest import read_run_manifest
from scalelab.store.pace import RunPace, pace
from scalelab.store.status_file import STATUS, process_started, read_note

LATE = 60.0
"""Seconds after which a run on another machine, whose processes cannot be looked at, is taken to be gone."""

_LARGEST = 2**24


@dataclass(frozen=True)
class RunStatus:
    """State of a run, by its files.

    Attributes:
        run: its folder.
        state: `running`; `finished`, `interrupted` or `failed`, as it wrote itself; `gone` if it said none of these and
            its process is not there any more.
        reason: why it failed, if it said so.
        age: seconds since `status` was written; None if there is none.
        status: content of `status.json`.
        faults: lines of `faults.jsonl`.
        pace: what its steps cost, unless it has finished or failed.
    """

    run: str
    state: str
    reason: str | None = None
    age: float | None = None
    status: dict[str, Any] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    pace: RunPace | None = None


def run_status(path: Path) -> RunStatus:
    """Look at a run's folder.

    Raises:
        LabError: it is none, or holds broken lines.
    """
    manifest, status = read_run_manifest(path), read_note(path / STATUS, _LARGEST)
    written = status.get("time")
    age = max(0.0, time.time() - written) if isinstance(written, int | float) else None
    state = str(manifest.get("status", "unknown"))
    if state == "running" and not is_there(status, age):
        state = "gone"
    faults = read_lines(path / "faults.jsonl") if (path / "faults.jsonl").exists() else []
    reason = manifest.get("reason")
    going = state in ("running", "gone", "interrupted") and (path / METRICS).exists()
    measured = pace(manifest, read_lines(path / METRICS)) if going else None
    return RunStatus(str(path), state, reason if isinstance(reason, str) else None, age, status, faults, measured)


def is_there(status: Mapping[str, Any], age: float | None) -> bool:
    """True if the process that writes the file lives, as far as this machine can tell."""
    pid = status.get("pid")
    if status.get("node") == socket.gethostname() and isinstance(pid, int) and status.get("started") is not None:
        return process_started(pid) == status["started"]
    return age is not None and age < LATE
