"""Clients that never finish their requests do not keep the page's connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn

from scalelab.view import patience
from scalelab.view.patience import PatientProtocol

BODY = b"fine"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer every request."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": BODY})


@pytest.mark.parametrize(
    ("sent", "answered"),
    [(b"", 0), (b"GET / HTTP/1.1\r\nHost: a", 0), (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + b"GET / HT", 1)],
    ids=["nothing", "a part of a request", "a part of a second request"],
)
def test_a_client_that_does_not_finish_its_request_is_cut_off(
    sent: bytes, answered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.2)
    assert answers(sent).count(BODY) == answered


def test_a_request_that_comes_in_two_parts_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 1.0)
    assert answers(b"GET / HTTP/1.1\r\nHo", b"st: a\r\n\r\n").count(BODY) == 1


def answers(*parts: bytes) -> bytes:
    """All that a server sends to a client of such parts of requests, until it closes the connection."""

    async def main() -> bytes:
        config = uvicorn.Config(app, http=PatientProtocol, log_level="warning", timeout_keep_alive=100, lifespan="off")
        config.load()
        server = uvicorn.Server(config)
        state = server.server_state
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: PatientProtocol(config, state, {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.05)
        content = await asyncio.wait_for(reader.read(), 30)  # to the end of the connection
        listening.close()
        return content

    return asyncio.run(main())
