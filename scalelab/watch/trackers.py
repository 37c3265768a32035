"""Send a run's numbers to trackers without ever making the run wait.

`Trackers` takes the lines that the run has just written, and hands them to one adapter per tracker in a thread of its
own. The run's folder stays the record: what a tracker loses is only missing there. TensorBoard's events are part of the
folder, and written by it.
"""

from __future__ import annotations

import importlib.util
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

from moe.durable import write_whole
from moe.errors import first_line
from scalelab.errors import LabError
from scalelab.watch.alerts import channel
from scalelab.watch.tracker import ALERTS, COLUMNS, Rows, Tracker, TrackerName, scalars
from scalelab.watch.tracker_adapters import ADAPTERS, Opening

IDENTITIES = "trackers.json"
"""File of the run's folder that remembers what each tracker calls the run, so that a resumed run goes on there."""

WAITING, CLOSE_SECONDS = 10_000, 60.0
"""Most records that wait for a tracker, and how long the end of a run waits for them to be sent."""

COMPLETE = "the run's folder has everything"

SAMPLED, LONGEST_TEXT = 4, 20_000
"""Completions sent of each task's passed and of its failed ones, and most characters of a text."""


class FitSource(Protocol):
    """FitSource of a run's curves, made anew after each evaluation."""

    def after(self, record: Mapping[str, Any]) -> dict[str, float]:
        """Fit the curve that this line of `evals.jsonl` belongs to; names are such as `fit/math/A`."""

    def go_back(self, step: int) -> None:
        """Forget the evaluations of later steps."""


class Trackers:
    """All trackers of a run; every method but `close` returns at once."""

    def __init__(
        self, trackers: Mapping[str, Tracker], say: Callable[[str], None], fits: FitSource | None = None
    ) -> None:
        """Start the thread that feeds the trackers.

        Args:
            trackers: by the names that messages call them.
            say: takes a line for people.
            fits: fits that are sent after each evaluation; None sends none.
        """
        self._trackers, self._say, self._fits = dict(trackers), say, fits
        self._waiting: queue.Queue[tuple[str, tuple[Any, ...]] | None] = queue.Queue(WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._send_all, name="trackers", daemon=True)
        self._thread.start()

    @classmethod
    def start(
        cls,
        names: Sequence[str],
        folder: Path,
        facts: Mapping[str, Any],
        say: Callable[[str], None],
        settings: Mapping[str, Any] | None = None,
        fits: FitSource | None = None,
    ) -> Trackers:
        """Open every tracker, or continue its record of this run.

        Args:
            names: trackers, such as `wandb`.
            folder: the run's folder.
            facts: the run's manifest.
            say: takes a line for people.
            settings: the run's configuration by names such as `recipe.max_tokens`.
            fits: fits that are sent after each evaluation; None sends none.

        Raises:
            LabError: a tracker is not installed, or refuses (no login, no server).
        """
        check_trackers(names)
        identities = _read_identities(folder)
        opened: dict[str, Tracker] = {}
        for name in names:
            opening = Opening(folder, dict(facts), dict(settings or {}), identities.get(name))
            try:
                with redirect_stdout(sys.stderr):  # standard output belongs to the command
                    opened[name] = ADAPTERS[name](opening)
            except Exception as error:  # whatever a tracker's package raises
                raise LabError(f"Run.trackers: {name} does not start: {first_line(error)}") from error
            if opening.identity is not None:
                identities[name] = opening.identity
        write_whole(folder / IDENTITIES, json.dumps(identities, indent=2) + "\n")
        return cls(opened, say, fits)

    def step(self, record: Mapping[str, Any]) -> None:
        """Send a line of `metrics.jsonl`."""
        self._add("numbers", record["step"], dict(scalars(record, "train")))

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Send a line of `evals.jsonl`, with a new fit of its task."""
        self._add("evaluation", record)

    def alarm(self, record: Mapping[str, Any]) -> None:
        """Send a line of `alarms.jsonl`."""
        self._add("alarm", record["step"], record["name"], record["message"])

    def completions(self, step: int, rows: Rows) -> None:
        """Send a sample of an evaluation's completions, passed and failed ones of each task."""
        self._add("completions", step, sample(rows))

    def go_back(self, step: int) -> None:
        """Report that all steps after this one are undone."""
        self._add("go_back", step)

    def close(self, status: str) -> None:
        """Wait, for a minute at most, until all is sent, and close the trackers."""
        deadline = time.monotonic() + CLOSE_SECONDS
        with suppress(queue.Full):
            for last in (("close", (status,)), None):
                self._waiting.put(last, timeout=max(0.0, deadline - time.monotonic()))
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._say(f"trackers: still busy after {CLOSE_SECONDS:.0f} s and left alone; {COMPLETE}")
        if self._lost:
            self._say(f"trackers: {self._lost} records came faster than they were sent, and are missing there")

    def _add(self, method: str, *arguments: Any) -> None:
        try:
            self._waiting.put_nowait((method, arguments))
        except queue.Full:
            self._lost += 1

    def _send_all(self) -> None:
        """Send queued messages, until a None comes."""
        while (item := self._waiting.get()) is not None:
            method, arguments = item
            if method == "evaluation":
                [record] = arguments
                self._send("numbers", record["step"], dict(scalars(record, f"eval/{record['task']}")))
                if self._fits:
                    self._send("numbers", record["step"], self._fits.after(record))
            else:
                if method == "go_back" and self._fits:
                    self._fits.go_back(*arguments)
                self._send(method, *arguments)

    def _send(self, method: str, *arguments: Any) -> None:
        """Call every tracker; one that fails is named once, and left out from then on."""
        for name, tracker in list(self._trackers.items()):
            try:
                with redirect_stdout(sys.stderr):
                    getattr(tracker, method)(*arguments)
            except Exception as error:  # whatever a tracker's package raises
                del self._trackers[name]
                self._say(f"{name} failed and is left out from here on; {COMPLETE}: {first_line(error)}")


