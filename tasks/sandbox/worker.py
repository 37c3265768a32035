"""Client of one fork server: start it, send it jobs, detect its death."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tasks.errors import TaskError
from tasks.sandbox.channel import ChannelError, receive, send
from tasks.sandbox.job import CONFINED, Job, Limits, Result, result_from_parts
from tasks.sandbox.scripts import NodeJs
from tasks.sandbox.tiers import ENVIRONMENT, Tier

_START_SECONDS = 30.0
# Beyond a job's own time: the server's work before and after, on a machine with more to do.
_GRACE_SECONDS = 10.0


class WorkerError(TaskError):
    """A fork server could not start, died, or went silent; the job it held has no result."""


class Worker:
    """A running fork server. For one thread, and that thread must outlive it: the kernel ends the server with it.

    Attributes:
        found: what the server reported about this machine (unused user, chroot, Landlock version).
    """

    found: dict[str, Any]

    def __init__(
        self, tier: Tier, packages: tuple[str, ...] = (), interpreter: Callable[[], NodeJs] | None = None
    ) -> None:
        """Start a server.

        Args:
            tier: how it holds its children.
            packages: modules beyond the standard library that they may import.
            interpreter: finds what runs scripts; the server then takes nothing else.

        Raises:
            WorkerError: the tier or a package cannot work here.
        """
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                tier.command(packages, interpreter() if interpreter else None),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env=ENVIRONMENT,
                cwd="/",
                # Ctrl-C is the host's to handle: it must not reach the servers while jobs are under way.
                start_new_session=True,
            )
        except OSError as error:
            raise WorkerError(str(error)) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        try:
            self.found = json.loads(receive(self._from, time.monotonic() + _START_SECONDS)[0])
        except ChannelError as error:
            reason = self._complaint() or str(error)
            self.close()
            raise WorkerError(f"the fork server did not start: {reason}") from error
        if problem := self.found.get("problem"):
            self.close()
            raise WorkerError(str(problem))
        if self._process.poll() is not None:  # killed before it had tied the server's life to its own
            self.close()
            raise WorkerError("the fork server did not start: what starts it was killed")

    def run(self, job: Job, limits: Limits) -> Result:
        """Run one job; returns within its wall-clock limit and a grace period.

        Raises:
            WorkerError: the server is gone; make a new one.
        """
        deadline = time.monotonic() + limits.wall_seconds + _GRACE_SECONDS
        try:
            # Two messages: the server reads the first, the child that it forks the second.
            send(self._to, [limits.to_bytes()], deadline)
            send(self._to, job.to_parts(), deadline)
            result = result_from_parts(receive(self._from, deadline))
        except ChannelError as error:
            reason = self._complaint() or str(error)
            self.close()
            raise WorkerError(f"a fork server was lost: {reason}") from error
        return self._opened(result)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def kill(self) -> None:
        """Kill the server from any thread; the job it holds fails, and the owner still has to close."""
        self._process.kill()

    def close(self) -> None:
        """Kill the server; the kernel kills its child with it. It can be called twice."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._complaints.close()

    def _opened(self, result: Result) -> Result:
        """The result without its first line, which the child wrote before any untrusted code ran."""
        first, _, report = result.report.partition(b"\n")
        if first == CONFINED:
            return replace(result, report=report)
        reason = f"{result.ending} {result.code} before it was confined"
        if first:
            kind, reason = json.loads(first)
            if kind == "prelude":
                return replace(result, ending="prelude", report=reason.encode())
        self.close()
        raise WorkerError(f"a fork server could not confine its child: {reason}")

    def _complaint(self) -> str:
        """The last line of the server's error output."""
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
