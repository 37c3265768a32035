"""Read the rows of public data sets: a known format becomes an `Item`, another row says why it cannot be used."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.code.formats import (
    any_tests,
    code_contests_tests,
    humaneval_tests,
    leetcode_tests,
    mbpp_tests,
    reference_of,
)
from tasks.data.rows import Row, RowError
from tasks.errors import TaskError


@dataclass(frozen=True)
class Item:
    """One problem of a data set.

    Attributes:
        problem: the problem's text, without any instruction on how to answer.
        gold: what its verifier grades against.
        meta: what else is worth keeping (JSON-able).
        reference: a program that the data set says is right; empty if it has none.
        columns: the place in the row where the gold was taken from, if it had to be found.
    """

    problem: str
    gold: Any
    meta: Mapping[str, Any] = field(default_factory=dict)
    reference: str = ""
    columns: str = ""


RowReader = Callable[[Row], Item]

# What data sets have put around their problems to say how to answer; the prompt template says that here.
_INSTRUCTIONS = (
    "Let's think step by step and output the final answer within \\boxed{}.",
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.",
    'Remember to put your answer on its own line after "Answer:".',
)
PROBLEMS = ("problem", "question", "prompt")
"""Columns that hold a problem."""

ANSWERS = ("answer", "final_answer", "expected_answer", "ground_truth", "reward_model")
"""Columns that hold an answer."""

_WORKING = "solution"
_NO_ANSWER = ("", "none", "null", "nan", "n/a")


def read_math(row: Row, problem: str = "", answer: str = "") -> Item:
    """Rows with a problem and an answer, in the columns of GSM8K, MATH, DeepScaleR, Polaris, AIME or verl's.

    Args:
        row: the row.
        problem: the column of the problem; empty finds it among `PROBLEMS`.
        answer: the column of the answer; empty finds it among `ANSWERS`, else takes the box of a solution.

    Raises:
        RowError: there is no problem, no answer, or more than one column that may be it.
    """
    asked = _problem_text(row, problem)
    for instruction in _INSTRUCTIONS:
        asked = asked.replace(instruction, "")
    if not asked.strip():
        raise RowError("has no problem")
    column = answer or _column(row, ANSWERS, "answer")
    if not column and row.get(_WORKING) is None:
        raise RowError(f"has no answer: its columns are {', '.join(map(str, row))[:200]}")
    gold = _gold(row.get(column)) if column else _box(_text(row[_WORKING]))
    if "####" in gold:  # GSM8K: working, then the answer
        gold = gold.rpartition("####")[2].strip().replace(",", "")
    if not column and not gold:
        raise RowError(f"has no box in its {_WORKING}: name the column of the answer")
    if gold.lower() in _NO_ANSWER:
        raise RowError("has no answer")
    meta = {key: row[key] for key in ("difficulty", "level", "type", "subject") if row.get(key) is not None}
    return Item(asked.strip(), gold, meta, columns=f"answer from {column or f'the box in {_WORKING}'}")


def _box(solution: str) -> str:
    from tasks.math.extract import extract_answer

    return (extract_answer(solution) or "") if "\\boxed" in solution else ""


def _gold(value: Any) -> str:
    """The one answer in a column."""
    if isinstance(value, Mapping):
        value = value.get("ground_truth")
    if isinstance(value, str) and value.startswith('["') and value.endswith('"]'):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, list):
        if len(value) > 1:
            raise RowError(f"has {len(value)} answers")
        value = value[0] if value else None
    if isinstance(value, bool | Mapping | list) or (isinstance(value, float) and not math.isfinite(value)):
        raise RowError(f"has an answer that is none: {str(value)[:40]}")
    return "" if value is None else str(value).strip()


def _column(row: Row, names: Sequence[str], what: str) -> str:
    """The one of these columns that a row has; empty if it has none.

    Raises:
        RowError: it has several, which differ.
    """
    there = [name for name in names if row.get(name) is not None]
    if len(there) > 1 and any(row[name] != row[there[0]] for name in there):
        raise RowError(f"may have its {what} in the column {' or '.join(there)}: name one", unclear=True)
    return there[0] if there else ""


def _problem_text(row: Row, column: str, names: Sequence[str] = PROBLEMS) -> str:
    value = row.get(column or _column(row, names, "problem") or names[0])
    if isinstance(value, list) and value and all(isinstance(message, Mapping) for message in value):  # a chat
        asked = [message for message in value if message.get("role") == "user"] or value
        value = asked[-1].get("content", [])
        if value is None:
            raise RowError("has a problem that is no text")
    if value is not None and value != [] and not isinstance(value, str):
        raise RowError("has a problem that is no text")
    return value or ""


def read_humaneval(row: Row) -> Item:
    """HumanEval's rows: the problem is a function's head with its docstring."""
    reference = row["prompt"] + row.get("canonical_solution", "    pass")
    return Item(row["prompt"].strip(), humaneval_tests(row), {"task_id": row["task_id"]}, reference)


def read_leetcode(row: Row) -> Item:
    """LeetCodeDataset's rows: the statement with the starter code."""
    meta = {"task_id": row["task_id"], "difficulty": (_json(row.get("meta")) or {}).get("difficulty")}
    return Item(_text(row.get("query")).strip(), leetcode_tests(row), meta, _text(row.get("completion")))


