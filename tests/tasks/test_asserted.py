"""A verdict counts what was asserted: tests that assert nothing pass nobody, and no program reaches the count."""

# ruff: noqa: E501 - programs on one line

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.code.verifier import CodeVerifier
from tasks.sandbox.job import Job, Limits, Result
from tasks.types import Prompt, Verdict
from tests.helpers.counter_tricks import COUNTER_TRICKS
from tests.helpers.forms_of_tests import CONSTANT, FORMS, INCREMENT

RIGHT = "def f(x): return x + 1"


@pytest.fixture(scope="module")
def verifier() -> Iterator[CodeVerifier]:
    verifier = CodeVerifier(workers=2, limits=Limits(seconds=5.0, memory_mb=512))
    yield verifier
    verifier.close()


def graded(verifier: CodeVerifier, tests: str, *programs: str) -> list[Verdict]:
    prompt = Prompt("code/1", "code", "", {"kind": "asserts", "code": tests})
    return verifier.verify([(prompt, f"</think>\n```python\n{program}\n```") for program in programs])


@pytest.mark.parametrize(
    "tests",
    [
        "",
        "# no tests",
        "pass",
        "assert True",
        "assert f",
        "f(1)",
        "f(1)\nassert True",
        "f(1)\nassert (f(1) == 2, 'one')",
        "f(1)\nassert 'a message' or f(1) == 2",
        "f(1)\nassert 1 == 1",
        "f(1)\nassert not None",
        "print(f(1) == 2)",
        "def helper():\n    assert f(1) == 2\nf(1)",
        "def check(candidate):\n    assert candidate(1) == 2",
        "def test_a():\n    f(1)",
        "import pytest\n@pytest.mark.skip\ndef test_a():\n    assert f(1) == 2\nf(1)",
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): f(1)",
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        f(1)\n        self.assertTrue(True)",
        "import unittest\nclass T(unittest.TestCase):\n    @unittest.skip('')\n    def test_a(self): self.assertEqual(f(1), 2)",
        "for x in []:\n    assert f(x) == 1",
        "if __name__ == 'tests':\n    assert f(1) == 2",
        "assert 1 == 2",
        "import numpy as np\nassert np.all(f(1) == 2)",
    ],
)  # fmt: skip
def test_tests_that_assert_nothing_are_an_error_for_every_program(verifier: CodeVerifier, tests: str) -> None:
    verdicts = graded(verifier, tests, INCREMENT, CONSTANT, "def g(): pass")
    assert "passed" not in {verdict.outcome for verdict in verdicts}
    assert [verdict.outcome for verdict in verdicts[:2]] == ["error", "error"]
    assert all(verdict.detail.startswith("the tests ") for verdict in verdicts[:2])


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_tests_passes_a_right_program_and_fails_a_wrong_one(verifier: CodeVerifier, form: str) -> None:
    tests, right, wrong = FORMS[form]
    passed, failed = graded(verifier, tests, right, wrong)
    assert (passed.outcome, passed.detail) == ("passed", "")
    assert failed.outcome == "failed"


@pytest.mark.parametrize("trick", COUNTER_TRICKS)
def test_no_trick_with_the_count_passes(verifier: CodeVerifier, trick: str) -> None:
    tests, program = COUNTER_TRICKS[trick]
    assert graded(verifier, tests, program)[0].outcome in ("failed", "timeout", "memory")


def test_answers_that_keep_every_assertion_from_running_are_the_program_s_fault(verifier: CodeVerifier) -> None:
    tests = "for x in f(3):\n    assert x == 1"
    full, empty = graded(verifier, tests, "def f(n): return [1] * n", "def f(n): return []")
    assert full.outcome == "passed"
    assert (empty.outcome, empty.detail) == ("failed", "its answers keep every assertion from running")


def test_a_thousand_questions_take_one_round(verifier: CodeVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier.sandbox  # noqa: B018 (starts the servers)
    pool = verifier._running()
    kinds: list[str] = []
    original = pool._run

    def run(job: Job, limits: Limits) -> Result:
        kinds.append(job.kind)
        return original(job, limits)

    monkeypatch.setattr(pool, "_run", run)
    tests = "s = Sum()\nfor x in range(500):\n    s.add(x)\nassert s.total == 124750"
    program = "class Sum:\n    total = 0\n    def add(self, x): self.total += x"
    assert graded(verifier, tests, program)[0].outcome == "passed"
    assert kinds == ["check", "ask", "check"]
