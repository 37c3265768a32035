"""The engines that a trainer sends weights to over NCCL: calls to all of them, with deadlines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from moe.errors import kind_and_line
from moe.weights.segments import Segment
from scalelab.errors import LabError
from scalelab.transfer.listener import Listener
from scalelab.waiting import LateError, said, wait_for

LEAVE_SECONDS = 10.0
"""Seconds in which engines leave a group; one that does not is late for the next."""


class ListeningEngines:
    """The engines of a group, as the client that vLLM's sender calls (`VLLMWeightSyncClient`).

    The sender itself waits in NCCL, so whoever waits for the engines here ends that.

    Args:
        listeners: the engines.
        seconds: deadline of each call.

    Attributes:
        publication: what the engines are to receive.
        failure: the error that ended the group.
        on_failure: called when an engine is lost, refuses, or is late.
    """

    def __init__(self, listeners: Sequence[Listener], seconds: float) -> None:
        self.listeners, self._seconds = list(listeners), seconds
        self.publication: Segment | None = None
        self.failure: Exception | None = None
        self.on_failure: Callable[[], Any] = lambda: None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let the engines join, each with as many ranks as it has processes."""
        calls, offset = {}, 0
        for name, actor, devices in self.listeners:
            calls[actor.join_broadcasts.remote({**init_info, "rank_offset": 1 + offset})] = name
            offset += devices
        self._wait(calls, "join the group of the broadcast")

    def start_weight_update(self) -> None:
        """Do nothing: engines load beside their steps."""

    def update_weights(self, update_info: Any) -> None:
        """Let the engines receive, until each has loaded everything."""
        one = self.publication
        assert one is not None
        calls = {a.receive_weights.remote(one.key, one.version, update_info): n for n, a, _ in self.listeners}
        self._wait(calls, f"receive weights {one.version} by broadcast")

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Do nothing: the loop tells engines when to put the weights in place."""

    def leave(self) -> None:
        """Let the engines leave the group, before they are asked to join another; those that are lost need not."""
        calls = [listener.actor.leave_broadcasts.remote() for listener in self.listeners]
        ray.wait(calls, num_returns=len(calls), timeout=LEAVE_SECONDS)

    def _wait(self, calls: dict[Any, str], what: str) -> None:
        """Wait for all answers.

        Raises:
            LabError: naming the engine that is lost or says what is wrong, or those that are late.
        """
        ends = time.monotonic() + self._seconds
        try:
            while calls:
                done, _ = ray.wait(list(calls), timeout=max(0.0, ends - time.monotonic()))
                if not done:
                    raise LateError(f"waited {self._seconds:.0f} s for {', '.join(calls.values())} to {what}")
                wait_for(done[0], self._seconds, f"{calls.pop(done[0])} to {what}")
        except Exception as error:
            self.failure = error
            self.on_failure()
            raise


def why(engines: ListeningEngines | None, error: Exception) -> str:
    """The reason why weights did not arrive, on one line: what an engine did before what it led to here."""
    cause = (engines and engines.failure) or error
    if isinstance(cause, RayError):
        cause = said(cause, "the trainer to send weights")
    return str(cause) if isinstance(cause, LabError) else kind_and_line(cause)
