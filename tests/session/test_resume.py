"""A run broken off goes on as if it had not been: its books, its rollouts and its files say the same as before."""

from __future__ import annotations

import errno
import platform
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalelab.cli import main
from scalelab.cluster.faults import Faults
from scalelab.commands import run as command
from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.recipe.types import Rollout
from scalelab.run.books import Ledger
from scalelab.run.settings import Cluster
from scalelab.session import session
from scalelab.session.facts import changed, processor
from scalelab.store.folder import RunFolder
from scalelab.store.lease import Lease
from scalelab.store.lines import read_lines
from scalelab.store.manifest import read_run_manifest
from scalelab.store.places import latest_folder
from scalelab.store.waiting_rollouts import read_rollouts, write_rollouts
from scalelab.waiting import LostError
from scalelab.watch.progress import Progress
from scalelab.watch.tensorboard_writer import TensorBoardWriter
from tests.helpers.small_runs import write_run


def rollout(number: int, tokens: int) -> Rollout:
    rng = np.random.default_rng(number)
    return Rollout(
        prompt_id=f"math/{number}",
        task="math",
        prompt_ids=rng.integers(0, 9, 3).astype(np.int32),
        completion_ids=rng.integers(0, 9, tokens).astype(np.int32),
        logprobs_T=rng.normal(size=tokens).astype(np.float32),
        forced_T=rng.random(tokens) < 0.5,
        spans=((3, 0, tokens - 1), (4, tokens - 1, tokens)) if tokens else (),
        reward=1 / 3,
        outcome="passed",
        truncated=number % 2 == 0,
    )


def test_rollouts_come_back_to_the_last_bit(tmp_path: Path) -> None:
    rollouts = [rollout(number, tokens) for number, tokens in enumerate((5, 0, 1, 17))]
    name = write_rollouts(tmp_path, rollouts)
    assert name == write_rollouts(tmp_path, rollouts), "the same content has the same name"
    for before, after in zip(rollouts, read_rollouts(tmp_path, name), strict=True):
        for one in fields(Rollout):
            mine, theirs = getattr(before, one.name), getattr(after, one.name)
            if isinstance(mine, np.ndarray):
                np.testing.assert_array_equal(mine, theirs, err_msg=one.name)
                assert mine.dtype == theirs.dtype
            else:
                assert mine == theirs
                assert type(mine) is type(theirs)


def test_damaged_or_missing_rollouts_are_refused(tmp_path: Path) -> None:
    name = write_rollouts(tmp_path, [rollout(0, 5)])
    content = bytearray((tmp_path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LabError, match="damaged"):
        read_rollouts(tmp_path, name)
    (tmp_path / name).unlink()
    with pytest.raises(LabError, match="missing"):
        read_rollouts(tmp_path, name)


def hours(compute: float) -> dict[str, float]:
    return {"generator": compute, "trainer": compute, "evaluation": 0.0}


def test_after_going_back_every_step_stands_once_and_nothing_is_gone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in range(1, 8):
        folder.add_step({"step": step, "compute_by_role": hours(step)})
    for step, tasks in ((0, "ab"), (3, "ab"), (5, "a"), (6, "ab")):
        for task in tasks:
            folder.add_evaluation([{"step": step, "task": task}])
    folder.add_alarm({"step": 6, "message": "oh"})
    assert folder.go_back(5, ["a", "b"]) == 2
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert [(line["step"], line["task"]) for line in read_lines(tmp_path / "evals.jsonl")] == [
        *((0, "a"), (0, "b"), (3, "a"), (3, "b"))
    ], "an evaluation of which one task is missing is measured again"
    assert read_lines(tmp_path / "alarms.jsonl") == []
    assert folder.evaluated_steps() == [0, 3]
    undone = read_lines(tmp_path / "undone.jsonl")
    assert [(line["file"], line["step"]) for line in undone if line["file"] == "metrics.jsonl"] == [
        *(("metrics.jsonl", 6), ("metrics.jsonl", 7))
    ]
    assert folder.spent() == hours(7), "what was spent on undone steps is spent"
    folder.add_step({"step": 6, "compute_by_role": hours(9)})
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    folder.close()


def test_tensorboard_forgets_undone_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = RunFolder(tmp_path)
    folder.add_observer(TensorBoardWriter(tmp_path / "tensorboard"))
    for step in range(1, 5):
        folder.add_step({"step": step, "loss": step})
    folder.go_back(2, [])
    folder.add_step({"step": 3, "loss": 30})
    folder.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 1), (2, 2), (3, 30)]


