"""Honest programs pass; hostile ones pass for nothing and cost the host neither time nor memory."""

# ruff: noqa: E501 - programs on one line

import contextlib
import resource
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.code.extract import extract_code
from tasks.code.outputs import parse_checker
from tasks.code.returned import EqualityRules
from tasks.code.verifier import CodeVerifier
from tasks.sandbox.job import Limits
from tasks.types import Prompt, Verdict
from tests.helpers.code_tricks import FORGE, TRICKS
from tests.helpers.honest_programs import HONEST

INCREMENT = {"kind": "call", "entry_point": "f", "cases": [{"args": [x], "expected": x + 1} for x in (1, 5)]}
NESTED = {"kind": "call", "entry_point": "f", "cases": [{"args": [1], "expected": {"$set": [{"$tuple": [1]}]}}]}


@pytest.fixture(scope="module")
def verifier() -> Iterator[CodeVerifier]:
    verifier = CodeVerifier(workers=2, limits=Limits(seconds=5.0, memory_mb=512, output_mb=1.0))
    yield verifier
    verifier.close()


def grade(verifier: CodeVerifier, gold: Any, answer: str) -> Verdict:
    return verifier.verify([(Prompt("code/1", "code", "", gold), f"hm</think>{answer}")])[0]


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_passes(verifier: CodeVerifier, name: str) -> None:
    verdict = grade(verifier, *HONEST[name])
    assert verdict.outcome == "passed", verdict.detail


def nested(opening: str, closing: str, depth: int = 400) -> str:
    return (
        FORGE + f"os.write(3, b'[\"value\", ' + b'{opening}' * {depth} + b'{closing}' * {depth} + b']\\n')\nos._exit(0)"
    )


# What a program may send to trouble the one who compares.
HOST = {
    "sets in sets": nested('{"$set": [', "]}"),
    "tuples in tuples": nested('{"$tuple": [', "]}"),
    "sets in tuples": nested('{"$set": [{"$tuple": [', "]}]}", 200),
    "dictionaries in dictionaries": nested('{"$dict": [[1, ', "]]}"),
    "deeper than any stack": nested("[", "]", 200_000),
    "objects in objects": nested('{"$other": {"items": [', "]}}"),
    "frozen sets, returned": "def f(x):\n    v = frozenset()\n    for _ in range(300): v = frozenset([v])\n    return {v}",
    "a million equal items": "def f(x): return [[]] * 300_000",
    "a large set": "def f(x): return set(range(100_000))",
    "a long number": "def f(x): return 1 << (1 << 21)",
    "a long decimal": FORGE + "os.write(3, b'[\"value\", ' + b'9' * 900_000 + b']\\n')",
    "a long exponent": FORGE + "os.write(3, b'[\"value\", 1e999999999]\\n')",
    "a wrong tag": FORGE + "os.write(3, b'[\"value\", {\"$int\": []}]\\n')",
    "a wrong object": FORGE + "os.write(3, b'[\"value\", {\"$other\": 7}]\\n')",
    "an object of text": FORGE + "os.write(3, b'[\"value\", {\"$other\": {\"type\": [], \"items\": \"2\"}}]\\n')",
    "surrogates": "def f(x): return '\\ud800' * 50",
    "surrogates in an exception": "def f(x): raise ValueError('\\ud800')",
    "surrogates as keys": "def f(x): return {'\\udfff': {'\\ud800'}}",
    "bytes that are no text": FORGE + "os.write(3, b'[\"value\", \"\\xff\\xfe\"]\\n')",
    "a name of an exception": "class E(Exception): pass\nE.__name__ = '\\ud800' * 10\ndef f(x): raise E",
    "an endless generator": "def f(x):\n    while True: yield 2",
    "an endless object": "class A:\n    def __getattr__(self, n): return self\n    def __iter__(self): return self\n    def __next__(self): return self\ndef f(x): return A()",
    "a class": "def f(x): return int",
    "a module": "import sys\ndef f(x): return sys",
    "a function": "def f(x): return f",
    "an object with itself": "class A: pass\ndef f(x):\n    a = A()\n    a.a = a\n    return a",
    "truth that raises": "class A:\n    def __bool__(self): raise KeyboardInterrupt\ndef f(x): return A()",
    "fields that lie": "class A:\n    @property\n    def __dict__(self): return {'truth_': True, 'items_': [2]}\ndef f(x): return A()",
    "slots that lie": "class A:\n    __slots__ = ('a',)\n    def __getattribute__(self, n): raise SystemExit\ndef f(x): return A()",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "gold", [INCREMENT, NESTED, {"kind": "asserts", "code": "for x in range(3): assert f(x) == x + 1"}]
)
def test_no_program_troubles_the_host(verifier: CodeVerifier, gold: dict[str, Any]) -> None:
    for name, code in HOST.items():
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.thread_time()
        verdict = grade(verifier, gold, code)
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert verdict.outcome in ("failed", "memory", "timeout"), (name, verdict)
        assert after.ru_utime - before.ru_utime < 10, name
        assert after.ru_maxrss - before.ru_maxrss < 500_000, name
        assert time.thread_time() - start < 10
        verdict.detail.encode()


