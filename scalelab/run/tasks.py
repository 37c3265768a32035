"""Groups of tasks that a cancellation always ends, and work in threads that no ending waits for."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


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

    `asyncio.to_thread` uses threads that the end does wait for, without a deadline.
    """
    loop = asyncio.get_running_loop()
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
