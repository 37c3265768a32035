"""Programs run in the sandbox from a reward of one's own: what they say is data, and no program holds up a reward."""

import importlib
import sys
from pathlib import Path

import pytest

from tasks.code.runs import run_program, run_python
from tasks.own import FunctionTask
from tasks.types import Prompt

pytestmark = pytest.mark.slow

REWARD = """
from tasks.code.runs import run_program, run_python

def doubles(prompt, answer):
    called = run_python(answer, "f", [prompt.gold], seconds=1.0)
    printed = run_program(answer + "\\nprint(f(int(input())))", f"{prompt.gold}\\n", seconds=1.0)
    return {"value": float(called.value == 2 * prompt.gold), "text": float(printed.stdout == f"{2 * prompt.gold}\\n")}
"""


def test_what_a_function_returns_comes_back_with_its_types() -> None:
    ran = run_python("def f(a, *, b): return {a: (b, {b}), 'k': [1.5, None]}", "f", [(1, 2)], {"b": "x"})
    assert ran.ok
    assert ran.value == {(1, 2): ("x", {"x"}), "k": [1.5, None]}


@pytest.mark.parametrize(
    ("code", "outcome", "detail"),
    [
        ("def f(x): raise ValueError('no')", "failed", "ValueError: no"),
        ("def f(x: return", "failed", "does not compile"),
        ("def g(x): return x", "failed", "NameError"),
        ("def f(x): return object", "failed", "no plain data: a type was returned"),
        ("def f(x): return f(x)", "failed", "RecursionError"),
        ("def f(x): return open('/etc/passwd').read()", "failed", "exception"),
        ("import os\ndef f(x): os._exit(0)", "failed", "ended before it answered"),
        ('import os\nos.write(3, b\'["value", 8]\\n["value", 9]\\n\')\nos._exit(0)', "failed", ""),
        ("def f(x):\n    while True: pass", "timeout", "still running"),
        ("def f(x): return 'a' * 10**10", "memory", "MemoryError"),
    ],
)
def test_what_goes_wrong_is_said(code: str, outcome: str, detail: str) -> None:
    ran = run_python(code, "f", [1], seconds=0.5)
    assert (ran.outcome, ran.value, ran.ok) == (outcome, None, False)
    assert detail in ran.detail


def test_a_program_reads_its_input_and_prints() -> None:
    assert run_program("print(sum(map(int, input().split())))", "1 2 3\n").stdout == "6\n"
    broken = run_program("print('begun')\n1 / 0")
    assert (broken.outcome, "ZeroDivisionError" in broken.detail) == ("failed", True)


def test_a_reward_of_ones_own_runs_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_doubles.py").write_text(REWARD)
    monkeypatch.syspath_prepend(tmp_path)
    reward = importlib.import_module("my_doubles").doubles
    task = FunctionTask(prompts="p.jsonl", function=reward, workers=1, reward_seconds=3.0)
    prompt = Prompt("own/1", "own", "Double a number.", 21)
    answers = [
        "def f(x): return 2 * x",
        "def f(x): return x",
        "def f(x):\n    while True: pass",
        "import os; os._exit(0)",
    ]
    verifier = task.verifier()
    try:
        got = verifier.verify([(prompt, answer) for answer in answers])
    finally:
        verifier.close()
        sys.modules.pop("my_doubles")
    assert [(one.outcome, one.reward) for one in got] == [("passed", 1.0), *[("failed", 0.0)] * 3], got
