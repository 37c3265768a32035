"""What a run writes is whole lines, whatever happens while it writes; every second is charged exactly once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.errors import LabError
from scalelab.run.folder import Lines, RunFolder, free_folder, read_lines, write_whole
from scalelab.run.ledger import Ledger


def test_a_torn_last_line_is_left_out_and_cut_off_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "evals.jsonl"
    path.write_bytes(b'{"step": 0}\n{"step": 1}\n{"st')
    assert [record["step"] for record in read_lines(path)] == [0, 1]
    lines = Lines(path)
    lines.write({"step": 2})
    lines.close()
    assert [record["step"] for record in read_lines(path)] == [0, 1, 2]


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


def test_tensorboard_holds_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = RunFolder(tmp_path)
    folder.add_step({"step": 3, "loss": 0.5, "seconds": {"wait": 2}, "grad_norm": None})
    folder.add_evaluation({"step": 3, "task": "math", "pass_rate": 0.25})
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
