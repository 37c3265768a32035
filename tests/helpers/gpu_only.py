"""Finds in the source what the product does only where there is a GPU: calls, branches and imports, by function."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("scalelab", "moe")
LEFT_OUT = (
    *("moe/cpu", "scalelab/rehearse", "scalelab/rollout/on_cpu.py"),  # stand-ins, which a GPU does without
    *("scalelab/plan", "scalelab/commands", "scalelab/run", "scalelab/store"),  # sums and settings, alike everywhere
)
"""Folders and files whose code for GPUs is the same code without one."""
MODULES = ("nccl", "transformer_engine", "flash_attn", "flashinfer", "pynvml", "triton", "cuda", "worker.gpu")
"""Parts of the names of modules that GPU builds alone have, or whose code runs on GPUs alone."""
KINDS = ("cuda", "gpu", "cpu", "nccl", "files")
"""Strings by which code asks for the kind of device, or for the way of new weights that needs several."""
ATTRIBUTES = ("cuda", "is_cuda", "is_cpu", "pin_memory")
CALLS = ("torch.cuda", "torch.accelerator")


def gpu_only(root: Path = ROOT) -> dict[str, frozenset[str]]:
    """Marks of GPUs in each function: `path::function` → what it says there."""
    found: dict[str, set[str]] = defaultdict(set)
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            if not path.startswith(LEFT_OUT):
                for place, mark in _marks(ast.parse(file.read_text(encoding="utf-8")), path + "::"):
                    found[place.rstrip(":").rstrip(".")].add(mark)
    return {place: frozenset(marks) for place, marks in found.items()}


def _marks(node: ast.AST, place: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        inner = place
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{place}{child.name}."
        yield from ((place, mark) for mark in _mark(child))
        # of `torch.cuda.init` only the whole is a mark
        if not (isinstance(child, ast.Attribute) and _chain(child).startswith(CALLS)):
            yield from _marks(child, inner)


def _mark(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute):
        if (chain := _chain(node)).startswith(CALLS):
            yield chain
        elif node.attr in ATTRIBUTES:
            yield f".{node.attr}"
    elif isinstance(node, ast.Compare):
        sides = [side for one in (node.left, *node.comparators) for side in getattr(one, "elts", [one])]
        yield from (f"== {one.value}" for one in sides if isinstance(one, ast.Constant) and one.value in KINDS)
    elif isinstance(node, ast.Call | ast.IfExp):
        own = (
            [node.body, node.orelse] if isinstance(node, ast.IfExp) else [*node.args, *(k.value for k in node.keywords)]
        )
        yield from ("nccl" for one in own if isinstance(one, ast.Constant) and one.value == "nccl")
    elif isinstance(node, ast.Import | ast.ImportFrom):
        base = (getattr(node, "module", None) or "") + "."
        for name in (base.lstrip(".") + alias.name for alias in node.names):
            if any(part in name for part in MODULES):
                yield f"import {name}"


def _chain(node: ast.expr) -> str:
    """`torch.cuda.init` of that expression; empty for what is not only names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{base}.{node.attr}" if (base := _chain(node.value)) else ""
    return ""
