"""The run's scalars as TensorBoard events, for people's own tools."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# TensorBoard says at import that TensorFlow is missing; nothing here needs it.
logging.getLogger("tensorboard").setLevel(logging.ERROR)

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # noqa: E402
from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: E402
from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: E402

from scalelab.watch.trackers import scalars  # noqa: E402


class Board:
    """Write records, flattened to `part/name`, into one event file."""

    def __init__(self, folder: Path) -> None:
        self._writer = EventFileWriter(str(folder))

    def write(self, step: int, record: Mapping[str, Any], under: str) -> None:
        """Add every number of a record at `step`, and flush."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(record, under)]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()

    def go_back(self, step: int) -> None:
        """Make TensorBoard drop everything that was written for later steps."""
        self._writer.add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
