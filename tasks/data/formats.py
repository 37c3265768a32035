"""Read the rows of public data sets: a known format becomes an `Item`; rows without a usable answer are left out."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.code.formats import humaneval_tests, leetcode_tests, mbpp_tests
from tasks.math.extract import extract_answer

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Item:
    """One problem of a data set.

    Attributes:
        problem: the problem's text, without any instruction on how to answer.
        gold: what its verifier grades against.
        meta: what else is worth keeping (JSON-able).
    """

    problem: str
    gold: Any
    meta: Mapping[str, Any] = field(default_factory=dict)


RowReader = Callable[[Row], Item | None]

# What data sets have put around their problems to say how to answer; the prompt template says that here.
_INSTRUCTIONS = (
    "Let's think step by step and output the final answer within \\boxed{}.",
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.",
    'Remember to put your answer on its own line after "Answer:".',
)


def read_math(row: Row) -> Item | None:
    """Rows with a problem and an answer, in the columns of GSM8K, MATH, DeepScaleR, Polaris, AIME or verl's."""
    problem = _text(_first(row, "problem", "question", "prompt"))
    for instruction in _INSTRUCTIONS:
        problem = problem.replace(instruction, "")
    answer = _first(row, "answer", "reward_model", "solution")
    if isinstance(answer, Mapping):
        answer = answer.get("ground_truth")
    if isinstance(answer, list):
        answer = answer[0] if len(answer) == 1 else None
    gold = "" if answer is None else str(answer).strip()
    if "####" in gold:  # GSM8K: working, then the answer
        gold = gold.rpartition("####")[2].strip().replace(",", "")
    elif row.get("answer") is None and row.get("solution") is not None:  # MATH: a solution with a box
        gold = extract_answer(gold) or ""
    if not problem.strip() or not gold:
        return None
    meta = {key: row[key] for key in ("difficulty", "level", "type", "subject") if row.get(key) is not None}
    return Item(problem.strip(), gold, meta)


def read_humaneval(row: Row) -> Item | None:
    """HumanEval's rows: the problem is a function's head with its docstring."""
    return Item(row["prompt"].strip(), humaneval_tests(row), {"task_id": row["task_id"]})


def read_leetcode(row: Row) -> Item | None:
    """LeetCodeDataset's rows: the statement with the starter code."""
    meta = {"task_id": row["task_id"], "difficulty": (_json(row.get("meta")) or {}).get("difficulty")}
    return Item(_text(row.get("query")).strip(), leetcode_tests(row), meta)


def read_mbpp(row: Row) -> Item | None:
    """MBPP's rows; the first test is shown, since only the tests say what the function is called."""
    problem = _text(_first(row, "text", "prompt"))
    return Item(f"{problem}\n\n{row['test_list'][0]}", mbpp_tests(row), {"task_id": str(row["task_id"])})


def read_deepcoder(row: Row) -> Item | None:
    """DeepCoder's rows: `tests` as inputs and outputs of programs, in any of its three spellings."""
    tests = _json(row.get("tests"))
    if isinstance(tests, Mapping) and not tests.get("fn_name"):
        pairs = list(zip(tests.get("inputs", []), tests.get("outputs", [])))
    elif isinstance(tests, list) and all(_reads_stdin(test) for test in tests):
        pairs = [(test["input"], test["output"]) for test in tests]
    else:
        return None
    return _programs(_text(row.get("problem")), pairs)


def read_livecodebench(row: Row) -> Item | None:
    """LiveCodeBench's rows: public and packed private tests, of programs or of a `Solution` method; with the date."""
    tests = [*_json(row["public_test_cases"]), *_unpacked(row["private_test_cases"])]
    problem = _text(row.get("question_content"))
    starter = _text(row.get("starter_code"))
    meta = {"date": str(row["contest_date"])[:10], "difficulty": row.get("difficulty")}
    if all(_reads_stdin(test) for test in tests):
        item = _programs(problem, [(test["input"], test["output"]) for test in tests])
        return None if item is None else Item(item.problem, item.gold, meta)
    name = _json(row.get("metadata") or "{}").get("func_name")
    if not name or not all(test.get("testtype") == "functional" for test in tests):
        return None
    cases = [
        {"args": [json.loads(line) for line in test["input"].splitlines()], "expected": json.loads(test["output"])}
        for test in tests
    ]
    gold = {"kind": "call", "entry_point": f"Solution().{name}", "cases": cases}
    return Item(f"{problem}\n\n{starter}".strip(), gold, meta)


def _programs(problem: str, pairs: list[tuple[Any, Any]]) -> Item | None:
    cases = [{"stdin": _lines(stdin), "stdout": _lines(stdout)} for stdin, stdout in pairs]
    if not problem.strip() or not cases:
        return None
    return Item(problem.strip(), {"kind": "stdin", "cases": cases})


def _reads_stdin(test: Row) -> bool:
    return test.get("type", test.get("testtype")) in ("stdin", "stdin_stdout")


def _lines(text: Any) -> str:
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


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
