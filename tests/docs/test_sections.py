"""Tools rewrite the lines between two markers of a document, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sections import replace_section

BEGIN, END = "<!-- table -->", "<!-- end of the table -->"
LINES = st.text(st.sampled_from("ab |\n-<!é"), max_size=20)


@given(LINES, LINES, LINES, LINES)
def test_only_the_lines_between_the_markers_change(
    tmp_path_factory: pytest.TempPathFactory, before: str, old: str, new: str, after: str
) -> None:
    document = tmp_path_factory.mktemp("document") / "page.md"
    document.write_text(f"{before}{BEGIN}\n{old}\n{END}{after}", encoding="utf-8")
    replace_section(document, BEGIN, END, new)
    assert document.read_text(encoding="utf-8") == f"{before}{BEGIN}\n{new}\n{END}{after}"


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END}\n{BEGIN}"])
def test_a_document_without_the_section_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    document = tmp_path / "page.md"
    document.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match="no section from"):
        replace_section(document, BEGIN, END, "new")
    assert document.read_text(encoding="utf-8") == text
