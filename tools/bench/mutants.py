"""Programs that are almost right: a way to measure how much a set of tests can tell."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator

_BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}


_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}


def mutants(source: str, count: int, seed: float = 0, operators: bool = False) -> list[str]:
    """Up to `count` different programs, each with one mistake: a number off by one, a boundary moved, a constant wrong.

    Decorators stay as they are: a dataclass that is not frozen works alike.

    Args:
        source: the program.
        count: how many.
        seed: of the choice of places.
        operators: also exchange plus and minus, times and divided by, and and or.

    Raises:
        SyntaxError: the source is no Python.
    """
    tree = ast.parse(source)
    places = list(_places(tree, operators))
    random.Random(seed).shuffle(places)
    return [_mutated(tree, number, change) for number, change in places[:count]]


def _mutated(tree: ast.Module, number: int, change: Callable[[ast.AST], None]) -> str:
    changed = copy.deepcopy(tree)
    change(list(ast.walk(changed))[number])
    return ast.unparse(changed)


def _places(tree: ast.Module, operators: bool) -> Iterator[tuple[int, Callable[[ast.AST], None]]]:
    """The position in `ast.walk` of every node that can be changed, with how."""
    decorators = [one for node in ast.walk(tree) for one in getattr(node, "decorator_list", ())]
    left_alone = {id(part) for one in decorators for part in ast.walk(one)}
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in left_alone:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            yield number, _off_by_one
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in _BOUNDARIES:
            yield number, _move_boundary
        elif operators and isinstance(node, ast.BoolOp):
            yield number, _exchange_and_or
        elif operators and isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            yield number, _exchange_operator


def _off_by_one(node: ast.AST) -> None:
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, (bool, int, float))
    node.value = not node.value if isinstance(node.value, bool) else node.value + 1


def _move_boundary(node: ast.AST) -> None:
    assert isinstance(node, ast.Compare)
    node.ops[0] = _BOUNDARIES[type(node.ops[0])]()


def _exchange_and_or(node: ast.AST) -> None:
    assert isinstance(node, ast.BoolOp)
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def _exchange_operator(node: ast.AST) -> None:
    assert isinstance(node, ast.BinOp)
    node.op = _OPERATORS[type(node.op)]()
