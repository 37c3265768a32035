"""Checkpoints: training on from one equals never stopping, only whole ones count, and what is wrong is named."""

import json
import random
import resource
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import moe.checkpoint.saver
from moe.checkpoint.folder import (
    MANIFEST,
    CheckpointPolicy,
    Manifest,
    check,
    finished_checkpoints,
    prune,
    publish,
    read_manifest,
    read_state,
    restore_replaced,
    set_aside,
    step_folder,
    write_manifest,
)
from moe.errors import MoeError
from moe.train.trainer import Trainer
from tests.helpers.moe_models import DENSE, MOE, batch, weighted, weights

slow = pytest.mark.slow
pytestmark = pytest.mark.slow
POLICY = CheckpointPolicy(keep_last=2, keep_every=4)


@given(st.sets(st.integers(0, 300)), st.integers(1, 5), st.none() | st.integers(1, 50))
def test_a_policy_keeps_the_newest_and_every_so_many(steps: set[int], last: int, every: int | None) -> None:
    kept = CheckpointPolicy(last, every).kept(steps)
    newer = {step: sum(other > step for other in steps) for step in steps}
    assert kept == {step for step in steps if newer[step] < last or (every and step % every == 0)}


def small(root: Path, step: int, name: str | None = None) -> Path:
    """A whole checkpoint of nothing but its manifest."""
    path = root / (name or step_folder(root, step).name)
    path.mkdir(parents=True)
    write_manifest(path, Manifest(step, DENSE.to_hf(), {}, 1, ("model",), {}))
    return path


def test_a_damaged_checkpoint_takes_no_place_and_the_one_just_written_stays(tmp_path: Path) -> None:
    policy = CheckpointPolicy(keep_last=1, keep_every=100)
    for step in (100, 120, 150):
        small(tmp_path, step)
    prune(tmp_path, policy, step_folder(tmp_path, 120))
    assert [read_manifest(path).version for path in finished_checkpoints(tmp_path)] == [100, 120, 150]
    set_aside(step_folder(tmp_path, 150))
    assert [read_manifest(path).version for path in finished_checkpoints(tmp_path)] == [100, 120]
    assert (tmp_path / ".step_000150.damaged").exists(), "kept until whole ones have taken its place"
    prune(tmp_path, policy, step_folder(tmp_path, 120))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000100", "step_000120"]


def test_a_checkpoint_that_was_being_replaced_gets_its_name_back(tmp_path: Path) -> None:
    small(tmp_path, 3, ".step_000003.old")
    small(tmp_path, 4, ".step_000004.old")
    small(tmp_path, 4)
    publish(small(tmp_path, 5, "fresh"), step_folder(tmp_path, 5))
    restore_replaced(tmp_path)
    assert [read_manifest(path).version for path in finished_checkpoints(tmp_path)] == [3, 4, 5]
    prune(tmp_path, CheckpointPolicy(keep_last=3))
    assert not list(tmp_path.glob(".*"))


@slow
def test_training_on_from_a_checkpoint_equals_never_stopping(make: Callable[..., Trainer], tmp_path: Path) -> None:
    straight = make(MOE)
    for step in range(4):
        if step == 2:
            straight.save(tmp_path / "two")
        straight.train_step(batch(step), weighted)
    expected = weights(straight)
    resumed = make(MOE, seed=5)
    resumed.load(tmp_path / "two")
    assert resumed.version == 2
    for step in range(2, 4):
        resumed.train_step(batch(step), weighted)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in resumed.export_weights())


