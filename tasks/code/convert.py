"""Turn asserts about a function into calls of it, so that the right answers can stay outside the sandbox.

`assert f(2) == 3` says the same as the call `f(2)` and the value 3; asserts are converted all or not at all.
"""

from __future__ import annotations

import ast
import builtins
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tasks.code.parsing import parse_python
from tasks.code.returned import THROUGH
from tasks.sandbox.values import encode

# What may stand on the other side of `==`: computed here, once, from literals only, and never large.
_LARGEST = 100_000
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_PURE = (abs, bool, complex, dict, float, frozenset, int, len, list, max, min, round, set, sorted, str, sum, tuple)
_FUNCTIONS: dict[str, Callable[..., Any]] = {function.__name__: function for function in _PURE}
_DISTANCES = ("abs", "math.fabs")
_CLOSE = ("isclose", "math.isclose")


class _NotConvertibleError(Exception):
    """An assert that is not of the form: a call has a value."""


def convert_asserts(source: str, entry_point: str = "", prelude: str = "", setup: str = "") -> dict[str, Any] | None:
    """Turn asserts into equal tests of kind `call`; None if an assert has no such form.

    Args:
        source: asserts at the top level (MBPP), in `def check(candidate)` (HumanEval, LeetCode), or in functions
            named `test…` (KodCode).
        entry_point: what `candidate` stands for; without it, the function that the asserts call.
        prelude: source that runs before the program and that arguments may refer to (`tree_node([1, 2])`).
        setup: source that runs after the program and that arguments may refer to.

    Returns:
        Tests as `tasks.code.tests.parse_tests` reads them. They are a little stricter than `==` (a bool is no int) and
        a little laxer (floats agree within a tolerance).
    """
    try:
        tree = parse_python(source)
        callee, checked, tests = _asserts(tree)
        bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        if not tests:
            return None
        if callee:
            entry_point = entry_point or checked
        else:
            callee = _only_callee(tests)
            if callee in _defined(prelude) or entry_point not in ("", callee):
                return None  # a helper of the tests compares what the function returns
            entry_point = callee
        cases = [_case(test, callee, bound) for test in tests]
        if not entry_point:
            return None  # nothing says what is checked
    except (SyntaxError, _NotConvertibleError, RecursionError):
        return None
    converted = {"kind": "call", "entry_point": entry_point, "cases": cases, "from_asserts": True}
    return converted | {name: source for name, source in (("prelude", prelude), ("setup", setup)) if source}


