"""Grade programs by running them in the sandbox and comparing outside it what they print and return."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from tasks.code.extract import extract_code
from tasks.code.judge import Judgement, RunJob, judge
from tasks.code.straight import computed
from tasks.code.tests import AssertTests, StdinTests, Tests, parse_tests
from tasks.errors import TaskError
from tasks.sandbox.job import CROWDED, Job, Limits, Result
from tasks.sandbox.pool import Pool, Runner
from tasks.sandbox.selftest import Survey
from tasks.thinking import answer_part
from tasks.types import Prompt, Verdict, verdict

_NAME = re.compile(r"[A-Za-z_]\w*")


class _OutOfTimeError(Exception):
    """The runs of one completion have taken all the time that they may."""


class _GroupIsUpError(Exception):
    """All completions of one prompt have taken the time that they may."""


# Prompts whose spent time is remembered, and tests whose first questions are.
_PROMPTS_KEPT = 1024


class CodeVerifier:
    """Verifier of completions whose prompts hold tests (`tasks.code.tests.parse_tests`).

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
        group_seconds: float = 600.0,
        partial_credit: bool = False,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            workers: programs that run at the same time, each in its own fork server.
            limits: of one program run (all calls together; every standard input by itself).
            survey: what `choose_tier` found on this machine; None finds out at the first item.
            packages: modules beyond the standard library that programs may import, such as `sortedcontainers`.
            whole_if_unclosed: grade a completion without `</think>` as a whole instead of failing it.
            total_seconds: time of all runs of one completion together (counted as in `Limits`), so that a hundred
                inputs of nine seconds each cannot hold a worker for a quarter of an hour.
            group_seconds: time of all completions of one prompt together; what comes after that is an `error`, so that
                a group of endless loops cannot hold the verifier for its number times the limit.
            partial_credit: try every case, and give the share that passes as the reward; asserts have no cases.

        Raises:
            TaskError: no workers, or no time.
        """
        if workers < 1 or total_seconds <= 0 or group_seconds <= 0:
            raise TaskError(
                f"a code verifier with {workers} workers, {total_seconds} s for a completion and {group_seconds} s for "
                "a prompt grades nothing: give at least 1 worker and more than 0 s"
            )
        self._group_seconds, self._spent = group_seconds, dict[str, float]()
        self._total_seconds, self._partial_credit = total_seconds, partial_credit
        self._workers, self._limits, self._survey = workers, limits or Limits(), survey
        self._packages, self._whole_if_unclosed = packages, whole_if_unclosed
        self._questions: dict[AssertTests, list[Any]] = {}
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

        Completions of one prompt with the same answer are graded once: a policy that has learnt a problem writes one
        program again and again. The first has the seconds that it took, the others have none.

        Raises:
            TaskError: no sandbox holds on this machine, or the verifier is closed.
        """
        pool = self._running()
        graded: dict[tuple[int, str | None], Future[Verdict]] = {}
        read: dict[int, Tests] = {}
        verdicts = []
        for prompt, completion in items:
            answer = id(prompt), answer_part(completion, whole_if_unclosed=self._whole_if_unclosed)
            again = answer in graded
            if not again:
                graded[answer] = pool.submit(partial(self._grade, prompt, completion, read))
            verdicts.append((graded[answer], again))
        return [replace(one.result(), seconds=0.0) if again else one.result() for one, again in verdicts]

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

    def _grade(self, prompt: Prompt, completion: str, read: dict[int, Tests], run: Runner) -> Verdict:
        """Grade one completion; `read` keeps the tests of each prompt of the call."""
        start, budget = time.monotonic(), _Budget(self._total_seconds, self._left_of_group(prompt.id))
        try:
            if id(prompt) not in read:
                read[id(prompt)] = parse_tests(prompt.gold)
            judgement = self._judged(read[id(prompt)], completion, budget.limiting(run, self._limits))
        except (TaskError, _GroupIsUpError) as error:  # tests that cannot be read, or a sandbox that failed twice
            judgement = Judgement("error", str(error))
        except _OutOfTimeError:
            judgement = Judgement("timeout", f"all runs together took longer than {self._total_seconds:g} s")
        except Exception as error:  # nothing that a completion says may end its neighbours' grading
            judgement = Judgement("error", f"the verifier failed: {type(error).__name__}")
        self._spend(prompt.id, budget.spent)
        seconds = time.monotonic() - start
        if judgement.share is None:
            return verdict(judgement.outcome, seconds, judgement.detail)
        return Verdict(judgement.outcome, judgement.share, seconds, judgement.detail, {"cases": judgement.share})

    def _judged(self, tests: Tests, completion: str, run: RunJob) -> Judgement:
        answer = answer_part(completion, whole_if_unclosed=self._whole_if_unclosed)
        if answer is None:
            return Judgement("failed", "no answer: the thinking does not end")
        language = tests.language if isinstance(tests, StdinTests) else "python"
        code = extract_code(answer, _defined(tests), language)
        build = self._running().compiler.compile
        if len(self._questions) > _PROMPTS_KEPT:
            self._questions.clear()
        every = self._partial_credit
        return judge(tests, code, run, every_case=every, build=build, questions=self._questions)

    def _left_of_group(self, prompt_id: str) -> float:
        with self._lock:
            return self._group_seconds - self._spent.get(prompt_id, 0.0)

    def _spend(self, prompt_id: str, seconds: float) -> None:
        with self._lock:
            self._spent[prompt_id] = self._spent.pop(prompt_id, 0.0) + seconds
            if len(self._spent) > _PROMPTS_KEPT:
                del self._spent[next(iter(self._spent))]


class _Budget:
    """Account of what the runs of one completion take and of what is left for the next."""

    def __init__(self, seconds: float, of_group: float) -> None:
        self.spent = 0.0
        self._seconds, self._of_group = seconds, of_group
        # By the clock, for programs that sleep too shortly to be charged for it.
        self._deadline = time.monotonic() + CROWDED * seconds

    def limiting(self, run: Runner, own: Limits) -> RunJob:
        """Run jobs within what is left."""

        def run_in_time(job: Job, limits: Limits | None) -> Result:
            if self.spent >= self._of_group:
                raise _GroupIsUpError("the other completions of this prompt used up the time that a prompt may take")
            left = self._seconds - self.spent
            if left <= 0 or time.monotonic() > self._deadline:
                raise _OutOfTimeError
            limits = limits or own
            result = computed(job) or run(job, replace(limits, seconds=min(limits.seconds, left)))
            self.spent += result.seconds
            return result

        return run_in_time


def _defined(tests: Tests) -> str:
    """The function or class that a program must define for its tests; empty for a whole program."""
    if isinstance(tests, StdinTests) or not (name := _NAME.match(tests.entry_point)):
        return ""
    return name[0]
