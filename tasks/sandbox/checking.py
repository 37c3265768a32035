"""Run the tests of a program, in a process that holds no program, on what it answers from another.

So a program can tamper with nothing that decides: it only answers. First a job without answers finds which calls the
tests make, as far as they do not depend on answers. Then the host has the program make them, and a second job runs the
tests on its answers; where they ask for more, the host asks again (`tasks.sandbox.transcript`).

What counts as having passed is assertions that ran (`tasks.sandbox.counting`): plain ones, those of functions named
`test…`, of `unittest` classes, of `check(candidate)`.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from tasks.sandbox import testing
from tasks.sandbox.counting import PROBE, instrument
from tasks.sandbox.job import Job
from tasks.sandbox.transcript import RaisedError, Transcript

Describe = Callable[[BaseException], str]

# Modules that mean the program, and packages that tests may import and this process may lack, which do not.
_PROGRAMS = ("solution", "main", "__main__")
_PACKAGES = ("pytest", "numpy", "pandas", "scipy", "sympy", "torch", "sklearn", "networkx", "requests", "hypothesis")


def check(job: Job, namespace: dict[str, Any], describe: Describe) -> list[Any]:
    """Run tests against answers.

    Args:
        job: `code` are the tests, `answers` is JSON of `[[line, answer], …]` as `tasks.sandbox.asking` writes them, or
            empty.
        namespace: of a module in which the prelude has run.
        describe: an exception as one line.

    Returns:
        `["calls", lines]` without answers, or where one is missing; else `["done", assertions that ran]`, `["assert",
        text]`, `["exception", text]` where the program raised one, `["unreached", text]` if its answers kept every
        assertion from running, `["vacuous", text]` if nothing was asserted, or `["broken", text, answers used]` for
        tests that fail in another way.
    """
    transcript = Transcript(job.answers, namespace)
    probe = transcript.probe
    namespace |= {PROBE: probe, "__name__": "__main__"}  # so that what stands under a main guard runs
    problem: list[Any] = []
    try:
        transcript.functions = partial(_sources, job.code)
        trees = [instrument(source) for source in (job.setup, job.code) if source]
        _bind(trees, job, namespace, transcript)
        for tree in trees:
            exec(compile(tree, "<tests>", "exec"), namespace)
        testing.run_all(namespace, probe)
    except AssertionError as error:
        problem = ["assert", describe(error), transcript.used]
    except RaisedError as error:
        problem = ["exception", str(error)]
    except (Exception, SystemExit) as error:
        program = transcript.made_by_program(error)
        problem = ["exception", describe(error)] if program else ["broken", describe(error), transcript.used]
    if probe.guessing and transcript.lines:
        return ["calls", transcript.lines]
    if problem:
        return problem
    if probe.swallowed is not None:
        return ["assert", f"{describe(probe.swallowed)} (the tests caught it)", transcript.used]
    if not transcript.used:
        return ["vacuous", "they ask the program nothing"]
    if probe.ran:
        return ["done", probe.ran]
    return ["unreached"] if probe.reached else ["vacuous", "no assertion runs"]


def _sources(code: str) -> dict[tuple[str, int], str]:
    """The functions of a source by name and first line, as source; of two in one line, none. Classes have line 0."""
    found: dict[tuple[str, int], str] = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
            # A decorated function begins with its first decorator, and is handed over without them.
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            place = (getattr(node, "name", "<lambda>"), decorators[0].lineno if decorators else node.lineno)
            decorators[:] = []
            text = ast.unparse(node)
            if found.setdefault(place, text) != text:
                found[place] = ""
        if isinstance(node, ast.ClassDef):
            found[node.name, 0] = "" if (node.name, 0) in found else ast.unparse(node)
    return {place: text for place, text in found.items() if text}


def _bind(trees: list[ast.Module], job: Job, namespace: dict[str, Any], transcript: Transcript) -> None:
    """Give tests the names that are the program's, and the modules that they mean."""
    used, bound, caught = set[str](), {"candidate", *namespace, *vars(builtins)}, set[str]()
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.ImportFrom(str(module), aliases) if _is_program(module):
                node.level = 0
                _become(module, transcript)
                used |= {alias.name for alias in aliases}
            case ast.Import(aliases):
                bound |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
                for alias in aliases:
                    if _is_program(alias.name):
                        _become(alias.name, transcript)
            case ast.ImportFrom(_, aliases):
                bound |= {alias.asname or alias.name for alias in aliases}
            case ast.Name(name, ast.Load()):
                used.add(name)
            case ast.Name(name) | ast.arg(name) | ast.FunctionDef(name) | ast.ClassDef(name):
                bound.add(name)
            case ast.ExceptHandler(ast.expr() as kinds):
                caught |= _last_names(kinds)
            case ast.Call(function, [kinds, *_]) if ast.unparse(function).lower().endswith(("raises", "raisesregex")):
                caught |= _last_names(kinds)
    for name in sorted(caught - bound):
        transcript.exceptions[name] = type(name, (Exception,), {})
    for name in sorted(used - bound):
        # A module that the program imports and the tests rely on is the same here.
        standard = name in sys.stdlib_module_names
        namespace[name] = importlib.import_module(name) if standard else transcript.named(name)
    if job.entry_point:
        namespace["candidate"] = transcript.named(job.entry_point)
    testing.install(job.code)


def _last_names(kinds: ast.expr) -> set[str]:
    """Names of the classes in `ValueError`, `solution.EmptyError` or a tuple of such."""
    each = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
    return {
        one.attr if isinstance(one, ast.Attribute) else one.id
        for one in each
        if isinstance(one, ast.Attribute | ast.Name)
    }


class _ProgramModule(types.ModuleType):
    """The program, where tests import it as a module."""

    def __init__(self, name: str, transcript: Transcript) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__all__: list[str] = []
        self._is_program = True
        self._transcript = transcript

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._transcript.named(name)


def _become(module: str, transcript: Transcript) -> None:
    """Let a module's name mean the program, and so each package that it stands in."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        sys.modules[name] = _ProgramModule(name, transcript)


def _is_program(module: str) -> bool:
    """True for a module that is not there, and is no package that is known: the tests mean the program."""
    top = module.partition(".")[0]
    if top in _PROGRAMS or isinstance(sys.modules.get(top), _ProgramModule):
        return True
    known = top in _PACKAGES or top in sys.stdlib_module_names
    return not known and importlib.util.find_spec(top) is None