def check_trackers(names: Sequence[str]) -> None:
    """Check that trackers are known, and installed or described by the environment.

    Raises:
        LabError: one is not.
    """
    for name in names:
        if name not in get_args(TrackerName):
            raise LabError(f"Run.trackers names {name!r}: there are {', '.join(get_args(TrackerName))}")
        if name in ALERTS:
            channel(name)
        elif importlib.util.find_spec(name) is None:
            raise LabError(f"Run.trackers names {name}, which is not installed: pip install 'scalelab[trackers]'")
    if len(set(names)) < len(names):
        raise LabError("Run.trackers names a tracker twice: leave one out")


def settings_of(config: Any, under: str = "") -> dict[str, Any]:
    """Flatten a configuration, such as `Run`, into plain values by names such as `recipe.max_tokens`."""
    if isinstance(config, tuple | list) and any(map(is_dataclass, config)):
        return {
            name: value
            for number, item in enumerate(config)
            for name, value in settings_of(item, f"{under}{number}.").items()
        }
    if not is_dataclass(config):
        plain = config if isinstance(config, str | int | float | bool) or config is None else str(config)
        return {under.removesuffix("."): plain}
    values: dict[str, Any] = {under.removesuffix("."): type(config).__name__} if under else {}
    for field in fields(config):
        values |= settings_of(getattr(config, field.name), f"{under}{field.name}.")
    return values


def sample(rows: Rows) -> list[dict[str, Any]]:
    """The first few passed and failed completions of each task, with texts that are not too long to look at."""
    chosen: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for row in rows:
        alike = chosen.setdefault((row["task"], row["outcome"] == "passed"), [])
        if len(alike) < SAMPLED:
            alike.append({key: _cut(row.get(key)) for key in COLUMNS})
    return [row for alike in chosen.values() for row in alike]


def _read_identities(folder: Path) -> dict[str, str]:
    file = folder / IDENTITIES
    if not file.is_file():
        return {}
    try:
        return {str(name): str(value) for name, value in json.loads(file.read_text(encoding="utf-8")).items()}
    except (ValueError, AttributeError):
        raise LabError(f"{file} is not a JSON object: remove it, and trackers begin a new run each") from None


def _cut(value: Any) -> Any:
    long = isinstance(value, str) and len(value) > LONGEST_TEXT
    return f"{value[:LONGEST_TEXT]}… ({len(value)} characters)" if long else value
