"""Verdicts of three values: True, False, and None where nothing can be told yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Equal = bool | None


def any_of(verdicts: Iterable[Equal]) -> Equal:
    """True if one is, else None if one is open."""
    found: Equal = False
    for one in verdicts:
        if one:
            return True
        found = None if one is None else found
    return found


def all_of(verdicts: Iterable[Equal]) -> Equal:
    """False if one is, else None if one is open."""
    found: Equal = True
    for one in verdicts:
        if one is False:
            return False
        found = None if one is None else found
    return found


def matched(mine: Sequence[Any], theirs: Sequence[Any], same: Callable[[Any, Any], Equal]) -> Equal:
    """True if every item has a partner of its own among the others."""
    if len(mine) != len(theirs):
        return False
    left = list(theirs)
    found: Equal = True
    for one in mine:
        verdicts = [same(one, other) for other in left]
        if True in verdicts:
            left.pop(verdicts.index(True))
        elif None in verdicts:
            found = None
        else:
            return False
    return found
