"""Rows of published code data sets → tests, in the form that `tasks.code.tests` reads.

Asserts become calls where they say no more than that; else they stay asserts, which cost a few runs more.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from tasks.code.convert import convert_asserts
from tasks.errors import TaskError

# What LeetCode's own judge offers beyond the standard library, and references use.
LEETCODE_PACKAGES = ("sortedcontainers", "numpy")

Row = Mapping[str, Any]


def humaneval_tests(row: Row) -> dict[str, Any]:
    """HumanEval: what the prompt defines beside the function (imports, helpers) comes before the program."""
    tree = ast.parse(row["prompt"] + "\n    pass\n")
    others = [node for node in tree.body if getattr(node, "name", None) != row["entry_point"]]
    return _tests(row["test"], row["entry_point"], "\n".join(map(ast.unparse, others)))


def leetcode_tests(row: Row) -> dict[str, Any]:
    """LeetCodeDataset: the prompt is a page of imports and helpers (`ListNode`, `tree_node`)."""
    return _tests(row["test"], row["entry_point"], row["prompt"])


def mbpp_tests(row: Row) -> dict[str, Any]:
    """MBPP, full and sanitized: a list of asserts that call the function by its name."""
    # The set-up builds values of classes that the program defines; imports must be there before it.
    setup = row.get("test_setup_code") or ""
    return _tests("\n".join(row["test_list"]), "", "\n".join(row.get("test_imports") or ()), setup)


def code_contests_tests(row: Row) -> dict[str, Any]:
    """CodeContests and its like: a whole program, inputs and outputs.

    Raises:
        TaskError: as many inputs as outputs, and at least one, are needed.
    """
    inputs, outputs = row["tests"]["inputs"], row["tests"]["outputs"]
    if not inputs or len(inputs) != len(outputs):
        raise TaskError(f"a problem with {len(inputs)} inputs and {len(outputs)} outputs has no tests: drop it")
    cases = [{"stdin": stdin, "stdout": stdout} for stdin, stdout in zip(inputs, outputs)]
    return {"kind": "stdin", "cases": cases}


def _tests(source: str, entry_point: str, prelude: str, setup: str = "") -> dict[str, Any]:
    converted = convert_asserts(source, entry_point, prelude, setup)
    if converted is not None:
        return converted
    return {"kind": "asserts", "code": source, "entry_point": entry_point, "prelude": prelude, "setup": setup}
