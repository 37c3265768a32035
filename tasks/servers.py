"""Ask a server for a reward: a model that judges, a checker of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tasks.errors import TaskError

TRIED_AGAIN = (408, 429, 500, 502, 503, 504)
"""Status codes of a server that is busy or not up yet."""
FIRST_PAUSE = 0.5
"""Seconds before the second attempt; each later pause is twice as long."""


async def ask_server(
    url: str,
    body: Mapping[str, Any],
    *,
    attempts: int = 4,
    seconds: float = 60.0,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Post JSON to a server, and return the JSON that it answers.

    An `async` reward that awaits this ends with the task's `reward_seconds`, all attempts together.

    Args:
        url: of the server, such as `http://127.0.0.1:8000/v1/chat/completions`.
        body: what is posted.
        attempts: how often a server that does not answer, or is busy, is asked.
        seconds: limit of one attempt.
        headers: such as an `Authorization`.

    Raises:
        TaskError: there was no answer, or another than JSON.
    """
    import httpx  # what `scalelab[cpu]` and `[gpu]` install for the hub

    problem = ""
    async with httpx.AsyncClient(timeout=seconds, headers=headers) as client:
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(FIRST_PAUSE * 2 ** (attempt - 1))
            try:
                reply = await client.post(url, json=body)
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__} {error}".strip()
                continue
            if reply.status_code == 200:
                try:
                    return reply.json()
                except ValueError:
                    raise TaskError(f"{url} answers no JSON: {reply.text[:80]!r}") from None
            problem = f"status {reply.status_code}: {reply.text[:80]}"
            if reply.status_code not in TRIED_AGAIN:
                break
    raise TaskError(f"{url} gave no reward ({problem}): is the server up, and does it take this request?")
