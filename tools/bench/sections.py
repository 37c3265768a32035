"""Sections of documents that tools rewrite: the lines between two markers."""

from __future__ import annotations

from pathlib import Path


def replace_section(document: Path, begin: str, end: str, text: str) -> None:
    """Replace the lines between two markers, which stay.

    Args:
        document: a text file that holds each marker once.
        begin: the marker above the section.
        end: the marker below it.
        text: the new lines, without the newline at their end.

    Raises:
        SystemExit: the document lacks a marker.
    """
    content = document.read_text(encoding="utf-8")
    before, found, rest = content.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{document} has no section from {begin} to {end}: add these two lines where it belongs")
    document.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
