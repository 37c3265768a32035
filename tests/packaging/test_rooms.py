"""The rooms of the product: imports run one way, and no folder outgrows the house."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.rooms import PACKAGES, between_rooms, circle, functions, imports, modules

ROOT = Path(__file__).parents[2]
LARGEST = 0.12
"""Largest part of the product's lines in one folder."""
LONGEST = 430
"""Lines of the longest file."""
LONGEST_FUNCTION = 60
"""Lines of the longest function, from its `def` to its last, with the docstring."""


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


def test_no_function_is_longer_than_a_screen() -> None:
    longer = {name: lines for name, lines in functions(modules(ROOT)).items() if lines > LONGEST_FUNCTION}
    assert longer == {}, "split it by what its parts do"


def test_a_function_is_counted_from_its_def_to_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "moe").mkdir()
    (tmp_path / "moe" / "a.py").write_text('@b\ndef f():\n    """D."""\n    async def g():\n        pass\n')
    assert functions(modules(tmp_path)) == {"moe.a.f, line 2": 4, "moe.a.g, line 4": 2}


@pytest.mark.parametrize("line", ["from moe.b import f", "def g():\n    import moe.b", "from moe import b"])
def test_a_circle_is_found_wherever_the_import_stands(tmp_path: Path, line: str) -> None:
    (tmp_path / "moe").mkdir()
    (tmp_path / "moe" / "a.py").write_text(line)
    (tmp_path / "moe" / "b.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import moe.a\n")
    assert set(circle(imports(modules(tmp_path)))) == {"moe.a", "moe.b"}
    (tmp_path / "moe" / "b.py").write_text("")
    assert circle(imports(modules(tmp_path))) == []
