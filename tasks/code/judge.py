"""Turn the report of a confined program into an outcome."""

from __future__ import annotations

import json
import reprlib
import signal
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import replace
from typing import Any, NamedTuple

from tasks.code.outputs import Checker
from tasks.code.returned import EqualityRules, through
from tasks.code.tests import AssertTests, CallCase, CallTests, StdinTests, Tests
from tasks.errors import TaskError
from tasks.sandbox.compiling import Compiled
from tasks.sandbox.job import Job, Limits, Result
from tasks.types import Outcome

# Times that asserts may ask for further calls: each time they depend on the answers before.
_ROUNDS = 200
# Limits of the tests' own work: asking which calls asserts make, comparing two outputs.
_TESTS_OWN = Limits(seconds=5.0)

# Words of tests that look at what a program prints.
_READ_OUTPUT = ("stdout", "capsys", "StringIO")
# Errors of tests that need what is not here, whatever the program.
_TESTS_LACK = (
    *("ImportError", "ModuleNotFoundError", "NotImplementedError", "LookupError: no fixture"),
    *("AttributeError: <module '__main__'> does not have", "AttributeError: module 'pytest' has no attribute"),
)

RunJob = Callable[[Job, Limits | None], Result]
"""Function that runs a job in the sandbox, within the program's limits or the given ones."""


class Judgement(NamedTuple):
    """Result of tests of a program.

    Attributes:
        outcome: as in a verdict.
        detail: a line about it.
        share: share of the cases that passed, where each was tried; None where only the outcome is known.
    """

    outcome: Outcome
    detail: str = ""
    share: float | None = None


def judge(
    tests: Tests,
    code: str,
    run: RunJob,
    *,
    every_case: bool = False,
    build: Callable[[str], Compiled] | None = None,
    questions: MutableMapping[AssertTests, list[Any]] | None = None,
) -> Judgement:
    """Run a program against its tests.

    Args:
        tests: what to ask, and the right answers, which stay here.
        code: the program.
        run: runs a job in the sandbox.
        every_case: go on after a case that fails, to know the share that passes (asserts know none).
        build: compiles a program in a language that needs it.
        questions: what tests ask any program first, where it is known; completed here.
    """
    if not code.strip():
        return Judgement("failed", "no program")
    if isinstance(tests, AssertTests):
        return _judge_asserts(tests, code, run, {} if questions is None else questions)
    if isinstance(tests, CallTests):
        judged: Iterable[Judgement] = _call_cases(tests, code, run, every_case)
    else:
        job = _job(code, tests.language, build)
        if isinstance(job, Judgement):
            return job
        judged = _stdin_cases(tests, job, run)
    first: Judgement | None = None
    passed = 0
    for number, judgement in enumerate(judged, 1):
        if judgement.outcome == "passed":
            passed += 1
            continue
        if judgement.outcome == "error":
            return judgement
        first = first or judgement._replace(detail=judgement.detail.replace("{case}", f"case {number}"))
        if not every_case or judgement.outcome != "failed":
            break
    share = passed / len(tests.cases) if every_case else None
    return (first or Judgement("passed"))._replace(share=share)


def _call_cases(tests: CallTests, code: str, run: RunJob, every_case: bool) -> list[Judgement]:
    """One judgement per call, up to where the program ended."""
    calls = json.dumps([[None, case.args, case.kwargs] for case in tests.cases])
    result = run(Job("call", code, tests.prelude, tests.setup, tests.entry_point, calls, every_case), None)
    lines = report_lines(result, len(tests.cases) + 1)
    judged: list[Judgement] = []
    for number, case in enumerate(tests.cases):
        line = lines[number] if number < len(lines) else []
        if every_case and line[:1] == ["raised"]:
            judged.append(ended(result, ["exception", *line[1:]]))
        elif line[:1] != ["value"] or len(line) != 2:
            return [*judged, ended(result, line)]
        else:
            judged.append(_judge_value(case, tests.comparison, line[1]))
    # An honest program has nothing to add; one that writes to the report itself is not believed.
    if len(lines) > len(tests.cases) or (result.ending, result.code) != ("exited", 0):
        return [ended(result, lines[len(tests.cases)] if len(lines) > len(tests.cases) else [])]
    return judged


