"""Run a model's programs in the sandbox, for rewards of one's own: `run_python` calls a function, `run_program` runs a
whole program.

The first use in a process chooses the sandbox's tier, which takes about a second. Nothing that a program says is
trusted: it comes back as plain data.
"""

from __future__ import annotations

import atexit
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tasks.code.extract import LANGUAGES
from tasks.code.judge import ended, report_lines
from tasks.errors import TaskError
from tasks.sandbox.compiling import Compiler
from tasks.sandbox.job import Job, Limits, Result
from tasks.sandbox.scripts import node
from tasks.sandbox.selftest import choose_tier
from tasks.sandbox.tiers import Tier
from tasks.sandbox.values import decode, encode
from tasks.sandbox.worker import Worker, WorkerError
from tasks.types import Outcome

_LOCK = threading.Lock()


@dataclass(frozen=True)
class Ran:
    """The outcome of a program.

    Attributes:
        outcome: `passed` if it ran to its end, `failed` if it raised, did not compile or ended early, `timeout`,
            `memory`.
        value: what the function returned (`run_python`).
        stdout: what it printed (`run_program`).
        detail: why it did not run to its end.
        seconds: its processor time and the seconds in which it used none.
    """

    outcome: Outcome
    value: Any = None
    stdout: str = ""
    detail: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True if it ran to its end."""
        return self.outcome == "passed"


def run_python(
    code: str,
    function: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    seconds: float = Limits.seconds,
    memory_mb: int = Limits.memory_mb,
) -> Ran:
    """Run source in the sandbox and call one of its functions with plain data (numbers, text, lists, dicts, sets, …).

    Args:
        code: Python that nobody trusts.
        function: what to call, `f` or `Solution().f`.
        args: positional arguments.
        kwargs: arguments by name.
        seconds: time, as in `tasks.sandbox.job.Limits`.
        memory_mb: address space in MiB.

    Raises:
        TaskError: no sandbox holds on this machine, or it failed twice.
        TypeError: arguments that are no plain data.
    """
    calls = json.dumps([[None, encode(list(args)), encode(dict(kwargs or {}))]])
    result = _run(Job("call", code, entry_point=function, calls=calls), Limits(seconds, memory_mb))
    lines = report_lines(result, 2)
    if (result.ending, result.code) != ("exited", 0) or [line[0] for line in lines] != ["value"] or len(lines[0]) != 2:
        return _ended(result, lines)
    try:
        return Ran("passed", value=decode(lines[0][1], {"$other": _no_data}), seconds=result.seconds)
    except (ValueError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
        return Ran("failed", detail=f"no plain data: {error}"[:200], seconds=result.seconds)


def run_program(
    code: str,
    stdin: str = "",
    *,
    language: str = "python",
    seconds: float = Limits.seconds,
    memory_mb: int = Limits.memory_mb,
) -> Ran:
    """Run a whole program in the sandbox with a standard input.

    Args:
        code: source that nobody trusts.
        stdin: what it reads.
        language: `python`, `cpp` or `javascript`; each C++ source is compiled once while it is remembered.
        seconds: time, as in `tasks.sandbox.job.Limits`; compiling has its own.
        memory_mb: address space in MiB.

    Raises:
        TaskError: no sandbox holds on this machine, it failed twice, or there is no compiler or Node.js.
    """
    if language not in LANGUAGES:
        raise TaskError(f"unknown language {language!r}: use {', '.join(LANGUAGES)}")
    job = Job("script" if language == "javascript" else "program", code, stdin=stdin)
    if language == "cpp":
        compiled = _compiler().compile(code)
        if compiled.problem:
            return Ran("failed", detail=f"does not compile: {compiled.problem}")
        job = Job("binary", "", stdin=stdin, binary=compiled.binary)
    result = _run(job, Limits(seconds, memory_mb))
    lines = report_lines(result, 2)
    if (result.ending, result.code) != ("exited", 0) or lines not in ([], [["done"]]):
        return _ended(result, lines)
    return Ran("passed", stdout=result.stdout.decode("utf-8", "replace"), seconds=result.seconds)


def _ended(result: Result, lines: list[list[Any]]) -> Ran:
    judgement = ended(result, lines[-1] if lines else [])
    stdout = result.stdout.decode("utf-8", "replace")
    return Ran(judgement.outcome, stdout=stdout, detail=judgement.detail, seconds=result.seconds)


def _no_data(described: Any) -> Any:
    raise ValueError(f"a {described.get('type') if isinstance(described, dict) else 'value'} was returned"[:100])


def _run(job: Job, limits: Limits) -> Result:
    """Run a job in this process's fork server; one that died is replaced once."""
    with _LOCK:
        try:
            return _server(job.kind == "script").run(job, limits)
        except WorkerError:
            _server.cache_clear()
            return _server(job.kind == "script").run(job, limits)


@cache
def _tier() -> Tier:
    return choose_tier().tier


@cache
def _compiler() -> Compiler:
    return Compiler(_tier())


@cache
def _server(scripts: bool) -> Worker:
    worker = Worker(_tier(), interpreter=node if scripts else None)
    atexit.register(worker.close)
    return worker
