"""Errors in one line, with the project's line that led to them."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from pydantic import ValidationError

from moe.errors import first_line
from scalelab.experiment.values import mistakes

_ROOT = Path(__file__).parents[2]
_ROOMS = ("moe", "scalelab")
_LONG = re.compile(r"\([^()]{100,}\)")
"""All fields of a configuration, as vLLM names them before it says what is wrong."""


class ToldError(Exception):
    """An error of another process, in the words of `explain`."""


def explain(error: BaseException) -> str:
    """Name the error, and the innermost line of the lab (the rehearsal's own aside) in its traceback."""
    if isinstance(error, ToldError):
        return str(error)
    places = [_place(frame) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [place for place in places if place and not place.startswith("scalelab/rehearse/")]
    where = f" at {ours[-1]}" if ours else ""
    return f"{type(error).__name__}{where}: {_LONG.sub('(…)', _message(error))[:300]}"


def _message(error: BaseException) -> str:
    """The line that says what is wrong."""
    return mistakes(error) if isinstance(error, ValidationError) else first_line(error)


def _place(frame: traceback.FrameSummary) -> str | None:
    path = Path(frame.filename)
    if not path.is_relative_to(_ROOT) or path.relative_to(_ROOT).parts[0] not in _ROOMS:
        return None
    return f"{path.relative_to(_ROOT)}:{frame.lineno}"
