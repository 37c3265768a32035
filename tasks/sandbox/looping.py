"""An event loop of asyncio that needs no sockets, which the sandbox forbids."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Any

_LONGEST_WAIT = 0.001


def install() -> None:
    """Make `asyncio.run` and its like work in this process; whatever can be awaited may be run."""
    # Loaded here and not by the server, because few programs need it, and each would pay for it.
    import asyncio
    import selectors

    class Idle(selectors.BaseSelector):
        """A selector that waits for time alone; threads that want to wake the loop are noticed in a millisecond."""

        def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
            raise OSError("no files can be waited for")

        def unregister(self, fileobj: Any) -> selectors.SelectorKey:
            raise KeyError(fileobj)

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            time.sleep(_LONGEST_WAIT if timeout is None else max(0.0, min(timeout, _LONGEST_WAIT)))
            return []

        def get_map(self) -> Any:
            return {}

    class SocketlessLoop(asyncio.SelectorEventLoop):
        """A loop without the pair of sockets by which threads wake it."""

        def __init__(self) -> None:
            super().__init__(Idle())

        def _make_self_pipe(self) -> None:
            self._ssock = self._csock = None

        def _close_self_pipe(self) -> None:
            pass

        def _write_to_self(self) -> None:
            pass

    class Policy(asyncio.DefaultEventLoopPolicy):
        _loop_factory = SocketlessLoop

    async def awaited(one: Awaitable[Any]) -> Any:
        return await one

    run = asyncio.run

    def run_any(main: Any, **more: Any) -> Any:
        return run(main if asyncio.iscoroutine(main) else awaited(main), **more)

    asyncio.set_event_loop_policy(Policy())
    asyncio.run = run_any
