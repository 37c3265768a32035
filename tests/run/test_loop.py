"""The whole loop on real parts: three steps of the smallest model, and what remains when a run is broken off."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet
import pytest
from smallest_run import SMALLEST

from moe.model.size import parameters
from scalelab.cli import main
from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.store.lines import read_lines
from scalelab.store.waiting_rollouts import read_rollouts

ROOT = Path(__file__).parents[2]
SETTINGS = {
    **SMALLEST,
    "Recipe.zero_variance": '"keep"',
    "Recipe.router_replay": "True",
    "TrainerConfig.expert_bias": "0.01",
    "Budget.steps": 3,
    "Evaluation.every": 2,
    "Evaluation.prompts": 4,
    "Evaluation.samples": 2,
    "Retention.train_every": 1,
    "Cluster.hardware": '"cpu"',
    "Cluster.try_step": True,
    "Cluster.shard_bytes": 0,
}


BROKEN = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Broken:
    def __call__(self, tokens):
        raise ArithmeticError(f"nothing to learn from {len(tokens.logprobs_T)} tokens")
"""


def command(out: Path, *more: str) -> list[str]:
    sets = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "scalelab", "run", "quickstart", "--out", str(out), *sets, *more]


def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "SCALELAB_CACHE": str(cache)}


def processes_with(marker: str) -> dict[int, str]:
    """Command lines of the live processes that carry an environment marker, whoever their parent is now."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if marker.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def open_to_others(marker: str) -> list[str]:
    """Addresses other than this machine's own at which the processes listen that carry an environment marker."""
    found = []
    for pid in processes_with(marker):
        try:
            connections = psutil.Process(pid).net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        listening = [one.laddr for one in connections if one.status == psutil.CONN_LISTEN]
        found += [f"{pid} at {at.ip}:{at.port}" for at in listening if not at.ip.endswith(("127.0.0.1", "::1"))]
    return found


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "three"
    done = subprocess.run(command(out), env=environment(cache), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_three_steps_leave_evaluations_metrics_checkpoints_and_a_report(finished: Path) -> None:
    evals = read_lines(finished / "evals.jsonl")
    measured = [line["step"] for line in evals[::2]]
    assert measured in ([0, 2, 3], [0, 3]), "what falls due while an evaluation still runs is taken with the next"
    assert [(line["step"], line["task"]) for line in evals] == [
        (s, task) for s in measured for task in ("math", "code")
    ]
    assert [line["compute"] for line in evals[::2]] == sorted(line["compute"] for line in evals[::2])
    assert evals[0]["compute"] == 0
    assert all(line["n_prompts"] == 4 and line["k"] == 2 and 0 <= line["pass_rate"] <= 1 for line in evals)
    steps = read_lines(finished / "metrics.jsonl")
    active = parameters(resolve(str(finished / "config.gin")).run.model.to_hf()).active
    assert [line["step"] for line in steps] == [1, 2, 3]
    for line in steps:
        assert line["grad_norm"] >= 0  # 0 where all completions of all groups fail alike, as this model's may
        assert line["entropy"] > 0
        assert line["ratio_min"] <= line["ratio_mean"] <= line["ratio_max"]
        assert all(0 <= int(late) <= 8 for late in line["staleness"])
        assert line["prompts"] == 4
        speed = 6 * active * line["tokens"] / line["trainer_seconds"] / 1e12
        assert line["trainer_tflops"] == pytest.approx(speed)
        assert line["mfu"] == pytest.approx(speed / device("cpu").tflops)
        assert line["trainer_peak_gib"] > 0.1, "a process with torch takes more"
        assert line["fetched_bytes"] == 0, "trainer and engine share a machine"
    assert [line["update_bytes"] for line in steps] == sorted(line["update_bytes"] for line in steps)
    assert steps[0]["same_version_gap_mean"] < 1e-4, "the first step trains on tokens of its own weights"
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    assert (finished / "report.html").stat().st_size > 1000
    assert len(list((finished / "rollouts").glob("step_*.parquet"))) == len(measured)
    for line in steps:
        assert gap_of_kept_tokens(finished, line["step"]) == pytest.approx(line["gap_mean"], abs=1e-4)
    checkpoints = finished / "checkpoints"
    assert {path.name for path in checkpoints.glob("step_*")} == {"step_000002", "step_000003"}
    for path in checkpoints.glob("rollouts_*.npz"):  # whatever waited for a step when they were taken
        for one in read_rollouts(checkpoints, path.name):
            assert one.routed_TLK is None, "records go from the engine to the trainer's ranks"
    assert not read_lines(finished / "faults.jsonl"), "and all of them arrived"


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs g++ or gcc")
def test_a_whole_run_takes_its_weights_by_broadcast(cache: Path, tmp_path: Path) -> None:
    """NCCL's library is a stand-in over sockets; all else is what several GPUs run."""
    asked = command(tmp_path / "run")
    asked[asked.index("scalelab")] = "tests.helpers.nccl_stand_in"
    done = subprocess.run(asked, env=environment(cache), cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    steps = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert steps[-1]["fetched_bytes"] == steps[-1]["update_bytes"] > 0, "all that engines took came by broadcast"
    assert steps[-1]["gap_mean"] < 1e-3, "and is what the trainer has"
    assert not read_lines(tmp_path / "run" / "faults.jsonl")


def gap_of_kept_tokens(run: Path, step: int) -> float:
    """Mean |log-prob of the trainer − of the generator| over the sampled tokens that a step's file keeps."""
    rows = pyarrow.parquet.read_table(run / "rollouts" / f"train_{step:06d}.parquet").to_pylist()
    assert len(rows) == 16
    gaps = [
        abs(trainers - generators)
        for row in rows
        for trainers, generators, forced in zip(row["trainer_logprobs"], row["logprobs"], row["forced"], strict=True)
        if not forced
    ]
    return sum(gaps) / len(gaps)


def interrupt(process: subprocess.Popen[str], marker: str) -> None:
    process.send_signal(signal.SIGINT)


def kill_generator(process: subprocess.Popen[str], marker: str) -> None:
    generators = [pid for pid, line in processes_with(marker).items() if line.startswith("ray::EngineActor")]
    assert generators
    for pid in generators:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("break_off", "code", "status", "says"),
    [
        pytest.param(interrupt, 130, "interrupted", "interrupted", id="Ctrl-C"),
        pytest.param(
            kill_generator, 1, "failed", "generator", id="a dead generator", marks=pytest.mark.nightly
        ),  # as do simulated faults, and those of the smallest run
    ],
)
def test_a_run_broken_off_says_why_and_leaves_readable_files_and_no_process(
    finished: Path,
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    break_off: Any,
    code: int,
    status: str,
    says: str,
) -> None:
    out, name, value = tmp_path / "broken_off", "SCALELAB_TEST_MARKER", f"{os.getpid()}.{time.time_ns()}"
    arguments = [sys.executable, "-m", "scalelab", "run", str(finished / "config.gin"), "--out", str(out)]
    process = subprocess.Popen(
        [*arguments, "--set", "Budget.steps=1000", "--set", "Cluster.generator_restarts=0"],
        env=environment(cache) | {name: value},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 900
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").stat().st_size:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline, "the run took no step"
        time.sleep(0.2)
    while main(["status", str(out)]) == 0 and "trainer rank 0" not in capsys.readouterr().out:
        assert time.monotonic() < deadline, "the status names no trainer rank"
        time.sleep(0.5)
    assert open_to_others(f"{name}={value}") == []
    break_off(process, f"{name}={value}")
    _, errors = process.communicate(timeout=900)
    last = errors.strip().splitlines()[-1]
    assert process.returncode == code, errors
    assert last.startswith("scalelab: ")
    assert says in last
    assert read_lines(out / "evals.jsonl")
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["status"], manifest["reason"] is None) == (status, code == 130)
    if code == 130:
        steps = len(read_lines(out / "metrics.jsonl"))
        assert (out / "checkpoints" / f"step_{steps:06d}").exists(), "a run that is stopped in order can go on there"
    end = time.monotonic() + 900
    while processes_with(f"{name}={value}") and time.monotonic() < end:
        time.sleep(0.2)
    assert processes_with(f"{name}={value}") == {}


@pytest.mark.slow
def test_a_step_that_cannot_be_taken_is_noticed_before_the_first_evaluation(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "no_loss.py").write_text(BROKEN)
    arguments = command(tmp_path / "run", "--set", "Recipe.loss=@no_loss.Broken()")
    around = environment(cache) | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(arguments, env=around, capture_output=True, text=True, timeout=900)
    assert done.returncode == 1
    assert "nothing to learn from" in done.stderr.strip().splitlines()[-1]
    assert read_lines(tmp_path / "run" / "evals.jsonl") == []


@pytest.mark.slow
@pytest.mark.nightly
def test_weights_that_are_broken_end_the_run_with_the_cause(finished: Path, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = [sys.executable, "-m", "scalelab", "run", str(finished / "config.gin"), "--out", str(out)]
    arguments += ["--set", "OptimizerConfig.lr=1e30", "--set", "Budget.steps=100"]
    done = subprocess.run(arguments, env=environment(cache), capture_output=True, text=True, timeout=900)
    assert done.returncode == 1
    # Either the engines' log-probs or the trainer's skipped steps show it first.
    assert "resume from an earlier checkpoint" in done.stderr.strip().splitlines()[-1], "both causes say what to do"
    assert json.loads((out / "manifest.json").read_text())["status"] == "failed"
    assert len(read_lines(out / "metrics.jsonl")) >= 1
