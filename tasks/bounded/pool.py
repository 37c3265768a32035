"""Persistent processes that answer requests, each of which can be killed without losing more than one answer."""

from __future__ import annotations

import base64
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.bounded.worker import Setup
from tasks.errors import TaskError

START_SECONDS = 120.0
"""Time that a worker may take to start (SymPy takes seconds on an idle machine, a minute on a crowded one)."""

CROWDED = 10.0
"""Seconds that a worker may be silent, per second of processor time, before it is killed from outside. Time in which it
waits for its turn at a processor does not count."""

STARVED = 20.0
"""Factor by which time by the clock may exceed that, on the most crowded machine."""

GRACE_SECONDS = 5.0
"""Time that a killed process may take to go, and a worker to fork its next child."""

CLEAN = {"PYTHONPATH": str(Path(__file__).parents[__name__.count(".")]), "PYTHONWARNINGS": "ignore"}
"""An environment without anything of the caller's."""


@dataclass(frozen=True)
class Answer:
    """Result of one request.

    Attributes:
        status: `done`; `raised` an exception, with its text as the value; or why there is no answer.
        value: what the function returned (JSON); the exception's text; how the process died.
        seconds: wall time in the worker, without waiting for its turn.
    """

    status: Literal["done", "raised", "timeout", "memory", "died"]
    value: Any = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Service:
    """A function and what it may use.

    Attributes:
        name: what it is, for messages (`math`, or a task's name).
        make: `module:function`; called in the worker with `payload`, it returns the function that answers requests.
        payload: bytes for that.
        seconds: processor time of one request; with what it sleeps, `CROWDED` times that.
        memory_mb: address space of a process, in MiB; None sets no limit.
        environment: the process's environment, of a service that is given the caller's module path too; None is a
            clean one.
        python: the interpreter of another environment, which is not given the caller's module path; None is this one.
        path: where modules are looked for first.
    """

    name: str
    make: str
    payload: bytes = b""
    seconds: float = 3.0
    memory_mb: int | None = None
    environment: Mapping[str, str] | None = None
    python: str | None = None
    path: tuple[str, ...] = ()

    @property
    def wall_seconds(self) -> float:
        """Time at a processor or asleep in which a worker has answered, or been killed by its timer, or is killed."""
        return CROWDED * self.seconds + GRACE_SECONDS


