"""One run on two nodes loses its processes one after the other, and its books balance all the same."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faults
import psutil
import pytest

from scalelab.store.lines import read_lines
from scalelab.store.manifest import read_run_manifest


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Two nodes of two cores each: four devices, which the run takes all."""
    from ray.cluster_utils import Cluster as RayCluster

    nodes = RayCluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        nodes.add_node(num_cpus=2)
        yield nodes.address
    finally:
        nodes.shutdown()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A run that is ended with its test."""
    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / "cache"))
    lab = faults.FaultLab(tmp_path / "run", tmp_path / "run.log", deadline=900.0)
    yield lab
    if lab.process is not None:
        lab.process.kill()
        lab.process.wait(60)


@pytest.mark.nightly
@pytest.mark.slow
def test_two_generators_and_two_trainer_ranks_on_two_nodes_survive_each_other(address: str, lab: Any) -> None:
    lab.start(
        Cluster__address=f'"{address}"',
        Cluster__generators="2",
        Cluster__trainers="2",
        SFT__trainers="2",
        Layout__expert="2",
        Run__checkpoint_every="5",
        Cluster__hang_seconds="20.0",
    )
    lab.warm(6)
    generators, trainers = lab.processes("generator"), lab.processes("trainer")
    assert (len(generators), len(trainers)) == (2, 2)
    generators[0].send_signal(signal.SIGKILL)
    generators[1].send_signal(signal.SIGSTOP)
    faults.within(lab, "verifier", signal.SIGKILL)
    lab.until(lambda: len(events(lab.path, "recovered", "generator")) == 2, "both generators to come back")
    lab.warm(1)
    lab.processes("trainer")[1].send_signal(signal.SIGKILL)
    faults.recovered(lab, "trainer")(0.0)
    lab.warm(3)
    before = lab.processes("generator") + lab.processes("trainer") + lab.processes("verifier")
    lab.process.kill()
    lab.ended()
    _, alive = psutil.wait_procs(before, timeout=900)
    assert alive == [], "a cluster ends the actors of a driver that is gone"
    lab.resume()
    assert lab.step_after(lab.started) > time.time() - 900
    assert faults.stop(lab) == (0, 0), "lost, duplicated"
    steps = [line["step"] for line in read_lines(lab.path / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1)), "every step once"
    hours = [line["compute"] for line in read_lines(lab.path / "metrics.jsonl")]
    assert hours == sorted(hours), "what undone steps had cost is spent"
    assert all(int(late) <= 8 for line in read_lines(lab.path / "metrics.jsonl") for late in line["staleness"])
    assert len(events(lab.path, "lost", "trainer")) == 1
    assert read_run_manifest(lab.path)["status"] == "interrupted"


def events(path: Path, event: str, role: str) -> list[str]:
    """Names of what was lost, or recovered."""
    lines = read_lines(path / "faults.jsonl")
    return [line["name"] for line in lines if line["event"] == event and line["role"] == role]
