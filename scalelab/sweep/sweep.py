"""Run a sweep: each run is a process of its own, so that a run that fails does not end the others."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Literal

from scalelab.defaults import STOP_ERROR
from scalelab.errors import LabError
from scalelab.guarded import read_whole
from scalelab.sweep.losers import cannot_win
from scalelab.sweep.members import Member

MemberEnding = Literal["finished", "finished before", "failed", "stopped", "interrupted", "not started"]

END_SECONDS = 180.0
"""A run that was asked to end has at least this long to do so in order, and as long as its steps may take."""


@dataclass(frozen=True)
class SweepOptions:
    """Limits of a sweep."""

    hours: float | None = None
    """Device-hours after which it ends, those of its earlier runs and of evaluations included; None is no limit."""
    stop_losers: bool = False
    """End a run early once `cannot_win` says so."""
    stop_error: float = STOP_ERROR
    """Bound on the chance that the best run is ended."""
    devices: int | None = None
    """Devices of a cluster that its runs share: so many may be held at the same time; None if they share none."""
    jobs: int = 1
    """Runs side by side where they share no cluster."""
    poll_seconds: float = 1.0
    """Time between two looks at the runs."""

    def __post_init__(self) -> None:
        if not 0 < self.stop_error < 1:
            raise LabError(f"--stop-error {self.stop_error:g} is no probability: give one between 0 and 1")
        if self.hours is not None and not 0 < self.hours < math.inf:
            raise LabError(f"--hours {self.hours:g}: give a number of device-hours above 0")


@dataclass(frozen=True)
class Ended:
    """The end of one run of a sweep, and its reason."""

    member: Member
    ending: MemberEnding
    reason: str = ""


@dataclass
class _Child:
    """A run's process."""

    member: Member
    process: subprocess.Popen[bytes]
    log: IO[bytes] | None
    stopped_for: str = ""
    asked_at: float | None = None
    seen: int = -1

    @property
    def patience(self) -> float:
        """Seconds that the run may take to finish its step, save and end."""
        return max(END_SECONDS, float(self.member.resolved.run.cluster.stall_seconds))


