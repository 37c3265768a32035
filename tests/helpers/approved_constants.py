"""Numbers that the lab's modules define by name: constants, and defaults of fields and of arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def constants() -> dict[str, str]:
    """Every number and every yes or no that has a name, by module; classes of an experiment are in `settings`."""
    from scalelab.experiment.lab import LAB

    told_elsewhere = {(cls.__module__, cls.__name__) for cls in LAB.classes.values()}
    found: dict[str, str] = {}
    for file in sorted((ROOT / "scalelab").rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        here = [f"{name}: {value}" for name, value in _named(ast.parse(file.read_text()), module, told_elsewhere)]
        if here:
            found[module] = "\n".join(here)
    return found


def _named(tree: ast.Module, module: str, told_elsewhere: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    yield from _assigned(tree.body, "")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (module, node.name) not in told_elsewhere:
            yield from _assigned(node.body, f"{node.name}.")
            yield from (pair for one in node.body for pair in _defaults(one, f"{node.name}."))
    yield from (pair for one in tree.body for pair in _defaults(one, ""))


def _assigned(body: list[ast.stmt], before: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _has_number(node.value):
            names = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield before + ", ".join(map(ast.unparse, names)), ast.unparse(node.value)


def _defaults(node: ast.stmt, before: str) -> Iterator[tuple[str, str]]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    by_place = [*node.args.posonlyargs, *node.args.args]
    pairs = [*zip(reversed(by_place), reversed(node.args.defaults)), *zip(node.args.kwonlyargs, node.args.kw_defaults)]
    for argument, default in pairs:
        if default is not None and _has_number(default):
            yield f"{before}{node.name}({argument.arg})", ast.unparse(default)


def _has_number(value: ast.expr) -> bool:
    """True if a number or a yes or no is in an expression that every version of Python writes alike."""
    parts = list(ast.walk(value))
    number = any(isinstance(one, ast.Constant) and isinstance(one.value, bool | int | float) for one in parts)
    return number and not any(isinstance(one, ast.JoinedStr) for one in parts)
