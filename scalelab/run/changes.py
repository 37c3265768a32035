"""Wait for a condition on the books of a run, and announce changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class _Wait(NamedTuple):
    condition: Callable[[], object]
    what: str
    since: float
    """On the event loop's clock."""


class Changes:
    """Wake coroutines whose condition has become true; conditions only read shared state."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], _Wait] = {}

    def notify(self) -> None:
        """Check every condition that is waited for; to be called after each change of the shared state."""
        for future, wait in self._waiting.items():
            if not future.done() and wait.condition():
                future.set_result(None)

    def waits(self) -> dict[str, float]:
        """Conditions waited for, each with its seconds; the longest where several wait for one condition."""
        now = asyncio.get_running_loop().time()
        longest: dict[str, float] = {}
        for wait in self._waiting.values():
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
            future = loop.create_future()
            self._waiting[future] = _Wait(condition, what, since)
            try:
                await future
            finally:
                del self._waiting[future]
        return value
