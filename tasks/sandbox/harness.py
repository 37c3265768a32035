"""The harness inside the confined child: load the program, call it, report the results.

Nothing here decides whether the program is right, and nothing it knows would help to cheat: inputs come in, results
go out as one JSON line per call, and the comparison happens in another process. The program can do to this module
what it likes; all it can change is what it says about itself.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import io
import json
import os
import random
import sys
import threading
import time
import types
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from tasks.sandbox import asking, checking, looping
from tasks.sandbox.job import Job
from tasks.sandbox.objects import Builder, describe_other
from tasks.sandbox.values import decode, encode

_OPEN, _OS_OPEN = open, os.open
_STARTER = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
"""The name by which `threading` starts threads."""
_START_THREAD = getattr(threading, _STARTER)
_THREAD_TRIES = 20
_STREAMS = {
    name: number
    for number, stream in enumerate(("stdin", "stdout", "stderr"))
    for name in (f"/dev/{stream}", f"/dev/fd/{number}", f"/proc/self/fd/{number}")
}


def prepare(job: Job) -> types.ModuleType:
    """Run the prelude in a new module; no untrusted code is involved, so what it raises is the tests' fault."""
    module = types.ModuleType("__main__" if job.kind == "program" else "solution")
    sys.modules[module.__name__] = module
    # A program that draws numbers without seeding gets the same verdict each time (a fork seeds anew).
    random.seed(0)
    # The interpreter runs without `site`, which defines these for ordinary programs.
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    vars(threading)[_STARTER] = _start_thread
    if "async" in job.code + job.prelude + job.setup:
        looping.install()
    if job.prelude:
        exec(_compile(job.prelude, "prelude"), module.__dict__)
    return module


def _start_thread(*args: Any, **more: Any) -> Any:
    """Start a thread; one that was joined may need a moment to give back its stack, which can be half of the memory."""
    for _ in range(_THREAD_TRIES):
        try:
            return _START_THREAD(*args, **more)
        except RuntimeError:
            time.sleep(0.01)
    return _START_THREAD(*args, **more)


def run(job: Job, module: types.ModuleType, report: int) -> None:
    """Do a job in a prepared module and write JSON lines about it to descriptor `report`.

    Lines: `["value", encoded]` per call that returned, `["raised", text]` per call of those that keep going that did
    not; `["done"]` after a program. One line of `tasks.sandbox.asking` for each of the asked, one of
    `tasks.sandbox.checking` for a check. Or, as the last line, `["compile", text]`, `["exception", text]`,
    `["exit", text]`, `["unplain", text]`, `["memory"]`.
    """
    say = _Reporter(report)
    try:
        {"call": _call, "ask": _ask, "program": _program, "check": _check}[job.kind](job, module.__dict__, say)
    except _CompileError as error:
        say("compile", str(error))
    except MemoryError:
        say("memory")
    except SystemExit as error:
        say("exit", describe(error))
    except BaseException as error:
        say("exception", describe(error))


def describe(error: BaseException) -> str:
    """An exception as one short line; never fails, whatever the exception's own methods do."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = type(error).__name__
    return text.replace("\n", " ")[:200]


class _CompileError(Exception):
    pass


class _Reporter:
    """Writer of lines; holds its own references, so that a patched `json` or `os` does not matter by accident."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._write, self._dumps = descriptor, os.write, json.dumps

    def __call__(self, *line: Any) -> None:
        left = memoryview(self._dumps(line).encode() + b"\n")
        while left:
            left = left[self._write(self._descriptor, left) :]


def _call(job: Job, namespace: dict[str, Any], say: _Reporter) -> None:
    _load(job, namespace)
    special = {"$expr": lambda source: eval(source, namespace), "$other": Builder(namespace).build}
    for entry_point, arguments, keywords in json.loads(job.calls):
        # Fresh values for each call, so that a program that changes its arguments spoils no later call.
        args, kwargs = decode(arguments, special), decode(keywords, special)
        function = _resolve(entry_point or job.entry_point, namespace)
        try:
            value = function(*args, **kwargs)
        except Exception as error:
            if not job.keep_going or isinstance(error, MemoryError):
                raise
            say("raised", describe(error))
            continue
        try:
            written = encode(value, describe_other)
        except (TypeError, RecursionError) as error:
            say("unplain", describe(error))
            return
        say("value", written)


def _ask(job: Job, namespace: dict[str, Any], say: _Reporter) -> None:
    own = namespace["__name__"]
    shared = {name for name, value in namespace.items() if isinstance(value, type) and value.__module__ == own}
    _load(job, namespace)
    printed = asking.Printed() if job.captures else None
    try:
        for line in asking.answers(job.calls, namespace, shared, describe):
            say(*line, printed.taken() if printed else "")
    except (TypeError, RecursionError) as error:
        say("unplain", describe(error))


def _check(job: Job, namespace: dict[str, Any], say: _Reporter) -> None:
    # Tests and answers only: no program is loaded here, so what this says can be believed.
    say(*checking.check(job, namespace, describe))


def _program(job: Job, namespace: dict[str, Any], say: _Reporter) -> None:
    # Kept under both names: a stream that is wrapped or replaced would close the one below it.
    sys.stdin = sys.__stdin__ = _stream(0, "r")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, "w")  # type: ignore[misc]
    builtins.open = io.open = partial(_named, _OPEN)
    os.open = partial(_named, _OS_OPEN)
    try:
        _load(job, namespace)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    # Fast-output idioms print from there; a forked child ends without running them by itself.
    atexit._run_exitfuncs()
    # What a module's end would do: streams of the program's own write what they hold.
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    namespace.clear()
    with contextlib.suppress(Exception):  # closed, or detached
        sys.__stdout__.flush()
    say("done")


def _stream(descriptor: int, mode: str) -> io.TextIOWrapper:
    return cast("io.TextIOWrapper", _OPEN(descriptor, mode, encoding="utf-8", errors="replace", closefd=False))


def _named(original: Callable[..., Any], file: Any, *args: Any, **kwargs: Any) -> Any:
    """Open a file; the names of the standard streams mean them, because there is no folder /dev here."""
    name = os.fspath(file) if isinstance(file, os.PathLike) else file
    if not isinstance(name, str) or name not in _STREAMS:
        return original(file, *args, **kwargs)
    descriptor = os.dup(_STREAMS[name])
    return descriptor if original is _OS_OPEN else original(descriptor, *args, **kwargs)


def _load(job: Job, namespace: dict[str, Any]) -> None:
    exec(_compile(job.code, "solution"), namespace)
    if job.setup:
        exec(_compile(job.setup, "setup"), namespace)


def _compile(source: str, label: str) -> types.CodeType:
    try:
        return compile(source, f"<{label}>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, OverflowError) as error:
        raise _CompileError(describe(error)) from None


def _resolve(entry_point: str, namespace: dict[str, Any]) -> Callable[..., Any]:
    """The function that an entry point names: `f`, `Solution().f` or `Class.f`."""
    found = asking.look_up(entry_point, namespace)
    if not callable(found):
        raise TypeError(f"{entry_point} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]
