"""Count the assertions of tests as they run, and let tests go on where an answer is not known yet.

Both are calls that are written into the tests' syntax tree. They run in the process of the tests, which holds no
program, so a program cannot reach the count. What holds for every program (`assert True`, `assert (x, "message")`)
is no assertion.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

PROBE = "__probe__"
"""Name under which instrumented tests find their `Probe`."""

_RAISING = ("raises", "assertRaises", "assertRaisesRegex", "assertWarns", "assertWarnsRegex", "assertLogs")
_FAILING = ("fail", "exit", "abort")
_CATCH_ASSERTIONS = ("AssertionError", "Exception", "BaseException")


@dataclass
class Probe:
    """Counts of what ran.

    Attributes:
        made_by_program: tells if an exception is one that the program raised.
        guessing: True while answers are not known: statements that fail are skipped, and nothing is counted.
        ran: assertions that held.
        reached: assertions that stand in the functions that were entered.
        swallowed: an assertion that failed, and whose failure the tests caught themselves.
        entered: functions of the tests that ran.
    """

    made_by_program: Callable[[BaseException], bool]
    guessing: bool = False
    ran: int = 0
    reached: int = 0
    swallowed: BaseException | None = None
    entered: set[str] = field(default_factory=set)

    def held(self) -> None:
        """Count an assertion."""
        self.ran += not self.guessing

    def enter(self, name: str, assertions: int) -> None:
        """Note that a function with so many assertions began."""
        self.entered.add(name)
        self.reached += assertions

    def caught(self, must_raise: bool, asserts_itself: bool) -> None:
        """Judge the exception that the tests have just caught.

        Args:
            must_raise: the statement fails if nothing is raised, so a program's exception is what it asserts.
            asserts_itself: the handler asserts something in its turn.
        """
        error = sys.exc_info()[1]
        if self.guessing or error is None:
            return
        if self.made_by_program(error):
            self.ran += must_raise
        elif isinstance(error, AssertionError) and not asserts_itself:
            self.swallowed = self.swallowed or error

    def skipped(self) -> tuple[type[Exception], ...]:
        """Exceptions after which the tests go on."""
        return (Exception,) if self.guessing else ()


def instrument(source: str) -> ast.Module:
    """The tree of tests, with calls of a `Probe` under the name `PROBE` in it."""
    return ast.fix_missing_locations(_Instrument().visit(ast.parse(source)))


class _Instrument(ast.NodeTransformer):
    def __init__(self) -> None:
        self._assertions = [0]
        self.found = 0

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self._body(node, "")
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self._body(node, node.name)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        self._body(node, node.name)
        return node

    def _body(self, node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> None:
        self._assertions.append(0)
        self.generic_visit(node)
        assertions = self._assertions.pop()
        self.found += assertions
        enter = _call("enter", ast.Constant(name), ast.Constant(assertions))
        node.body.insert(_beginning(node.body), enter)

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        return self._wrapped(node, asserts=_truth(node.test) is None)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        return self._wrapped(node, asserts=_asserts(node.value))

    def visit_With(self, node: ast.With) -> ast.stmt:
        self.generic_visit(node)
        return self._wrapped(node, asserts=any(_named(item.context_expr) in _RAISING for item in node.items))

    def visit_If(self, node: ast.If) -> ast.stmt:
        fails = _fails(node.body[-1]) and _truth(node.test) is None
        self.generic_visit(node)
        return self._wrapped(node, asserts=fails)

    def visit_Try(self, node: ast.Try) -> ast.stmt:
        must_raise = any(map(_fails, [*node.body, *node.orelse]))
        self._assertions[-1] += must_raise
        for handler in node.handlers:
            asserts = any(_is_assertion(inner) for inner in ast.walk(ast.Module(handler.body, [])))
            if must_raise or _catches_assertions(handler.type):
                handler.body.insert(0, _call("caught", ast.Constant(must_raise), ast.Constant(asserts)))
        self.generic_visit(node)
        return self._wrapped(node)

    def _simple(self, node: ast.stmt) -> ast.stmt:
        self.generic_visit(node)
        return self._wrapped(node)

    visit_Assign = visit_AugAssign = visit_AnnAssign = visit_For = visit_While = visit_Delete = _simple

    def _wrapped(self, node: ast.stmt, asserts: bool = False) -> ast.stmt:
        self._assertions[-1] += asserts
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return node
        body = [node, _call("held")] if asserts else [node]
        skipped = _call("skipped").value
        return ast.copy_location(ast.Try(body, [ast.ExceptHandler(skipped, None, [ast.Pass()])], [], []), node)


def _call(method: str, *args: ast.expr) -> ast.Expr:
    return ast.Expr(ast.Call(ast.Attribute(ast.Name(PROBE, ast.Load()), method, ast.Load()), list(args), []))


def _beginning(body: list[ast.stmt]) -> int:
    """The place behind a docstring and imports of the future, which must come first."""
    place = int(bool(body) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant))
    while place < len(body) and isinstance(node := body[place], ast.ImportFrom) and node.module == "__future__":
        place += 1
    return place


def _named(node: ast.AST) -> str:
    """The last name of what a call calls."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _asserts(value: ast.expr) -> bool:
    """True for `self.assertEqual(f(1), 2)`, `assert_close(…)`, `pytest.raises(ValueError, f, 1)`."""
    name = _named(value)
    if not (name.lower().startswith("assert") or name == "raises") or not isinstance(value, ast.Call):
        return False
    given = [*value.args, *(keyword.value for keyword in value.keywords)]
    return any(_truth(one) is None for one in given[: 1 if name in ("assertTrue", "assertFalse", "assert_") else None])


