"""The rooms of the product: imports run one way, and no folder outgrows the house."""

from __future__ import annotations

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("scalelab", "moe", "tasks")
FACES = ("scalelab",)
"""Packages that hand on what others hold: `import scalelab` offers a notebook its functions."""
LARGEST = 0.12
"""Largest part of the product's lines in one folder."""
LONGEST = 430
"""Lines of the longest file."""
LONGEST_FUNCTION = 60
"""Lines of the longest function, from its `def` to its last, with the docstring."""


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


def test_no_file_imports_itself_through_others() -> None:
    assert circle(imports(modules(ROOT))) == []


def test_no_arrow_between_rooms_runs_back_up() -> None:
    assert circle(between_rooms(imports(modules(ROOT)))) == [], "rooms that import each other have no order"


def test_no_folder_holds_more_than_its_part_of_the_product() -> None:
    lines: Counter[Path] = Counter()
    for file in modules(ROOT).values():
        lines[file.parent] += file.read_text(encoding="utf-8").count("\n")
    folder, most = lines.most_common(1)[0]
    assert most <= LARGEST * lines.total(), f"{folder} has {most} of {lines.total()} lines: open it into rooms"


def test_no_file_is_longer_than_a_reader_holds_in_mind() -> None:
    files = [file for package in (*PACKAGES, "tools", "experiments") for file in (ROOT / package).rglob("*.py")]
    sizes = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8").count("\n") for file in files}
    assert {file: size for file, size in sizes.items() if size > LONGEST} == {}, "split it by what its parts are about"


def long_functions(files: dict[str, Path], most: int) -> dict[str, int]:
    """Lines of the functions and methods that have more than so many."""
    found: dict[str, int] = {}
    for module, file in files.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                found[f"{module}.{node.name}, line {node.lineno}"] = node.end_lineno - node.lineno + 1
    return {name: lines for name, lines in found.items() if lines > most}


def test_no_function_is_longer_than_a_screen() -> None:
    assert long_functions(modules(ROOT), LONGEST_FUNCTION) == {}, "split it by what its parts do"


def test_a_function_is_counted_from_its_def_to_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "moe").mkdir()
    (tmp_path / "moe" / "a.py").write_text('@b\ndef f():\n    """D."""\n    async def g():\n        pass\n')
    assert long_functions(modules(tmp_path), 3) == {"moe.a.f, line 2": 4}
    assert long_functions(modules(tmp_path), 4) == {}


@pytest.mark.parametrize("line", ["from moe.b import f", "def g():\n    import moe.b", "from moe import b"])
def test_a_circle_is_found_wherever_the_import_stands(tmp_path: Path, line: str) -> None:
    (tmp_path / "moe").mkdir()
    (tmp_path / "moe" / "a.py").write_text(line)
    (tmp_path / "moe" / "b.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import moe.a\n")
    assert set(circle(imports(modules(tmp_path)))) == {"moe.a", "moe.b"}
    (tmp_path / "moe" / "b.py").write_text("")
    assert circle(imports(modules(tmp_path))) == []
