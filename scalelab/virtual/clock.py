"""An asyncio event loop on simulated time: coroutines sleep, time jumps to the next of them.

Time is a whole number of ticks of 2⁻²⁶ s, so that sums of durations are exact in whatever order they are added, and two
worlds with the same durations see the same times to the last bit. Between two ticks of the clock everything that is
ready runs to its end; of events at one time, engines' decoding steps come last, so that what else happens at that time
is known to them.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from scalelab.errors import LabError
from scalelab.run.settings import TICKS_PER_SECOND

LOOK_EVERY = 64
"""Turns of the event loop between two checks for signals: a check costs as much as a turn."""

T = TypeVar("T")


def ticks(seconds: float) -> int:
    """Round a duration to ticks."""
    return round(seconds * TICKS_PER_SECOND)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time moves only when nothing is ready to run.

    Attributes:
        simulated: true of this loop; `in_own_thread` asks for it.
        now: ticks since the beginning.
        wall: seconds since the beginning as a machine with few cores would take them; see `stretch`.
        stretch: asked before time moves, returns how many times slower than planned everything runs until then.
        moved: called with the seconds of wall time that have just passed.
    """

    simulated = True

    def __init__(self, start: int = 0) -> None:
        self.now = start
        self.wall = start / TICKS_PER_SECOND
        self.stretch: Callable[[], float] = lambda: 1.0
        self.moved: Callable[[float], None] = lambda _: None
        self._timers: list[tuple[int, bool, int, asyncio.TimerHandle]] = []
        self._serial = 0
        super().__init__(_Selector(self))

    def time(self) -> float:
        """Seconds since the beginning."""
        return self.now / TICKS_PER_SECOND

    def call_at(  # type: ignore[override] # typeshed has variadic types here
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback at a simulated time in seconds."""
        return self.call_at_tick(ticks(when), callback, *args, context=context)

    def call_at_tick(
        self, when: int, callback: Callable[..., Any], *args: Any, last: bool = False, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback at a tick; `last` after all others of that tick."""
        handle = asyncio.TimerHandle(when / TICKS_PER_SECOND, callback, args, self, context)
        self._serial += 1
        heapq.heappush(self._timers, (max(when, self.now), last, self._serial, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback after a simulated duration in seconds."""
        return self.call_at_tick(self.now + ticks(delay), callback, *args, context=context)

    def advance(self) -> None:
        """Move to the next timer and run its callback.

        Raises:
            StandStillError: there is none.
        """
        while self._timers:
            when, _, _, handle = heapq.heappop(self._timers)
            if handle.cancelled():
                continue
            if when > self.now:
                passed = (when - self.now) / TICKS_PER_SECOND * self.stretch()
                self.now, self.wall = when, self.wall + passed
                self.moved(passed)
            handle._run()
            return
        raise StandStillError(self)


class StandStillError(LabError):
    """Deadlock: coroutines wait, but no event can come."""

    def __init__(self, loop: VirtualLoop) -> None:
        waiting = sorted(f"{task.get_name()} awaits {_awaited(task)}" for task in asyncio.all_tasks(loop))
        super().__init__(f"simulated time stands still at {loop.time():.3f} s: {'; '.join(waiting)}")


def _awaited(task: asyncio.Task[Any]) -> str:
    """The innermost coroutine of a task, and the name of what it waits for."""
    coroutine: Any = task.get_coro()
    innermost = coroutine
    while coroutine is not None and hasattr(coroutine, "cr_frame"):
        innermost, coroutine = coroutine, coroutine.cr_await
    frame = getattr(innermost, "cr_frame", None)
    if frame is None:
        return "nothing"
    what = frame.f_locals.get("what")
    name = str(frame.f_code.co_qualname)
    return f"{what} ({name})" if isinstance(what, str) else f"{name}, line {frame.f_lineno}"


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """A selector that takes real file events (signals, threads) first; otherwise time moves instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._until_look = 0

    def select(self, timeout: float | None = None) -> Any:
        if self._until_look == 0:
            self._until_look = LOOK_EVERY
            if events := super().select(0):
                return events
        self._until_look -= 1
        if timeout is None:  # nothing is ready to run
            self._loop.advance()
        return []


async def sleep_until(when: int, what: str, *, last: bool = False) -> None:
    """Wait for a tick of the running `VirtualLoop`.

    Args:
        when: the tick; one that has passed is now.
        what: what happens then, for messages.
        last: after everything else that happens at that tick.
    """
    loop = virtual_loop()
    future = loop.create_future()
    handle = loop.call_at_tick(when, set_done, future, last=last)
    try:
        await future
    except asyncio.CancelledError:
        handle.cancel()
        raise


def set_done(future: asyncio.Future[None]) -> None:
    """Resolve a future that may have been resolved or cancelled."""
    if not future.done():
        future.set_result(None)


def virtual_loop() -> VirtualLoop:
    """The running event loop, which must be a `VirtualLoop`."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def run_virtual(main: Coroutine[Any, Any, T], start: int = 0) -> T:
    """Run a coroutine on a clock of its own, from a tick on.

    Raises:
        StandStillError: every coroutine waits for another.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start)) as runner:
        return runner.run(main)
