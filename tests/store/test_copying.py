"""A second copy of the newest checkpoint is a run that goes on, and what breaks while it is made ends nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from moe.checkpoint.folder import finished_checkpoints
from scalelab.errors import LabError
from scalelab.store.audit import audit
from scalelab.store.copying import Copier, copy_newest, take_back
from scalelab.store.recovery import choose
from tests.helpers.small_runs import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints at 2, 4 and 6."""
    return write_run(tmp_path / "run")


def test_a_copy_is_a_whole_run_with_the_newest_checkpoint(run: Path, tmp_path: Path) -> None:
    copy = copy_newest(run, tmp_path / "disk")
    assert copy == tmp_path / "disk" / "run" / "checkpoints" / "step_000006"
    found = audit(tmp_path / "disk" / "run")
    assert (found.problems, found.steps, found.evaluations, found.checkpoints) == ([], 6, 3, 1)
    chosen = choose(tmp_path / "disk" / "run")
    assert (chosen.path, chosen.lost) == (copy, None)
    assert copy_newest(run, tmp_path / "disk") is None, "it is there already"


def test_a_newer_checkpoint_takes_the_place_of_the_copy_before(run: Path, tmp_path: Path) -> None:
    newest = run / "checkpoints" / "step_000006"
    newest.rename(run / "later")
    tokenizer = run / "checkpoints" / "tokenizer" / "tokenizer.json"
    tokenizer.parent.mkdir()
    tokenizer.write_text("{}")
    copy_newest(run, tmp_path / "disk")
    (run / "later").rename(newest)
    copy_newest(run, tmp_path / "disk")
    root = tmp_path / "disk" / "run" / "checkpoints"
    assert (root / "tokenizer" / "tokenizer.json").read_text() == "{}"
    assert [path.name for path in finished_checkpoints(root)] == ["step_000006"]
    assert len(list(root.glob("rollouts_*.npz"))) == 1


def test_a_half_written_line_is_not_copied(run: Path, tmp_path: Path) -> None:
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 7')
    copy_newest(run, tmp_path / "disk")
    assert (tmp_path / "disk" / "run" / "metrics.jsonl").read_bytes().endswith(b"}\n")


def test_a_damaged_checkpoint_leaves_the_copy_before_and_is_said_once(run: Path, tmp_path: Path) -> None:
    newest = run / "checkpoints" / "step_000006"
    newest.rename(run / "later")
    said: list[str] = []
    copier = Copier(run, str(tmp_path / "disk"), said.append)
    copier.update()
    (run / "later").rename(newest)
    (newest / "weights").write_bytes(b"other")
    copier.update()
    copier.update()
    assert [path.name for path in finished_checkpoints(tmp_path / "disk" / "run" / "checkpoints")] == ["step_000004"]
    assert len(said) == 1
    assert "no second copy of the newest checkpoint" in said[0]
    Copier(run, str(newest / "weights"), said.append).update()
    assert len(said) == 2, "a path that is no folder is said, too"
    Copier(run, None, said.append).update()
    assert len(said) == 2


def test_a_run_whose_checkpoints_are_gone_takes_its_second_copy_back(run: Path, tmp_path: Path) -> None:
    said: list[str] = []
    copy_newest(run, tmp_path / "disk")
    take_back(run, str(tmp_path / "disk"), said.append)
    assert said == [], "it has its own"
    shutil.rmtree(run / "checkpoints")
    take_back(run, str(tmp_path / "elsewhere"), said.append)
    assert said == [], "there is no copy"
    take_back(run, str(tmp_path / "disk"), said.append)
    assert len(said) == 1
    assert "holds no checkpoint: taking the second one back" in said[0]
    chosen = choose(run)
    assert (chosen.path, chosen.lost) == (run / "checkpoints" / "step_000006", None)
    assert audit(run).problems == []


def test_a_copy_of_another_configuration_is_not_taken_back(run: Path, tmp_path: Path) -> None:
    copy_newest(run, tmp_path / "disk")
    shutil.rmtree(run / "checkpoints")
    (run / "config.gin").write_text("Run.seed = 7\n")
    with pytest.raises(LabError, match="config"):
        take_back(run, str(tmp_path / "disk"), print)
    assert not (run / "checkpoints").exists()


def test_a_run_named_by_a_dot_is_copied_under_its_own_name(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    assert copy_newest(Path("."), tmp_path / "disk") == tmp_path / "disk" / "run" / "checkpoints" / "step_000006"


def test_a_resumed_copy_does_not_copy_itself(run: Path, tmp_path: Path) -> None:
    copy_newest(run, tmp_path / "disk")
    shutil.rmtree(run)
    copied = tmp_path / "disk" / "run"
    assert copy_newest(copied, tmp_path / "disk") is None
    take_back(copied, str(tmp_path / "disk"), print)
    assert audit(copied).problems == []
