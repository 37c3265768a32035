"""One run as the page shows it: its line in the table, its points, and its own page."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scalelab.curves import Curve
from scalelab.errors import LabError
from scalelab.guarded import inside, read_text
from scalelab.reading import Reading, read_with
from scalelab.reading.run_folder import shown_manifest
from scalelab.store.run_status import GOING, WRITTEN, last_written, state_of
from scalelab.view.bindings import bindings
from scalelab.view.discover import RunSource
from scalelab.view.files import GrowingFile, number, short_text
from scalelab.view.metrics import held_out_panels, metric_panels, staleness
from scalelab.view.now import now, status_and_age
from scalelab.view.points import curve_points
from scalelab.view.rollouts import Rollouts
from scalelab.view.timeline import timeline
from scalelab.view.unusual import unusual

NOTES, LONGEST_NOTE = "notes.md", 10_000
"""File of a run's folder that people write their notes into, and characters of it that are shown."""

FILES = ("evals.jsonl", "metrics.jsonl", "alarms.jsonl", "faults.jsonl")


class ViewedRun:
    """A run that is looked at, again and again while it goes on.

    Args:
        member: which run.
        reading: how its points are read.
        clock: seconds of Unix time now.
    """

    def __init__(self, member: RunSource, reading: Reading, clock: Callable[[], float] = time.time) -> None:
        self.member, self.reading, self._clock = member, reading, clock
        self.rollouts = Rollouts(member.path)
        self.curves: list[Curve] = []
        self.points: list[dict[str, Any]] = []
        self.settings: dict[str, str] = {}
        self.manifest: dict[str, Any] = {}
        self.note = ""
        self.problems: list[str] = []
        self._lines = {name: GrowingFile(member.path, name) for name in FILES}
        self._seen: object = None
        self._said = ""

    def update(self) -> bool:
        """Read what is new; whether anything changed."""
        stamp = self._stamp()
        if stamp == self._seen:
            return self._status_changed()
        self._seen = stamp
        self.problems = []
        if self.member.folder:
            for lines in self._lines.values():
                self._try(lines.update)
                if lines.broken:
                    self.problems.append(f"{lines.name}: {lines.broken} lines are not JSON objects and were left out")
            self.manifest = self._try(lambda: shown_manifest(self.member.path)) or {}
            self.note = (self._try(lambda: read_text(self.member.path, NOTES)) or "").strip()[:LONGEST_NOTE]
            self.settings = self._try(lambda: bindings(read_text(self.member.path, "config.gin"))) or {}
        self.curves = self._read_curves()
        self.points = self._read_points()
        self._status_changed()
        return True

    def _status_changed(self) -> bool:
        """True if the status differs from the last time: a run falls silent without a change to its files."""
        before, self._said = self._said, self.status
        return before != self._said

    def summary(self) -> dict[str, Any]:
        """The run's line in the table."""
        evals, metrics = self._records("evals.jsonl"), self._records("metrics.jsonl")
        steps = [step for record in (evals[-1:] + metrics[-1:]) if (step := number(record.get("step"))) is not None]
        latest = (metrics or evals)[-1] if metrics or evals else {}
        status = self.status
        return {
            "id": self.member.id,
            "name": self.member.name,
            "group": self.member.group,
            "status": status,
            "experiment": short_text(self.manifest.get("experiment")),
            "description": short_text(self.manifest.get("description")),
            "clock": short_text(self.manifest.get("clock")) or "wall",
            "seed": number(self.manifest.get("seed")),
            "started": self._started,
            "wall_hours": _hours(number(self.manifest.get("wall_seconds"))),
            "step": max(steps, default=None),
            "progress": self._progress(max(steps, default=0.0), number(latest.get("compute")) or 0.0),
            "compute": number(latest.get("compute")),
            "unit": self._unit(latest),
            "curve_unit": self.curves[0].unit if self.curves else self._unit(latest),
            "counted_in": self.curves[0].counted_in if self.curves else None,
            "last": {one["task"]: [one["y"][-1], one["stderr"][-1]] for one in self.points if one["y"]},
            "alarms": sum(record.get("level") != "over" for record in self._records("alarms.jsonl")),
            "faults": sum(record.get("event") == "lost" for record in self._records("faults.jsonl")),
            "unusual": self.unusual(),
            "rollouts": self.member.folder and (self.member.path / "rollouts").is_dir(),
            "folder": self.member.folder,
            "note": self.note.partition("\n")[0][:200],
        }

    @property
    def status(self) -> str:
        """Word for its state: that of its manifest, `gone`, `silent`, `table`; `unknown` without a manifest."""
        if not self.member.folder:
            return "table"
        said, moment = short_text(self.manifest.get("status")) or "unknown", self._clock()
        status, age = status_and_age(self.member.path, moment)
        return state_of(said, status, age, moment - last_written(self._written()))

    def unusual(self) -> list[dict[str, Any]]:
        """Unusual events of the run, the worst first."""
        problems = self.problems + self.rollouts.problems
        alarms, faults, metrics = (self._records(f"{name}.jsonl") for name in ("alarms", "faults", "metrics"))
        reason = short_text(self.manifest.get("reason"))
        return unusual(self.points, alarms, faults, problems[:20], self.status, metrics, reason)

    def detail(self) -> dict[str, Any]:
        """The run's own page: metrics, staleness, time line, alarms, faults, settings."""
        metrics, evals = self._records("metrics.jsonl"), self._records("evals.jsonl")
        alarms, faults = self._records("alarms.jsonl"), self._records("faults.jsonl")
        panels, still = metric_panels(metrics)
        hardware = self.manifest.get("hardware")
        devices = hardware.get("devices") if isinstance(hardware, Mapping) else None
        generators = number(devices.get("generator")) if isinstance(devices, Mapping) else None
        config = self._try(lambda: read_text(self.member.path, "config.gin")) if self.member.folder else ""
        return {
            "panels": panels,
            "still": still,
            "held_out": held_out_panels(evals),
            "staleness": _staleness(metrics),
            "timeline": timeline(metrics, evals, faults, alarms, max(int(generators or 1), 1)),
            "alarms": [_said(record) for record in alarms[-200:]],
            "faults": [_said(record) for record in faults[-200:]],
            "config": config or "",
            "settings": self.settings,
            "manifest": self.manifest,
            "path": str(self.member.path),
            "note": self.note,
        }

    def now(self) -> dict[str, Any] | None:
        """Current work of the run and of every actor; None once it has ended, and where nothing is known of that."""
        if self.status not in GOING:
            return None
        return now(self.member.path, self._clock())

    def _records(self, name: str) -> list[dict[str, Any]]:
        return self._lines[name].records

    def _try(self, read: Callable[[], Any]) -> Any:
        """Call a reader; an error is added to the problems, and gives None."""
        try:
            return read()
        except (LabError, OSError) as error:
            self.problems.append(str(error))
            return None

    def _read_curves(self) -> list[Curve]:
        """The run's curves; none while it has no evaluation."""
        if self.member.folder and not self._records("evals.jsonl"):
            return []
        return self._try(lambda: read_with([self.member.path], self.reading)) or []

    def _read_points(self) -> list[dict[str, Any]]:
        """The points of the run's curves; those of a table say which of its runs they belong to."""
        if self.member.folder:
            tasks = [str(record.get("task") or "") for record in self._records("evals.jsonl")]
            found = [entry for curve in self.curves for entry in curve_points(curve)]
            return sorted(found, key=lambda entry: tasks.index(entry["task"]) if entry["task"] in tasks else len(tasks))
        return [entry | {"run": curve.run} for curve in self.curves for entry in curve_points(curve)]

    @property
    def _started(self) -> float | None:
        return number(self.manifest.get("started"))

    def _unit(self, latest: Mapping[str, Any]) -> str:
        """Unit of what a run spends, which its curves need not be drawn against."""
        if self.reading.unit:
            return self.reading.unit
        if self.curves and not self.member.folder:
            return self.curves[0].unit
        return short_text(latest.get("compute_unit")) or short_text(self.manifest.get("compute_unit")) or "compute"

    def _progress(self, step: float, compute: float) -> float | None:
        """The share of the budget that is spent, whichever of its limits comes first."""
        shares = []
        for name, done in (("Budget.steps", step), ("Budget.hours", compute)):
            text = self.settings.get(name, "")
            if re.fullmatch(r"\d{1,12}(\.\d*)?", text) and float(text) > 0:
                shares.append(min(done / float(text), 1.0))
        return max(shares, default=None)

    def _written(self) -> Iterator[Path]:
        """Files whose times tell when the run wrote its last line."""
        return (path for name in WRITTEN if (path := self._path(name)) is not None)

    def _path(self, name: str) -> Path | None:
        try:
            return inside(self.member.path, name)
        except LabError:
            return None

    def _stamp(self) -> object:
        """Stamp that changes whenever a file of the run does."""
        if not self.member.folder:
            files = [self.member.path] if self.member.path.is_file() else sorted(self.member.path.glob("*"))
        else:
            files = [self.member.path / name for name in (*FILES, "manifest.json", "config.gin", NOTES)]
        stamps = []
        for file in files:
            try:
                facts = file.stat()
            except OSError:
                continue
            stamps.append((str(file), facts.st_mtime_ns, facts.st_size, facts.st_ino))
        return stamps


