"""Rows that cannot teach are found, named by their numbers, and set aside; nothing vanishes without a number."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.code.formats import any_tests, code_contests_tests
from tasks.code.verifier import CodeVerifier
from tasks.data.check import math_mutants, quick, thorough
from tasks.data.datasets import CodeDataset, MathDataset
from tasks.data.formats import Item, read_code
from tasks.data.hub import SOURCES
from tasks.data.rows import RowError, numbered_rows
from tasks.errors import TaskError
from tasks.math.verifier import MathVerifier
from tasks.types import Prompt

CLEAN = [{"problem": f"Compute {n} + {n * n}, clean problem number {n}.", "answer": str(n + n * n)} for n in range(30)]

DIRTY: dict[str, list[dict[str, Any]]] = {
    "no answer": [
        {"problem": "Show it.", "answer": "See solution"},
        {"problem": "Show that the sum of two odd numbers is even.", "answer": "proven"},
        {"problem": "Prove that it is irrational.", "answer": "Proof: suppose not. QED"},
    ],
    "proof": [{"problem": "Prove that the triangle is isosceles.", "answer": "It is isosceles"}],
    "several parts": [
        {"problem": "(a) Find x. (b) Find y.", "answer": "(a) 3 (b) 4"},
        {"problem": "1) Find the domain; 2) find the range.", "answer": "1) $x>0$; 2) $[0,1]$"},
    ],
    "figure": [{"problem": "Find the angle ![](https://cdn.mathpix.com/x.jpg).", "answer": "30"}],
    "unreadable": [{"problem": "c", "answer": "$145$solution:"}, {"problem": "d", "answer": "<b>5</b>"}],
    "unbalanced": [{"problem": "Halve it.", "answer": "\\frac{1}{2"}],
    "too long": [{"problem": "Add.", "answer": "1+" * 700 + "1"}, {"problem": "x " * 100_000, "answer": "5"}],
    "conflict": [{"problem": "One problem.", "answer": "4"}, {"problem": "one  problem.", "answer": "5"}],
    "has no answer": [{"problem": "a", "answer": ""}, {"problem": "b", "answer": None}, {"problem": "c", "answer": {}}],
    "has an answer that is none": [{"problem": "a", "answer": float("nan")}, {"problem": "b", "answer": True}],
    "has 2 answers": [{"problem": "a", "answer": ["1", "2"]}],
    "has no problem": [{"problem": "", "answer": "5"}],
    "has a problem that is no text": [{"problem": 5, "answer": "5"}],
}


def written(folder: Path, rows: list[Any], name: str = "train.jsonl") -> str:
    path = folder / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(path)


def test_every_row_that_cannot_teach_is_set_aside_with_its_number_and_reason(tmp_path: Path) -> None:
    rows = [*CLEAN]
    expected = {}
    for reason, bad in DIRTY.items():
        for row in bad:
            rows.append(row)
            expected[len(rows)] = reason
    task = MathDataset(file=written(tmp_path, rows), held_out_size=5)
    assert {one.row: one.reason.partition(":")[0] for one in task.set_aside()} == expected
    assert task.size == len(CLEAN) - 5
    facts = json.loads(json.dumps(task.describe()))
    assert (facts["rows"], facts["copies"], facts["set_aside"]["count"]) == (len(rows), 0, len(expected))
    assert sum(facts["set_aside"]["reasons"].values()) == len(expected)
    assert facts["columns"] == {"answer from answer": len(CLEAN) + sum(map(len, list(DIRTY.values())[:8]))}


def test_rows_that_can_be_read_are_kept_on_request(tmp_path: Path) -> None:
    rows = [*CLEAN, *DIRTY["figure"], *DIRTY["conflict"], *DIRTY["has no problem"]]
    file = written(tmp_path, rows)
    assert MathDataset(file=file, held_out_size=1).size == 29
    kept = MathDataset(file=file, held_out_size=1, keep=True)
    assert kept.size == 32
    assert (len(kept.set_aside()), kept.describe()["kept"]) == (4, True)


def test_a_set_for_evaluation_keeps_its_rows_and_counts_them(tmp_path: Path) -> None:
    path = tmp_path / SOURCES["gsm8k_test"].local
    path.parent.mkdir()
    rows = [{"question": f"q{n}", "answer": f"#### {n}"} for n in range(3)] + [{"question": "p", "answer": "proven"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    task = MathDataset("gsm8k_test", folder=str(tmp_path))
    assert (len(task.held_out(4)), [one.row for one in task.set_aside()]) == (4, [4])


def test_half_characters_and_escapes_are_read_as_text(tmp_path: Path) -> None:
    rows = [
        {"problem": "\ud800 x", "answer": "5"},
        {"problem": "y", "answer": "\ud800"},
        {"problem": "z\0", "answer": "7"},
    ]
    task = MathDataset(file=written(tmp_path, rows), held_out_size=1)
    assert [one.row for one in task.set_aside()] == [2]
    assert task.size == 1


def test_a_picture_drawn_in_the_text_is_no_missing_figure() -> None:
    shown = "In the figure shown, find x."
    found = quick([(1, Item(shown, "5")), (2, Item(f"{shown} [asy]draw((0,0)--(1,1));[/asy]", "6"))], "math")
    assert [one.row for one in found] == [1]


def test_a_damaged_row_is_named_by_its_number_and_the_others_are_read(tmp_path: Path) -> None:
    rows = [CLEAN[0], "{not json", '["a"]', "", CLEAN[1], "[" * 5000, '{"problem": "\\ud800"', CLEAN[2]]
    file = written(tmp_path, rows)
    task = MathDataset(file=file, held_out_size=1)
    assert task.size == 2
    assert [(one.row, one.reason.partition(":")[0]) for one in task.set_aside()] == [
        (2, "is no JSON"),
        (3, "is a list, no object"),
        (6, "is no JSON"),
        (7, "is no JSON"),
    ]
    Path(file).write_bytes(b'{"problem": "a", "answer": "1"}\n{"problem": "\xff", "answer": "2"}\n')
    assert [str(row) for _, row in numbered_rows(Path(file)) if isinstance(row, RowError)] == ["is no UTF-8 text"]


def test_any_file_with_named_columns_is_a_data_set(tmp_path: Path) -> None:
    table = [{"q": row["problem"], "a": row["answer"], "answer": "no", "final_answer": "neither"} for row in CLEAN]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "mine.parquet")
    file = str(tmp_path / "mine.parquet")
    task = MathDataset(file=file, problem="q", answer="a", held_out_size=1)
    assert (task.name, task.size) == ("mine", 29)
    assert {prompt.gold for prompt in map(task.prompt, range(29))} < {row["answer"] for row in CLEAN}
    assert task.describe()["named_columns"] == {"problem": "q", "answer": "a"}
    with pytest.raises(TaskError, match="row 1 may have its answer in the column answer or final_answer: name one"):
        MathDataset(file=file, problem="q").set_aside()
    with pytest.raises(TaskError, match="one of them"):
        MathDataset()
    with pytest.raises(TaskError, match="has its own"):
        MathDataset("gsm8k", answer="a")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 8, "is binary"),
        ("a.parquet", b"PAR1" + bytes(range(200)) + b"PAR1", "is not parquet"),
        ("a.json", b"[" * 100_000, "is not json"),
        ("a.json", b"[1, 2", "is not json"),
        ("a.jsonl.gz", b"not gzip", "is not gz"),
        ("a.jsonl", b"", "it is empty"),
        ("a.jsonl", b'{"x": 1}\n{"x": 2}', "row 1 has no problem"),
        ("a.jsonl", b"[" * 100_000, "row 1 is no JSON"),
        ("a.csv", b"problem,answer\n1,2", "row 1 is no JSON"),
    ],
)
def test_a_file_that_is_no_data_set_is_one_line(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=says) as caught:
        MathDataset(file=str(tmp_path / name)).set_aside()
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    for name in ("pipe.jsonl", "zero.jsonl", "none.jsonl", "."):
        with pytest.raises(TaskError, match="no file"):
            MathDataset(file=str(tmp_path / name), name="x").set_aside()


@pytest.mark.parametrize(
    ("gold", "mutants"),
    [
        ("12", ["15", "-12"]),
        ("-3", ["-6", "3"]),
        ("0", ["3"]),
        ("\\frac{1}{2}", ["\\frac{4}{2}", "-\\frac{1}{2}"]),
        ("x \\leq 4", ["x \\leq 7", "x < 4"]),
        ("[0, 1)", ["[3, 1)"]),
        ("5 km", ["8 km", "5 mm"]),
        ("blue", []),
    ],
)
def test_mutants_of_a_gold_are_other_answers(gold: str, mutants: list[str]) -> None:
    assert math_mutants(gold) == mutants


# Programs.

FUNCTION = "class Solution:\n    def f(self, x):\n        return x + 1"
PLAIN = "def f(x):\n    return x + 1"
PROGRAM = "print(int(input()) + 1)"

FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "apps": ({"question": "q", "input_output": json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})}, PROGRAM),
    "apps, function": (
        {"question": "q", "input_output": json.dumps({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[2], [3]]})},
        PLAIN,
    ),
    "taco, method": (
        {"problem": "q", "tests": {"fn_name": "f", "inputs": [[1], [2]], "outputs": [2, 3]}},
        FUNCTION,
    ),
    "deepcoder": ({"problem": "q", "tests": [{"type": "stdin_stdout", "input": "1\n", "output": "2\n"}]}, PROGRAM),
    "deepcoder, function": (
        {"problem": "q", "tests": [{"type": "function_call", "fn_name": "f", "input": [1], "output": 2}] * 2},
        PLAIN,
    ),
    "livecodebench, method": (
        {
            "question_content": "q",
            "starter_code": "class Solution:\n    def f(self, x):",
            "metadata": json.dumps({"func_name": "f"}),
            "tests": json.dumps([{"testtype": "functional", "input": "1", "output": "2"}]),
        },
        FUNCTION,
    ),
    "rllm's codeforces": ({"problem": "q", "tests": [{"input": "1", "output": "2"}]}, PROGRAM),
    "rllm's leetcode": (
        {
            "problem": "q",
            "tests": {"functional": "def check(candidate):\n    assert candidate(x = 1) == 2\n\ncheck(Solution().f)"},
        },
        FUNCTION,
    ),
    "kodcode": ({"question": "q", "test": "from solution import f\ndef test_a():\n    assert f(1) == 2"}, PLAIN),
    "codecontests": (
        {"description": "q", "public_tests": {"input": ["1"], "output": ["2"]}, "private_tests": {"input": []}},
        PROGRAM,
    ),
    "mbpp": ({"text": "q", "test_list": ["assert f(1) == 2", "assert f(2) == 3"]}, PLAIN),
    "our own": ({"problem": "q", "tests": {"kind": "asserts", "code": "assert f(1) == 2"}}, PLAIN),
}  # fmt: skip


@pytest.fixture(scope="module")
def verifier() -> Iterator[CodeVerifier]:
    verifier = CodeVerifier(workers=2, whole_if_unclosed=True)
    yield verifier
    verifier.close()


@pytest.mark.parametrize("form", FORMS)
def test_tests_of_every_form_pass_a_right_program_and_fail_a_wrong_one(verifier: CodeVerifier, form: str) -> None:
    row, program = FORMS[form]
    item = read_code(row)
    prompt = Prompt("code/1", "code", "", item.gold)
    wrong = program.replace("+ 1", "+ 2")
    verdicts = verifier.verify([(prompt, f"```python\n{code}\n```") for code in (program, wrong)])
    assert [verdict.outcome for verdict in verdicts] == ["passed", "failed"], verdicts


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ([{"type": "functional", "input": "1", "output": "2"}], "do not name it"),
        ([{"input": "1"}], "lack 'output'"),
        ([1, 2], "no known form"),
        ("", "no known form"),
        ({"fn_name": "f", "inputs": ["{"], "outputs": ["1"]}, "no JSON"),
    ],
)
def test_tests_of_no_known_form_say_so(tests: Any, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        any_tests(tests, {})


def test_the_three_columns_of_codecontests_are_joined() -> None:
    row = {name: {"input": [name], "output": ["1"]} for name in ("public_tests", "private_tests", "generated_tests")}
    assert [case["stdin"] for case in code_contests_tests(row)["cases"]] == list(row)


@pytest.mark.parametrize(
    ("gold", "reason"),
    [
        ({"kind": "asserts", "code": "def test_a():\n    f(1)"}, "no assertion"),
        ({"kind": "asserts", "code": "assert f(1) =="}, "unreadable tests"),
        ({"kind": "call", "entry_point": "f", "cases": [{"expected": True}] * 3}, "constant"),
        ({"kind": "stdin", "cases": [{"stdin": "1", "stdout": "\n"}]}, "no output"),
        ({"kind": "asserts", "code": "def test_a():\n    assert f(1) == 2"}, ""),
    ],
)
def test_tests_that_tell_nothing_are_found_by_reading(gold: Any, reason: str) -> None:
    found = quick([(7, Item("q", gold))], "code")
    assert [one.reason.partition(":")[0] for one in found] == ([reason] if reason else [])


def test_references_must_pass_and_empty_and_constant_programs_must_fail(verifier: CodeVerifier) -> None:
    two = {"kind": "asserts", "code": "assert f(1) == 2\nassert f(2) == 3"}
    weak = {"kind": "asserts", "code": "def test_a():\n    for x in range(3):\n        assert f(x) is not None"}
    rows = [
        (1, Item("good", two, reference=PLAIN)),
        (2, Item("broken", two, reference="def f(x): return x")),
        (3, Item("weak", weak, reference=PLAIN)),
        (4, Item("empty", {"kind": "asserts", "code": "import math\nassert math.pi > f"}, reference="f = 3")),
        (6, Item("huge", {"kind": "asserts", "code": "x = 'a' * 10 ** 12\nassert f(x)"})),
        (5, Item("one", {"kind": "stdin", "cases": [{"stdin": "1", "stdout": "2"}]}, reference=PROGRAM)),
    ]
    found = {number: reason.partition(":")[0] for number, reason, _ in thorough(rows, "code", verifier)}
    assert found == {1: "", 2: "reference", 3: "constant", 4: "reference", 5: "one case", 6: "no verdict"}
    assert all(seconds > 0 for _, _, seconds in thorough(rows[:1], "code", verifier))


def test_golds_that_pass_as_others_are_found() -> None:
    verifier = MathVerifier(workers=1, whole_if_unclosed=True)
    try:
        rows = [(1, Item("p", "12")), (2, Item("p", "x \\leq 4")), (3, Item("p", "}{"))]
        found = {number: reason.partition(":")[0] for number, reason, _ in thorough(rows, "math", verifier)}
        assert found == {1: "", 2: "", 3: "itself"}
    finally:
        verifier.close()


def test_a_thorough_check_is_made_once_for_each_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / "cache"))
    rows = [{"problem": f"p{n}", "tests": {"kind": "asserts", "code": f"assert f({n}) == {n + 1}"}} for n in (1, 2, 3)]
    file = written(tmp_path, [row | {"solution": PLAIN} for row in rows])
    task = CodeDataset(file=file, held_out_size=1)
    first = task.checked()
    assert (first.rows, first.references) == (3, 3)
    assert {one.reason.partition(":")[0] for one in first.unfit} == {"one case"}
    monkeypatch.setattr("tasks.data.check.thorough", lambda *_: pytest.fail("checked again"))
    assert CodeDataset(file=file, held_out_size=1).checked() == first
    strict = CodeDataset(file=file, held_out_size=1, thorough=True)
    assert (strict.size, len(strict.set_aside())) == (0, 3)
    known, plain = (CodeDataset(file=file, held_out_size=1, thorough=thorough) for thorough in (None, False))
    assert (known.size, known.describe()["thorough"]) == (0, True)  # the result is there, so it counts
    assert (plain.size, plain.describe()["thorough"]) == (2, False)


def test_golds_that_mean_the_same_are_no_conflict(tmp_path: Path) -> None:
    rows = [*CLEAN, *({"problem": "Halve one.", "answer": gold} for gold in ("\\frac{1}{2}", "0.5", "$1/2$"))]
    assert MathDataset(file=written(tmp_path, rows), held_out_size=1).set_aside() == []
    rows.append({"problem": "halve  one.", "answer": "0.55"})
    found = MathDataset(file=written(tmp_path, rows), held_out_size=1).set_aside()
    assert [one.row for one in found] == [31, 32, 33, 34]
    assert {one.reason.partition(":")[0] for one in found} == {"conflict"}
