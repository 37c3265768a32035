"""Pool of several fork servers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tasks.errors import TaskError
from tasks.sandbox.compiling import Compiler
from tasks.sandbox.job import Job, Limits, Result
from tasks.sandbox.scripts import node
from tasks.sandbox.selftest import Survey, choose_tier
from tasks.sandbox.worker import Worker, WorkerError

_ATTEMPTS = 2

T = TypeVar("T")
Runner = Callable[[Job, Limits], Result]


class Pool:
    """Pool that runs jobs in `workers` fork servers, each owned by one thread; safe to use from several threads.

    A job that loops holds up its own worker and no other. A server starts with the first job that needs it and is
    replaced when it dies; the job it held is tried once more.
    """

    def __init__(self, workers: int, survey: Survey | None = None, packages: tuple[str, ...] = ()) -> None:
        """Choose a tier, unless a survey of this machine is given.

        Args:
            workers: jobs that run at the same time.
            survey: what `choose_tier` found.
            packages: modules beyond the standard library that submissions may import, such as `numpy`.

        Raises:
            TaskError: no workers, a package that is not installed, or no tier holds on this machine.
        """
        if workers < 1:
            raise TaskError(f"a sandbox with {workers} workers runs nothing: give at least 1")
        self.survey = survey or choose_tier(packages=packages)
        self.compiler = Compiler(self.survey.tier)
        self._packages = packages
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")
        self._own = threading.local()
        self._workers: set[Worker] = set()
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, task: Callable[[Runner], T]) -> Future[T]:
        """Queue a task: it is called in a worker's thread, with a function that runs jobs there one at a time.

        That function raises WorkerError if the sandbox itself failed twice at a job.

        Raises:
            TaskError: the pool is closed.
        """
        if self._closed:
            raise TaskError("the sandbox is closed: make a new one")
        return self._threads.submit(task, self._run)

    def close(self) -> None:
        """End every server and child at once; jobs under way fail. It can be called twice."""
        self._closed = True
        with self._lock:
            for worker in self._workers:
                worker.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.close()

    def _run(self, job: Job, limits: Limits) -> Result:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._worker(job.kind == "script").run(job, limits)
            except WorkerError:
                self._forget(job.kind == "script")
                if attempt == _ATTEMPTS or self._closed:
                    raise
        raise AssertionError("unreachable")

    def _worker(self, scripts: bool) -> Worker:
        """This thread's server, for scripts or for everything else."""
        worker = self._servers().get(scripts)
        if worker is None:
            tier = self.survey.tier
            worker = Worker(tier, interpreter=node) if scripts else Worker(tier, self._packages)
            with self._lock:
                self._workers.add(worker)
                if self._closed:
                    worker.kill()
            self._servers()[scripts] = worker
        return worker

    def _servers(self) -> dict[bool, Worker]:
        return self._own.__dict__.setdefault("workers", {})

    def _forget(self, scripts: bool) -> None:
        worker = self._servers().pop(scripts, None)
        if worker is not None:
            with self._lock:
                self._workers.discard(worker)
