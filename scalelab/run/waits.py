"""Waiting on Ray: every wait has a deadline, and names what it waited for when the deadline passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from scalelab.errors import LabError


class LostError(LabError):
    """An actor died while it was being waited for."""


class LateError(LabError):
    """Something outlived its deadline: an actor hangs, or the deadline is too short."""


def wait_for(refs: Any, seconds: float, what: str) -> Any:
    """`ray.get` with a deadline.

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
    except RayTaskError as error:
        raise _cause(error, what) from error
    except RayError as error:  # an actor, its node or an object on it is gone
        # Ray goes on to guess at causes, at length.
        reason = _last_line(error).partition(" Some common causes")[0]
        raise LostError(f"an actor died while the run waited for {what}: {reason}") from error


def _cause(error: RayTaskError, what: str) -> Exception:
    """What went wrong inside an actor; problems that are already said in one line are passed on as they are."""
    cause = error.cause
    if isinstance(cause, LabError | ValueError | OSError):
        return LabError(f"{what}: {cause}")
    return LabError(f"{what} failed: {_last_line(error)}")


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


@dataclass
class _Wait:
    what: str
    then: Callable[[Any], None]
    failed: Callable[[LabError], None] | None
    seconds: float
    deadline: float


class Waits:
    """Everything a driver waits for at once: each reference with what it is, a deadline and what to do then."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waits: dict[Any, _Wait] = {}

    def add(
        self,
        ref: Any,
        what: str,
        then: Callable[[Any], None],
        failed: Callable[[LabError], None] | None = None,
        seconds: float | None = None,
    ) -> None:
        """Call `then(result)` from a later `run_ready` once `ref` is there.

        Args:
            ref: an object reference.
            what: what is waited for, for messages: "verifier 1 to grade 16".
            then: takes the result.
            failed: takes the `LostError`, the `LateError` or what else went wrong, in place of `then`, and may raise it
                again; None ends the run with it. An actor's death comes once for every reference to it.
            seconds: deadline; that of all waits by default.
        """
        within = self.seconds if seconds is None else seconds
        self._waits[ref] = _Wait(what, then, failed, within, time.monotonic() + within)

    def run_ready(self, seconds: float) -> int:
        """Wait up to `seconds` for something to be ready, handle all that is, and return how many were.

        Raises:
            LabError: something without a `failed` outlived its deadline, or failed.
        """
        refs: Sequence[Any] = list(self._waits)
        ready, _ = ray.wait(refs, num_returns=1, timeout=seconds)
        if ready:
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in ready:
            wait = self._waits.pop(ref, None)
            if wait is None:  # cleared by what came before it
                continue
            try:
                result = wait_for(ref, self.seconds, wait.what)
            except LabError as error:
                _fail(wait, error)
            else:
                wait.then(result)
        now = time.monotonic()
        for ref in [ref for ref, wait in self._waits.items() if now > wait.deadline]:
            wait = self._waits.pop(ref, None)
            if wait is not None:
                _fail(
                    wait,
                    LateError(f"waited {wait.seconds:.0f} s for {wait.what}: raise the deadline if it only is slow"),
                )
        return len(ready)


def _fail(wait: _Wait, error: LabError) -> None:
    if wait.failed is None:
        raise error
    wait.failed(error)
