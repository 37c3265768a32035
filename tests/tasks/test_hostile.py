"""Any text of a model gets a verdict within its bound, and every verdict can be written down."""

# ruff: noqa: E501 - fragments on one line

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tasks.code.verifier import CodeVerifier
from tasks.math.verifier import MathVerifier
from tasks.sandbox.job import Limits
from tasks.types import OUTCOMES, Prompt, Verdict

pytestmark = pytest.mark.slow
# On a crowded machine; what is held is that there is a bound, and that it does not grow with the text.
SECONDS_EACH = 20.0

ANYTHING = st.text(st.characters(codec=None, categories=None), max_size=60)
MATH = st.sampled_from(
    [
        *(
            r"\boxed{",
            r"\frac{",
            r"\sqrt[",
            r"\begin{pmatrix}",
            r"\end{pmatrix}",
            r"\left(",
            r"\text{",
            r"\sum_{i=1}^{",
            "}",
        ),
        *(
            "^{",
            "_",
            "(",
            ")",
            "[",
            "]",
            "{",
            ",",
            ";",
            "=",
            "<",
            "&",
            "\\\\",
            "\\",
            "$",
            "$$",
            "%",
            "°",
            "!",
            "|",
            "'",
        ),
        *(
            "9" * 400,
            "9^9^9^9",
            "1e999999",
            "0.1",
            "-",
            "+",
            "x",
            "\\pi",
            "∞",
            "½",
            "٣",
            "the answer is",
            "10!!!!",
            "1/0",
        ),
        *("</think>", "<answer>", "</answer>", "\ud800", "\x00", "\u202e", "\n", "lambda", "__import__('os')"),
    ]
)
CODE = st.sampled_from(
    [
        *("```python\n", "```cpp\n", "```", "~~~", "\n", "    ", "\t", "def f(x):", "return ", "class A:", "lambda: ", "f"),
        *("x", "(", ")", "[", "]", "{", "}", ":", "=", "*", "**", "'", '"', '"""', "#", "\\", "@", "9" * 200, "1" + "0" * 50),
        *("while 1: ", "yield ", "raise ", "import os", "os._exit(0)", "print(", "input()", "exec(", "\ud800", "\x00", "\u2028"),
        *("</think>", "<think>", "print(open(0).read())", "f = lambda *a: f", "import sys; sys.setrecursionlimit(10**9)"),
    ]
)  # fmt: skip


def texts(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Fragments put together, some of them many times over."""
    repeated = st.tuples(parts, st.sampled_from([1, 1, 1, 3, 2000])).map(lambda pair: pair[0] * pair[1])
    return st.lists(repeated | ANYTHING, max_size=8).map("".join)


@pytest.fixture(scope="module")
def math() -> Iterator[MathVerifier]:
    made = MathVerifier(workers=1, deadline=1.0, memory_mb=1024)
    yield made
    made.close()


@pytest.fixture(scope="module")
def code() -> Iterator[CodeVerifier]:
    made = CodeVerifier(1, Limits(seconds=0.5, memory_mb=256, output_mb=0.5), total_seconds=1.0, group_seconds=1e6)
    yield made
    made.close()


def check(verifier: MathVerifier | CodeVerifier, items: list[tuple[Prompt, str]]) -> list[Verdict]:
    """Grade, and hold what holds for every verdict."""
    start = time.monotonic()
    verdicts = verifier.verify(items)
    assert time.monotonic() - start < SECONDS_EACH * len(items) + 60
    assert len(verdicts) == len(items)
    for verdict in verdicts:
        assert verdict.outcome in OUTCOMES
        assert "the verifier failed" not in verdict.detail
        assert "\n" not in verdict.detail or len(verdict.detail) < 400
    rows = [asdict(verdict) | {"parts": json.dumps(verdict.parts)} for verdict in verdicts]
    for row in rows:
        json.loads(json.dumps(row, ensure_ascii=False, allow_nan=False).encode())
    written = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), written)
    assert pq.read_table(written).to_pylist() == rows
    return verdicts


HOSTILE = settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@HOSTILE
@given(st.lists(st.tuples(texts(MATH), texts(MATH), st.booleans()), min_size=1, max_size=6))
@example([("1", r"\boxed{" * 3000 + "1" + "}" * 3000, True), ("\ud800", "\ud800", True), ("1", "{" * 100_000, False)])
@example([("2", r"\frac{1}{" * 300, True), ("(1,2)", "(" * 500 + "1,2" + ")" * 500, True)])
def test_any_answer_to_a_math_problem_gets_a_verdict(math: MathVerifier, items: list[tuple[str, str, bool]]) -> None:
    check(
        math,
        [
            (Prompt("math/0", "math", "", gold), f"</think>\\boxed{{{answer}}}" if boxed else f"</think>{answer}")
            for gold, answer, boxed in items
        ],
    )


GOLDS = (
    {"kind": "call", "entry_point": "f", "cases": [{"args": [2], "expected": 4}]},
    {"kind": "stdin", "cases": [{"stdin": "2\n", "stdout": "4\n"}], "checker": "any_order"},
    {"kind": "asserts", "code": "for x in (1, 2): assert f(x) == 2 * x"},
)


@HOSTILE
@given(st.lists(st.tuples(st.sampled_from(GOLDS), texts(CODE)), min_size=1, max_size=6))
@example(
    [(GOLDS[0], "def f(x): return 2 * x"), (GOLDS[1], "print(2 * int(input()))"), (GOLDS[2], "def f(x): return 2*x")]
)
def test_any_program_gets_a_verdict(code: CodeVerifier, items: list[tuple[dict[str, Any], str]]) -> None:
    verdicts = check(code, [(Prompt("code/0", "code", "", gold), f"</think>{text}") for gold, text in items])
    assert all(verdict.outcome != "error" for verdict in verdicts)


KEYS = st.sampled_from(["kind", "cases", "code", "entry_point", "stdin", "stdout", "args", "language", "$set"])
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | ANYTHING | st.sampled_from(["call", "stdin", "asserts"])
)
JUNK = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@settings(max_examples=30)
@given(JUNK)
@example({"kind": "stdin", "cases": [{"stdin": "", "stdout": ""}], "language": ["cpp"]})
@example({"kind": "asserts", "code": "(" * 10_000})
def test_tests_that_are_none_are_an_error_and_nothing_else(code: CodeVerifier, gold: Any) -> None:
    (verdict,) = check(code, [(Prompt("code/0", "code", "", gold), "</think>x = 1")])
    assert verdict.outcome in ("error", "failed")
