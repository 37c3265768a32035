"""A run goes on from the newest checkpoint that is whole, and starts only where its disk can hold what it writes."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.checkpoint.folder import (
    STATE,
    CheckpointPolicy,
    digest,
    finished_checkpoints,
    prune,
    read_manifest,
    read_state,
    step_folder,
    write_manifest,
)
from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.plan.disk import check_disk, disk_needed
from scalelab.store.folder import RunFolder
from scalelab.store.recovery import choose, lost_rollouts
from scalelab.store.retention import Retention, prune_completions, prune_training
from scalelab.store.trunk import plant, read_trunk
from tests.helpers import crash_world
from tests.helpers.small_runs import step_line, write_run, write_unnamed


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints at 2, 4 and 6."""
    return write_run(tmp_path / "run")


def steps(run: Path) -> list[str]:
    return [path.name for path in finished_checkpoints(run / "checkpoints")]


def harm(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_the_newest_is_taken_and_nothing_is_touched(run: Path) -> None:
    before = sorted(run.rglob("*"))
    chosen = choose(run, {"model_type": "llama"})
    assert chosen.path == step_folder(run / "checkpoints", 6)
    assert (chosen.state["schedule"], chosen.problems) == ({"trainer_version": 6}, ())
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize("name", ["weights", "state.json", "checkpoint.json"])
def test_damaged_ones_are_set_aside_and_take_no_whole_ones_place(run: Path, name: str) -> None:
    harm_all = (
        harm if name != "checkpoint.json" else lambda file: file.write_text("{"),
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
    )
    for step, how in zip((6, 4), harm_all):
        how(step_folder(run / "checkpoints", step) / name)
    chosen = choose(run)
    assert chosen.path == step_folder(run / "checkpoints", 2)
    assert len(chosen.problems) == 2
    assert "step_000006" in chosen.problems[0]
    assert steps(run) == ["step_000002"]
    prune(run / "checkpoints", CheckpointPolicy(keep_last=2))
    assert (run / "checkpoints" / ".step_000006.damaged").exists(), "there are not two whole ones yet"
    assert choose(run).problems == ()


def test_lost_rollouts_cost_no_step(run: Path) -> None:
    """Their groups are generated again; the checkpoint is whole without them."""
    newest = choose(run)
    name = newest.state["rollouts"]
    harm(run / "checkpoints" / name)
    damaged = choose(run)
    assert damaged.path == newest.path
    assert damaged.problems == ()
    assert "generated again" in str(damaged.lost)
    (run / "checkpoints" / name).unlink()
    assert f"{name} is missing" in str(choose(run).lost)


def test_a_checkpoint_of_another_configuration_or_model_is_not_taken(run: Path) -> None:
    with pytest.raises(LabError, match=r"no checkpoint can be used: .*another model"):
        choose(run, {"model_type": "mixtral"})
    (run / "config.gin").write_text("Run.seed = 4\n")
    with pytest.raises(LabError, match="not what this run began with"):
        choose(run)
    assert len(steps(run)) == 3, "where none can be used, all stay as they are"


def test_without_a_checkpoint_a_run_begins_anew(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    assert choose(run).path is None


@given(st.sets(st.integers(0, 300)), st.none() | st.integers(1, 5), st.none() | st.integers(1, 50))
def test_completions_are_kept_as_asked(steps: set[int], last: int | None, every: int | None) -> None:
    newer = {step: sum(other > step for other in steps) for step in steps}
    expected = {step for step in steps if last is None or newer[step] < last or (every and step % every == 0)}
    assert Retention(last, every).kept(steps) == expected


def test_completions_that_are_not_to_be_kept_are_deleted(run: Path) -> None:
    prune_completions(run, Retention(), [0, 3, 6])
    assert len(list((run / "rollouts").iterdir())) == 3
    shutil.copy(run / "rollouts" / "step_000006.parquet", run / "rollouts" / "step_000009.parquet")
    prune_completions(run, Retention(keep_last=3), [0, 3, 6])
    assert (run / "rollouts" / "step_000000.parquet").exists(), "an evaluation that has no line takes no other's place"
    (run / "rollouts" / "step_000009.parquet").unlink()
    prune_completions(run, Retention(keep_last=1, keep_every=6), [0, 3, 6])
    assert sorted(path.name for path in (run / "rollouts").iterdir()) == ["step_000000.parquet", "step_000006.parquet"]
    with pytest.raises(ValueError, match="greater than 0"):
        Retention(keep_last=0)


def test_completions_of_training_keep_their_limit_and_the_newest(run: Path) -> None:
    for step in (5, 10, 100):
        (run / "rollouts" / f"train_{step:06d}.parquet").write_bytes(bytes(1000))
    for limit, left in ((None, 3), (3000 / 2**30, 3), (2999 / 2**30, 2), (1 / 2**30, 1)):
        prune_training(run, Retention(train_gib=limit))
        found = sorted(path.name for path in (run / "rollouts").glob("train_*"))
        assert found == ["train_000005.parquet", "train_000010.parquet", "train_000100.parquet"][-left:]
    assert len(list((run / "rollouts").glob("step_*"))) == 3
    every = ["Budget.hours=None", "Budget.steps=7400", "Retention.train_every=1"]
    free, limited = (
        disk_needed(resolve("scalerl_8b", [*every, *more]).run, None) for more in ([], ["Retention.train_gib=50.0"])
    )
    none = disk_needed(resolve("scalerl_8b", every[:2]).run, None)
    assert 50 < (limited.completions - none.completions) / 2**30 < 60 < free.completions / 2**30


def test_a_start_counts_what_the_run_will_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = resolve("quickstart").run
    needed = disk_needed(run, None)
    assert needed.total == needed.checkpoints + needed.waiting + needed.completions + needed.lines
    large = resolve("scalerl_8b", ["Budget.hours=None", "Budget.steps=7400"]).run
    kept = resolve("scalerl_8b", ["Budget.hours=None", "Budget.steps=7400", "Retention.keep_last=2"]).run
    assert disk_needed(large, None).completions > 20 * disk_needed(kept, None).completions
    usage = namedtuple("usage", "total used free")
    free = {"bytes": needed.total + 2**30}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, free["bytes"]))
    check_disk(tmp_path / "not" / "there", run, None)
    with pytest.raises(LabError, match=r"this run writes up to .* of checkpoints .*Retention.keep_last") as refused:
        check_disk(tmp_path, large, None)
    assert len(str(refused.value).splitlines()) == 1
    assert str(refused.value).endswith("or give another --out")
    free["bytes"] = 2**30 - 1
    with pytest.raises(LabError, match="needs 1 GiB in any case"):
        check_disk(tmp_path, run, None)


