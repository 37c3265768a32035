"""The place of an engine on a Ray cluster, and the weights that it holds."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from moe.weights.segments import Segment
from scalelab.rollout.types import Request


@dataclass(frozen=True, eq=False)
class Weights:
    """One publication of weights; told apart by identity, since version numbers repeat after a rollback."""

    version: int
    segments: list[Segment] | None
    """The shares of all trainer ranks; None for those that every engine starts with."""


@dataclass(eq=False)
class EnginePlace:
    """An engine's place, which is held by one actor after the other."""

    index: int
    actor: Any
    weights: Weights | None
    """Weights that it holds; None while it starts again."""
    restarts: int = 0
    """Actors that were lost here."""
    node: str | None = None
    """The Ray node that its actor is on; None before it is up."""
    stats: dict[str, float] = field(default_factory=dict)
    dealt: list[Request] = field(default_factory=list)
    """Requests that are dealt to it and not yet sent to its actor."""
    abort_ids: list[str] = field(default_factory=list)
    """Forgotten requests that its actor is still to abort."""
    to_send: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is something in `dealt`."""
    to_abort: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is something in `abort_ids`."""
    lost_since: float | None = None
    """Monotonic time at which its engine was lost; None while one is up, and before the first."""

    def lost_seconds(self) -> float:
        """Seconds for which its engine has been missing by now."""
        return 0.0 if self.lost_since is None else time.monotonic() - self.lost_since

    @property
    def name(self) -> str:
        """Name of the engine in messages."""
        return f"generator {self.index}"