def _is_assertion(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert | ast.Raise):
        return True
    return isinstance(node, ast.stmt) and (_fails(node) or (isinstance(node, ast.Expr) and _asserts(node.value)))


def _fails(node: ast.stmt) -> bool:
    """True for a statement that nothing survives: `assert False`, `raise …`, `self.fail()`, `sys.exit(1)`."""
    if isinstance(node, ast.Assert):
        return _truth(node.test) is False
    return isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and _named(node.value) in _FAILING)


def _catches_assertions(caught: ast.expr | None) -> bool:
    names: Iterable[ast.AST] = ast.walk(caught) if caught is not None else ()
    return caught is None or any(isinstance(node, ast.Name) and node.id in _CATCH_ASSERTIONS for node in names)


def _truth(node: ast.expr) -> bool | None:
    """The truth of an expression that no program can change; None if one might."""
    match node:
        case ast.Constant(value):
            return bool(value)
        case ast.Tuple(items) | ast.List(items) | ast.Set(items):
            return bool(items) if not any(isinstance(item, ast.Starred) for item in items) else None
        case ast.Dict(keys):
            return bool(keys) if None not in keys else None
        case ast.JoinedStr() | ast.Lambda():
            return True
        case ast.UnaryOp(ast.Not(), operand):
            truth = _truth(operand)
            return None if truth is None else not truth
        case ast.BoolOp(sign, values):
            truths = [_truth(value) for value in values]
            deciding = isinstance(sign, ast.Or)
            if deciding in truths:
                return deciding
            return None if None in truths else not deciding
        case ast.Compare() if not any(isinstance(part, ast.Name | ast.Call | ast.Attribute) for part in ast.walk(node)):
            return _folded(node)
    return None


def _folded(node: ast.expr) -> bool | None:
    """The value of a comparison of short literals."""
    plain = all(isinstance(part, ast.Constant | ast.Compare | ast.cmpop | ast.expr_context) for part in ast.walk(node))
    if not plain:
        return None
    try:
        value: Any = eval(compile(ast.fix_missing_locations(ast.Expression(node)), "<literals>", "eval"), {})
    except Exception:
        return None
    return bool(value)


def assertions(source: str) -> int:
    """The number of assertions in the source of tests that a program can fail."""
    reader = _Instrument()
    reader.visit(ast.parse(source))
    return reader.found
