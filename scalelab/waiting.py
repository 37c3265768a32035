"""Await Ray: every wait has a deadline, and its error names what was waited for."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from scalelab.errors import LabError

_FULL = re.compile(r"Memory on the node \(.*?\) was (\S+ used / \S+ limit)")
"""Sentence of Ray's about an actor that it ended because the machine's memory was nearly full."""


class LostError(LabError):
    """An actor died while it was being waited for."""


class LateError(LabError):
    """A deadline passed: an actor hangs, or the deadline is too short."""


def wait_for(refs: Any, seconds: float, what: str) -> Any:
    """`ray.get` with a deadline, for start-up, where nothing else goes on.

    Args:
        refs: an object reference or a list of them.
        seconds: deadline.
        what: what is waited for, for the message: "the trainer to save a checkpoint".

    Raises:
        LateError: the deadline passed.
        LostError: the actor died.
        LabError: the actor says what went wrong.
    """
    try:
        return ray.get(refs, timeout=seconds)
    except GetTimeoutError:
        raise LateError(
            f"waited {seconds:.0f} s for {what}: look at its log under /tmp/ray/session_latest/logs"
        ) from None
    except RayError as error:
        raise said(error, what) from error


async def answer(ref: Any, seconds: float, what: str) -> Any:
    """Await an object reference.

    Args:
        ref: the reference.
        seconds: deadline.
        what: what is waited for, for the message: "engine 1 to take requests".

    Raises:
        LateError: the deadline passed.
        LostError: the actor died.
        LabError: the actor says what went wrong.
    """
    try:
        async with asyncio.timeout(seconds):
            return await ref
    except TimeoutError:
        raise LateError(f"waited {seconds:.0f} s for {what}: raise the deadline if it only is slow") from None
    except RayError as error:
        raise said(error, what) from error


def said(error: RayError, what: str) -> LabError:
    """The error of an actor, on one line."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, LabError | ValueError | OSError):
            return LabError(f"{what}: {cause}")
        return LabError(f"{what} failed: {_last_line(error)}")
    if isinstance(error, RayActorError) and error.actor_init_failed:  # by an error of its own, which would come again
        return LabError(f"{what} failed: {_last_line(error)}")
    # An actor, its node or an object on it is gone; Ray goes on to guess at causes, at length.
    full = _FULL.search(str(error))
    reason = _last_line(error).partition(" Some common causes")[0]
    if full is not None:  # after which Ray gives advice, at length
        reason = f"Ray ended it because memory ran out: {full[1]} on its machine"
    return LostError(f"an actor died while the run waited for {what}: {reason}")


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
