"""Reading a run's files: nothing outside of the folder, nothing without an end, only what is new."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.errors import LabError
from scalelab.guarded import inside, read_text
from scalelab.reading.run_folder import shown_manifest
from scalelab.view import files
from scalelab.view.files import GrowingFile, number


def test_a_link_out_of_the_folder_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.gin").symlink_to(tmp_path / "secret")
    with pytest.raises(LabError, match="leads out of the run's folder"):
        read_text(run, "config.gin")
    with pytest.raises(LabError, match="leads out"):
        inside(run, "../secret")
    (run / "own.gin").write_text("a = 1")
    (run / "link.gin").symlink_to("own.gin")
    assert read_text(run, "link.gin") == "a = 1"


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "evals.jsonl")
    with pytest.raises(LabError, match="not a regular file"):
        GrowingFile(tmp_path, "evals.jsonl").update()


def test_only_whole_new_lines_are_read(tmp_path: Path) -> None:
    path, lines = tmp_path / "evals.jsonl", GrowingFile(tmp_path, "evals.jsonl")
    assert lines.update() == []
    path.write_bytes(b'{"a": 1}\n{"a"')
    assert lines.update() == [{"a": 1}]
    changed = lines.changed
    assert lines.update() == [{"a": 1}]
    assert lines.changed == changed
    with open(path, "ab") as file:
        file.write(b": 2}\nnot json\n[1]\n")
    assert lines.update() == [{"a": 1}, {"a": 2}]
    assert lines.broken == 2


def test_a_file_that_shrank_is_read_again(tmp_path: Path) -> None:
    path, lines = tmp_path / "evals.jsonl", GrowingFile(tmp_path, "evals.jsonl")
    path.write_text('{"a": 1}\n{"a": 2}\n')
    lines.update()
    path.write_text('{"a": 3}\n')
    assert lines.update() == [{"a": 3}]
    path.unlink()
    assert lines.update() == []


def test_lines_without_an_end_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST_TEXT", 100)
    deep = "[" * 50 + "]" * 50
    (tmp_path / "m.jsonl").write_text(json.dumps({"a": "x" * 200}) + f'\n{{"a": {deep}}}\n{{"a": 1}}\n')
    lines = GrowingFile(tmp_path, "m.jsonl")
    assert lines.update()[-1] == {"a": 1}
    assert lines.broken == 2


def test_a_manifest_nested_without_end_is_a_problem_in_words(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(LabError, match="not JSON"):
        shown_manifest(tmp_path)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=3))
def test_a_number_is_finite_or_nothing(value: object) -> None:
    found = number(value)
    assert found is None or (isinstance(found, float) and found - found == 0)
    if isinstance(value, float) and value - value == 0:
        assert found == value
