"""The run's scalars as TensorBoard events, for people's own tools."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moe.errors import printable

# TensorBoard says at import that TensorFlow is missing; nothing here needs it.
logging.getLogger("tensorboard").setLevel(logging.ERROR)

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # noqa: E402
from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: E402
from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: E402

from scalelab.watch.tracker import Rows, scalars  # noqa: E402

log = logging.getLogger(__name__)


class TensorBoardWriter:
    """Writer of one file of TensorBoard events; the run goes on without it once writing fails.

    Numbers of records are called `part/name`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: EventFileWriter | None = EventFileWriter(str(folder))

    def step(self, record: Mapping[str, Any]) -> None:
        """Add every number of an optimiser step."""
        self._add(_event(record, "train"))

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Add every number of a task's evaluation."""
        self._add(_event(record, f"eval/{record['task']}"))

    def alarm(self, record: Mapping[str, Any]) -> None:
        """Leave alarms out: TensorBoard has no place for them."""

    def completions(self, step: int, rows: Rows) -> None:
        """Leave completions out: the run's folder has them in tables."""

    def go_back(self, step: int) -> None:
        """Make TensorBoard drop everything that was written for later steps."""
        self._add(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def close(self, status: str) -> None:
        """Close the file."""
        self._tell(lambda writer: writer.close())

    def _add(self, event: Event) -> None:
        def add(writer: EventFileWriter) -> None:
            writer.add_event(event)
            writer.flush()

        self._tell(add)

    def _tell(self, tell: Callable[[EventFileWriter], None]) -> None:
        """Write; if that fails, no more."""
        if self._writer is None:
            return
        try:
            tell(self._writer)
        except OSError as error:
            log.warning("%s takes no more events (%s); the run goes on", self._folder, printable(error))
            self._writer = None


def _event(record: Mapping[str, Any], under: str) -> Event:
    values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(record, under)]
    return Event(wall_time=time.time(), step=record["step"], summary=Summary(value=values))
