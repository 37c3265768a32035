"""Check asserts about a program by a table of its answers, without running the program.

The calls that asserts make are replaced by a look into the answers that the program gave, in a process of its own, to
the same arguments. So a program can tamper with nothing that decides: it only answers.

First a job without answers asks which calls the asserts make, as far as they do not depend on answers. Then the host
has the program make them, and a second job runs the asserts on its answers; a call that is not among them is reported,
and the host asks again.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

from tasks.sandbox.job import Job
from tasks.sandbox.objects import Builder, describe_other
from tasks.sandbox.values import encode

# More calls than this are asked for in further rounds.
_MOST_CALLS = 2000

Describe = Callable[[BaseException], str]


def check(job: Job, namespace: dict[str, Any], describe: Describe) -> list[Any]:
    """Run asserts against answers.

    Args:
        job: `code` are the asserts, `answers` is JSON of `[[[entry point, args, kwargs], answer], …]` with answers as
            `tasks.sandbox.harness.run` reports calls that keep going, or empty.
        namespace: of a module in which the prelude has run.
        describe: an exception as one line.

    Returns:
        `["calls", [[entry point, args, kwargs], …]]` without answers, or where one is missing; else `["done"]`,
        `["assert", text]`, `["exception", text]` where the program raised one, or `["broken", text]` for asserts
        that fail in another way.
    """
    table = _Table(job.answers, namespace)
    for name in _program_names(job, namespace):
        # A module that the program imports and the asserts rely on is the same here.
        module = name in sys.stdlib_module_names
        namespace[name] = importlib.import_module(name) if module else table.function(name)
    if job.entry_point:
        namespace["candidate"] = table.function(job.entry_point)
    asked = not job.answers
    try:
        for source, label in ((job.setup, "setup"), (job.code, "tests")):
            tree = ast.parse(source)
            exec(compile(_Tolerant().visit(tree) if asked else tree, f"<{label}>", "exec"), namespace)
        if callable(namespace.get("check")):
            namespace["check"](namespace.get("candidate"))
    except _UnknownError:
        return ["calls", table.missing]
    except AssertionError as error:
        return ["assert", describe(error)]
    except _RaisedError as error:
        return ["calls", table.missing] if asked else ["exception", str(error)]
    except Exception as error:
        return ["calls", table.missing] if asked else ["broken", describe(error)]
    return ["calls", table.missing] if asked else ["done"]


def _program_names(job: Job, namespace: dict[str, Any]) -> set[str]:
    """Names that the asserts use and neither they nor the prelude nor Python define: the program's."""
    used, bound = set(), {"candidate", *namespace, *vars(builtins)}
    for node in ast.walk(ast.parse(f"{job.setup}\n{job.code}")):
        match node:
            case ast.Name(name, ast.Load()):
                used.add(name)
            case ast.Name(name) | ast.arg(name) | ast.FunctionDef(name) | ast.ClassDef(name):
                bound.add(name)
            case ast.Import(aliases) | ast.ImportFrom(_, aliases):
                bound |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
    return used - bound


class _UnknownError(BaseException):
    """A call whose answer is not in the table."""


class _RaisedError(Exception):
    """A call that raised an exception in the program."""


class _Unknown:
    """Stand-in for an answer that is not known yet; using it skips the rest of the asserts."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("not known yet")

    __hash__ = None  # type: ignore[assignment]


def _write_known(value: Any) -> Any:
    if isinstance(value, _Unknown):
        raise ValueError("not known yet")
    return describe_other(value)


class _Table:
    """The program's answers, by what was asked."""

    def __init__(self, answers: str, namespace: dict[str, Any]) -> None:
        self._builder = Builder(namespace)
        self._answers = None if not answers else {json.dumps(call): answer for call, answer in json.loads(answers)}
        self._asked: set[str] = set()
        self.missing: list[Any] = []

    def function(self, name: str) -> Callable[..., Any]:
        """Stand-in for the program's function or class of that name."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._answer([name, *encode([list(args), kwargs], _write_known)], args, kwargs)

        return call

    def _answer(self, call: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = json.dumps(call)
        if self._answers is None:
            if key not in self._asked and len(self.missing) < _MOST_CALLS:
                self._asked.add(key)
                self.missing.append(call)
            return _Unknown()
        if key not in self._answers:
            self.missing.append(call)
            raise _UnknownError
        kind, *content = self._answers[key]
        if kind == "raised":
            raise _RaisedError(content[0])
        written, (args_after, kwargs_after) = content
        for before, after in [
            *zip(args, self._builder.read(args_after)),
            *((value, self._builder.read(kwargs_after)[name]) for name, value in kwargs.items()),
        ]:
            _restore(before, after)
        return self._builder.read(written)


def _restore(before: Any, after: Any) -> None:
    """Change an argument as the program changed its copy."""
    if isinstance(before, list) and isinstance(after, list):
        before[:] = after
    elif isinstance(before, dict | set) and isinstance(after, type(before)):
        before.clear()
        before.update(after)


class _Tolerant(ast.NodeTransformer):
    """Make statements go on after an exception, so that one unknown answer does not hide the calls that follow."""

    def visit(self, node: ast.AST) -> Any:
        self.generic_visit(node)
        if not isinstance(node, ast.Assert | ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign):
            return node
        handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [ast.Pass()])
        return ast.fix_missing_locations(ast.copy_location(ast.Try([node], [handler], [], []), node))
