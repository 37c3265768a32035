"""Lines of a run are whole, whatever happens while it writes; every second is charged exactly once."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.durable import write_whole
from scalelab.environment import import_path
from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.run.books import Ledger
from scalelab.start.base_model import pretrained
from scalelab.store.folder import RunFolder
from scalelab.store.lease import Lease
from scalelab.store.lines import Lines, read_lines
from scalelab.store.manifest import check_config, read_run_manifest
from scalelab.store.places import clear, free_folder, made_nothing
from scalelab.watch.tensorboard_writer import TensorBoardWriter


def test_a_torn_last_line_is_left_out_and_cut_off_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "evals.jsonl"
    path.write_bytes(b'{"step": 0}\n{"step": 1}\n{"st')
    assert [record["step"] for record in read_lines(path)] == [0, 1]
    lines = Lines(path)
    lines.write({"step": 2})
    lines.close()
    assert [record["step"] for record in read_lines(path)] == [0, 1, 2]


def test_a_run_that_was_refused_leaves_its_folder_to_the_next_and_any_other_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    folder = RunFolder(path)
    folder.begin("Run.seed = 1\n", status="running")
    lease = Lease(path)
    assert not made_nothing(path), "it is still going on"
    folder.describe(status="failed")
    folder.close()
    assert made_nothing(path)
    for mine in ("notes.txt", "checkpoints/step_000001/weights", "evals.jsonl", "sft/step_000010/weights"):
        kept = path / mine
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("1\n")
        assert not made_nothing(path), mine
        kept.unlink()
        shutil.rmtree(path / mine.split("/")[0], ignore_errors=True)
    clear(path)
    assert [one.name for one in path.iterdir()] == ["lease.1"]
    lease.release()
    assert made_nothing(path), "an empty folder can be given"
    (path / "__init__.py").touch()
    assert not made_nothing(path), "no run made it"


def test_paths_for_actors_hold_in_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(Path("runs/one"))
    assert folder.checkpoints == tmp_path / "runs/one/checkpoints"
    assert folder.sft == tmp_path / "runs/one/sft"
    with pytest.raises(LabError, match=f"there is no folder {tmp_path}/models/none"):
        pretrained(resolve("scalerl_8b").run, "models/none")
    monkeypatch.setenv("PYTHONPATH", f"mine:/theirs:{tmp_path}/there")
    assert import_path() == {"PYTHONPATH": f"{tmp_path}/mine:/theirs:{tmp_path}/there"}
    monkeypatch.delenv("PYTHONPATH")
    assert import_path() == {}


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "evals.jsonl"
    path.write_bytes(b'{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(LabError, match="line 2"):
        read_lines(path)


def test_not_a_number_is_written_as_null(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "metrics.jsonl")
    lines.write({"loss": float("nan"), "ratio": {"max": float("inf"), "min": 0.5}})
    lines.close()
    assert read_lines(tmp_path / "metrics.jsonl") == [{"loss": None, "ratio": {"max": None, "min": 0.5}}]


def test_a_full_disk_leaves_whole_lines() -> None:
    lines = Lines(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        lines.write({"step": 0})
    lines.close()


def test_a_manifest_is_replaced_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.describe(seed=3)
    folder.describe(status="finished")
    folder.close()
    assert json.loads((tmp_path / "run" / "manifest.json").read_text()) == {"seed": 3, "status": "finished"}
    write_whole(tmp_path / "text", "new")
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("content", [b"[]", b"3", b"{", b"[" * 100_000, b"\xff\xfe", b'{"a": 1}{"b": 2}', b""])
def test_a_manifest_that_is_none_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(LabError) as refused:
        read_run_manifest(tmp_path)
    assert len(str(refused.value).splitlines()) == 1


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"[" * 100_000, b"[1]", b"{}", b'{"a": NaN}', b"\xff"])))
def test_whatever_stands_in_a_file_of_lines_is_read_or_named(content: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "evals.jsonl"
        path.write_bytes(b"\n".join(content))
        try:
            assert all(isinstance(record, dict) for record in read_lines(path))
        except LabError as error:
            told = str(error)
            assert told.count("\n") == 0


def test_a_configuration_that_was_cut_off_is_not_taken_for_the_runs(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin("Budget.steps = 7\nRun.seed = 3\n", status="running")
    folder.close()
    check_config(tmp_path, read_run_manifest(tmp_path))
    (tmp_path / "config.gin").write_text("Budget.steps = 7\n")
    with pytest.raises(LabError, match="not what this run began with"):
        check_config(tmp_path, read_run_manifest(tmp_path))
    check_config(tmp_path, {"status": "running"})
    (tmp_path / "config.gin").unlink()
    with pytest.raises(LabError, match=r"no config.gin"):
        check_config(tmp_path, read_run_manifest(tmp_path))


def test_undone_lines_are_moved_once_however_often_a_return_is_broken_off(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.add_step({"step": step})
    assert folder.go_back(1, []) == 2
    folder.close()
    (tmp_path / "undone.jsonl").write_text('{"file": "metrics.jsonl", "step": 2}\n')  # as far as one try came
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n')
    folder = RunFolder(tmp_path)
    assert folder.mended == ["metrics.jsonl", "undone.jsonl"]
    assert folder.go_back(1, []) == 0
    folder.close()
    assert [line["step"] for line in read_lines(tmp_path / "undone.jsonl")] == [2, 3]
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [1]


def test_a_run_goes_on_when_its_tensorboard_folder_is_removed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.add_observer(TensorBoardWriter(tmp_path / "tensorboard"))
    folder.add_step({"step": 1, "loss": 1.0})
    shutil.rmtree(tmp_path / "tensorboard")
    for step in range(2, 6):
        folder.add_step({"step": step, "loss": 1.0})
    folder.close()
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]


def test_tensorboard_holds_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = RunFolder(tmp_path)
    folder.add_observer(TensorBoardWriter(tmp_path / "tensorboard"))
    folder.add_step({"step": 3, "loss": 0.5, "seconds": {"wait": 2}, "grad_norm": None})
    folder.add_evaluation([{"step": 3, "task": "math", "pass_rate": 0.25}])
    folder.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
    assert found == {
        "train/loss": 0.5,
        "train/seconds/wait": 2,
        "eval/math/pass_rate": 0.25,
    }
    assert {event.step for event in events.Scalars("train/loss")} == {3}


def test_a_second_run_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    first = free_folder("family/member", tmp_path)
    first.mkdir(parents=True)
    assert free_folder("family/member", tmp_path) == first.with_name("member-2")
    RunFolder(first).begin("", status="failed", started=0.0)  # of a run that was refused
    assert free_folder("family/member", tmp_path) == first
    RunFolder(first).describe(status="running")
    assert free_folder("family/member", tmp_path) == first.with_name("member-2")
    first.with_name("member-2").mkdir()
    RunFolder(first).describe(status="failed")
    assert free_folder("family/member", tmp_path) == first.with_name("member-3"), "--resume would take the second"


@given(st.text(st.sampled_from("./ab\\~$ \0"), min_size=1, max_size=12))
def test_no_name_of_a_run_leaves_the_folder_of_runs(name: str) -> None:
    root = Path("/nowhere/runs")
    path = free_folder(name, root)
    assert path.is_relative_to(root)
    assert ".." not in path.parts
    assert all("\0" not in part for part in path.parts)


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1), st.booleans()), max_size=30),
    st.integers(1, 8),
    st.integers(1, 8),
)
def test_every_device_second_is_charged_to_exactly_one_role(
    ticks: list[tuple[float, float, bool]], generators: int, trainers: int
) -> None:
    ledger = Ledger(generators, trainers)
    for seconds, share, idle in ticks:
        ledger.advance(seconds, evaluation_share=share, trainer_idle=idle)
    wall = sum(seconds for seconds, _, _ in ticks) / 3600
    assert sum(ledger.hours.values()) == pytest.approx(wall * (generators + trainers))
    assert ledger.compute == pytest.approx(sum(ledger.hours.values()) - ledger.hours["evaluation"])
    copy = Ledger(generators, trainers)
    copy.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert copy == ledger
