"""Attack the sandbox before trusting it, and choose the strongest tier that holds on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.errors import TaskError
from tasks.open_files import allow_files
from tasks.sandbox.job import Job, Limits
from tasks.sandbox.tiers import TIERS, Tier, home_of
from tasks.sandbox.worker import Worker, WorkerError

# Each attack returns what it got hold of, or raises. Harmless where it succeeds: signal 0 only asks for permission.
ATTACKS = """
import os, socket, sys

def read_secret(folder, port, host):
    return open(folder + "/secret").read()

def write_outside(folder, port, host):
    open(folder + "/written", "w").close()
    return "a file was created"

def connect_tcp(folder, port, host):
    socket.create_connection(("127.0.0.1", port), timeout=2).close()
    return "connected"

def fork(folder, port, host):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "forked"

def read_environment(folder, port, host):
    for pid in (os.getppid(), host, 1):
        try:
            return "environment of %d: %d bytes" % (pid, len(open("/proc/%d/environ" % pid, "rb").read()))
        except OSError:
            pass
    raise OSError("none can be read")

def own_environment(folder, port, host):
    if os.environ:
        return " ".join(os.environ)
    raise OSError("empty")

def signal_parent(folder, port, host):
    for pid in (os.getppid(), host, -1):
        try:
            os.kill(pid, 0)
            return "may signal %d" % pid
        except OSError:
            pass
    raise OSError("none can be signalled")

def attempt(name, folder, port, host):
    try:
        return ["through", globals()[name](folder, port, host)]
    except (OSError, ValueError) as error:
        return ["held", str(error)]

def control(x):
    import colorsys  # from the standard library, and loaded by nobody so far
    return x + 1
"""
NAMES = (
    "read_secret",
    "write_outside",
    "connect_tcp",
    "fork",
    "read_environment",
    "own_environment",
    "signal_parent",
)


@dataclass(frozen=True)
class Survey:
    """The outcome of the self-test.

    Attributes:
        tier: the strongest that held.
        found: what its fork server found: `uid` (the unused user that children become), `chroot`, `landlock` (its
            version), `python`, `machine`.
        rejected: name of every stronger tier and why it was not taken.
    """

    tier: Tier
    found: dict[str, Any]
    rejected: dict[str, str] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """JSON-able, for a run's manifest."""
        return {"tier": self.tier.name, **self.found, "rejected": self.rejected}

    def __str__(self) -> str:
        details = ", ".join(f"{key} {value}" for key, value in self.found.items() if value is not None)
        return f"sandbox {self.tier.name} ({details})"


def choose_tier(tiers: tuple[Tier, ...] = TIERS, packages: tuple[str, ...] = ()) -> Survey:
    """Attack each tier, strongest first, and return the first that holds everything.

    Args:
        tiers: to choose from.
        packages: modules beyond the standard library that submissions will find loaded.

    Raises:
        TaskError: none holds, and untrusted code must not run here; or a package is not installed.
    """
    allow_files()
    try:
        for package in packages:
            home_of(package)
    except OSError as error:  # which no tier mends
        raise TaskError(str(error)) from error
    rejected: dict[str, str] = {}
    for tier in tiers:
        try:
            return Survey(tier, attack(tier, packages), rejected)
        except TaskError as error:
            rejected[tier.name] = str(error)
    reasons = "; ".join(f"{name}: {reason}" for name, reason in rejected.items())
    raise TaskError(
        "no sandbox holds on this machine, so no code is run: use a kernel with Landlock (5.13 or newer), or install "
        f"bubblewrap and allow user namespaces ({reasons})"
    )


def attack(tier: Tier, packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """Start a fork server of a tier and attack it; returns what the server found.

    Raises:
        TaskError: the tier does not work here, or an attack got through.
    """
    worker = Worker(tier, packages)
    try:
        with _targets() as (folder, port, listener):
            _expect_value(worker, "control", [[[41], {}]], [42])
            calls = [[[name, str(folder), port, os.getpid()], {}] for name in NAMES]
            for name, (verdict, got) in zip(NAMES, _values(worker, "attempt", calls)):
                if verdict != "held":
                    raise TaskError(f"{name} got through: {got}")
            if (folder / "written").exists():
                raise TaskError("write_outside got through: the file is there")
            with contextlib.suppress(BlockingIOError):
                listener.accept()
                raise TaskError("connect_tcp got through: there was a connection")
        _expect_value(worker, "control", [[[1], {}]], [2])
    finally:
        worker.close()
    return worker.found


@contextlib.contextmanager
def _targets() -> Iterator[tuple[Path, int, socket.socket]]:
    """A folder that everybody may read and write, with a secret in it, and a listening socket."""
    with tempfile.TemporaryDirectory(prefix="sandbox-test-") as name, socket.socket() as listener:
        folder = Path(name)
        (folder / "secret").write_text(secrets.token_hex())
        (folder / "secret").chmod(0o666)
        folder.chmod(0o777)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        yield folder, listener.getsockname()[1], listener


def _expect_value(worker: Worker, function: str, calls: list[Any], expected: list[Any]) -> None:
    if (values := _values(worker, function, calls)) != expected:
        raise TaskError(f"an honest program gave {values} instead of {expected}")


def _values(worker: Worker, function: str, calls: list[Any]) -> list[Any]:
    job = Job("call", ATTACKS, entry_point=function, calls=json.dumps([[None, *call] for call in calls]))
    result = worker.run(job, Limits(seconds=20.0))
    lines = [json.loads(line) for line in result.report.splitlines()]
    values = [line[1] for line in lines if line[0] == "value"]
    if len(values) != len(calls):
        raise WorkerError(f"a probe ended early: {result.ending} {result.code}, {lines[-1:]}")
    return values
