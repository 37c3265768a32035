"""Connections of the page's server that are closed when a client does not finish its request in time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_SECONDS = 10.0
"""Time in which a client has to send the head of a request, so that idle ones cannot use up all connections."""


class PatientProtocol(H11Protocol):
    """uvicorn's protocol, with a deadline for the head of each request."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; the wait is over with the last line of its head."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_wait()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait."""
        self._end_wait()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._end_wait()
        self._deadline = self.loop.call_later(PATIENCE_SECONDS, self.transport.close)

    def _end_wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
