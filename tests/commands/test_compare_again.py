"""A comparison after one more evaluation says to the byte what it says without a cache, whatever became of that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from curve_tables.speed import evaluate_once_more

from scalelab.cli import main

STUDY = Path(__file__).parents[2] / "docs/study/runs"


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """Output of `compare --json` on two recipes with two seeds each, by the name of a cache."""
    for recipe in ("without_loss", "fast"):
        for seed in ("seed_0", "seed_1"):
            shutil.copytree(STUDY / recipe / seed, tmp_path / "runs" / recipe / seed)

    def say(cache: str) -> str:
        monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / cache))
        main(["compare", *(str(tmp_path / "runs" / recipe) for recipe in ("without_loss", "fast")), "--json"])
        return capsys.readouterr().out

    return say


def test_one_more_evaluation_is_seen_and_the_cache_moves_no_byte(said: Callable[[str], str], tmp_path: Path) -> None:
    before = said("kept")
    assert said("kept") == before
    evaluate_once_more(tmp_path / "runs/fast/seed_1/evals.jsonl")
    after = said("kept")
    assert after == said("empty") != before


@pytest.mark.parametrize("name", ["evals.jsonl", "manifest.json", "config.gin"])
def test_a_run_is_read_anew_if_any_of_its_files_changes(said: Callable[[str], str], tmp_path: Path, name: str) -> None:
    said("kept")
    for folder in (tmp_path / "runs/fast").iterdir():
        (folder / name).write_text((STUDY / "slow" / folder.name / name).read_text())
    assert said("kept") == said("empty")


@pytest.mark.parametrize("damage", [lambda whole: whole[:-1], lambda whole: b"", lambda whole: whole[:32] + b"[]\n"])
def test_damaged_entries_are_read_anew(
    said: Callable[[str], str], tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    before = said("kept")
    entries = [*(tmp_path / "kept/fits").glob("*.curves")]
    whole = [entry.read_bytes() for entry in entries]
    for entry in entries:
        entry.write_bytes(damage(entry.read_bytes()))
    assert said("kept") == before
    assert len(entries) == 4
    assert [entry.read_bytes() for entry in entries] == whole