@slow
def test_a_checkpoint_written_while_training_goes_on_is_of_the_moment_it_was_asked_for(
    make: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer is held until two more steps are taken, so that whatever it does not copy would be new."""
    one, held, write = make(MOE), threading.Event(), moe.checkpoint.saver.write

    def late(*args: Any) -> None:
        assert held.wait(900)
        write(*args)

    monkeypatch.setattr(moe.checkpoint.saver, "write", late)
    one.train_step(batch(0), weighted)
    expected = weights(one)
    one.save(tmp_path / "step_000001", {"drawn": [3]}, background=True)
    assert one.saving() == str(tmp_path / "step_000001")
    then = [one.train_step(batch(step), weighted) for step in (1, 2)]
    assert finished_checkpoints(tmp_path) == []
    held.set()
    one.finish_saving()
    assert one.saving() is None
    assert read_state(tmp_path / "step_000001") == {"drawn": [3]}
    one.load(tmp_path / "step_000001")
    assert one.version == 1
    assert all(torch.equal(tensor, expected[name]) for name, tensor in one.export_weights())
    again = [one.train_step(batch(step), weighted) for step in (1, 2)]
    assert [result.loss for result in again] == [result.loss for result in then]


@slow
def test_only_whole_checkpoints_count_and_policy_decides_which_stay(
    make: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(DENSE)
    for step in range(1, 8):
        one.version = step
        one.save(step_folder(tmp_path, step), {"step": step}, background=True, keep=POLICY)
    one.finish_saving()
    assert [path.name for path in finished_checkpoints(tmp_path)] == ["step_000004", "step_000006", "step_000007"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]

    def torn(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(moe.checkpoint.saver, "_publish", torn)
    one.save(step_folder(tmp_path, 8), background=True, keep=POLICY)
    with pytest.raises(MoeError, match=r"put the checkpoint in its place at .*step_000008: .*no space left"):
        one.finish_saving()
    one.finish_saving()
    assert check(finished_checkpoints(tmp_path)[-1]).version == 7


@slow
def test_a_save_that_never_ends_is_named(
    make: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, held = make(DENSE, save_deadline=0.4), threading.Event()
    monkeypatch.setattr(moe.checkpoint.saver, "write", lambda *args: held.wait(900))
    one.save(tmp_path / "step_000001", background=True)
    with pytest.raises(MoeError, match=r"step_000001 is still being written after 0 s"):
        one.save(tmp_path / "step_000002", background=True)
    held.set()


@slow
def test_a_checkpoint_can_be_written_before_the_first_step_and_written_over(
    make: Callable[..., Trainer], tmp_path: Path
) -> None:
    one = make(DENSE)
    one.save(tmp_path / "ck")
    one.train_step(batch(0), weighted)
    one.save(tmp_path / "ck")
    one.load(tmp_path / "ck")
    assert one.version == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["ck"]


@slow
def test_random_states_come_back(make: Callable[..., Trainer], tmp_path: Path) -> None:
    one = make(DENSE)
    draw = lambda: (random.random(), np.random.rand(), torch.rand(1).item())  # noqa: E731
    one.save(tmp_path / "ck")
    then = draw()
    one.load(tmp_path / "ck")
    assert draw() == then


@slow
def test_a_foreign_or_damaged_checkpoint_is_named(make: Callable[..., Trainer], tmp_path: Path) -> None:
    make(replace(MOE, hidden_size=64)).save(tmp_path / "step_000001")
    make(DENSE).save(tmp_path / "step_000002")
    one = make(MOE)
    one.save(tmp_path / "step_000003")
    before = weights(one)
    with pytest.raises(MoeError, match=r"000001 is of another model: hidden_size is 64 in it, but 48 here"):
        one.load(tmp_path / "step_000001")
    with pytest.raises(MoeError, match=r"model_type is 'llama' in it, but 'llama4_text' here, .* and \d+ more"):
        one.load(tmp_path / "step_000002")
    with pytest.raises(MoeError, match="no readable checkpoint"):
        one.load(tmp_path / "nothing")
    assert all(torch.equal(tensor, before[name]) for name, tensor in one.export_weights())
    one.load(tmp_path / "step_000003")


def damages() -> Iterator[tuple[str, Callable[[Path], object], str]]:
    """Damages to a file of a checkpoint, and the message for each."""

    def truncate(file: Path) -> None:
        file.write_bytes(file.read_bytes()[:1000])

    def flip(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)

    yield "__0_0.distcp", truncate, r"truncated: __0_0.distcp has 1000 of \d+ bytes"
    yield "__0_0.distcp", flip, "__0_0.distcp has changed"
    yield "common.pt", flip, "common.pt has changed"
    yield "state.json", lambda file: file.unlink(), "state.json is missing"
    yield MANIFEST, lambda file: file.unlink(), "it was never finished"
    yield MANIFEST, lambda file: file.write_text("{"), "checkpoint.json cannot be read"
    yield MANIFEST, lambda file: file.write_text(json.dumps({"format": 1})), "checkpoint.json cannot be read"


@slow
def test_every_damage_is_named_and_the_checkpoint_before_it_still_loads(
    make: Callable[..., Trainer], tmp_path: Path
) -> None:
    one = make(DENSE)
    for step in (1, 2):
        one.version = step
        one.save(step_folder(tmp_path, step), {"step": step})
    last, hf = step_folder(tmp_path, 2), DENSE.to_hf()
    assert read_manifest(last).parts == ("model", "optimizer", "state")
    assert check(last, hf).version == 2
    for name, harm, told in damages():
        kept = (last / name).read_bytes()
        harm(last / name)
        with pytest.raises(MoeError, match=told):
            one.load(last)
        one.load(step_folder(tmp_path, 1))
        assert one.version == 1
        if (last / MANIFEST).exists():
            with pytest.raises(MoeError, match=told):
                check(last)
        (last / name).write_bytes(kept)
    assert check(last).version == 2


@slow
@pytest.mark.parametrize("room", [pytest.param(1_000, marks=pytest.mark.nightly), 100_000])
def test_a_full_disk_leaves_the_old_checkpoint_and_model(
    make: Callable[..., Trainer], tmp_path: Path, room: int
) -> None:
    one = make(MOE)
    one.save(tmp_path / "ck")
    one.save_hf(tmp_path / "hf")
    before = weights(one)
    one.train_step(batch(0), weighted)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(MoeError, match="cannot write a checkpoint to"):
            one.save(tmp_path / "ck")
        with pytest.raises(MoeError, match="cannot write the model to"):
            one.save_hf(tmp_path / "hf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    one.load_weights(tmp_path / "hf")
    assert all(torch.equal(tensor, before[name]) for name, tensor in one.export_weights())
    one.load(tmp_path / "ck")
    assert one.version == 0