def test_there_are_a_hundred_attacks() -> None:
    assert len(TRICKS) * 3 + len(HOST) * 3 >= 200
    assert len(TRICKS) + len(HOST) + 60 >= 100


BOMBS = {
    "spaces after a fence": "```" + " " * 200_000 + "`",
    "backticks": "`" * 200_000,
    "fences": "```\n" * 60_000,
    "tildes and backticks": "~~~`" * 50_000,
    "tabs": "\t" * 200_000 + "```",
    "definitions": "```python\n" + "def " * 50_000 + "\n```",
    "lines": "\n" * 200_000,
    "surrogates": "\ud800" * 200_000,
    "brackets": "```python\n" + "(" * 100_000 + "\n```",
    "numbers": "```python\nx = " + "9" * 100_000 + "\n```",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_no_answer_holds_up_the_host(verifier: CodeVerifier, name: str) -> None:
    start = time.thread_time()
    extract_code(BOMBS[name], "f")
    extract_code(BOMBS[name])
    assert time.thread_time() - start < 2
    for gold in (INCREMENT, {"kind": "stdin", "cases": [{"stdin": "", "stdout": "2"}]}):
        assert grade(verifier, gold, BOMBS[name]).outcome in ("failed", "memory", "timeout")


WRITTEN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec=None, categories=None)),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["$set", "$tuple", "$dict", "$int", "$float", "$other", "$bytes", "$complex", "a"]), inner, max_size=2
    ),
    max_leaves=30,
)  # fmt: skip


@given(WRITTEN, WRITTEN)
def test_comparing_anything_gives_a_verdict(expected: Any, actual: Any) -> None:
    for comparison in (EqualityRules(), EqualityRules(as_asserts=True, tuples_are_lists=False)):
        with contextlib.suppress(ValueError, RecursionError):
            assert comparison.same(expected, actual) in (True, False)


@given(st.text(st.characters(codec=None, categories=None)), st.text(), st.sampled_from(["lines", "words", "any_order"]))
def test_comparing_any_output_gives_a_verdict(expected: str, actual: str, kind: str) -> None:
    checker = parse_checker(kind, EqualityRules())
    assert checker.same(expected, expected)
    assert checker.same(expected, actual) in (True, False)


def test_partial_credit_is_the_share_of_the_cases(verifier: CodeVerifier) -> None:
    partial = CodeVerifier(1, Limits(seconds=2.0, memory_mb=512), verifier.sandbox, partial_credit=True)
    gold = {"kind": "call", "entry_point": "f", "cases": [{"args": [x], "expected": 2 * x} for x in range(4)]}
    stdin = {"kind": "stdin", "cases": [{"stdin": str(x), "stdout": str(2 * x)} for x in range(4)]}
    try:
        half = grade(partial, gold, "def f(x):\n    if x == 1: raise ValueError\n    return 2 * min(x, 2)")
        assert (half.outcome, half.reward, half.parts) == ("failed", 0.5, {"cases": 0.5})
        assert grade(partial, gold, "def f(x): return 2 * x").reward == 1.0
        assert grade(partial, stdin, "print(2 * min(int(input()), 2))").reward == 0.75
        assert grade(partial, gold, FORGE + "forge(0, 2, 4, 6, 8)\ndef f(x): return 1").reward == 0.0
    finally:
        partial.close()
