"""Current work of a run and of every actor of it, for the page.

Nothing in a run's `status.json` is trusted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalelab.errors import LabError
from scalelab.guarded import read_text
from scalelab.store.run_status import is_there
from scalelab.store.status_file import STATUS
from scalelab.view.files import number, short_text

MOST_ACTORS = 2000
LONGEST_LIST = 50
"""Actors, waits and stragglers that are shown."""


def now(folder: Path, time: float) -> dict[str, Any] | None:
    """Read `status.json`; None if there is none, or it is not as a run writes it.

    Args:
        folder: the run's folder.
        time: seconds of Unix time.

    Returns:
        `{"gone": whether its process is not there any more, "age": seconds since it was written, "doing", "process",
        "waits": [text], "stragglers": [text], "actors": [{"name", "doing", "seconds", "silent", "version",
        "process"}]}`.
    """
    status, age = status_and_age(folder, time)
    if not status:
        return None
    actors = [one for one in _list(status, "actors", MOST_ACTORS) if isinstance(one, dict)]
    return {
        "gone": age is not None and not is_there(status, age),
        "age": age,
        "doing": short_text(status.get("doing")),
        "process": _process(status),
        "waits": [short_text(one) for one in _list(status, "waits")],
        "stragglers": [short_text(one) for one in _list(status, "stragglers")],
        "actors": [_actor(one) for one in actors],
    }


def status_and_age(folder: Path, time: float) -> tuple[dict[str, Any], float | None]:
    """Content of `status.json`, and seconds since it was written; nothing where it is not as a run writes it."""
    try:
        status = json.loads(read_text(folder, STATUS))
    except (LabError, OSError, ValueError, RecursionError):
        return {}, None
    if not isinstance(status, dict):
        return {}, None
    written = number(status.get("time"))
    return status, None if written is None else max(0.0, time - written)


def _actor(one: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: number(one.get(name)) for name in ("seconds", "silent", "version")}
    return {
        "name": short_text(one.get("name")),
        "doing": short_text(one.get("doing")),
        "process": _process(one),
        **numbers,
    }


def _process(one: Mapping[str, Any]) -> str:
    """Number and machine of a process."""
    pid = number(one.get("pid"))
    return "" if pid is None else f"{pid:.0f} on {short_text(one.get('node'))}"


def _list(status: Mapping[str, Any], name: str, most: int = LONGEST_LIST) -> list[Any]:
    found = status.get(name)
    return found[:most] if isinstance(found, list) else []
