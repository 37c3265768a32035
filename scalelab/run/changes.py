"""Wait for a condition on the books of a run, and announce changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Changes:
    """Wake coroutines whose condition has become true; conditions only read shared state."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], Callable[[], object]] = {}

    def notify(self) -> None:
        """Check every condition that is waited for; call it after each change that may matter."""
        for future, condition in self._waiting.items():
            if not future.done() and condition():
                future.set_result(None)

    async def until(self, condition: Callable[[], T | None], what: str) -> T:
        """Wait until a condition gives a true value, and return it.

        Args:
            condition: looked at now and after each `notify`.
            what: what is waited for, for messages.
        """
        while not (value := condition()):
            future = asyncio.get_running_loop().create_future()
            self._waiting[future] = condition
            try:
                await future
            finally:
                del self._waiting[future]
        return value
