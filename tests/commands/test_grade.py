"""`scalelab grade` gives one verdict per line, in order, or says which line is wrong before it grades any."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from scalelab.cli import main

CALLS = {"kind": "call", "entry_point": "f", "cases": [{"args": [2], "expected": 4}, {"args": [3], "expected": 9}]}


def grade(
    folder: Path, task: str, lines: Sequence[object], capsys: pytest.CaptureFixture[str], *sets: str
) -> list[dict]:
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = ["--in", str(source), "--out", str(out), "--workers", "1", "--json"]
    assert main(["grade", "--task", task, *files, *(word for one in sets for word in ("--set", one))]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["graded"] == len(lines)
    verdicts = [json.loads(line) for line in out.read_text().splitlines()]
    assert sum(summary["outcomes"].values()) == len(verdicts)
    return verdicts


def test_math_lines_keep_their_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"id": "a", "gold": "12", "completion": "<think>5</think>The answer is \\boxed{12}."},
        {"id": 7, "gold": "12", "completion": "\\boxed{13}"},
        {"id": "c", "gold": "\\frac{1}{2}", "completion": "\\boxed{0.5}"},
    ]
    verdicts = grade(tmp_path, "math", lines, capsys)
    assert [(line["id"], line["outcome"], line["reward"]) for line in verdicts] == [
        ("a", "passed", 1.0),
        (7, "failed", 0.0),
        ("c", "passed", 1.0),
    ]


def test_code_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"id": 1, "tests": CALLS, "completion": "```python\ndef f(x):\n    return x * x\n```"},
        {"id": 2, "tests": CALLS, "completion": "<think>…</think>\ndef f(x):\n    return x + 2"},
    ]
    assert [line["outcome"] for line in grade(tmp_path, "code", lines, capsys)] == ["passed", "failed"]


OWN = """
from dataclasses import dataclass
from tasks.own import RewardTask

@dataclass(frozen=True)
class Backwards(RewardTask):
    name: str = "backwards"
    slack: int = 0
    def problem(self, rng):
        return "Write abc backwards.", "cba"
    def reward(self, prompt, answer):
        assert prompt.text.startswith("Write") and prompt.meta == {"level": 3}
        return {"right": float(answer == prompt.gold), "short": float(len(answer) <= len(prompt.gold) + self.slack)}
"""


def test_a_task_of_ones_own_grades_by_the_name_of_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_backwards.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    prompt = {"prompt": "Write abc backwards.", "gold": "cba", "meta": {"level": 3}}
    lines = [
        {"id": "right", "completion": "<think>a</think> cba ", **prompt},
        {"id": "long", "completion": "cbabc", **prompt},
        {"id": "raises", "completion": "cba"},
    ]
    verdicts = grade(tmp_path, "own_backwards.Backwards", lines, capsys, "Backwards.slack=2")
    assert [(line["outcome"], line["reward"], line.get("parts")) for line in verdicts] == [
        ("passed", 1.0, {"right": 1.0, "short": 1.0}),
        ("failed", 0.5, {"right": 0.0, "short": 1.0}),
        ("error", 0.0, None),
    ]
    sys.modules.pop("own_backwards")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"id": 1, "gold": "2", "completion": "2"}\n{"id": 2, "gold": "2"}\n', "line 2 lacks 'completion'"),
        ('{"id": 1, "gold": "2", "completion": "2"}\nnonsense\n', "line 2 is not a JSON object"),
        ('{"id": 1, "gold": "2", "completion": 2}\n', "completion is int"),
        ('{"id": 1, "gold": null, "completion": "2"}\n', "line 1: gold is NoneType, must be a string or a number"),
        ('{"id": 1, "gold": {"a": 1}, "completion": "2"}\n', "gold is dict"),
        ('{"id": NaN, "gold": "2", "completion": "2"}\n', "line 1 is not a JSON object"),
        ("[1, 2]\n", "line 1 is not a JSON object"),
        ("\n\udcff\n", "line 2 is not UTF-8 text"),
        ("\n", "has no lines"),
        ("", "has no lines"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_written(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(text, errors="surrogateescape")
    assert main(["grade", "--task", "math", "--in", str(source), "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == [source]


def test_lines_end_where_json_lines_do_and_a_byte_order_mark_is_no_part_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('\ufeff{"id": 1, "gold": 2, "completion": "so\u2028\\\\boxed{2}"}\r\n\r\n', newline="")
    assert main(["grade", "--task", "math", "--in", str(source), "--out", str(out), "--workers", "1"]) == 0
    assert json.loads(out.read_text())["outcome"] == "passed"
    assert capsys.readouterr().out.startswith("1 graded: 1 passed")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"--out": "in.jsonl"}, "is the file of the answers"),
        ({"--out": "."}, "is a folder"),
        ({"--out": "nowhere/out.jsonl"}, "make it first"),
        ({"--in": "nowhere"}, "nowhere"),
        ({"--in": "."}, "give a file, not a folder"),
        ({"--workers": "0"}, "at least 1 worker"),
        ({"--task": "maths"}, "unknown task 'maths': say math, code, or a class"),
        ({"--task": "nowhere_at_all.Reverse"}, "no module nowhere_at_all beside"),
        ({"--task": "Recipe"}, "Recipe has no describe"),
        ({"--set": "MathMiniature.size=3"}, "--set is for tasks that are classes, not for math"),
    ],
)
def test_impossible_arguments_are_said_in_one_line(
    changes: dict[str, str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    line = '{"id": 1, "gold": "2", "completion": "2"}\n'
    Path("in.jsonl").write_text(line)
    arguments = {"--task": "math", "--in": "in.jsonl", "--out": "out.jsonl"} | changes
    assert main(["grade", *(part for pair in arguments.items() for part in pair)]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert Path("in.jsonl").read_text() == line
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_programs_import_the_packages_that_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    tests = {"kind": "asserts", "code": "import numpy as np\nassert np.array_equal(f(2), [0, 1])"}
    completion = "```python\nimport numpy as np\ndef f(n): return np.arange(n).tolist()\n```"
    source.write_text(json.dumps({"id": 1, "tests": tests, "completion": completion}))
    for packages, outcome in (([], "error"), (["--packages", "numpy"], "passed")):
        command = ["grade", "--task", "code", "--in", str(source), "--out", str(out), "--workers", "1", *packages]
        assert main(command) == 0
        assert json.loads(out.read_text())["outcome"] == outcome
    capsys.readouterr()
    command = ["grade", "--task", "math", "--in", str(source), "--out", str(out), "--packages", "numpy"]
    assert main(command) != 0
    assert "--packages is for --task code" in capsys.readouterr().err


def test_a_package_that_is_not_installed_is_the_cause_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"id": 1, "tests": {"kind": "asserts", "code": ""}, "completion": "x"}))
    command = ["grade", "--task", "code", "--in", str(source), "--out", str(out), "--packages", "no_such_package"]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "no_such_package, which is not installed: pip install it" in said
    assert "no sandbox" not in said
