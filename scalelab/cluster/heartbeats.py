"""Heartbeats: the current work of every actor, asked for regularly during a run.

An actor answers on a thread that its work never holds, so that no answer means a process that is gone, stopped, or out
of processor time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from ray.exceptions import RayError

from scalelab.run.coroutines import TaskGroup

GROUP = "heartbeat"
"""Ray's concurrency group whose thread answers."""

EVERY, MOST = 5.0, 100
"""Seconds between two rounds of questions, and most questions of a round: more actors than these take turns, as every
question takes the driver a millisecond."""

SILENT = 20.0
"""Seconds without an answer after which an actor is named."""

HELD_UP = 30.0
"""Seconds after which a rank is named that the other ranks wait for."""

SLOW = 0.5
"""Share of the median speed below which a generator is named."""


@dataclass(frozen=True)
class Pulse:
    """An actor's answer about itself.

    Attributes:
        doing: what its oldest call does.
        seconds: how long that has taken.
        node: the machine's name.
        pid: of its process on that machine.
        waits: whether it stands in a collective operation, which takes as long as the last rank needs.
        speed: tokens a second of work since the last pulse; None if it generates none.
    """

    doing: str
    seconds: float
    node: str
    pid: int
    waits: bool = False
    speed: float | None = None


class Beating:
    """Base class of a run's actors: keeps what their threads are doing."""

    def __init__(self) -> None:
        self._at_work: dict[int, tuple[str, float]] = {}

    @contextmanager
    def at(self, doing: str) -> Iterator[None]:
        """Note what this thread does until the end of the block."""
        thread = threading.get_ident()
        self._at_work[thread] = doing, time.monotonic()
        try:
            yield
        finally:
            del self._at_work[thread]

    def pulse(self) -> Pulse:
        """Describe what the actor is doing now."""
        oldest = min(self._at_work.copy().items(), key=lambda one: one[1][1], default=None)
        if oldest is None:
            return Pulse("nothing", 0.0, socket.gethostname(), os.getpid())
        thread, (doing, since) = oldest
        seconds = time.monotonic() - since
        return Pulse(doing, seconds, socket.gethostname(), os.getpid(), waits=_in_collective(thread))


def _in_collective(thread: int) -> bool:
    """True if a thread stands inside torch's collective operations."""
    frame = sys._current_frames().get(thread)
    for _ in range(3):  # the operation itself, and what wraps it
        if frame is None:
            return False
        if "/torch/distributed/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


class Heartbeats:
    """Questions to a run's actors about what they do.

    Args:
        actors: gives the actors that there should be, by their names for people; another actor may take a name over.
    """

    def __init__(self, actors: Callable[[], Mapping[str, Any]]) -> None:
        self._actors = actors
        self._asking: dict[str, tuple[Any, asyncio.Task[None]]] = {}
        self._heard: dict[str, tuple[float, Pulse | None]] = {}
        self._turn = 0

    async def serve(self) -> None:
        """Ask until cancelled; an actor that has not answered yet is not asked again."""
        try:
            async with TaskGroup() as group:
                while True:
                    for name, actor in self._round():
                        asked, task = self._asking.get(name, (None, None))
                        if asked is not actor:
                            if task is not None:
                                task.cancel()
                            self._heard[name] = time.monotonic(), None
                        if asked is not actor or (task is not None and task.done()):
                            self._asking[name] = actor, group.create_task(self._ask(name, actor))
                    await asyncio.sleep(EVERY)
        finally:
            self._asking.clear()

    def _round(self) -> list[tuple[str, Any]]:
        """The actors whose turn it is."""
        actors = list(self._actors().items())
        if len(actors) <= MOST:
            return actors
        start, self._turn = self._turn % len(actors), self._turn + MOST
        return [*actors[start:], *actors[:start]][:MOST]

    async def _ask(self, name: str, actor: Any) -> None:
        try:
            pulse = await actor.pulse.options(concurrency_group=GROUP).remote()
        except RayError:  # its caller notices the loss, too, and replaces it
            return
        self._heard[name] = time.monotonic(), pulse

    def lines(self) -> list[dict[str, Any]]:
        """Describe what was last heard of every actor: a JSON object each."""
        now = time.monotonic()
        return [_line(name, now - when, pulse) for name, (when, pulse) in self._heard.items()]


def _line(name: str, silent: float, pulse: Pulse | None) -> dict[str, Any]:
    line: dict[str, Any] = {"name": name, "silent": round(silent, 1)}
    if pulse is None:
        return line | {"doing": "starting", "seconds": round(silent, 1)}
    return line | vars(pulse) | {"seconds": round(pulse.seconds + silent, 1)}


def stragglers(actors: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name who holds up a run: a line each, worst first.

    Args:
        actors: `Heartbeats.lines`.
    """
    found = []
    silent = SILENT + EVERY * ((len(actors) - 1) // MOST)  # they are asked that much less often
    for one in actors:
        if one["silent"] > silent and one["doing"] != "starting":
            where = f"process {one['pid']} on {one['node']}"
            found.append(
                f"{one['name']} has not answered for {one['silent']:.0f} s ({where}); it was at {one['doing']}"
            )
    ranks = [one for one in actors if "waits" in one and one["doing"] != "nothing" and one["silent"] <= silent]
    waiting = [one for one in ranks if one["waits"]]
    for one in ranks:
        held_up = [other for other in waiting if other["doing"] == one["doing"]]
        if held_up and not one["waits"] and one["seconds"] > HELD_UP:
            found.append(
                f"{one['name']} has been at {one['doing']} for {one['seconds']:.0f} s, and {len(held_up)} others wait "
                f"for it (process {one['pid']} on {one['node']})"
            )
    speeds = [one["speed"] for one in actors if one.get("speed")]
    usual = median(speeds) if len(speeds) > 2 else 0.0
    for one in actors:
        if one.get("speed") and one["speed"] < SLOW * usual:
            found.append(
                f"{one['name']} makes {one['speed']:.0f} tokens a second of work, half of them {usual:.0f} or more "
                f"(process {one['pid']} on {one['node']})"
            )
    return found
