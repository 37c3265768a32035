"""The address of an engine that weights are sent to."""

from __future__ import annotations

from typing import Any, NamedTuple


class Listener(NamedTuple):
    """An engine that weights are sent to."""

    name: str
    actor: Any
    devices: int
    """Processes of the engine, each of which receives."""