def read_mbpp(row: Row) -> Item:
    """MBPP's rows; the first test is shown, since only the tests say what the function is called."""
    problem = _text(_first(row, "text", "prompt"))
    tests = mbpp_tests(row)
    return Item(f"{problem}\n\n{row['test_list'][0]}", tests, {"task_id": str(row["task_id"])}, row.get("code") or "")


CODE_PROBLEMS = (*PROBLEMS, "question_content", "query", "description", "text", "content")
"""Columns that hold a problem of a program."""

TESTS = ("tests", "test", "input_output", "test_cases", "test_list", "verification_info")
"""Columns that hold tests."""


def read_code(row: Row, problem: str = "", tests: str = "") -> Item:
    """Rows with a problem and tests of a program, in the forms that `tasks.code.formats.any_tests` reads.

    Args:
        row: the row.
        problem: the column of the problem; empty finds it among `CODE_PROBLEMS`.
        tests: the column of the tests; empty finds it among `TESTS`, or takes CodeContests' three.

    Raises:
        RowError: there is no problem, no test, or more than one column that may hold it.
    """
    asked = _problem_text(row, problem, CODE_PROBLEMS).strip()
    column = tests or _column(row, TESTS, "tests")
    if not asked:
        raise RowError("has no problem")
    if not column and "public_tests" not in row:
        raise RowError(f"has no tests: its columns are {', '.join(map(str, row))[:200]}")
    starter = _text(row.get("starter_code"))
    try:
        gold = any_tests(row[column], row) if column else code_contests_tests(row)
    except TaskError as error:
        raise RowError(f"unreadable tests: {error}") from error
    asked = f"{asked}\n\n{starter}".strip() if starter and starter not in asked else asked
    return Item(asked, gold, _date(row), reference_of(row), f"tests from {column or 'public_tests and the like'}")


def read_deepcoder(row: Row) -> Item:
    """DeepCoder's rows: `tests` in any of its spellings, of programs or functions."""
    return read_code(row, "problem", "tests")


def read_livecodebench(row: Row) -> Item:
    """LiveCodeBench's rows: public and packed private tests, of programs or of a `Solution` method; with the date."""
    tests = [*_json(row["public_test_cases"]), *_unpacked(row["private_test_cases"])]
    return read_code({**row, "tests": tests}, "question_content", "tests")


def _date(row: Row) -> dict[str, Any]:
    meta = {key: row[key] for key in ("difficulty", "source", "task_id") if isinstance(row.get(key), str | int)}
    return meta | ({"date": str(row["contest_date"])[:10]} if row.get("contest_date") else {})


def _first(row: Row, *names: str) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _text(value: Any) -> str:
    """A string, or the last message of a chat."""
    if value is None or isinstance(value, str):
        return value or ""
    return str(value[-1]["content"])


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


class _NoObjects(pickle.Unpickler):
    """Unpickles strings and containers only: data from the hub must not name code to run."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"refused to load {module}.{name} from a data set")


def _unpacked(tests: str) -> list[dict[str, Any]]:
    """LiveCodeBench's private tests: JSON, or JSON in a pickled string, compressed, in base 64."""
    try:
        return json.loads(tests)
    except json.JSONDecodeError:
        return json.loads(_NoObjects(io.BytesIO(zlib.decompress(base64.b64decode(tests)))).load())
