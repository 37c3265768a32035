"""The page about a thousand GPUs shows what the plan says today."""

from __future__ import annotations

from pathlib import Path

import pytest
import thousand


def test_the_page_about_a_thousand_gpus_shows_todays_plan(capsys: pytest.CaptureFixture[str]) -> None:
    thousand.main()
    assert capsys.readouterr().out in (Path(__file__).parents[2] / "docs/cluster.md").read_text()
