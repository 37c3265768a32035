"""A rehearsed node of Ray is Ray itself: it finds a wrong environment, and leaves another Ray and the user alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from moe.settings import Layout
from scalelab.environment import ALLOCATOR, environment
from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.launcher.slurm_job import ray_start
from scalelab.rehearse.cluster import answers, free_port, wrong_variables
from scalelab.rehearse.environment import interpreters
from scalelab.rehearse.processes import ROOT, Interpreter, rehearse_all, tasks_of
from scalelab.rehearse.result import RoleResult
from scalelab.rehearse.roles import all_roles
from scalelab.rehearse.setting import RehearsalSettings
from scalelab.run.config import Run
from tests.helpers.rehearsals import MODELS, run_of

COMMAND = [sys.executable, "-m", "scalelab", "rehearse", "h100/scalerl_17bx16", "--only", "cluster", "--json"]


def rehearsed(run: Run, deadline: float = 300, pythons: dict[str, Interpreter] | None = None) -> RoleResult:
    h100 = device("h100")
    roles = [role for role in all_roles(run, h100, fine_tuned=False) if role.kind == "cluster"]
    pythons = pythons or interpreters(None)
    tasks = tasks_of(RehearsalSettings(run, h100), roles, pythons)
    (result,) = rehearse_all(tasks, 1, deadline, lambda *said: None)
    return result


def of_this_test(mark: Path) -> list[psutil.Process]:
    """Processes that have a test's folder in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("OF_TEST") == str(mark):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def another_ray(tmp_path: Path) -> Iterator[str]:
    """A Ray of somebody else on this machine, with the ports that it takes by itself, as far as they are free."""
    address, ray = f"127.0.0.1:{free_port()}", str(Path(sys.executable).with_name("ray"))
    environ = os.environ | {"HOME": str(tmp_path), "RAY_AUTH_MODE": "disabled"}
    folder = tempfile.mkdtemp(prefix="r-", dir="/tmp")  # names of sockets must be short
    options = ["--object-store-memory=80000000", f"--temp-dir={folder}"]
    other = subprocess.Popen([*ray_start(ray, address, head=True), *options], env=environ, stdout=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + 100
        while not answers(address):
            assert other.poll() is None
            assert time.monotonic() < ends, "the other Ray to start"
            time.sleep(0.2)
        yield address
        assert other.poll() is None
        assert answers(address)
    finally:
        other.terminate()
        try:
            other.wait(60)
        finally:
            other.kill()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_a_node_starts_beside_another_ray_and_leaves_no_process_file_or_token(another_ray: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environ = os.environ | {"HOME": str(home), "OF_TEST": str(home), "RAY_ADDRESS": another_ray}
    environ["TMPDIR"] = str(long := tmp_path / ("long" * 20))  # too long for the names of Ray's sockets
    long.mkdir()
    done = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    (role,) = json.loads(done.stdout)["roles"]
    assert [phase["name"] for phase in role["phases"]] == ["start", "trainer", "engine", "grader"]
    assert (role["ok"], role["problems"], role["stands_for"]) == (True, [], 10)
    assert of_this_test(home) == []
    assert not (home / ".ray").exists()


@pytest.mark.slow
def test_a_table_that_gives_engines_expandable_segments_breaks_the_command(tmp_path: Path) -> None:
    """Rehearse from a copy of the checkout that has one wrong line."""
    for name in ("scalelab", "moe", "tasks", "experiments"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "recorded"))
    table = tmp_path / "scalelab/environment.py"
    right = table.read_text()
    table.write_text(right.replace("expandable_segments:False", "expandable_segments:True"))
    assert table.read_text() != right
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False, env=environ)
    assert done.returncode == 1, done.stderr
    (role,) = json.loads(done.stdout)["roles"]
    assert [phase["ok"] for phase in role["phases"]] == [True, True, False, True]
    assert role["problems"][0].startswith(f"engine: {ALLOCATOR[0]} asks for expandable segments, for which the driver")


@pytest.mark.slow
@pytest.mark.nightly
def test_a_fine_tuning_gives_its_devices_back_before_rl_takes_them() -> None:
    """A node has 8, and the ranks of either take all."""
    run = run_of(MODELS["llama"], Layout(), 8)
    run = replace(run, cluster=replace(run.cluster, devices_per_node=8))
    tuned = replace(run, sft=replace(resolve("sft/scalerl_8b").run.sft, trainers=8, longest=1024))
    for one, phases in ((tuned, ["start", "tuner", "trainer"]), (run, ["start", "trainer"])):
        result = rehearsed(one)
        assert result.problems == []
        assert [phase.name for phase in result.phases][: len(phases)] == phases


@pytest.mark.slow
@pytest.mark.nightly
def test_an_engine_is_on_the_device_of_the_rank_that_it_shares_one_with() -> None:
    run = run_of(MODELS["llama"], Layout(), 2)
    shared = replace(run.cluster, share_devices=True, generators=2, publication="files")
    result = rehearsed(replace(run, cluster=shared))
    assert result.problems == []
    assert [phase.name for phase in result.phases] == ["start", "trainer", "grader"]


@pytest.mark.slow
def test_a_node_that_takes_too_long_is_ended_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_TEST", str(tmp_path))
    before = set(Path("/tmp").glob("rehearsal-*"))
    result = rehearsed(run_of(MODELS["llama"], Layout(), 2), deadline=8)
    assert result.verdict == "not done"
    mine = [one for one in of_this_test(tmp_path) if one.pid != os.getpid()]
    _, alive = psutil.wait_procs(mine, timeout=30)
    assert alive == []
    assert set(Path("/tmp").glob("rehearsal-*")) <= before


def test_a_missing_ray_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\", name='ray')\n")
    monkeypatch.syspath_prepend(tmp_path)
    result = rehearsed(run_of(MODELS["llama"], Layout(), 2))
    assert result.problems == [
        "its process ended with code 1 and said last: ModuleNotFoundError: No module named 'ray'"
    ]


def test_what_breaks_a_role_is_told_from_what_only_did_not_arrive() -> None:
    for role in ("trainer", "engine", "verifier"):
        right = environment(role)
        assert [*wrong_variables(role, right, right)] == []
        (said,) = wrong_variables(role, right, {**right, "HF_HUB_OFFLINE": "0"})
        assert said == "HF_HUB_OFFLINE is 0 in its actor, and its role has 1"
    plain = {name: value for name, value in environment("trainer").items() if name not in ALLOCATOR}
    assert "no expandable segments" in " ".join(wrong_variables("trainer", plain, plain))
    many = {**environment("engine"), "OMP_NUM_THREADS": "8"}
    assert "OMP_NUM_THREADS is 8, and more than one" in " ".join(wrong_variables("engine", many, many))


def test_nobody_answers_at_a_free_port() -> None:
    assert not answers(f"127.0.0.1:{free_port()}")