def _judge_value(case: CallCase, comparison: EqualityRules, written: Any) -> Judgement:
    if (case.tolerance, case.within) != (None, None):
        within = case.tolerance if case.within is None else case.within
        comparison = replace(comparison, tolerance=case.tolerance or 0.0, within=within)
    try:
        value = through(case.through, written) if case.through else written
        if any(comparison.same(expected, value) for expected in (case.expected, *case.others)):
            return Judgement("passed")
        if isinstance(value, dict) and isinstance(other := value.get("$other"), dict):
            value = f"a {_short(other.get('type'))}, which is no plain data"
        wrong = f"{_short(value)} instead of {_short(case.expected)}"
    except (ValueError, RecursionError) as error:
        wrong = f"unreadable ({_short(str(error))})"
    return Judgement("failed", f"wrong answer in {{case}}: {wrong}")


def _job(code: str, language: str, build: Callable[[str], Compiled] | None) -> Job | Judgement:
    """A job that runs a whole program, or why there is none."""
    if language == "cpp":
        return _built(code, build)
    return Job("script" if language == "javascript" else "program", code)


def _built(code: str, build: Callable[[str], Compiled] | None) -> Job | Judgement:
    """A job that runs the compiled program, or why there is none."""
    if build is None:
        return Judgement("error", "nothing compiles this language here")
    try:
        compiled = build(code)
    except (TaskError, OSError) as error:
        return Judgement("error", f"cannot compile: {error}")
    if compiled.problem:
        return Judgement("failed", f"does not compile: {_short(compiled.problem)}")
    return Job("binary", "", binary=compiled.binary)


def _stdin_cases(tests: StdinTests, job: Job, run: RunJob) -> Iterator[Judgement]:
    """One judgement per input, made when it is asked for."""
    for stdin, expected in tests.cases:
        result = run(replace(job, stdin=stdin), None)
        lines = report_lines(result, 2)
        # A program may end itself at any point (`os._exit(0)`): what counts is what it printed.
        if (result.ending, result.code) != ("exited", 0) or lines not in ([], [["done"]]):
            yield ended(result, lines[-1] if lines else [])
            continue
        actual = result.stdout.decode("utf-8", "replace")
        yield _judge_output(tests.checker, stdin, expected, actual, run)


def _judge_output(checker: Checker, stdin: str, expected: str, actual: str, run: RunJob) -> Judgement:
    if not checker.code:
        right = checker.same(expected, actual)
    else:
        calls = json.dumps([[None, [stdin, expected, actual], {}]])
        result = run(Job("call", checker.code, entry_point="check", calls=calls), _TESTS_OWN)
        lines = report_lines(result, 2)
        if len(lines) != 1 or lines[0] not in (["value", True], ["value", False]):
            reason = ended(result, lines[-1] if lines else []).detail
            return Judgement("error", f"the checker must return True or False ({reason})")
        right = lines[0][1]
    if right:
        return Judgement("passed")
    return Judgement("failed", f"wrong output in {{case}}: {_short(actual)} instead of {_short(expected)}")


def _judge_asserts(
    tests: AssertTests, code: str, run: RunJob, questions: MutableMapping[AssertTests, list[Any]]
) -> Judgement:
    """Find what the tests ask the program, have it answer, and run the tests on the answers."""
    check = Job("check", tests.code, tests.prelude, tests.setup, tests.entry_point)
    if tests not in questions:
        first = _check_line(run(check, _TESTS_OWN))
        if isinstance(first, Judgement):
            return first
        if first[0] in ("timeout", "memory"):  # no program has run yet
            return Judgement("error", f"the tests alone take too much ({first[0]})")
        questions[tests] = first
    line = questions[tests]
    answered: Any = []
    for _ in range(_ROUNDS):
        if line[0] != "calls":
            return _judge_check(line)
        (asked,) = line[1:]
        answered = _answers(tests, asked, code, run)
        if isinstance(answered, Judgement):
            return answered
        result = _check_line(run(replace(check, answers=json.dumps(list(zip(asked, answered)))), None))
        if isinstance(result, Judgement):
            return result
        line = result
    if ["input"] in [given[:1] for given in answered]:
        return Judgement("failed", f"asks for input again and again (over {_ROUNDS} times)")
    return Judgement("error", f"the tests ask again and again (over {_ROUNDS} times)")


def _check_line(result: Result) -> list[Any] | Judgement:
    """The line that a check ended with, or the way in which it ended without one."""
    if result.ending == "prelude":
        return ended(result, [])
    lines = report_lines(result, 2)
    return lines[-1] if lines else [result.ending]


