"""The way of a RayJob from `scalelab launch k8s` to its end by the rules of KubeRay, with Ray and its dashboard."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from smallest_run import SMALLEST

from scalelab.launcher.scripts import LaunchJob, kuberay
from scalelab.store.audit import audit
from scalelab.store.lines import read_lines
from tests.helpers.kuberay_stub import KubeRayStub
from tests.helpers.pods import ROOT, Pod
from tests.launcher.test_networks import can_make_networks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(
        not can_make_networks() or not shutil.which("wget"), reason="only root can make networks; needs iproute2, wget"
    ),
]
GRACE = 120
UV = Path(sys.executable).with_name("uv")


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages that an image for KubeRay has beside the environment of this machine."""
    folder = tmp_path_factory.mktemp("dashboard")
    wanted = ["--no-deps", "--require-hashes", "-r", str(ROOT / "requirements/kuberay.txt"), "--target", str(folder)]
    done = subprocess.run(
        [UV, "pip", "install", "--python", sys.executable, *wanted], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        pytest.skip(f"could not import Ray's dashboard, which needs requirements/kuberay.txt: {done.stderr[-300:]}")
    return folder


@pytest.fixture
def launched(tmp_path: Path, dashboard: Path) -> Iterator[Callable[..., KubeRayStub]]:
    """Give a RayJob of the smallest run to the operator. A core stands for a device, so that the head has none."""
    made = []

    def launch(**settings: Any) -> KubeRayStub:
        chosen = SMALLEST | {"Evaluation.every": 100, "Evaluation.prompts": 4, "Budget.steps": 3} | settings
        sets = tuple(f"{name}={value}" for name, value in chosen.items())
        job = LaunchJob("quickstart", sets, Path("/runs/out"), devices=2, per_node=1, nodes=2, grace=GRACE)
        text = kuberay(job, "image", "claim", memory_gib=4, cpus=1).replace('num-cpus: "8"', 'num-cpus: "0"')
        made.append(KubeRayStub(text, tmp_path, dashboard))
        return made[-1]

    yield launch
    for one in made:
        one.close()


def steps(job: KubeRayStub) -> int:
    path = job.network.folder / "runs/out/metrics.jsonl"
    return len(read_lines(path)) if path.exists() else 0


def trains(pod: Pod) -> bool:
    """True if a rank of the trainer is there."""
    return pod.begin("sh", "-c", "grep -qa '^ray::.*TrainerRank' /proc/[0-9]*/cmdline").wait(timeout=60) == 0


def test_a_rayjob_runs_to_its_end(launched: Callable[..., KubeRayStub]) -> None:
    job = launched()
    job.wait(lambda: job.state in ("complete", "failed"))
    assert (job.state, job.status, job.retries, steps(job)) == ("complete", "SUCCEEDED", 0, 3)
    assert audit(job.network.folder / "runs/out").problems == []


def test_a_run_whose_head_is_lost_is_resumed_on_a_new_cluster(launched: Callable[..., KubeRayStub]) -> None:
    job = launched(**{"Run.checkpoint_every": 1})
    job.wait(lambda: steps(job) >= 2)
    job.lose(job.pod("head"))
    job.wait(lambda: job.state in ("complete", "failed"))
    assert (job.state, job.status, job.retries) == ("complete", "SUCCEEDED", 1)
    assert (steps(job), audit(job.network.folder / "runs/out").problems) == (3, [])


def test_a_rayjob_that_is_deleted_ends_with_a_checkpoint(launched: Callable[..., KubeRayStub]) -> None:
    job = launched(**{"Run.checkpoint_every": 1000, "Budget.steps": 1000})
    job.wait(lambda: steps(job) >= 1)
    job.delete()
    job.wait(lambda: any(pod.warned for pod in job.pods if pod.kind != "submitter"))
    out = job.network.folder / "runs/out"
    assert (out / f"checkpoints/step_{steps(job):06}").is_dir(), "TERM came before the checkpoint"
    job.wait(lambda: not job.pods, GRACE / 2)
    assert json.loads((out / "manifest.json").read_text())["status"] == "interrupted"
    assert audit(out).problems == []


def test_a_head_that_is_drained_takes_a_checkpoint_and_the_run_goes_on_from_it(
    launched: Callable[..., KubeRayStub],
) -> None:
    job = launched(**{"Run.checkpoint_every": 1000, "Budget.steps": 8})
    job.wait(lambda: steps(job) >= 1)
    job.pod("head").delete()
    job.wait(lambda: job.state in ("complete", "failed"))
    assert (job.state, job.status, job.retries, steps(job)) == ("complete", "SUCCEEDED", 1, 8)
    assert (job.network.folder / "runs/out/undone.jsonl").read_text() == ""
    assert audit(job.network.folder / "runs/out").problems == []


def test_a_worker_that_is_lost_with_an_engine_is_made_anew_and_the_run_goes_on(
    launched: Callable[..., KubeRayStub],
) -> None:
    job = launched(**{"Budget.steps": 8})
    job.wait(lambda: steps(job) >= 1)
    [worker] = [pod for pod in job.pods if pod.kind == "gpu" and not trains(pod)]
    job.lose(worker)
    job.wait(lambda: job.state in ("complete", "failed"))
    assert (job.state, job.status, job.retries, steps(job)) == ("complete", "SUCCEEDED", 0, 8)
    assert audit(job.network.folder / "runs/out").problems == []


def test_a_worker_with_the_trainer_that_is_drained_has_a_checkpoint_taken_before_it_goes(
    launched: Callable[..., KubeRayStub],
) -> None:
    job = launched(**{"Run.checkpoint_every": 1000, "Budget.steps": 60})
    job.wait(lambda: steps(job) >= 1)
    [worker] = [pod for pod in job.pods if pod.kind == "gpu" and trains(pod)]
    worker.delete()
    saved = job.network.folder / "runs/out/checkpoints"
    job.wait(lambda: any(saved.glob("step_*")), GRACE)
    assert steps(job) < 60
    job.wait(lambda: job.state in ("complete", "failed"))
    assert (job.state, job.status, job.retries, steps(job)) == ("complete", "SUCCEEDED", 0, 60)
    assert audit(job.network.folder / "runs/out").problems == []
