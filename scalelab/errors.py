"""The one exception meant for users, and the parts that its messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class LabError(Exception):
    """A problem that a user can solve, in one line: the cause, and what to do about it.

    The command line prints it without a traceback and exits with 1.
    """


def nearest(name: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """The end of a message about an unknown name: the nearest known one, or `otherwise`, or all that are known."""
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1) or [one for one in names if one.lower() == name.lower()]
    if near:
        return f"did you mean {near[0]!r}?"
    if otherwise is not None:
        return otherwise
    return f"there are: {', '.join(names)}" if names else "there is none"


class UntrustedError(LabError):
    """A configuration names code of its own, which is imported only if the user allows it."""


class BrokenOffError(LabError):
    """A run ended by its machine, not by the user's mistake; `--resume` goes on with it.

    The command line exits with `BROKEN_OFF`, so that a supervisor knows that starting again helps.
    """


FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130
"""Exit codes of a command that failed, was called wrongly, or was stopped by Ctrl-C."""

BROKEN_OFF = 75
"""Exit code of a run that the machine broke off; in `sysexits.h` this code means that trying again may help."""


def first_error(group: BaseExceptionGroup[Any]) -> Any:
    """The first error inside nested exception groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
