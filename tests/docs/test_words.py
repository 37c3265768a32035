"""One name, one thing: no public class name stands for two (docs/words.md)."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHARED = {
    "Trainer": "the port of the loop, and the trainer in moe that two worlds put behind it",
    "Journal": "the port of the loop, and what writes the lines",
}
"""Names that stand for two classes, and why."""


def test_no_public_class_name_stands_for_two_things() -> None:
    defined: defaultdict[str, list[str]] = defaultdict(list)
    for package in ("scalelab", "moe", "tasks", "tools"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined[node.name].append(str(file.relative_to(ROOT)))
    doubled = {name: files for name, files in defined.items() if len(files) > 1}
    assert doubled.keys() - SHARED.keys() == set(), {name: doubled[name] for name in doubled.keys() - SHARED.keys()}
    assert SHARED.keys() <= doubled.keys(), "a name of the list is defined once: take it out"
