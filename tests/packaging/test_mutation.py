"""The mutation tool tells a mistake that tests notice from one that they do not, and from tests that do not end."""

from __future__ import annotations

from pathlib import Path

import mutation
import pytest


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("ONE = 2\n", "failed"),
        ("ONE = 0 + 1\n", "passed"),
        ("while True:\n    pass\n", "timed out"),
        ("ONE = 3\n", "failed before"),
    ],
)
def test_a_mistake_is_noticed_by_tests_that_fail_and_not_by_tests_that_do_not_end(
    tmp_path: Path, text: str, outcome: str
) -> None:
    (tmp_path / "one.py").write_text("ONE = 1\n")
    right = 4 if outcome == "failed before" else 1
    (tmp_path / "test_one.py").write_text(f"from one import ONE\n\n\ndef test_one():\n    assert ONE == {right}\n")
    mistake = mutation.Mistake("one.py", text, ("test_one.py",))
    assert mutation.seen(mistake, tmp_path, 5.0 if outcome == "timed out" else 120.0, {}) == outcome
    assert (tmp_path / "one.py").read_text() == "ONE = 1\n"


def test_the_report_counts_each_kind_by_itself() -> None:
    found = mutation.report(["failed", "timed out", "passed", "failed", "failed before"])
    assert found == "2 noticed, 1 not noticed, 1 timed out, 1 not judged"


def test_tests_of_a_subcommand_are_those_that_call_it() -> None:
    assert "tests/rehearse/test_command.py" in mutation.tests_of("scalelab/commands/rehearse.py")


def test_tests_of_a_module_are_also_those_that_have_its_names_from_another() -> None:
    file, asked = "scalelab/curves/compare.py", "tests/curves/test_forgetting.py"
    assert file.removesuffix(".py").replace("/", ".") not in Path(asked).read_text()
    assert asked in mutation.tests_of(file)


def test_printed_texts_are_asked_where_their_commands_run_the_file_those_of_few_files_first() -> None:
    subjects = {"plan": ["a.py", "b.py", "c.py"], "law": ["b.py", "c.py"], "settings": [], "options": ["a.py"]}
    asked = [one.partition("[")[2] for one in mutation.printed_by("b.py", subjects)]
    assert asked == ["options]", "settings]", "law]", "plan]"]