def test_the_ledger_never_falls_behind_what_was_recorded() -> None:
    ledger = Ledger(1, 1, {"generator": 2.0, "trainer": 3.0, "evaluation": 1.0, "faults": 0.0})
    ledger.at_least({"generator": 2.5, "trainer": 1.0})
    assert ledger.hours == {"generator": 2.5, "trainer": 3.0, "evaluation": 1.0, "faults": 0.0}
    ledger.at_least({})
    assert ledger.compute == 5.5


def test_a_role_is_replaced_as_often_as_allowed_and_then_named() -> None:
    lines: list[dict[str, Any]] = []
    faults = Faults(Cluster(generator_restarts=2, trainer_restarts=0), lines.append, lambda _: None)
    for _ in range(2):
        faults.lost("generator", "generator 1", LostError("it died"), requeued=3)
        faults.recovered("generator", "generator 1")
    with pytest.raises(LabError, match=r"it died; 2 times the generator was replaced .*generator_restarts"):
        faults.lost("generator", "generator 1", LostError("it died"))
    with pytest.raises(LabError, match="trainer_restarts"):
        faults.lost("trainer", "the trainer", LostError("it died"))
    assert [(line["event"], line["role"]) for line in lines] == [
        *(("lost", "generator"), ("recovered", "generator")) * 2,
        *(("lost", "generator"), ("lost", "trainer")),
    ]
    assert lines[0]["requeued"] == 3
    assert lines[1]["seconds"] >= 0


@pytest.fixture
def broken_off(tmp_path: Path) -> Path:
    """The folder of a run that was killed before its first checkpoint."""
    path = tmp_path / "quickstart"
    folder = RunFolder(path)
    folder.describe(status="running")
    folder.close()
    (path / "config.gin").write_text(resolve("quickstart", ["Budget.steps=7"]).config_gin())
    return path


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["run", *arguments, "--resume"]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_contradicting_configuration_is_refused_by_its_difference(
    broken_off: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "quickstart", "--out", str(broken_off))
    assert "budget.steps is 7 in it, but" in said
    assert f"scalelab run {broken_off} --resume" in said
    assert "seed is 0 in it, but 5 here" in refusal(capsys, str(broken_off), "--set", "Run.seed=5")


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"status": 3}', '{"status": "finished"}'])
def test_a_manifest_that_is_lost_damaged_or_edited_is_written_again_from_the_journal(
    content: str | None, broken_off: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "run_and_record", lambda *_: None)
    monkeypatch.setattr(command, "_present", lambda *_: None)
    folder = RunFolder(broken_off)
    folder.describe(seed=3)
    folder.close()
    (broken_off / "manifest.json").unlink()
    if content is not None:
        (broken_off / "manifest.json").write_text(content)
    assert main(["status", str(broken_off)]) == 0
    assert main(["check", str(broken_off)]) == 1
    assert f"manifest.json {'was changed' if content else 'is missing'}" in capsys.readouterr().out
    assert main(["run", str(broken_off), "--resume"]) == 0
    assert f"going on with {broken_off}" in capsys.readouterr().err
    manifest = read_run_manifest(broken_off)
    assert (manifest["status"], len(manifest["resumed"])) == ("running", 1)


