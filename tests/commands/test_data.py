"""`scalelab data check` as a user calls it: what it prints, what it writes, and bad files in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalelab.cli import main

ROWS = [
    *({"question": f"Compute {n} + 1.", "final_answer": [str(n + 1)], "solution": "Long."} for n in range(10, 22)),
    {"question": "Prove that it holds.", "final_answer": ["Proof. It holds."]},
    {"question": "Compute 10 + 1.", "final_answer": ["11"]},
]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([json.dumps(row) for row in ROWS] + ["{damaged"]))
    return path


def test_counts_numbers_and_columns_are_printed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for repeated in (False, True):
        assert main(["data", "check", str(file)]) == 0
        out = capsys.readouterr().out
        assert "15 rows of math; answer from final_answer (14)" in out, repeated
        assert "13 rows can teach, 2 cannot; 1 are copies of another" in out
        assert [line.split() for line in out.splitlines() if line.strip().startswith("1 ")] == [
            ["1", "no", "answer", "13", "the", "gold", "is", "words", "about", "a", "solution"],
            ["1", "is", "no", "JSON", "15", *out.partition("is no JSON")[2].split("\n")[0].split()[1:]],
        ]


def test_rows_that_can_teach_are_written(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "clean.jsonl"
    for keep, count in ((["--keep"], 14), ([], 13)):
        assert main(["data", "check", str(file), "--quick", "--out", str(out), "--json", *keep]) == 0
        assert len(out.read_text().splitlines()) == count
        facts = json.loads(capsys.readouterr().out)
        assert (facts["rows"], [one["row"] for one in facts["set_aside"]]) == (15, [13, 15])
    assert main(["data", "check", str(out)]) == 0
    assert "13 rows can teach, 0 cannot" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "more", "says"),
    [
        (b"\0\1\2", [], "is binary"),
        (b'{"a": 1}', [], "does not tell if it holds math or code (columns: a): say --kind"),
        (b'{"a": 1}', ["--kind", "math"], "row 1 has no problem"),
        (b'{"problem": "p", "answer": "1", "tests": []}', [], "say --kind"),
        (b'{"problem": "p", "answer": "1", "ground_truth": "2"}', [], "answer or ground_truth: name one"),
        (b'{"problem": "p", "answer": "1"}', ["--answer", "a"], "has no answer"),
        (b'{"problem": "p", "answer": "1"}', ["--workers", "0"], "at least 1"),
        (b"", [], "no row that can be read"),
    ],
)  # fmt: skip
def test_bad_files_are_one_line(
    file: Path, capsys: pytest.CaptureFixture[str], content: bytes, more: list[str], says: str
) -> None:
    file.write_bytes(content)
    assert main(["data", "check", str(file), *more]) != 0
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_what_is_no_data_set_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(tmp_path / "nothing")]) != 0
    assert "neither a file nor a data set" in capsys.readouterr().err
    assert main(["data", "check", "gsm8k", "--answer", "a"]) != 0
    assert "--answer is for files" in capsys.readouterr().err
