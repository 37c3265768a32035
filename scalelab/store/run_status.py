"""State of a run by its files alone: while it goes on, and after it has ended, in order or not."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalelab.errors import LabError
from scalelab.store.chain import JOURNAL
from scalelab.store.earlier import known_manifest
from scalelab.store.lines import read_lines
from scalelab.store.manifest import ALARMS, EVALS, FAULTS, MANIFEST, METRICS
from scalelab.store.pace import RunPace, pace
from scalelab.store.status_file import STATUS, process_started, read_note

LATE = 60.0
"""Seconds after which a run on another machine, whose processes cannot be looked at, is taken to be gone."""

SILENT = 600.0
"""Seconds without a line after which a run whose process is there is called silent."""

WRITTEN = (EVALS, METRICS, ALARMS, FAULTS, MANIFEST, JOURNAL)
"""Files whose times tell when a run wrote its last line."""

GOING = ("running", "silent", "gone")
"""States of a run that has not written how it ended."""

_LARGEST = 2**24


@dataclass(frozen=True)
class RunStatus:
    """State of a run, by its files.

    Attributes:
        run: its folder.
        state: see `state_of`.
        reason: why it failed, if it said so.
        age: seconds since `status` was written; None if there is none.
        quiet: seconds since its last line.
        status: content of `status.json`.
        faults: lines of `faults.jsonl`.
        pace: what its steps cost, unless it has finished or failed.
        simulated: its clock is simulated.
    """

    run: str
    state: str
    reason: str | None = None
    age: float | None = None
    quiet: float = 0.0
    status: dict[str, Any] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    pace: RunPace | None = None
    simulated: bool = False


def run_status(path: Path) -> RunStatus:
    """Look at a run's folder.

    Raises:
        LabError: it is none, or holds broken lines.
    """
    manifest = known_manifest(path)
    state, status, age, quiet = _look(path, manifest)
    faults = read_lines(path / FAULTS) if (path / FAULTS).exists() else []
    reason = manifest.get("reason")
    steps: list[dict[str, Any]] = []
    goes_on = state in (*GOING, "interrupted")
    with nullcontext() if goes_on else suppress(LabError):  # an ended run can be told in spite of a broken line
        steps = read_lines(path / METRICS) if (path / METRICS).exists() else []
    measured = pace(manifest, steps) if steps and goes_on else None
    status = _by_files(manifest, status, steps[-1]) if steps else status
    said = reason if isinstance(reason, str) else None
    simulated = manifest.get("clock") == "virtual"
    return RunStatus(str(path), state, said, age, quiet, status, faults, measured, simulated)


def _by_files(manifest: Mapping[str, Any], status: dict[str, Any], step: Mapping[str, Any]) -> dict[str, Any]:
    """The status with the last step that was written: `status.json` is a few seconds older."""
    budget, unit = manifest.get("budget"), manifest.get("compute_unit")
    most = budget.get("steps") if isinstance(budget, dict) else None
    told: dict[str, Any] = {"steps": most} if isinstance(most, int) else {}
    told |= {"unit": unit} if isinstance(unit, str) else {}
    return told | status | {name: step[name] for name in ("step", "compute") if _is_amount(step.get(name))}


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15


def state_now(path: Path, manifest: Mapping[str, Any]) -> str:
    """State of a run in a word, by its folder and the content of its manifest; see `state_of`."""
    return _look(path, manifest)[0]


def _look(path: Path, manifest: Mapping[str, Any]) -> tuple[str, dict[str, Any], float | None, float]:
    """State, status, age and quiet of a `RunStatus`."""
    status = read_note(path / STATUS, _LARGEST)
    written = status.get("time")
    age = max(0.0, time.time() - written) if isinstance(written, int | float) and _is_amount(written) else None
    quiet = time.time() - last_written(one for name in WRITTEN if (one := path / name).exists())
    return state_of(str(manifest.get("status", "unknown")), status, age, quiet), status, age, quiet


def state_of(said: str, status: Mapping[str, Any], age: float | None, quiet: float) -> str:
    """State of a run in a word.

    Args:
        said: what its manifest says: `finished`, `interrupted` and `failed` stand.
        status: content of `status.json`.
        age: seconds since that was written; None if there is none.
        quiet: seconds since the run's last line.

    Returns:
        Of a run that says it is running, `gone` if its process is not there any more, and `silent` if it is, as far as
        is known, but writes nothing.
    """
    if said != "running":
        return said
    if age is not None and not is_there(status, age):
        return "gone"
    return "silent" if quiet > SILENT else "running"


def last_written(files: Iterable[Path]) -> float:
    """Time of a run's last line, in seconds of Unix time; 0 without files."""
    return max((file.stat().st_mtime for file in files), default=0.0)


def is_there(status: Mapping[str, Any], age: float) -> bool:
    """True if the process that writes the file lives, as far as this machine can tell."""
    pid = status.get("pid")
    if status.get("node") == socket.gethostname() and isinstance(pid, int) and status.get("started") is not None:
        return process_started(pid) == status["started"]
    return age < LATE
