"""Runs as files: a page that stands alone, figures for papers, a Markdown summary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalelab.curves import Options


def write_report(sources: Path | Sequence[Path], path: Path, options: Options | None = None) -> Path:
    """Write the page of some runs: `scalelab.report.page.write_report`, imported when it is called."""
    from scalelab.report import page

    return page.write_report(sources, path, options)


__all__ = ["write_report"]
