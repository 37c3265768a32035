"""Start or join Ray, and settings that all actors of a run share."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
import ray

from scalelab.cluster.heartbeats import GROUP
from scalelab.environment import ProcessRole, environment
from scalelab.errors import BROKEN_OFF, BrokenOffError, LabError
from scalelab.run.settings import Cluster


def this_node() -> str:
    """Name the Ray node that this actor is on: its actors share a machine, or a container, and its memory."""
    return ray.get_runtime_context().get_node_id()


def draining_nodes() -> dict[str, float]:
    """Ray nodes whose end was announced by `ray drain-node`.

    Ray's own trainer looks at the same place (`ray.train.v2._internal.execution.preemption`).

    Returns:
        For each node, when it is to be gone, in seconds since 1970; 0 if nobody has said when.
    """
    return {node: 1e-3 * at for node, at in (ray._private.state.state.get_draining_nodes() or {}).items()}


RAY_PROCESSES = ("gcs_server", "raylet")

ANSWERS_WITHIN = 20.0
"""Seconds in which a cluster's head takes a connection."""


def _this_python() -> dict[str, str]:
    """A job's runtime environment that starts its actors by this Python, whose path Ray hands to a shell as it is."""
    return {"py_executable": shlex.quote(sys.executable)}


def join_cluster(address: str) -> None:
    """Join a Ray cluster; if the path of this Python has a space in it, all nodes must have theirs at the same path.

    Raises:
        LabError: there is none at the address, or it wants a token that was not sent.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:  # where nobody listens, Ray itself tries for minutes
        try:
            socket.create_connection((host, int(port)), timeout=ANSWERS_WITHIN).close()
        except OSError as error:
            raise LabError(f"no Ray cluster at {address}: {error}; start one, or mend Cluster.address") from error
    spaced = shlex.quote(sys.executable) != sys.executable
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env=_this_python() if spaced else None,  # else nodes may have their Python elsewhere
        )
    except Exception as error:  # Ray raises bare Exceptions of many kinds here
        token = "" if "RAY_AUTH_MODE" in os.environ else "; if it asks for a token, export RAY_AUTH_MODE=token"
        raise LabError(
            f"no Ray cluster at {address}: {_cause(error)}; start one, or mend Cluster.address{token}"
        ) from error


def start_ray(cluster: Cluster, devices: int = 2) -> None:
    """Join the cluster at `cluster.address`, or start Ray on this machine with room for `devices`.

    Raises:
        LabError: there is no cluster at the address, or Ray did not start.
    """
    if cluster.address is not None:
        join_cluster(cluster.address)
        return
    try:
        ray.init(
            address="local",  # else Ray joins whatever cluster was last started on this machine
            num_cpus=max(devices, os.cpu_count() or 1),
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=512 * 2**20,
            runtime_env=_this_python(),
            # Ray's head remembers every call of an actor, up to 100,000, for lists that nobody looks at here; and it
            # starts a process a core before one is asked for, which no actor takes, as each has its own environment.
            _system_config={
                "metrics_report_interval_ms": 600_000,
                "task_events_report_interval_ms": 0,
                "prestart_worker_first_driver": False,
            },
        )
    except Exception as error:  # Ray raises bare Exceptions of many kinds here
        if isinstance(error, OSError):  # a folder, or a port
            raise LabError(f"Ray could not start on this machine: {_cause(error)}") from error
        raise BrokenOffError(
            f"Ray could not start on this machine: {_cause(error)} Is it overloaded? `--resume` goes on"
        ) from error


def _cause(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


LOOK_SECONDS = 1.0
"""Seconds between two checks of Ray's own processes; nothing else reports their death."""

STOPPED_SECONDS = 20.0
"""Time that one of Ray's processes may stand still before the run ends."""

GUARD_SECONDS = 25.0
"""Time after which `guard_ray` ends the process; the loop, if it can, has ended the run in order before that."""

DEAD_SECONDS = 10.0
"""Time after which it ends the process when one of Ray's has died."""


