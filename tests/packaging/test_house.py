"""The table of the product's structure counts what it says."""

from __future__ import annotations

from pathlib import Path

import house
import pytest

RING = {"a": {"b"}, "b": {"c"}, "c": {"a"}}


@pytest.mark.parametrize(
    ("graph", "groups", "back"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, 0, 0),
        (RING, 1, 1),
        ({**RING, "d": {"a", "e"}, "e": {"d"}}, 2, 2),
        ({"a": {"b", "c"}, "b": {"a", "c"}, "c": {"a", "b"}}, 1, 3),
    ],
)
def test_arrows_back_are_the_fewest_without_which_no_circle_is_left(
    graph: dict[str, set[str]], groups: int, back: int
) -> None:
    assert len(house.circles(graph)) == groups
    assert house.arrows_back(graph) == back


def test_a_tree_is_counted(tmp_path: Path) -> None:
    (tmp_path / "scalelab/run").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("three words here\n<!-- made by a tool -->\nnot these\n<!-- end -->\n")
    for name in ("ports", "work", "books"):
        (tmp_path / f"scalelab/run/{name}.py").write_text("from typing import Any\n\nx: Any = 1\n")
    (tmp_path / "scalelab/run/work.py").write_text("import scalelab.run.books\n\ndef f():\n    return 1\n")
    rows = house.figures(tmp_path)
    assert (rows["files"], rows["lines"], rows["rooms (folders with modules)"]) == ("3", "10", "1")
    assert (rows["circles of imports"], rows["longest function, lines"], rows["longest file, lines"]) == ("0", "2", "4")
    assert rows["`Any` in ports, work and books"] == "2"
    assert rows["words of the docs"] == "4", "three, and what is left of the marker"
