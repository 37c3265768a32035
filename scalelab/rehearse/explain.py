"""Errors in one line, with the project's line that led to them."""

from __future__ import annotations

import traceback
from pathlib import Path

from moe.errors import first_line

_ROOT = Path(__file__).parents[2]
_ROOMS = ("moe", "scalelab")


def explain(error: BaseException) -> str:
    """Name the error, and the innermost line of the lab (the rehearsal's own aside) in its traceback."""
    places = [_place(frame) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [place for place in places if place and not place.startswith("scalelab/rehearse/")]
    where = f" at {ours[-1]}" if ours else ""
    return f"{type(error).__name__}{where}: {first_line(error)[:300]}"


def _place(frame: traceback.FrameSummary) -> str | None:
    path = Path(frame.filename)
    if not path.is_relative_to(_ROOT) or path.relative_to(_ROOT).parts[0] not in _ROOMS:
        return None
    return f"{path.relative_to(_ROOT)}:{frame.lineno}"