class RayProcesses:
    """Ray's own processes that this one has started; none where it joined a cluster.

    Without them Ray waits for a minute or ends the process without a word, so they are looked at.
    """

    def __init__(self) -> None:
        self._stopped: dict[str, float] = {}
        self._processes = {
            name: process for process in psutil.Process().children() if (name := process.name()) in RAY_PROCESSES
        }

    @property
    def any(self) -> bool:
        """True if this process started Ray's."""
        return bool(self._processes)

    def dead(self) -> str | None:
        """The name of one that has died; None if all live."""
        return next((name for name, process in self._processes.items() if _has_ended(process)), None)

    def check(self) -> None:
        """Check that Ray's processes live and are not stopped.

        Raises:
            BrokenOffError: one does not, or is.
        """
        if name := self.dead():
            raise BrokenOffError(_died(name))
        self.end_stopped(STOPPED_SECONDS)

    def end_stopped(self, seconds: float, broken_off: Callable[[str], None] = lambda reason: None) -> None:
        """Kill a process that has been stopped for longer: it would ignore the end of the run.

        Args:
            seconds: time that it may be stopped.
            broken_off: gets the reason before that.

        Raises:
            BrokenOffError: there was one.
        """
        for name, process in self._processes.items():
            with suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_STOPPED:
                    self._stopped.pop(name, None)
                elif time.monotonic() - self._stopped.setdefault(name, time.monotonic()) > seconds:
                    reason = f"Ray's {name} was stopped for {seconds:.0f} s (SIGSTOP): go on with --resume"
                    broken_off(reason)
                    process.kill()
                    raise BrokenOffError(reason)

    def wake(self) -> None:
        """Continue those of Ray's processes that are stopped."""
        for process in self._processes.values():
            with suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_STOPPED:
                    process.send_signal(signal.SIGCONT)


def _has_ended(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) or not process.is_running()
    return True


def _died(name: str) -> str:
    return f"Ray's {name} died (was it killed, or out of memory?): go on with --resume"


def guard_ray(broken_off: Callable[[str], None]) -> Callable[[], None]:
    """End this process from another thread if one of Ray's is stopped or dead and the loop does not end the run.

    `ray.put` has no deadline: while the raylet is stopped, it holds up the loop, and the check with it. And what
    replaces an actor waits for a dead raylet.

    Args:
        broken_off: gets the reason before the end.

    Returns:
        A function that ends the guard, for when Ray is to end.
    """
    processes, over = RayProcesses(), threading.Event()

    def look() -> None:
        died: float | None = None
        try:
            while processes.any and not over.wait(LOOK_SECONDS):
                processes.end_stopped(GUARD_SECONDS, broken_off)
                name = processes.dead()
                died = None if name is None else died or time.monotonic()
                if name is not None and died is not None and time.monotonic() - died > DEAD_SECONDS:
                    broken_off(_died(name))
                    raise BrokenOffError(_died(name))
        except BrokenOffError:
            os._exit(BROKEN_OFF)

    threading.Thread(target=look, name="guard Ray", daemon=True).start()
    return over.set


def end_ray() -> None:
    """End the Ray that this process has started, or leave the cluster.

    Ray waits without a deadline for processes of its own that are stopped, and ends this one when they are killed
    meanwhile; so they are woken.
    """
    processes, ended = RayProcesses(), threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_SECONDS):
            processes.wake()

    threading.Thread(target=look, name="wake Ray", daemon=True).start()
    try:
        ray.shutdown()
    finally:
        ended.set()


def actor_class(
    cls: type,
    role: ProcessRole,
    cluster: Cluster,
    *,
    devices: float = 0,
    concurrency: int = 1,
    strategy: Any = "DEFAULT",
) -> Any:
    """A Ray actor class of a role, placed by a scheduling strategy of Ray's and asked for heartbeats."""
    resources = {"num_cpus": devices, "num_gpus": devices if cluster.device == "gpu" else 0}
    return ray.remote(concurrency_groups={GROUP: 1})(cls).options(
        max_concurrency=concurrency,
        runtime_env={"env_vars": environment(role)},
        max_restarts=0,
        scheduling_strategy=strategy,
        **resources,
    )