def _staleness(metrics: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Completions by staleness along the run: `{"steps", "values", "counts": [[step index, value, share]]}`."""
    lines = [
        (number(line.get("step")), counts)
        for line in metrics
        if isinstance(line.get("staleness"), Mapping) and (counts := staleness(line["staleness"]))
    ]
    lines = [(step, counts) for step, counts in lines if step is not None]
    if not lines:
        return None
    stretch = -(-len(lines) // 120)
    steps, cells, highest = [], [], 0
    for index, start in enumerate(range(0, len(lines), stretch)):
        part = lines[start : start + stretch]
        total = sum(sum(counts.values()) for _, counts in part)
        steps.append(part[0][0])
        for value in sorted({value for _, counts in part for value in counts if value <= 64}):
            count = sum(counts.get(value, 0.0) for _, counts in part)
            if count:
                cells.append([index, value, round(count / total, 4)])
                highest = max(highest, value)
    return {"steps": steps, "highest": highest, "cells": cells}


def _said(record: Mapping[str, Any]) -> dict[str, Any]:
    """A line of alarms or faults for the page's list."""
    text = record.get("message") or record.get("error") or record.get("event") or "?"
    name = record.get("name") or record.get("role") or ""
    return {
        "step": number(record.get("step")),
        "time": number(record.get("time")),
        "level": short_text(record.get("level") or record.get("event")),
        "name": short_text(name),
        "text": str(text)[:500],
    }


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 3600
