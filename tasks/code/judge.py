"""From what a confined program said to an outcome."""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tasks.code.compare import Comparison, through
from tasks.code.tests import AssertTests, CallCase, CallTests, StdinTests, Tests
from tasks.sandbox.job import Job, Result
from tasks.types import Outcome

Judgement = tuple[Outcome, str]
RunJob = Callable[[Job], Result]

# Marks a verdict that rests on asserts which ran beside the program and which it could have tampered with.
LOWER_TRUST = "lower trust"


def judge(tests: Tests, code: str, run: RunJob) -> Judgement:
    """Run a program against its tests.

    Args:
        tests: what to ask, and the right answers, which stay here.
        code: the program.
        run: runs a job in the sandbox.

    Returns:
        The outcome and a line about it.
    """
    if not code.strip():
        return "failed", "no program"
    if isinstance(tests, CallTests):
        return _judge_calls(tests, code, run)
    if isinstance(tests, StdinTests):
        return _judge_outputs(tests, code, run)
    return _judge_asserts(tests, code, run)


def _judge_calls(tests: CallTests, code: str, run: RunJob) -> Judgement:
    calls = json.dumps([[case.args, case.kwargs] for case in tests.cases])
    result = run(Job("call", code, tests.prelude, tests.entry_point, calls=calls))
    lines = _lines(result, len(tests.cases) + 1)
    for number, case in enumerate(tests.cases, 1):
        line = lines[number - 1] if number <= len(lines) else []
        if line[:1] != ["value"] or len(line) != 2:
            return _ended(result, line)
        if (wrong := _wrong(case, tests.comparison, line[1])) is not None:
            return "failed", f"wrong answer in case {number}: {wrong}"
    # An honest program has nothing to add; one that writes to the report itself is not believed.
    if len(lines) > len(tests.cases) or (result.ending, result.code) != ("exited", 0):
        return _ended(result, lines[len(tests.cases)] if len(lines) > len(tests.cases) else [])
    return "passed", ""


def _wrong(case: CallCase, comparison: Comparison, written: Any) -> str | None:
    """What is wrong with an answer, or None."""
    if case.tolerance is not None:
        comparison = replace(comparison, tolerance=case.tolerance)
    try:
        value = through(case.through, written) if case.through else written
        if comparison.same(case.expected, value):
            return None
        return f"{_short(value)} instead of {_short(case.expected)}"
    except (ValueError, RecursionError) as error:
        return f"unreadable ({_short(error)})"


def _judge_outputs(tests: StdinTests, code: str, run: RunJob) -> Judgement:
    for number, (stdin, expected) in enumerate(tests.cases, 1):
        result = run(Job("program", code, stdin=stdin))
        lines = _lines(result, 2)
        # A program may end itself at any point (`os._exit(0)`): what counts is what it printed.
        if (result.ending, result.code) != ("exited", 0) or lines not in ([], [["done"]]):
            return _ended(result, lines[-1] if lines else [])
        actual = result.stdout.decode("utf-8", "replace")
        if not tests.comparison.same_output(expected, actual):
            return "failed", f"wrong output in case {number}: {_short(actual)} instead of {_short(expected)}"
    return "passed", ""


def _judge_asserts(tests: AssertTests, code: str, run: RunJob) -> Judgement:
    nonce = secrets.token_hex(16)
    result = run(Job("asserts", code, tests.prelude, tests.entry_point, asserts=tests.code, nonce=nonce))
    lines = _lines(result, 2)
    if lines == [["done", nonce]] and (result.ending, result.code) == ("exited", 0):
        return "passed", LOWER_TRUST
    outcome, detail = _ended(result, lines[-1] if lines else [])
    return outcome, f"{detail} ({LOWER_TRUST})"


def _lines(result: Result, most: int) -> list[list[Any]]:
    """The first whole lines of a report, which the program's process wrote: anything may stand in them."""
    return [_line(text) for text in result.report.split(b"\n", most)[:-1]]


def _line(text: bytes) -> list[Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    return line if isinstance(line, list) else ["noise"]


def _ended(result: Result, line: list[Any]) -> Judgement:
    """Why a program gave no more answers: how its process ended, and its last line."""
    if result.ending == "timeout":
        return "timeout", f"still running after {result.seconds:.1f} s"
    if result.ending == "prelude":
        return "error", f"what the tests run before the program fails: {_short(result.report.decode())}"
    if result.ending == "output":
        return "failed", "too much output"
    if result.ending == "signalled":
        return _signalled(result.code)
    kind = line[0] if line and isinstance(line[0], str) else ""
    text = str(line[1]) if len(line) > 1 else ""
    match kind:
        case "memory":
            return "memory", "MemoryError"
        case "compile":
            return "failed", f"does not compile: {_short(text)}"
        case "exception":
            return "failed", f"exception: {_short(text)}"
        case "assert":
            return "failed", f"assertion: {_short(text)}"
        case "unplain":
            return "failed", f"wrong answer: {_short(text)}"
        case "exit" | "":
            return "failed", f"ended before it answered ({_short(text) or f'exit code {result.code}'})"
    return "failed", "wrote into its own report"


def _signalled(number: int) -> Judgement:
    if number == signal.SIGKILL:
        # Not by us, and it cannot signal itself: the kernel, for want of memory.
        return "memory", "killed by the kernel"
    if number == signal.SIGXCPU:
        return "timeout", "processor time used up"
    return "failed", f"died by {signal.Signals(number).name}"


def _short(value: object) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    text = " ".join(text[:200].split())
    return text if len(text) <= 100 else text[:97] + "..."
