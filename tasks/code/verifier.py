"""Grades programs by running them in the sandbox and comparing what they say outside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tasks.code.extract import extract_code
from tasks.code.judge import judge
from tasks.code.tests import parse_tests
from tasks.errors import TaskError
from tasks.sandbox.job import Job, Limits, Result
from tasks.sandbox.pool import Pool, Run
from tasks.sandbox.selftest import Survey
from tasks.sandbox.worker import WorkerError
from tasks.thinking import answer_part
from tasks.types import Outcome, Prompt, Verdict, verdict


class _OutOfTimeError(Exception):
    """The runs of one completion have taken all the time that they may."""


class CodeVerifier:
    """Grades completions whose prompts hold tests (`tasks.code.tests.parse_tests`).

    Safe to call from several threads. The self-test and the fork servers start with the first item.

    Outcomes: `passed`; `failed` for a wrong answer, an exception, source that does not compile, too much output, or
    no program at all (`detail` begins with which); `timeout`; `memory`; `error` if the tests cannot be read or the
    sandbox itself failed twice, which says nothing about the program.
    """

    def __init__(
        self,
        workers: int = 2,
        limits: Limits | None = None,
        survey: Survey | None = None,
        packages: tuple[str, ...] = (),
        whole_if_unclosed: bool = False,
        total_seconds: float = 60.0,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            workers: programs that run at the same time, each in its own fork server.
            limits: of one program run (all calls together; every standard input by itself).
            survey: what `choose_tier` found on this machine; None finds out at the first item.
            packages: modules beyond the standard library that programs may import, such as `sortedcontainers`.
            whole_if_unclosed: grade a completion without `</think>` as a whole instead of failing it.
            total_seconds: wall time of all runs of one completion together, so that a hundred inputs of nine seconds
                each cannot hold a worker for a quarter of an hour.

        Raises:
            TaskError: no workers, or no time.
        """
        if workers < 1 or total_seconds <= 0:
            raise TaskError(
                f"a code verifier with {workers} workers and {total_seconds} s for a completion grades nothing: "
                "give at least 1 worker and more than 0 s"
            )
        self._total_seconds = total_seconds
        self._workers, self._limits, self._survey = workers, limits or Limits(), survey
        self._packages, self._whole_if_unclosed = packages, whole_if_unclosed
        self._pool: Pool | None = None
        self._lock = threading.Lock()

    @property
    def sandbox(self) -> Survey:
        """The sandbox in use: its tier and what it found on this machine, for the run's manifest.

        Raises:
            TaskError: no tier holds on this machine.
        """
        return self._running().survey

    def verify(self, items: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        """One verdict per (prompt, completion), in order.

        Raises:
            TaskError: no sandbox holds on this machine, or the verifier is closed.
        """
        pool = self._running()
        tasks = [partial(self._grade, prompt.gold, completion) for prompt, completion in items]
        return [future.result() for future in [pool.submit(task) for task in tasks]]

    def close(self) -> None:
        """End the processes behind the verifier; it can be called twice."""
        with self._lock:
            if self._pool is not None:
                self._pool.close()

    def _running(self) -> Pool:
        with self._lock:
            if self._pool is None:
                self._pool = Pool(self._workers, self._survey, self._packages)
            return self._pool

    def _grade(self, gold: Any, completion: str, run: Run) -> Verdict:
        start = time.monotonic()
        try:
            tests = parse_tests(gold)
        except TaskError as error:
            return verdict("error", detail=str(error))
        answer = answer_part(completion, whole_if_unclosed=self._whole_if_unclosed)
        if answer is None:
            return verdict("failed", detail="no answer: the thinking does not end")

        def run_in_time(job: Job) -> Result:
            left = start + self._total_seconds - time.monotonic()
            if left <= 0:
                raise _OutOfTimeError
            return run(job, replace(self._limits, seconds=min(self._limits.seconds, left)))

        outcome: Outcome
        try:
            outcome, detail = judge(tests, extract_code(answer), run_in_time)
        except WorkerError as error:
            outcome, detail = "error", str(error)
        except _OutOfTimeError:
            outcome, detail = "timeout", f"all runs together took longer than {self._total_seconds:g} s"
        return verdict(outcome, time.monotonic() - start, detail)
