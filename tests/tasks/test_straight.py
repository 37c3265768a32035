"""Functions that are computed without a sandbox answer as they do in it, and nothing but arithmetic is computed."""

import json
import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tasks.code.miniature import HIDDEN_INPUTS, CodeMiniature
from tasks.code.straight import computed
from tasks.sandbox.job import Job, Limits
from tasks.sandbox.selftest import choose_tier
from tasks.sandbox.worker import Worker


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker(choose_tier().tier)
    yield worker
    worker.close()


def job(code: str, inputs: Iterable[Any] = HIDDEN_INPUTS, **more: Any) -> Job:
    return Job("call", code, calls=json.dumps([[None, [x], {}] for x in inputs]), **{"entry_point": "f", **more})


def drawn(rng: random.Random) -> str:
    """A function in the form, or nearly: a name may be unknown, a number large, a divisor 0, a return missing."""
    names = ["x", "y", "total", "z1"]

    def value() -> str:
        return rng.choice([*names[: rng.choice((1, 1, 4))], str(rng.choice((0, 1, 3, 17, 999_999_999)))])

    def term() -> str:
        return rng.choice([value(), f"-{value()}", *[f"{value()}{rng.choice(('%', ' * ', '-', '+'))}{value()}"] * 4])

    lines = [f"{rng.choice(names)}{rng.choice(('=', ' = '))}{term()}" for _ in range(rng.randint(0, 6))]
    return "\n    ".join(["def f(x):", *lines, f"return {term()}"]) + rng.choice(("", "\n", " \n\n"))


def test_what_is_computed_is_what_the_sandbox_answers(worker: Worker) -> None:
    rng, taken = random.Random(0), 0
    for _ in range(150):
        one = job(drawn(rng))
        answer = computed(one)
        if answer is not None:
            there = worker.run(one, Limits())
            assert (answer.ending, answer.code, answer.report) == (there.ending, there.code, there.report), one.code
            taken += 1
    assert taken > 30, "these were to have the form"


def test_all_references_of_the_miniature_are_computed() -> None:
    task = CodeMiniature()
    for number in range(200):
        prompt = task.draw(number)
        code = task.solve(prompt, random.Random(number)).partition("</think>")[2]
        assert computed(job(code)) is not None, code


@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\n    x=x%0\n    return x",
        "def f(x):\n    return y",
        "def f(x):\n    return abs",
        "def f(x):\n    return x\n    return x",
        "def f(x):\n    x=x+1",
        "def f(x):\n    x=x+1\n  return x",
        "def f(x):\n\treturn x",
        "def f(x):\n    if=3\n    return x",
        "def f(if):\n    return 3",
        "def if(x):\n    return x",
        "def g(x):\n    return x",
        "def f(x):\n    return 017",
        "def f(x):\n    return x/2",
        "def f(x):\n    return x**9",
        "def f(x):\n    return x.y",
        "def f(x):\n    return f(x)",
        "def f(x):\n    return x\nimport os",
        "import os\ndef f(x):\n    return x",
        "def f(x):\n    return x;import os",
        "def f(x):\r\n    return x",
        "def f(x):\n    return x\x0c",
        "def f(x):\n    return \N{MATHEMATICAL ITALIC SMALL X}",
        "def f(x):\n    return \N{ARABIC-INDIC DIGIT THREE}",
        "def f(x):",
        "def f(x):\n" + "    x=x*x\n" * 10 + "    return x",
        "def f(x):\n" + "    x=x+1\n" * 1000 + "    return x",
    ],
)
def test_anything_else_is_left_to_the_sandbox(code: str) -> None:
    assert computed(job(code, inputs=(3,))) is None


def test_only_calls_with_one_whole_number_are_computed() -> None:
    code = "def f(x):\n    return x"
    assert computed(job(code, inputs=(3,))) is not None
    for argument in (True, 1.0, "1", None, [1], {"$tuple": [1]}):
        assert computed(job(code, inputs=(argument,))) is None
    others: list[Any] = [["g", [1], {}], [None, [1, 2], {}], [None, [], {"x": 1}]]
    for call in others:
        assert computed(Job("call", code, entry_point="f", calls=json.dumps([call]))) is None
    assert computed(job(code, prelude="x = 1")) is None
    assert computed(job(code, setup="f = None")) is None
    assert computed(Job("program", code)) is None