def _defined(source: str) -> set[str]:
    return {node.name for node in parse_python(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def _asserts(tree: ast.Module) -> tuple[str, str, list[ast.expr]]:
    """The name by which the function goes (empty: its own), what is handed to `check`, and what is asserted."""
    checks = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if not checks:
        return "", "", [test for body in _bodies(tree) for test in _conditions(body)]
    if len(checks) > 1 or len(checks[0].args.args) != 1:
        raise _NotConvertibleError
    outside = [node for node in tree.body if node is not checks[0]]
    if list(_conditions(outside)):
        raise _NotConvertibleError
    checked = {name for node in outside if (name := _checked(node))}
    if len(checked) > 1:
        raise _NotConvertibleError
    return checks[0].args.args[0].arg, "".join(checked), list(_conditions(checks[0].body))


def _bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Statements of the module, and those of each test function without parameters."""
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    plain = [node for node in tests if not (node.decorator_list or ast.unparse(node.args))]
    yield [node for node in tree.body if node not in plain]
    for node in plain:
        yield node.body


def _checked(node: ast.stmt) -> str:
    """The function in `check(f)` or `check(Solution().f)`; empty for another statement."""
    match node:
        case ast.Expr(ast.Call(ast.Name("check"), [ast.Name() | ast.Attribute() as function], [])):
            return "" if ast.unparse(function) == "candidate" else ast.unparse(function)
    return ""


def _conditions(statements: list[ast.stmt]) -> Iterator[ast.expr]:
    """Conditions that a list of asserts states; statements without effect on it are skipped, others refused."""
    for node in statements:
        if isinstance(node, ast.Assert):
            if not (isinstance(node.test, ast.Constant) and node.test.value is True):
                yield node.test
        elif not _harmless(node):
            raise _NotConvertibleError


def _harmless(node: ast.stmt) -> bool:
    """Docstrings, `METADATA = {…}`, imports, and the call `check(f)` that starts the asserts."""
    if isinstance(node, (ast.Pass, ast.Import, ast.ImportFrom)):
        # Under another name, the function that asserts call is not the one that the program defines.
        return isinstance(node, ast.Pass) or all(alias.asname is None or _standard(node) for alias in node.names)
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) and target.id.isupper() for target in node.targets)
    if isinstance(node, ast.Expr):
        value = node.value
        started = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "check"
        return started or isinstance(value, (ast.Constant, ast.Name))
    return False


def _standard(node: ast.Import | ast.ImportFrom) -> bool:
    module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
    return (module or "").partition(".")[0] in (*sys.stdlib_module_names, "numpy")


def _only_callee(tests: list[ast.expr]) -> str:
    """The one function that every assert calls outermost, apart from builtins of ours."""
    names = {_outermost(test) for test in tests}
    if len(names) != 1:
        raise _NotConvertibleError
    return names.pop()


def _outermost(test: ast.expr) -> str:
    calls = [node.func.id for node in ast.walk(test) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    if not calls:
        raise _NotConvertibleError
    # Breadth first. Where all are named like builtins, the program has redefined one (MBPP's `sum(10, 15) == 6`).
    return next((name for name in calls if not hasattr(builtins, name)), calls[0])


def _case(test: ast.expr, callee: str, bound: set[str]) -> dict[str, Any]:
    """One assert's condition as a case."""
    match test:
        case ast.Compare(left, [ast.Eq() | ast.Is()], [right]):
            if not _calls(left, callee):
                left, right = right, left
            return _call(left, callee, bound) | {"expected": encode(_fold(right))}
        case ast.UnaryOp(ast.Not(), ast.Call() as call):
            return _call(call, callee, bound) | {"expected": False, "through": "bool"}
        case ast.Compare(ast.Call(function, [ast.BinOp(left, ast.Sub(), right)]), [ast.Lt() | ast.LtE()], [bound_of]):
            # abs(f(x) - 0.5) < 1e-6
            if ast.unparse(function) not in _DISTANCES:
                raise _NotConvertibleError
            if not _calls(left, callee):
                left, right = right, left
            return _call(left, callee, bound) | {
                "expected": encode(_number(right)),
                "within": _number(bound_of),
            }
        case ast.Call(function, [left, right], keywords) if ast.unparse(function) in _CLOSE:
            given = {str(keyword.arg): _number(keyword.value) for keyword in keywords}
            return _call(left, callee, bound) | {
                "expected": encode(_number(right)),
                "tolerance": given.get("rel_tol", 1e-9),
                "within": given.get("abs_tol", 0.0),
            }
        case ast.Call(ast.Name(name)) if name == callee:
            return _call(test, callee, bound) | {"expected": True, "through": "bool"}
    raise _NotConvertibleError


def _call(node: ast.expr, callee: str, bound: set[str]) -> dict[str, Any]:
    """`f(…)` or `tuple(f(…))` as a case without its expected value."""
    match node:
        case ast.Call(ast.Name(name), args, keywords) if name == callee:
            if any(isinstance(arg, ast.Starred) for arg in args) or any(key.arg is None for key in keywords):
                raise _NotConvertibleError
            case: dict[str, Any] = {"args": [_argument(arg, callee, bound) for arg in args]}
            if keywords:
                case["kwargs"] = {str(key.arg): _argument(key.value, callee, bound) for key in keywords}
            return case
        case ast.Call(ast.Name(name), [inner], []) if name in THROUGH:
            case = _call(inner, callee, bound)
            if "through" not in case:
                return case | {"through": name}
    raise _NotConvertibleError


def _argument(node: ast.expr, callee: str, bound: set[str]) -> Any:
    """A value, or an expression for the sandbox to evaluate beside the program."""
    try:
        return encode(_fold(node))
    except _NotConvertibleError:
        names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        if names & (bound | {callee}):
            raise
        return {"$expr": ast.unparse(node)}


def _calls(node: ast.expr, callee: str) -> bool:
    return any(isinstance(name, ast.Name) and name.id == callee for name in ast.walk(node))


def _number(node: ast.expr) -> float:
    value = _fold(node)
    if not isinstance(value, (int, float)):
        raise _NotConvertibleError
    return float(value)


def _fold(node: ast.expr) -> Any:
    """The value of an expression made of literals, with small results only."""
    try:
        value = _folded(node)
    except (TypeError, ValueError, ArithmeticError, MemoryError):
        raise _NotConvertibleError from None
    return value


def _folded(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value) if value is not Ellipsis:
            return value
        case ast.List(items):
            return [_folded(item) for item in items]
        case ast.Tuple(items):
            return tuple(_folded(item) for item in items)
        case ast.Set(items):
            return {_folded(item) for item in items}
        case ast.Dict(keys, values) if None not in keys:
            return {_folded(key): _folded(value) for key, value in zip(keys, values) if key is not None}
        case ast.UnaryOp(sign, operand) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_folded(operand))
        case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
            return _small(sign, _folded(left), _folded(right))
        case ast.Call(ast.Name(name), args, []) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*map(_folded, args))
    raise _NotConvertibleError


def _small(sign: ast.operator, left: Any, right: Any) -> Any:
    """A binary operation whose result cannot be huge."""
    numbers = isinstance(left, (int, float, complex)) and isinstance(right, (int, float, complex))
    if isinstance(sign, ast.Pow) and not (numbers and abs(left) <= _LARGEST and abs(right) <= 64):
        raise _NotConvertibleError
    if isinstance(sign, ast.Mult) and not numbers:
        size = len(left) * right if isinstance(right, int) else len(right) * left
        if size > _LARGEST:
            raise _NotConvertibleError
    return _OPERATORS[type(sign)](left, right)
