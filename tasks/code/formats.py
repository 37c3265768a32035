"""Rows of published code data sets → tests, in the form that `tasks.code.tests` reads.

Asserts become calls where they say no more than that; else they stay asserts, which cost a few runs more.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from tasks.code.convert import convert_asserts
from tasks.errors import TaskError

# What LeetCode's own judge offers beyond the standard library, and references use.
LEETCODE_PACKAGES = ("sortedcontainers", "numpy")

# Programs for these sets use what LeetCode and rllm import before them.
_IMPORTS = "\n".join(
    [
        *(
            f"from {module} import *"
            for module in ("typing", "functools", "collections", "itertools", "heapq", "bisect")
        ),
        "import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys",
    ]
)
_REFERENCES = ("reference", "solution", "solutions", "canonical_solution", "completion", "code")

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
    if "tests" in row:
        return _pairs(row["tests"]["inputs"], row["tests"]["outputs"])
    kinds = [row.get(name) or {} for name in ("public_tests", "private_tests", "generated_tests")]
    inputs, outputs = ([one for kind in kinds for one in kind.get(name) or ()] for name in ("input", "output"))
    return _pairs(inputs, outputs)


def any_tests(tests: Any, row: Row) -> dict[str, Any]:
    """Tests as data sets write them.

    Those of this lab (an object with a `kind`); inputs and outputs of programs, or of a function `fn_name` (APPS,
    TACO); a list of `{"input", "output"}` with a type (DeepCoder, LiveCodeBench); `{"functional": source}` (rllm's
    LeetCode); a list of asserts (MBPP); or source (KodCode, HumanEval).

    Args:
        tests: the column's content, or JSON of it.
        row: the row, for names that some sets keep in other columns.

    Raises:
        TaskError: none of these; the message says what it is.
    """
    value = _loaded(tests)
    name = _function_name(row)
    if isinstance(value, Mapping):
        if "kind" in value:
            return dict(value)
        if isinstance(value.get("functional"), str):
            return _tests(value["functional"], name, _IMPORTS)
        if "inputs" in value and "outputs" in value:
            name = value.get("fn_name") or name
            inputs, outputs = _loaded(value["inputs"]), _loaded(value["outputs"])
            return _calls(name, inputs, outputs, row) if name else _pairs(inputs, outputs)
    if isinstance(value, list) and value and all(isinstance(test, str) for test in value):
        return _tests("\n".join(value), "", "", row.get("test_setup_code") or "")
    if isinstance(value, list) and value and all(isinstance(test, Mapping) for test in value):
        return _listed(value, name, row)
    if isinstance(value, str) and value.strip():
        return _tests(value, str(row.get("entry_point") or ""), "")
    raise TaskError(f"its tests are of no known form ({str(tests)[:60]})")


def _listed(tests: list[Row], name: str, row: Row) -> dict[str, Any]:
    """A list of tests, each with its input, output and perhaps type."""
    missing = [key for key in ("input", "output") if any(key not in test for test in tests)]
    if missing:
        raise TaskError(f"its tests lack {missing[0]!r}")
    names = {str(test.get("fn_name") or "") for test in tests} - {""}
    name = names.pop() if len(names) == 1 else name
    inputs, outputs = ([test[key] for test in tests] for key in ("input", "output"))
    if {str(test.get("type", test.get("testtype", "stdin"))) for test in tests} <= {"stdin", "stdin_stdout"}:
        return _pairs(inputs, outputs)
    if not name:
        raise TaskError("its tests call a function and do not name it")
    return _calls(name, inputs, outputs, row)


def _pairs(inputs: Any, outputs: Any) -> dict[str, Any]:
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs or len(inputs) != len(outputs):
        counts = [len(one) if isinstance(one, list) else 0 for one in (inputs, outputs)]
        raise TaskError(f"a problem with {counts[0]} inputs and {counts[1]} outputs has no tests: drop it")
    cases = [{"stdin": _text(stdin), "stdout": _text(stdout)} for stdin, stdout in zip(inputs, outputs)]
    return {"kind": "stdin", "cases": cases}


def _calls(name: str, inputs: Any, outputs: Any, row: Row) -> dict[str, Any]:
    """Calls of a function, or of a method of `Solution`; APPS wraps some results in a list, and takes either."""
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs or len(inputs) != len(outputs):
        raise TaskError("its inputs and outputs are not as many, or none: drop it")
    cases = []
    for given, expected in zip(inputs, outputs):
        case: dict[str, Any] = {"args": given, "expected": expected}
        if isinstance(given, str):  # LiveCodeBench: each argument and the result as JSON
            try:
                case = {"args": [json.loads(line) for line in given.splitlines() if line.strip()]}
                case["expected"] = json.loads(expected) if isinstance(expected, str) else expected
            except (ValueError, RecursionError) as error:
                raise TaskError(f"its inputs or outputs are no JSON ({error})") from None
        elif isinstance(expected, list) and len(expected) == 1:
            case["or"] = expected[0]
        cases.append(case)
    entry_point = f"Solution().{name}" if "class Solution" in str(row.get("starter_code")) else name
    return {"kind": "call", "entry_point": entry_point, "cases": cases, "prelude": _IMPORTS}


def _function_name(row: Row) -> str:
    """The function that tests call, where a data set says it beside them."""
    metadata = _loaded(row.get("metadata") or {})
    info = _loaded(row.get("test_info") or {})
    for place in (row, metadata, info[0] if isinstance(info, list) and info else info):
        if isinstance(place, Mapping):
            for key in ("fn_name", "func_name", "function_name", "entry_point"):
                if isinstance(place.get(key), str) and place[key]:
                    return str(place[key])
    return ""


def reference_of(row: Row) -> str:
    """The first Python program that a row says is right; empty if there is none."""
    value = _loaded(next((row[name] for name in _REFERENCES if row.get(name)), ""))
    if isinstance(value, Mapping):  # CodeContests: 3 is Python 3
        pairs = zip(value.get("language") or (), value.get("solution") or ())
        value = [code for language, code in pairs if language in (3, "PYTHON3")]
    value = value[0] if isinstance(value, list) and value else value
    return value if isinstance(value, str) else ""


def _loaded(value: Any) -> Any:
    """JSON in a string; anything else as it is."""
    if isinstance(value, str) and (value.lstrip()[:1] in ("{", "[", '"') or value in ("true", "false", "null")):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _tests(source: str, entry_point: str, prelude: str, setup: str = "") -> dict[str, Any]:
    converted = convert_asserts(source, entry_point, prelude, setup)
    if converted is not None:
        return converted
    return {"kind": "asserts", "code": source, "entry_point": entry_point, "prelude": prelude, "setup": setup}