def test_a_run_whose_steps_nobody_can_count_is_counted_with_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 2**38))
    limited = resolve("scalerl_8b", ["Budget.steps=9000", "Budget.hours=100.0"]).run
    unlimited = resolve("scalerl_8b", ["Budget.steps=9000", "Budget.hours=None"]).run
    assert disk_needed(limited, None) == disk_needed(unlimited, None)
    with pytest.raises(LabError, match=r"in all 9,000 of Budget\.steps, as nobody knows how many Budget\.hours pays"):
        check_disk(tmp_path, limited, None)
    with pytest.raises(LabError, match=r"writes up to [\d.]+ GiB and needs"):
        check_disk(tmp_path, unlimited, None)


def test_what_is_on_the_disk_already_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = resolve("scalerl_8b", ["Budget.hours=None", "Budget.steps=7400"]).run
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 2 * 2**30))
    with open(tmp_path / "there", "wb") as file:
        os.truncate(file.fileno(), disk_needed(large, None).total)  # sparse: it takes no room
    check_disk(tmp_path, large, None)
    os.truncate(tmp_path / "there", 2**20)
    with pytest.raises(LabError, match="keep less, or move the run to a larger disk"):  # it cannot go on elsewhere
        check_disk(tmp_path, large, None)


@pytest.mark.parametrize(("due", "step"), [(True, 7), (False, 6)])
def test_a_simulated_run_passes_over_a_checkpoint_that_it_took_only_because_it_was_asked_to_stop(
    run: Path, due: bool, step: int
) -> None:
    folder = RunFolder(run)
    folder.add_step(step_line(7))
    taken = write_unnamed(folder, 7)
    (taken / STATE).write_text(json.dumps({**read_state(taken), "virtual": {"due": due}}))
    whole = read_manifest(taken)
    write_manifest(taken, replace(whole, files={**whole.files, STATE: digest(taken / STATE)}))
    folder.publish_checkpoints()
    folder.close()
    chosen = choose(run)
    assert chosen.path == step_folder(run / "checkpoints", step)
    assert [path.name for path in chosen.not_due] == ([] if due else ["step_000007"])


def test_a_branch_takes_over_the_groups_that_wait_in_its_parents_checkpoint(run: Path, tmp_path: Path) -> None:
    trunk, branch = read_trunk(run, None, lambda state: True), RunFolder(tmp_path / "branch")
    branch.write_config("Run.seed = 3\n", "Run.seed = 3\n")
    plant(trunk, branch, trunk.state)
    branch.close()
    assert trunk.state["rollouts"]
    assert lost_rollouts(branch.checkpoints, trunk.state) is None


@pytest.mark.parametrize("left", [0, 50])
def test_a_journal_that_was_emptied_empties_no_other_file(left: int, tmp_path: Path) -> None:
    crash_world.live(tmp_path / "run", crash_world.settings())
    journal, evals = tmp_path / "run" / "journal.jsonl", tmp_path / "run" / "evals.jsonl"
    journal.write_bytes(journal.read_bytes()[:left])
    before = evals.read_bytes()
    with pytest.raises(LabError, match="put it back"):
        RunFolder(tmp_path / "run")
    assert evals.read_bytes() == before != b""
