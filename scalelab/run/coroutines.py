"""Tools of a run's coroutines: conditions to wait for, groups that a cancellation always ends, threads of their own."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable
from itertools import chain
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Wait(NamedTuple):
    woken: asyncio.Future[None]
    what: str
    since: float
    """On the event loop's clock."""


class Changes:
    """Wake coroutines whose condition has become true; conditions only read shared state.

    Where many wait for one condition, it is looked at once, and they are woken one after the other: what made it true
    may be taken by the first.
    """

    def __init__(self) -> None:
        self._waiting: dict[Callable[[], object], deque[_Wait]] = {}

    def notify(self) -> None:
        """Check every condition that is waited for; to be called after each change of the shared state."""
        for condition in self._waiting:
            self._wake(condition)

    def _wake(self, condition: Callable[[], object]) -> None:
        """Wake the first that sleeps for a condition, if it is true."""
        first = next((one.woken for one in self._waiting.get(condition, ()) if not one.woken.done()), None)
        if first is not None and condition():
            first.set_result(None)

    def waits(self) -> dict[str, float]:
        """Conditions waited for, each with its seconds; the longest where several wait for one condition."""
        now = asyncio.get_running_loop().time()
        longest: dict[str, float] = {}
        for wait in chain.from_iterable(self._waiting.values()):
            longest[wait.what] = max(now - wait.since, longest.get(wait.what, 0.0))
        return longest

    async def until(self, condition: Callable[[], T | None], what: str) -> T:
        """Wait until a condition gives a true value, and return it.

        Args:
            condition: looked at now and after each `notify`.
            what: what is waited for, as `waits` tells it.
        """
        loop = asyncio.get_running_loop()
        since = loop.time()
        while not (value := condition()):
            wait = _Wait(loop.create_future(), what, since)
            self._waiting.setdefault(condition, deque()).append(wait)
            try:
                await wait.woken
            finally:
                waits = self._waiting[condition]
                waits.remove(wait)
                if waits:
                    loop.call_soon(self._wake, condition)  # after this one has used what it waited for
                else:
                    del self._waiting[condition]
        return value


class TaskGroup(asyncio.TaskGroup):
    """asyncio's group of tasks, of which a cancellation is never lost.

    CPython raises the error of a child, and not the cancellation, where both come at once (gh-116720); since 3.13 it
    asks for the cancellation again. Who catches such an error in a loop would start anew on what is being taken down.
    """

    async def __aenter__(self) -> TaskGroup:
        """Begin the group."""
        self._cancelled_before = _cancellations()
        await super().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the group's tasks; a cancellation from outside goes before their errors."""
        asked_before = self._parent_cancel_requested  # type: ignore[attr-defined] # by a child that failed
        try:
            await super().__aexit__(kind, error, trace)
        except BaseExceptionGroup as errors:
            again = sys.version_info >= (3, 13)
            if not again and self._parent_cancel_requested and not asked_before:  # type: ignore[attr-defined]
                self._parent_task.uncancel()  # type: ignore[attr-defined] # which CPython leaves out at this point
            if _cancellations() > self._cancelled_before:
                if again:
                    await asyncio.sleep(0)  # is cancelled, so that nothing that cleans up will be
                raise asyncio.CancelledError from errors
            raise


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def in_own_thread(work: Callable[[], T]) -> T:
    """Do something in a thread that neither a cancellation nor the end of the event loop waits for.

    `asyncio.to_thread` uses threads that the end does wait for, without a deadline. On a simulated clock, which cannot
    wait for a thread, it is done at once.
    """
    loop = asyncio.get_running_loop()
    if getattr(loop, "simulated", False):
        return work()
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            set_it(value)

    def run() -> None:
        try:
            result, set_it = work(), done.set_result
        except BaseException as error:
            result, set_it = error, done.set_exception  # type: ignore[assignment]
        try:
            loop.call_soon_threadsafe(settle, set_it, result)
        except RuntimeError:  # the loop has ended meanwhile, and nobody waits any more
            return

    threading.Thread(target=run, name="beside the loop", daemon=True).start()
    return await done