@dataclass
class Sweep:
    """One sweep: the runs that wait, those that go on, and those that have ended."""

    members: Sequence[Member]
    options: SweepOptions
    say: Callable[[str], None]
    command: Callable[[Member], list[str]] = Member.command
    """Command that starts a member."""
    waiting: list[Member] = field(default_factory=list)
    running: list[_Child] = field(default_factory=list)
    ended: dict[str, Ended] = field(default_factory=dict)

    def run(self) -> list[Ended]:
        """Run everything that is not finished.

        Returns:
            How each member ended, in their order; after Ctrl-C, too, which ends the runs in order.

        Raises:
            LabError: before anything starts, if a folder holds something else, or a run needs more than there is.
        """
        for member in self.members:
            if member.state() == "finished":
                self._end(member, "finished before")
            else:
                self._check_devices(member)
                self.waiting.append(member)
        try:
            while self.waiting or self.running or self._revive():
                self._reap()
                self._keep_budget()
                self._start()
                self._look()
                if self.running:
                    time.sleep(self.options.poll_seconds)
        except KeyboardInterrupt:
            self.say("ending the runs in order; Ctrl-C again ends them at once")
            self._interrupted()
        return [self.ended[member.name] for member in self.members]

    def _check_devices(self, member: Member) -> None:
        devices = self.options.devices
        if devices is not None and member.devices > devices:
            raise LabError(
                f"{member.name} needs {member.devices} devices, the cluster has {devices}: add some, or lower "
                "Cluster.generators and Cluster.trainers"
            )

    def _start(self) -> None:
        """Start waiting runs in order while devices are free; a run that does not fit is not overtaken."""
        while self.waiting and not self._spent_budget():
            if self.running and not self._fits(self.waiting[0]):
                return
            self._launch(self.waiting.pop(0))

    def _fits(self, member: Member) -> bool:
        """True if there is room for a run beside those that go on."""
        if self.options.devices is None:
            return len(self.running) < self.options.jobs
        return sum(child.member.devices for child in self.running) + member.devices <= self.options.devices

    @property
    def _side_by_side(self) -> bool:
        """True if runs may go on at the same time, and need logs of their own."""
        return self.options.devices is not None or self.options.jobs > 1

    def _launch(self, member: Member) -> None:
        number, verb = (
            len(self.ended) + len(self.running) + 1,
            "goes on" if member.state() == "unfinished" else "starts",
        )
        log, where = None, ""
        if self._side_by_side:
            member.path.parent.mkdir(parents=True, exist_ok=True)
            path = member.path.with_name(f"{member.path.name}.log")
            log, where = open(path, "ab"), f", writing to {path}"  # noqa: SIM115 - open as long as the process
        self.say(f"[{number}/{len(self.members)}] {member.name} {verb}{where}")
        process = subprocess.Popen(
            self.command(member),
            stdin=subprocess.DEVNULL,
            stdout=log or sys.stderr,
            stderr=log or sys.stderr,
            start_new_session=True,  # Ctrl-C is for the sweep, which ends its runs in order
        )
        self.running.append(_Child(member, process, log))

    def _reap(self) -> None:
        """Note the runs whose process has ended."""
        for child in list(self.running):
            if child.asked_at is not None and time.monotonic() - child.asked_at > child.patience:
                self._kill(child, f"it did not end within {child.patience:.0f} s")
            code = child.process.poll()
            if code is None:
                continue
            self.running.remove(child)
            if child.log is not None:
                child.log.close()
            if code == 0:
                self._end(child.member, "finished")
            elif child.stopped_for:
                self._end(child.member, "stopped", child.stopped_for)
            else:
                self._end(child.member, "failed", f"exit code {code}" if child.log is None else _error_line(child))

    def _end(self, member: Member, ending: MemberEnding, reason: str = "") -> None:
        self.ended[member.name] = Ended(member, ending, reason)
        self.say(f"{member.name}: {ending}{f', {reason}' if reason else ''}")

    def _spent_budget(self) -> bool:
        hours = self.options.hours
        return hours is not None and sum(member.spent() for member in self.members) >= hours

    def _keep_budget(self) -> None:
        """End all runs in order once the budget is spent, and start no more."""
        if not (self.waiting or self.running) or not self._spent_budget():
            return
        reason = f"the sweep's {self.options.hours:g} device-hours are spent"
        for child in self.running:
            self._ask(child, reason)
        while self.waiting:
            self._end(self.waiting.pop(0), "not started", reason)

    def _look(self) -> None:
        """Print new evaluations, and stop runs that cannot win by them."""
        for child in self.running:
            newest = child.member.evaluations()
            step = max((record["step"] for record in newest.values()), default=-1)
            if step <= child.seen:
                continue
            child.seen = step
            if child.log is not None:
                self.say(f"{child.member.name}: {progress_line(child.member)}")
            if self.options.stop_losers and child.asked_at is None:
                reason = self._why_lost(child.member)
                if reason is not None:
                    self._ask(child, f"cannot win: {reason}")

    def _why_lost(self, member: Member) -> str | None:
        """The reason why a member cannot win, by all evaluations so far; None if it may."""
        return cannot_win(
            member.path,
            [other.path for other in self.members if other is not member],
            at=member.whole_compute(),
            recipes=len({other.path.parent for other in self.members}),
            error=self.options.stop_error,
        )

    def _revive(self) -> bool:
        """Let losers go on that may win after all, now that the others have ended; True if there are any."""
        lost = [one.member for one in self.ended.values() if one.ending == "stopped"]
        if not self.options.stop_losers or self._spent_budget():
            return False
        for member in lost:
            if self._why_lost(member) is None:
                del self.ended[member.name]
                self.waiting.append(member)
                self.say(f"{member.name}: may win after all, by what the others came to")
        return bool(self.waiting)

    def _ask(self, child: _Child, reason: str) -> None:
        """Ask a run to end in order, as Ctrl-C does."""
        if child.asked_at is None:
            child.stopped_for, child.asked_at = reason, time.monotonic()
            with suppress(ProcessLookupError):  # it ended just now
                child.process.send_signal(signal.SIGINT)

    def _kill(self, child: _Child, reason: str) -> None:
        self.say(f"{child.member.name}: {reason}; killed")
        with suppress(ProcessLookupError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()

    def _interrupted(self) -> None:
        for child in self.running:
            self._ask(child, "interrupted")
        try:
            for child in self.running:
                with suppress(subprocess.TimeoutExpired):
                    child.process.wait(timeout=child.patience)
        finally:
            for child in self.running:
                if child.process.poll() is None:
                    self._kill(child, "it did not end in time")
                self._end(child.member, "finished" if child.process.returncode == 0 else "interrupted")
            for member in self.waiting:
                self._end(member, "not started", "interrupted")
            self.running, self.waiting = [], []


def progress_line(member: Member) -> str:
    """Progress of a run in one line: step, compute, and the newest pass rate of each task."""
    newest = member.evaluations()
    if not newest:
        return "no evaluation yet"
    record = next(iter(newest.values()))
    rates = "   ".join(f"{task} {one['pass_rate']:.3f}" for task, one in newest.items())
    return f"step {record['step']}, {record['compute']:.4g} {record['compute_unit']}   {rates}"


def _error_line(child: _Child) -> str:
    """Last line of a run's log: its error."""
    path = child.member.path.with_name(f"{child.member.path.name}.log")
    lines = read_whole(path).decode("utf-8", "replace").split("\n")
    last = [line for line in lines if line.strip()][-1:]
    return last[0].removeprefix("scalelab: ") if last else f"exit code {child.process.returncode}"


def cluster_devices(address: str, device: str) -> int:
    """Devices of a Ray cluster, GPUs or cores.

    Raises:
        LabError: there is no cluster at the address.
    """
    import ray

    from scalelab.cluster.actors import join_cluster

    join_cluster(address)
    try:
        return int(ray.cluster_resources().get("GPU" if device == "gpu" else "CPU", 0))
    finally:
        ray.shutdown()
