"""Counts of the product's structure: files, rooms, circles of imports, functions, words of the docs."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGES = ("scalelab", "moe", "tasks")
FACES = ("scalelab",)
"""Packages that hand on what others hold: `import scalelab` offers a notebook its functions."""

_MADE_BY_A_TOOL = re.compile(r"<!-- (?:made by|measured: (?:programs|answers)) .*?<!-- end", re.DOTALL)


def modules(root: Path) -> dict[str, Path]:
    """Files of the product by the names that imports have for them."""
    files = [file for package in PACKAGES for file in (root / package).rglob("*.py")]
    return {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def room(module: str) -> str:
    """The folder of a package that a module lies in, or a module at its top itself."""
    return ".".join(module.split(".")[:2])


def imports(files: dict[str, Path]) -> dict[str, set[str]]:
    """Modules that each module imports, at its top, inside of a function, or for its types alone."""
    found: dict[str, set[str]] = {module: set() for module in files if module not in FACES}
    for module in found:
        for node in ast.walk(ast.parse(files[module].read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                named = {f"{node.module}.{one.name}" for one in node.names}
                found[module] |= {name if name in files else node.module for name in named} & files.keys()
            elif isinstance(node, ast.Import):
                found[module] |= {one.name for one in node.names} & files.keys()
        found[module] -= {module, *FACES}
    return found


def between_rooms(imported: dict[str, set[str]]) -> dict[str, set[str]]:
    """Rooms that each room imports from."""
    rooms: dict[str, set[str]] = {}
    for module, others in imported.items():
        rooms.setdefault(room(module), set()).update({room(other) for other in others} - {room(module)})
    return rooms


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A way through the graph that ends where it began; empty if there is none."""
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def functions(files: dict[str, Path]) -> dict[str, int]:
    """Lines of each function and method, from its `def` to its last, by where it stands."""
    found: dict[str, int] = {}
    for module, file in files.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                found[f"{module}.{node.name}, line {node.lineno}"] = node.end_lineno - node.lineno + 1
    return found


def words_of_docs(root: Path) -> int:
    """Words of all pages, without the sections that tools make."""
    pages = (page.read_text(encoding="utf-8") for page in root.glob("docs/**/*.md"))
    return sum(len(_MADE_BY_A_TOOL.sub("", page).split()) for page in pages)
