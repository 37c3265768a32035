"""Persistent processes that compare answers, each of which can be killed without losing more than one comparison."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.errors import TaskError

START_SECONDS = 120.0
"""How long a worker may take to import SymPy (seconds on an idle machine, a minute on a crowded one)."""

CROWDED = 10.0
"""Wall seconds that a second of processor time may take before a silent worker is killed from outside."""

GRACE_SECONDS = 5.0
"""How long a killed process may take to go, and a worker to fork its next child."""


@dataclass(frozen=True)
class Comparison:
    """What became of one comparison.

    Attributes:
        status: `done`, or why nothing was decided.
        equal: the decision, if done.
        seconds: wall time in the worker, without waiting for its turn.
    """

    status: Literal["done", "timeout", "memory", "died"]
    equal: bool = False
    seconds: float = 0.0


class ComparisonPool:
    """Compares answers on several processes of `tasks.math.worker`; safe to use from several threads.

    Each worker is started, fed and restarted by a thread of its own: Linux kills a process whose death is tied to its
    parent's when the *thread* that started it ends, so that thread must live as long as the worker should.
    """

    def __init__(self, workers: int, deadline: float, memory_mb: int) -> None:
        """Start the threads; a process starts with the first comparison that reaches its thread.

        Args:
            workers: number of processes.
            deadline: seconds of processor time after which a comparison is given up and its process killed.
            memory_mb: address space of each process, in MiB.
        """
        self._deadline = deadline
        self._memory_mb = memory_mb
        self._queue: queue.SimpleQueue[tuple[str, str, Future[Comparison]] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._keep_worker, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()
        self._closed = False

    def compare(self, pairs: Sequence[tuple[str, str]]) -> list[Comparison]:
        """Compare (gold, answer) pairs; results in order.

        Raises:
            TaskError: a worker cannot be started, or the pool is closed.
        """
        if self._closed:
            raise TaskError("the math verifier is closed: make a new one")
        futures: list[Future[Comparison]] = [Future() for _ in pairs]
        for (gold, answer), future in zip(pairs, futures):
            self._queue.put((gold, answer, future))
        # Twice, because a comparison whose worker died is tried again; what others have queued comes first.
        turns = 2 * ((self._queue.qsize() + len(pairs)) // len(self._threads) + 1)
        patience = START_SECONDS + turns * _wall_limit(self._deadline)
        try:
            return [future.result(timeout=patience) for future in futures]
        except FutureTimeoutError:
            raise TaskError(f"math workers gave no answer in {patience:.0f} s: is the machine overloaded?") from None

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
            gold, answer, future = item
            try:
                worker = worker.revived() if worker else _Worker(self._deadline, self._memory_mb)
                result = worker.compare(gold, answer)
                if result.status == "died":
                    worker = worker.revived()
                    result = worker.compare(gold, answer)
                future.set_result(result)
            except Exception as problem:
                future.set_exception(problem)
                if worker:
                    worker.end()
                worker = None
        if worker:
            worker.end()


def _wall_limit(deadline: float) -> float:
    """Seconds by the clock within which a worker has answered, or been killed by its timer, or is killed."""
    return CROWDED * deadline + GRACE_SECONDS


class _Worker:
    """One process of `tasks.math.worker`, seen from the thread that started it."""

    def __init__(self, deadline: float, memory_mb: int) -> None:
        self._limits = (deadline, memory_mb)
        self._sent = 0
        self._unread = b""
        self._gone = False
        # A clean environment, and no inherited descriptors: nothing of torch, Ray or this process's secrets.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tasks.math.worker", str(os.getpid()), str(deadline), str(memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONWARNINGS": "ignore"},
        )
        try:
            self._receive(time.monotonic() + START_SECONDS)
        except (TimeoutError, EOFError):
            code = self._process.poll()
            self.end()
            raise TaskError(
                f"a math worker did not start in {START_SECONDS:.0f} s (exit code {code}): "
                f"run `{sys.executable} -m tasks.math.worker` to see why"
            ) from None

    def compare(self, gold: str, answer: str) -> Comparison:
        """Compare two answers; `died` if the child that did so did, or the whole worker."""
        self._sent += 1
        start = time.monotonic()
        request = {"id": self._sent, "gold": gold, "answer": answer}
        try:
            os.write(self._process.stdin.fileno(), json.dumps(request).encode() + b"\n")  # type: ignore[union-attr]
            reply: dict[str, Any] = {"id": 0}
            while reply.get("id", self._sent) != self._sent:  # late news of an earlier, idle child
                reply = self._receive(start + _wall_limit(self._limits[0]))
        except TimeoutError:
            self._gone = True
            return Comparison("timeout", seconds=time.monotonic() - start)
        except (EOFError, BrokenPipeError):
            self._gone = True
            return Comparison("died", seconds=time.monotonic() - start)
        seconds = time.monotonic() - start
        if "equal" in reply:
            return Comparison("done", reply["equal"], seconds)
        if "memory" in reply:
            return Comparison("memory", seconds=seconds)
        return Comparison("timeout" if reply["died"] == signal.SIGPROF else "died", seconds=seconds)

    def revived(self) -> _Worker:
        """This worker where it can go on, else a new one."""
        if not self._gone:
            return self
        self.end()
        return _Worker(*self._limits)

    def end(self) -> None:
        """Kill the process and everything it started."""
        self._process.kill()
        self._process.wait(timeout=START_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()  # type: ignore[union-attr]

    def _receive(self, until: float) -> dict[str, Any]:
        """The next line of the worker.

        Raises:
            TimeoutError: it does not come in time.
            EOFError: the worker is gone.
        """
        descriptor = self._process.stdout.fileno()  # type: ignore[union-attr]
        poll = select.poll()  # select() fails beyond 1,024 open files, which a Ray worker may well have
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._unread:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                raise TimeoutError
            chunk = os.read(descriptor, 65536)
            if not chunk:
                raise EOFError
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)