class BoundedPool:
    """Several processes of `tasks.bounded.worker` that answer requests; safe to use from several threads.

    Each worker is started, fed and restarted by a thread of its own: Linux kills a process whose death is tied to its
    parent's when the *thread* that started it ends, so that thread must live as long as the worker should.
    """

    def __init__(self, service: Service, workers: int) -> None:
        """Start the threads; a process starts with the first request that reaches its thread."""
        self._service = service
        self._queue: queue.SimpleQueue[tuple[Any, Future[Answer]] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._keep_worker, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()
        self._closed = False

    def answer(self, requests: Sequence[Any]) -> list[Answer]:
        """Answers to requests (JSON), in order.

        Raises:
            TaskError: a worker cannot be started, or the pool is closed.
        """
        if self._closed:
            raise TaskError(f"the {self._service.name} verifier is closed: make a new one")
        futures: list[Future[Answer]] = [Future() for _ in requests]
        for request, future in zip(requests, futures):
            self._queue.put((request, future))
        # Twice, because a request whose worker died is tried again; what others have queued comes first.
        turns = 2 * ((self._queue.qsize() + len(requests)) // len(self._threads) + 1)
        patience = STARVED * (START_SECONDS + turns * self._service.wall_seconds)
        try:
            return [future.result(timeout=patience) for future in futures]
        except FutureTimeoutError:
            raise TaskError(
                f"workers of {self._service.name} gave no answer in {patience:.0f} s: is the machine overloaded?"
            ) from None

    def close(self) -> None:
        """Let every worker finish what is queued and end it; can be called twice."""
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(timeout=START_SECONDS)

    def _keep_worker(self) -> None:
        worker: _Worker | None = None
        while (item := self._queue.get()) is not None:
            request, future = item
            try:
                worker = worker.revived() if worker else _Worker(self._service)
                result = worker.answer(request)
                if result.status in (
                    "died",
                    "memory",
                ):  # once more in a fresh process, without anything that others left
                    worker = worker.revived()
                    result = worker.answer(request)
                future.set_result(result)
            except Exception as problem:
                future.set_exception(problem)
                if worker:
                    worker.end()
                worker = None
        if worker:
            worker.end()


def _command(service: Service) -> list[str]:
    """Command line of a worker; in another environment by its file, with nothing of this one on the module path."""
    if service.python is not None:
        return [service.python, "-P", str(Path(__file__).with_name("worker.py"))]
    return [sys.executable, "-P", "-m", f"{__package__}.worker"]


def _environment(service: Service) -> dict[str, str]:
    if service.environment is None:
        return CLEAN
    if service.python is None:
        return {**service.environment, **CLEAN}
    return {name: value for name, value in service.environment.items() if name != "PYTHONPATH"}


class _Patience:
    """Time that a process may still take. While it waits for its turn at a processor, none of it passes.

    Args:
        seconds: what it may take, at a processor or asleep.
        pid: the process; None if it is not known yet.
    """

    _LOOK = 0.2
    """Seconds between two looks at a process that is ready to run, but has had no turn for long."""

    def __init__(self, seconds: float, pid: int | None) -> None:
        self._seconds, self._start = seconds, time.monotonic()
        self._first, self._before = pid, waited(pid)
        self._waited = 0.0

    def left(self, pid: int) -> float:
        """Seconds that are left to a process, which may have taken the first one's place; 0 or less if none."""
        self._waited = max(self._waited, waited(pid) - (self._before if pid == self._first else 0.0))
        passed = time.monotonic() - self._start
        left = self._seconds + self._waited - passed
        # A turn that it still waits for is not in the kernel's sum.
        left = max(left, self._LOOK) if is_ready(pid) else left
        return min(left, STARVED * self._seconds - passed)


def waited(pid: int | None) -> float:
    """Seconds for which a process was ready to run and had no processor; 0.0 if the kernel does not say."""
    if pid is None:
        return 0.0
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # it has ended, or the kernel keeps no such statistics
        return 0.0


def is_ready(pid: int) -> bool:
    """True if a process runs, or would if it had a processor."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):
        return False


class _Worker:
    """One process of `tasks.bounded.worker`, seen from the thread that started it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sent = 0
        self._unread = b""
        self._gone = False
        self._child: int | None = None
        # No inherited descriptors: nothing of torch or Ray.
        self._process = subprocess.Popen(
            _command(service),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(service),
        )
        try:
            own = service.environment is not None and service.python is None
            path = [*service.path, *(os.path.abspath(folder) for folder in sys.path if own)]
            payload = base64.b64encode(service.payload).decode()
            setup = Setup(os.getpid(), service.seconds, service.memory_mb, service.make, payload, path)
            self._send(asdict(setup))
            started = self._receive(_Patience(START_SECONDS, self._process.pid))
            problem = started.get("problem", "")
        except TimeoutError:
            problem = f"no answer in {START_SECONDS:.0f} s, without its waits for a processor"
        except (EOFError, BrokenPipeError):
            problem = f"it ended with code {self._process.wait(timeout=START_SECONDS)}"
        if problem:
            self.end()
            raise TaskError(f"a worker of {service.name} did not start: {problem}")

    def answer(self, request: Any) -> Answer:
        """Answer one request; `died` if the child that did so did, or the whole worker."""
        self._sent += 1
        start, patience = time.monotonic(), _Patience(self._service.wall_seconds, self._child)
        try:
            self._send({"id": self._sent, "request": request})
            reply: dict[str, Any] = {"id": 0}
            while reply.get("id", self._sent) != self._sent:  # late news of an earlier, idle child
                reply = self._receive(patience)
        except TimeoutError:
            self._gone = True
            return Answer("timeout", seconds=time.monotonic() - start)
        except (EOFError, BrokenPipeError):
            self._gone = True
            return Answer("died", "its supervisor ended", time.monotonic() - start)
        seconds = time.monotonic() - start
        if "value" in reply:
            return Answer("done", reply["value"], seconds)
        if "raised" in reply:
            return Answer("raised", reply["raised"], seconds)
        if "memory" in reply:
            return Answer("memory", seconds=seconds)
        return _death(reply["died"], seconds)

    def revived(self) -> _Worker:
        """This worker where it can go on, else a new one."""
        if not self._gone:
            return self
        self.end()
        return _Worker(self._service)

    def end(self) -> None:
        """Kill the process and everything it started."""
        self._process.kill()
        self._process.wait(timeout=START_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()  # type: ignore[union-attr]

    def _send(self, message: dict[str, Any]) -> None:
        left = memoryview(json.dumps(message).encode() + b"\n")
        while left:
            left = left[os.write(self._process.stdin.fileno(), left) :]  # type: ignore[union-attr]

    def _receive(self, patience: _Patience) -> dict[str, Any]:
        """The next line of the worker that is no child's first.

        Raises:
            TimeoutError: it does not come in time.
            EOFError: the worker is gone.
        """
        descriptor = self._process.stdout.fileno()  # type: ignore[union-attr]
        poll = select.poll()  # select() fails beyond 1,024 open files, which a Ray worker may well have
        poll.register(descriptor, select.POLLIN)
        while True:
            line, ended, rest = self._unread.partition(b"\n")
            if ended:
                self._unread = rest
                message: dict[str, Any] = json.loads(line)
                if "child" not in message:
                    return message
                self._child = message["child"]
                continue
            left = patience.left(self._child or self._process.pid)
            if left <= 0:
                raise TimeoutError
            if poll.poll(left * 1000):
                chunk = os.read(descriptor, 65536)
                if not chunk:
                    raise EOFError
                self._unread += chunk


def _death(how: int, seconds: float) -> Answer:
    """The answer for a child that died by a signal (its number) or by itself (minus its exit code)."""
    if how == signal.SIGPROF:
        return Answer("timeout", seconds=seconds)
    return Answer("died", f"signal {how}" if how > 0 else f"exit code {-how}", seconds)