@pytest.mark.parametrize(
    ("error", "code", "status", "last"),
    [
        (KeyboardInterrupt(), 130, "interrupted", "scalelab: interrupted"),
        (
            OSError(errno.ENOSPC, "no space left on device"),
            1,
            "failed",
            "scalelab: no space left on the disk; free some",
        ),
    ],
)
def test_a_run_that_was_interrupted_or_filled_the_disk_says_how_it_goes_on(
    error: BaseException,
    code: int,
    status: str,
    last: str,
    broken_off: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(*_: Any) -> None:
        raise error

    monkeypatch.setattr(session, "_run", end)
    assert main(["run", str(broken_off), "--resume"]) == code
    *_, how, ended = capsys.readouterr().err.splitlines()
    assert how == f"`scalelab run {broken_off} --resume` goes on with it"
    assert ended.startswith(last)
    assert read_run_manifest(broken_off)["status"] == status


def test_two_commits_that_differ_are_told_apart() -> None:
    [told] = changed({"git_commit": "ab" * 20}, {"git_commit": "ab" * 20 + "-dirty"})
    assert told == f"git commit {'ab' * 20} → {'ab' * 20}-dirty"


def test_a_finished_run_whose_manifest_is_lost_gets_it_back_and_is_refused(
    broken_off: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(broken_off)
    folder.describe(status="finished")
    folder.close()
    (broken_off / "manifest.json").unlink()
    assert main(["run", str(broken_off), "--resume"]) == 1
    assert "is finished, there is nothing to resume" in capsys.readouterr().err
    assert read_run_manifest(broken_off) == {"status": "finished"}


@pytest.mark.parametrize("before", ["another", None])
def test_a_virtual_run_says_when_it_goes_on_with_another_processor(
    before: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = resolve("study/scalerl")
    folder = RunFolder(tmp_path)
    folder.begin(own.config_gin(), hardware={"processor": before or processor()}, status="running")
    folder.close()
    monkeypatch.setattr(session, "run_and_record", lambda *_: None)
    session.resume(tmp_path, own, None, Progress())
    said = capsys.readouterr().err
    assert ("the last bits may differ" in said) == (before is not None)


@pytest.mark.parametrize(
    ("cpuinfo", "wanted"),
    [
        ("processor\t: 0\nmodel name\t: Chip 9\nflags\t: fpu avx2 avx512f\n\nprocessor\t: 1\n", "Chip 9, avx512f"),
        ("model name : Chip\nflags : sse2\n", "Chip"),
        ("Features : asimd\n", platform.machine()),
        ("", platform.machine()),
    ],
)
def test_a_processor_is_named_with_its_widest_instruction_set(cpuinfo: str, wanted: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert processor(tmp_path / "cpuinfo") == wanted


def test_a_finished_run_and_a_running_one_and_none_at_all_are_refused_kindly(
    broken_off: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(broken_off)
    assert main(["run", str(broken_off), "--resume"]) == 1
    assert "still running in another process" in capsys.readouterr().err.splitlines()[-1]
    assert read_run_manifest(broken_off) == {"status": "running"}, "nobody else's folder is touched"
    lease.release()
    folder = RunFolder(broken_off)
    folder.describe(status="finished")
    folder.close()
    said = refusal(capsys, str(broken_off / "config.gin"))
    assert "finished" in said
    assert "scalelab report" in said
    assert "no folder of a run" in refusal(capsys, "quickstart", "--out", str(broken_off.parent))
    monkeypatch.chdir(broken_off)
    assert "runs/quickstart does not exist" in refusal(capsys, "quickstart")


@pytest.mark.parametrize(
    "option",
    [
        ["--jobs", "2"],
        ["--only", "a*"],
        ["--sweep", "Run.seed=0,1"],
        ["--seeds", "1"],
        ["--hours", "1"],
        ["--stop-losers"],
    ],
    ids=lambda option: option[0],
)
def test_options_of_families_are_refused_beside_resume(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "quickstart", "--resume", *option]) == 1
    assert f"{option[0]} is for families" in capsys.readouterr().err


def test_another_folder_beside_a_run_that_is_resumed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    assert main(["run", str(run), "--resume", "--out", str(tmp_path / "other")]) == 1
    assert f"leave --out {tmp_path / 'other'} out" in capsys.readouterr().err


def test_the_newest_folder_of_a_name_is_resumed(tmp_path: Path) -> None:
    for name in ("quickstart", "quickstart-2", "quickstart-4"):
        (tmp_path / name).mkdir()
    assert latest_folder("quickstart", tmp_path).name == "quickstart-2", "-4 is of another name: -3 is missing"
