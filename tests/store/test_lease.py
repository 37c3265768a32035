"""One process at a time writes into a run's folder, and one that lost it writes nothing more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from scalelab.errors import LabError
from scalelab.store import lease as lease_module
from scalelab.store.chain import JOURNAL
from scalelab.store.earlier import last_epoch
from scalelab.store.folder import RunFolder
from scalelab.store.lease import FencedError, Lease, leases, this_process
from scalelab.store.lines import read_lines


def opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunFolder, Lease]:
    """Take a folder whose holder seems to be gone."""
    with monkeypatch.context() as gone:
        gone.setattr(lease_module, "_lives", lambda *_: False)
        lease = Lease(path, last_epoch(path))
    return RunFolder(path, lease), lease


def test_a_second_process_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    lease = Lease(tmp_path)
    with pytest.raises(LabError, match=r"still running in another process \(process \d+ on .*\): stop it first"):
        Lease(tmp_path)
    lease.release()
    assert leases(tmp_path) == {}


def test_the_lease_of_a_process_that_ended_is_taken_at_once(tmp_path: Path) -> None:
    source = f"from pathlib import Path; from scalelab.store.lease import Lease; Lease(Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", source], check=True)
    assert list(leases(tmp_path)) == [1]
    assert Lease(tmp_path).epoch == 2
    assert list(leases(tmp_path)) == [2]


@pytest.mark.parametrize("beats", [False, True])
def test_a_holder_on_another_machine_is_waited_for(
    tmp_path: Path, beats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = {**this_process(), "node": "elsewhere", "place": "another"}
    other = Lease(tmp_path, holder=elsewhere)
    said: list[str] = []
    monkeypatch.setattr(time, "sleep", lambda _: other.beat() if beats else None)
    if beats:
        with pytest.raises(LabError, match="on elsewhere"):
            Lease(tmp_path, say=said.append, late=60)
    else:
        assert Lease(tmp_path, say=said.append, late=0.01).epoch == 2
    assert "waiting" in said[0]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("how", ["add_step", "describe", "keep", "status", "note"])
def test_a_process_that_lost_the_run_stops_at_its_next_write(
    tmp_path: Path, how: str, removed: bool, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the one that took it over has ended since, and where somebody removed the leases."""
    first, mine = opened(tmp_path, monkeypatch)
    first.begin("Run.seed = 1", status="running")
    first.add_step({"step": 1})
    if removed:
        for path in leases(tmp_path).values():
            path.unlink()
    second, theirs = opened(tmp_path, monkeypatch)
    second.describe(status="running")
    second.add_step({"step": 2})
    if ended:
        second.close()
        theirs.release()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.json*")}
    writes: dict[str, Any] = {
        "add_step": lambda: first.add_step({"step": 9}),
        "describe": lambda: first.describe(status="finished"),
        "keep": lambda: first.keep_trained(9, [], []),
        "status": lambda: first.status.write("RL"),
        "note": lambda: first.go_back(0, []),
    }
    with pytest.raises(FencedError, match="taken over by another process"):
        writes[how]()
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.json*")} == before
    assert not list((tmp_path / "rollouts").glob("train_*.parquet"))
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [1, 2]
    mine.release()


def test_a_removed_lease_is_made_again_by_its_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, lease = opened(tmp_path, monkeypatch)
    (tmp_path / "lease.1").unlink()
    folder.add_step({"step": 1})
    assert json.loads((tmp_path / "lease.1").read_text())["pid"] == os.getpid()
    with pytest.raises(LabError, match="still running"):
        Lease(tmp_path)
    lease.release()


def test_no_lock_of_the_system_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*_: Any) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(fcntl, "lockf", refuse)
    folder, lease = opened(tmp_path, monkeypatch)
    folder.describe(status="running")
    assert (tmp_path / JOURNAL).stat().st_size
    lease.release()


def test_a_process_that_stood_still_while_another_came_and_ended_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Lease(tmp_path, written=lambda: last_epoch(tmp_path))
    second, lease = opened(tmp_path, monkeypatch)
    second.begin("Run.seed = 3\n", status="finished")
    second.close()
    lease.release()
    with pytest.raises(FencedError, match=r"gone on with .* meanwhile"):
        late.check()
    with pytest.raises(FencedError, match=r"gone on with .* meanwhile"):
        RunFolder(tmp_path, _unaware(late))


def _unaware(lease: Lease) -> Lease:
    """Keep a lease from looking into the journal."""
    lease._written = lambda: 0
    return lease
