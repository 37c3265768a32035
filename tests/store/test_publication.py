"""A checkpoint gets its name from the process that holds the run, and from nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moe.checkpoint.folder import CheckpointPolicy, finished_checkpoints, read_state
from scalelab.store import folder as folder_module
from scalelab.store import lease as lease_module
from scalelab.store.earlier import last_epoch
from scalelab.store.folder import RunFolder
from scalelab.store.lease import FencedError, Lease
from scalelab.store.manifest import CHECKPOINTS
from scalelab.store.publication import LINE
from scalelab.store.recovery import choose
from tests.helpers.small_runs import step_line, write_checkpoint, write_unnamed

STEPS = 4


def names(path: Path) -> list[str]:
    """Names of a run's checkpoints."""
    return [one.name for one in finished_checkpoints(path / CHECKPOINTS)]


def taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Take a folder whose holder stands still."""
    with monkeypatch.context() as still:
        still.setattr(lease_module, "_lives", lambda *_: False)
        return RunFolder(path, Lease(path, last_epoch(path)))


@pytest.fixture
def first(tmp_path: Path) -> RunFolder:
    """A run of four steps with a checkpoint of the second, and its process."""
    folder = RunFolder(tmp_path, Lease(tmp_path))
    folder.begin("Run.seed = 3\n", status="running")
    for step in range(1, STEPS + 1):
        folder.add_step(step_line(step))
        if step == 2:
            write_checkpoint(folder, step)
    return folder


def test_a_process_that_lost_the_run_names_no_checkpoint(first: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    path = first.path
    second = taken(path, monkeypatch)
    write_unnamed_of(first, STEPS)  # its ranks know nothing of it
    with pytest.raises(FencedError):
        first.publish_checkpoints()
    assert names(path) == ["step_000002"]
    second.go_back(2, ["math", "code"])
    for step in (3, 4):
        second.add_step(step_line(step))
    made = write_checkpoint(second, STEPS)
    assert read_state(made)[LINE] == second.line_of(STEPS) != first.line_of(STEPS)
    third = taken(path, monkeypatch)
    assert names(path) == ["step_000002", "step_000004"]
    assert choose(path).path == made, "what the first one's ranks left is not taken for it"
    assert third.line_of(STEPS) == second.line_of(STEPS)


def test_a_step_that_was_written_while_the_run_was_taken_over_counts(
    first: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = folder_module.earlier_account

    def found_a_moment_before(path: Path) -> Any:
        before = found(path)
        monkeypatch.setattr(first._journal, "check", lambda: None)  # it had looked at its lease already
        first.add_step(step_line(STEPS + 1))
        return before

    monkeypatch.setattr(folder_module, "earlier_account", found_a_moment_before)
    second = taken(first.path, monkeypatch)
    assert second.line_of(STEPS + 1) == first.line_of(STEPS + 1) is not None
    assert second.spent() == first.spent()


def write_unnamed_of(folder: RunFolder, step: int) -> None:
    """Let ranks finish a checkpoint that their process had asked for while it held the run."""
    with pytest.MonkeyPatch.context() as before:
        before.setattr(folder, "check", lambda: None)
        write_unnamed(folder, step)


def test_what_was_taken_over_at_the_last_moment_cannot_be_renamed(
    first: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = first.path
    unnamed = write_unnamed(first, STEPS)
    check = first._publication._check

    def stand_still() -> None:
        check()
        monkeypatch.setattr(first._publication, "_check", check)
        taken(path, monkeypatch)

    monkeypatch.setattr(first._publication, "_check", stand_still)
    with pytest.raises(FencedError):
        first.publish_checkpoints()
    assert not unnamed.exists()
    assert names(path) == ["step_000002", "step_000004"], "it is of a step that counts: the second one has named it"


def test_a_whole_checkpoint_without_a_name_is_gone_on_from(first: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write_unnamed(first, STEPS)
    assert names(first.path) == ["step_000002"]
    taken(first.path, monkeypatch)
    chosen = choose(first.path).path
    assert chosen is not None
    assert chosen.name == "step_000004"


def test_ranks_of_a_trainer_that_was_lost_get_no_name(first: RunFolder) -> None:
    late = first.begin_checkpoint(STEPS, CheckpointPolicy())
    first.go_back(2, ["math", "code"])
    for step in (3, 4):
        first.add_step(step_line(step))
    late.mkdir()
    (late / "checkpoint.json").write_text("{}")
    first.publish_checkpoints()
    assert names(first.path) == ["step_000002"]
    write_checkpoint(first, STEPS)
    assert names(first.path) == ["step_000002", "step_000004"]


def test_the_checkpoint_of_a_step_that_was_taken_again_is_passed_over(first: RunFolder) -> None:
    write_checkpoint(first, STEPS)
    first.go_back(2, ["math", "code"])
    for step in (3, 4):
        first.add_step(step_line(step))
    chosen = choose(first.path)
    assert chosen.path is not None
    assert chosen.path.name == "step_000002"
    assert "has undone, and taken again" in chosen.problems[0]


def test_older_checkpoints_go_once_a_newer_one_has_its_name(first: RunFolder) -> None:
    left = first.path / CHECKPOINTS / ".step_000003.1-9.writing"
    left.mkdir()
    path = write_unnamed(first, STEPS)
    first._publication._pending[path] = CheckpointPolicy(keep_last=1)
    first.publish_checkpoints()
    assert names(first.path) == ["step_000004"]
    assert not left.exists()