def _judge_check(line: list[Any]) -> Judgement:
    """The verdict of tests that ran to their end, which no program could change."""
    match line:
        case ["done", int(ran)] if ran > 0:
            return Judgement("passed")
        case ["assert" | "broken", str(text), 0]:
            return Judgement("error", f"the tests fail whatever the program: {_short(text)}")
        case ["broken", str(text), _] if text.startswith(_TESTS_LACK):
            return Judgement("error", f"the tests cannot be run: {_short(text)}")
        case ["assert", str(text), _]:
            return Judgement("failed", f"assertion: {_short(text)}")
        case ["exception", str(text)]:
            return Judgement("failed", f"exception: {_short(text)}")
        case ["broken", str(text), _]:
            return Judgement("failed", f"the tests cannot use an answer: {_short(text)}")
        case ["unreached"]:
            return Judgement("failed", "its answers keep every assertion from running")
        case ["vacuous", str(text)]:
            return Judgement("error", f"the tests assert nothing: {_short(text)}")
        case ["timeout" | "memory" as outcome]:
            return Judgement(outcome, "the tests took too much on its answers")
    return Judgement("error", f"the tests cannot be run ({_short(line)})")


def _answers(tests: AssertTests, asked: list[Any], code: str, run: RunJob) -> list[Any] | Judgement:
    """A program's answers to its tests' questions, or the reason for having none."""
    lines_asked = json.dumps(asked)
    captures = any(word in tests.code for word in _READ_OUTPUT)
    result = run(Job("ask", code, tests.prelude, calls=lines_asked, captures=captures), None)
    lines = report_lines(result, len(asked) + 1)
    given = [line for line in lines if _is_answer(line)]
    if len(given) == len(lines) == len(asked) and (result.ending, result.code) == ("exited", 0):
        return given
    return ended(result, lines[-1] if lines else [])


def _is_answer(line: list[Any]) -> bool:
    """True for a line of `tasks.sandbox.asking`, whose parts the program chose."""
    match line:
        case ["value", _, None | [list(), dict(), *_], str()] | ["input", list(), str()]:
            return True
        case ["raised", str(), list(family), list(), str()]:
            return all(isinstance(one, list) and [type(name) for name in one] == [str, str] for one in family)
    return False


def report_lines(result: Result, most: int) -> list[list[Any]]:
    """The first whole lines of a report, which the program's process wrote: anything may stand in them."""
    return [_line(text) for text in result.report.split(b"\n", most)[:-1]]


def _line(text: bytes) -> list[Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    return line if isinstance(line, list) and line else ["noise"]


def ended(result: Result, line: list[Any]) -> Judgement:
    """The reason why a program gave no more answers: how its process ended, and its last line."""
    match result.ending:
        case "timeout":
            return Judgement("timeout", f"still running after {result.seconds:.1f} s of processor time and waiting")
        case "prelude":
            reason = _short(result.report.decode(errors="replace"))
            return Judgement("error", f"what the tests run before the program fails: {reason}")
        case "output":
            return Judgement("failed", "too much output")
        case "signalled":
            return _signalled(result.code)
    kind = line[0] if line and isinstance(line[0], str) else ""
    text = str(line[1])[:1000] if len(line) > 1 and isinstance(line[1], str) else ""
    match kind:
        case "memory":
            return Judgement("memory", "MemoryError")
        case "compile":
            return Judgement("failed", f"does not compile: {_short(text)}")
        case "exception" | "raised":
            return Judgement("failed", f"exception: {_short(text)}")
        case "unstarted":
            return Judgement("error", f"the compiled program does not start: {_short(text)}")
        case "unplain":
            return Judgement("failed", f"wrong answer: {_short(text)}")
        case "exit" | "":
            return Judgement("failed", f"ended before it answered ({_short(text) or f'exit code {result.code}'})")
    return Judgement("failed", "wrote into its own report")


def _signalled(number: int) -> Judgement:
    if number == signal.SIGKILL:
        # Killed neither by us nor by itself: by the kernel, for want of memory.
        return Judgement("memory", "killed by the kernel")
    if number == signal.SIGXCPU:
        return Judgement("timeout", "processor time used up")
    return Judgement("failed", f"died by {signal.Signals(number).name}")


_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxdict = _REPR.maxtuple = 20
_REPR.maxstring = 100


def _short(value: object) -> str:
    text = " ".join((value if isinstance(value, str) else _REPR.repr(value))[:200].split())
    return text if len(text) <= 100 else text[:97] + "..."
