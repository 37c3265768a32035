"""A job starts its run when all nodes have joined, and says soon which node did not; a requeued one resumes it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
from smallest_run import SMALLEST

from scalelab.launcher import slurm_job
from scalelab.launcher.slurm_job import LONGEST_MANIFEST, JobError, begun, reachable
from scalelab.store.audit import audit
from scalelab.store.lines import read_lines
from tests.helpers.slurm_stub import SlurmStub

pytestmark = pytest.mark.slow

INSIDE = """\
case "$*" in *bin/ray*|*bin/python*|*bin/scalelab*) file=$(basename "$1"); shift; exec "$STUB/inside_$file" "$@";; esac
exec "$@"
"""
NODES = ("n0", "n1", "n2")


def test_the_run_starts_once_all_nodes_have_joined_by_an_address_that_they_can_reach(tmp_path: Path) -> None:
    stub = SlurmStub(tmp_path, NODES)
    code, said, _ = stub.run()
    assert code == 0, said
    assert "3 nodes joined Ray at 10.1.2.3:6379" in said
    assert stub.lab() == ["10.1.2.3:6379 a-token run an_experiment"]
    assert not list(tmp_path.glob("up_*")), "steps end with the job"


def test_a_node_that_cannot_join_is_named_within_seconds_and_nothing_starts(tmp_path: Path) -> None:
    stub = SlurmStub(tmp_path, NODES)
    (tmp_path / "broken_n2").touch()
    code, said, seconds = stub.run()
    assert code == 1
    assert (
        "Ray on n2 ended 3 times, and said last: no route to n2: mend it, or leave it out (sbatch --exclude=n2)" in said
    )
    assert stub.lab() == []
    assert seconds < 60


@pytest.mark.nightly
def test_many_nodes_that_cannot_join_are_named_as_soon_as_one(tmp_path: Path) -> None:
    nodes = tuple(f"n{number}" for number in range(9))
    stub = SlurmStub(tmp_path, nodes)
    for node in nodes[1:]:
        (tmp_path / f"broken_{node}").touch()
    code, said, seconds = stub.run()
    assert code == 1
    assert "Ray on n1 ended 3 times" in said
    assert f"sbatch --exclude={','.join(nodes[1:])})" in said
    assert seconds < 60, "a pause for each of them would be 80 s"


def test_a_node_that_never_joins_ends_the_job_at_the_deadline(tmp_path: Path) -> None:
    stub = SlurmStub(tmp_path, NODES)
    stub.write("python", "echo joined n0 n1\n")
    code, said, _ = stub.run("--join-seconds=2")
    assert code == 1
    assert "2 of 3 nodes joined Ray at 10.1.2.3:6379 within 2 s (not n2)" in said


def test_a_count_that_fails_for_once_is_made_again(tmp_path: Path) -> None:
    stub = SlurmStub(tmp_path, NODES)
    working = (stub.bin / "python").read_text().partition("\n")[2]
    stub.write(
        "python", f'[ -e "$STUB/counted" ] || {{ touch "$STUB/counted"; echo slow disk >&2; exit 1; }}\n{working}'
    )
    code, said, _ = stub.run()
    assert code == 0, said
    assert "3 nodes joined" in said


def test_counts_that_always_fail_are_named_at_the_deadline(tmp_path: Path) -> None:
    stub = SlurmStub(tmp_path, NODES)
    stub.write("python", "echo no module named ray >&2\nexit 1\n")
    code, said, _ = stub.run("--join-seconds=2")
    assert code == 1
    assert "0 of 3 nodes joined" in said
    assert "the last count failed" in said
    assert "no module named ray" in said


def test_a_command_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_job, "HEAD_SECONDS", 0.2)
    cluster = slurm_job.RayOnNodes(slurm_job.JobSettings(("n0",), "/bin"))
    with pytest.raises(JobError, match="`sleep 5` did not end within 0 s"):
        cluster._here(["sleep", "5"])


@pytest.mark.parametrize(
    ("ended", "said"),
    [(True, "did not start: raylet was killed"), (False, "within 0 s; the last `ray health-check` hung")],
)
def test_a_health_check_that_hangs_hides_neither_a_dead_head_nor_the_deadline(
    ended: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_job, "HEAD_SECONDS", 0.4)
    monkeypatch.setattr(slurm_job, "CHECK_SECONDS", 0.2)
    stub = SlurmStub(tmp_path, NODES)
    stub.write("ray", "exec sleep 10\n")
    cluster = slurm_job.RayOnNodes(slurm_job.JobSettings(("n0",), str(stub.bin)))
    head = SimpleNamespace(ended=ended, last_line=lambda: "raylet was killed")
    monkeypatch.setitem(cast(dict[str, object], cluster.steps), "n0", head)
    began = time.monotonic()
    with pytest.raises(JobError, match=said):
        cluster._wait_for_head()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(("body", "said"), [("exec sleep 10\n", "timed out"), ("exit 1\n", "exit status 1")])
def test_a_slurm_that_does_not_queue_the_job_again_is_told(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm_job, "HEAD_SECONDS", 0.5)
    stub = SlurmStub(tmp_path, NODES)
    stub.write("scontrol", body)
    monkeypatch.setenv("PATH", stub.environment["PATH"])
    for name in ("SLURM_JOB_NODELIST", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "77")
    monkeypatch.setattr(slurm_job, "listed_nodes", lambda environment: NODES)
    monkeypatch.setattr(slurm_job, "run", lambda *given: slurm_job.BROKEN_OFF)
    began = time.monotonic()
    assert slurm_job.main(["--bin=/bin", "--out=/a", "--", "run", "an_experiment"]) == slurm_job.BROKEN_OFF
    assert time.monotonic() - began < 5
    told = capsys.readouterr().err
    assert "`scontrol requeue 77` failed" in told
    assert said in told


def test_a_job_that_is_asked_to_stop_while_nodes_join_ends_soon(tmp_path: Path) -> None:
    stub = SlurmStub(tmp_path, NODES)
    stub.write("python", "echo joined n0\n")
    job = stub.start()
    stub.wait(lambda: (tmp_path / "up_n2").exists())
    job.send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=60)
    assert job.returncode == 130, said
    assert "asked to stop before the run began" in said
    assert stub.lab() == []
    assert not list(tmp_path.glob("up_*")), "steps end with the job"


@pytest.mark.parametrize(
    ("addresses", "network"),
    [("127.0.0.1", ""), ("127.0.1.1 ::1", ""), ("0.0.0.0 ::ffff:127.0.0.1", ""), ("10.1.2.3", "10.2.")],
)
def test_a_head_that_nobody_can_reach_is_refused(addresses: str, network: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="name the beginning of the right address with --network"):
        reachable(addresses.split(), network)
    code, said, _ = SlurmStub(tmp_path, NODES, addresses).run(f"--network={network}")
    assert code == 1
    assert "the first node has no address that" in said


def test_the_network_that_is_named_is_taken() -> None:
    assert reachable(["127.0.0.1", "169.254.1.1", "192.168.0.7", "10.1.2.3"], "") == "192.168.0.7"
    assert reachable(["192.168.0.7", "10.1.2.3"], "10.") == "10.1.2.3"


def test_with_an_image_every_command_runs_inside(tmp_path: Path) -> None:
    stub = SlurmStub(tmp_path, NODES)
    srun = (stub.bin / "srun").read_text()
    stub.write("srun", 'echo "$*" >> "$STUB/steps"\n' + srun.partition("\n")[2])
    for name in ("ray", "python", "scalelab"):  # outside there is none of them
        (stub.bin / name).rename(tmp_path / f"inside_{name}")
    stub.write("srun", (stub.bin / "srun").read_text().partition("\n")[2].replace('exec "$@"', INSIDE))
    code, said, _ = stub.run("--inside=--container-image=an.sqsh")
    assert code == 0, said
    steps = (tmp_path / "steps").read_text().splitlines()
    assert all("--container-image=an.sqsh" in step for step in steps)
    assert any(step.endswith("scalelab run an_experiment") for step in steps)


def test_outside_of_a_job_and_without_slurm_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--bin=/bin", "--out=/a", "--", "run", "an_experiment"]
    for name in ("SLURM_JOB_NODELIST", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    assert slurm_job.main(given) == 1
    assert "submit what `scalelab launch slurm` prints with sbatch" in capsys.readouterr().err
    for name in ("SLURM_JOB_NODELIST", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PATH", "/nowhere")
    assert slurm_job.main(given) == 1
    assert "`scontrol show hostnames 1` failed: " in capsys.readouterr().err


def test_a_requeued_job_resumes_its_run(tmp_path: Path) -> None:
    stub = SlurmStub(tmp_path, NODES[:1])
    stub.run()
    stub.out.mkdir()
    manifest = stub.out / "manifest.json"
    manifest.write_text(json.dumps({"status": "failed"}))
    assert not begun(stub.out), "refused before it made anything"
    stub.run()
    manifest.write_text(json.dumps({"status": "running"}))
    stub.run()
    assert [line.endswith("--resume") for line in stub.lab()] == [False, False, True]


def test_a_manifest_that_is_a_pipe_or_endless_begins_no_run(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    os.mkfifo(manifest)
    assert not begun(tmp_path)
    manifest.unlink()
    manifest.write_text(json.dumps({"status": "running"}) + " " * LONGEST_MANIFEST + "no JSON")
    assert begun(tmp_path), "what it holds within the bound counts"
    manifest.write_text("[" * 200_000)
    assert not begun(tmp_path)
    manifest.write_text(" " * LONGEST_MANIFEST + json.dumps({"status": "running"}))
    assert not begun(tmp_path)


def test_a_run_whose_manifest_is_lost_or_broken_is_resumed_by_its_journal(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text("{}\n")
    assert not begun(tmp_path), "it made nothing"
    (tmp_path / "evals.jsonl").write_text("{}\n")
    assert begun(tmp_path)
    (tmp_path / "manifest.json").write_text('{"status": "runn')
    assert begun(tmp_path)
    (tmp_path / "journal.jsonl").unlink()
    assert not begun(tmp_path), "nothing says what it was"


def test_slurms_warning_reaches_the_run_and_its_code_is_the_jobs(tmp_path: Path) -> None:
    stub = SlurmStub(
        tmp_path,
        NODES,
        first="trap 'echo checkpoint >> \"$STUB/lab\"; exit 130' INT\n",
        lab="while :; do sleep 0.1; done\n",
    )
    job = stub.start()
    stub.wait(stub.lab)
    job.send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=900)
    assert job.returncode == 130, said
    assert stub.lab()[1:] == ["checkpoint"]
    assert not (tmp_path / "requeued").exists()


def test_a_lost_node_is_taken_back_while_the_run_goes_on(tmp_path: Path) -> None:
    stub = SlurmStub(tmp_path, NODES, lab='while [ ! -e "$STUB/enough" ]; do sleep 0.1; done\n')
    job = stub.start()
    stub.wait(stub.lab)
    (tmp_path / "lost_n1").touch()
    stub.wait(lambda: not (tmp_path / "lost_n1").exists())
    stub.wait(lambda: (tmp_path / "up_n1").exists())
    (tmp_path / "enough").touch()
    _, said = job.communicate(timeout=900)
    assert job.returncode == 0
    assert "Ray on n1 ended (raylet of n1 was killed): trying to take it back" in said


@pytest.mark.parametrize("lost", ["the head", "the machine of the run"])
def test_a_run_that_its_machines_broke_off_is_queued_again(lost: str, tmp_path: Path) -> None:
    head = lost == "the head"
    stub = SlurmStub(tmp_path, NODES, lab="exec sleep 600\n" if head else "exit 75\n")
    job = stub.start()
    stub.wait(stub.lab)
    if head:
        (tmp_path / "lost_n0").touch()
    _, said = job.communicate(timeout=900)
    assert job.returncode == 75, said
    assert (tmp_path / "requeued").read_text() == "77\n"
    assert ("Ray's head on n0 ended: raylet of n0 was killed" in said) == head


@pytest.mark.parametrize(("restarts", "saves", "again"), [(2, False, True), (3, True, True), (3, False, False)])
def test_a_job_that_breaks_off_again_and_again_without_a_checkpoint_is_not_queued_again(
    restarts: int, saves: bool, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    step = 'mkdir -p "$STUB/out/checkpoints/step_000004"\n' if saves else ""
    code, said, _ = SlurmStub(tmp_path, NODES, lab=f"{step}exit 75\n").run()
    assert code == 75
    assert (tmp_path / "requeued").exists() == again
    assert ("not queued again: started anew 3 times" in said) != again


def test_an_environment_whose_path_has_a_space_is_refused_as_ray_would_end_without_a_reason(tmp_path: Path) -> None:
    code, said, _ = SlurmStub(tmp_path, NODES).run("--bin=/the lab/.venv/bin")
    assert code == 1
    assert "a path with a space in it, and the environment is in /the lab/.venv/bin: move the checkout" in said


def with_real_ray(stub: SlurmStub, lab: str) -> list[str]:
    """Put the real Ray and Python in the place of their stand-ins; gives options of the job.

    Each node has a home of its own, so that Ray's token comes by the environment alone.
    """
    there = stub.folder / "environment"  # Ray starts nothing by a path with a space in it
    there.symlink_to(sys.prefix)
    home = f'export HOME="{stub.folder}/home_${{STUB_NODE:-lab}}"; mkdir -p "$HOME"\n'
    stub.write("ray", home + f'exec {there}/bin/python -m ray.scripts.scripts "$@"\n')
    stub.write("python", f'exec {there}/bin/python "$@"\n')
    stub.write("scalelab", f"{home}PATH={there}/bin:$PATH\n{lab}")
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    address = next((one for one in _addresses() if not one.startswith("127.")), None)
    if address is None:
        pytest.skip("this machine has no address but loopback")
    stub.write("hostname", f"echo 127.0.0.1 {address}\n")
    return [f"--port={port}", f"--network={address}"]


@pytest.mark.nightly
def test_real_nodes_join_with_a_token_and_none_without(tmp_path: Path) -> None:
    count = "import ray; ray.init(address='auto', logging_level='ERROR'); print(len(ray.nodes()))"
    stub = SlurmStub(tmp_path, NODES[:2])
    code, said, _ = stub.run(*with_real_ray(stub, f'python -c "{count}" > "$STUB/counted"\n'))
    assert code == 0, said
    assert "2 nodes joined Ray at " in said
    assert (tmp_path / "counted").read_text() == "2\n"


@pytest.mark.nightly
def test_a_run_that_slurm_warns_goes_on_in_the_next_job(tmp_path: Path) -> None:
    """The whole line that `launch` writes, with a real Ray and a real run."""
    settings = {**SMALLEST, "Budget.steps": 12, "Evaluation.every": 6, "Cluster.address": '"auto"'}
    sets = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    words = ["run", "quickstart", "--supervise", "--out", str(tmp_path / "out"), *sets]
    stub = SlurmStub(tmp_path, NODES[:1], words=words)
    root = Path(__file__).parents[2]
    lab = f'cd {root}; export SCALELAB_CACHE="$STUB/cache"; exec python -m scalelab "$@"\n'
    options = with_real_ray(stub, lab)
    job = stub.start(*options)
    stub.wait(lambda: (stub.out / "metrics.jsonl").exists() and read_lines(stub.out / "metrics.jsonl"))
    job.send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=900)
    assert job.returncode == 130, said
    assert json.loads((stub.out / "manifest.json").read_text())["status"] == "interrupted"
    done = len(read_lines(stub.out / "metrics.jsonl"))
    assert 0 < done < 12
    code, said, _ = stub.run(*options)
    assert code == 0, said
    assert f"going on with {stub.out}" in said
    assert [line["step"] for line in read_lines(stub.out / "metrics.jsonl")] == list(range(1, 13))
    assert audit(stub.out).problems == []


def _addresses() -> list[str]:
    return [one.address for all_of in psutil.net_if_addrs().values() for one in all_of if one.family == socket.AF_INET]


def test_the_program_needs_nothing_but_python() -> None:
    import ast

    tree = ast.parse(Path(slurm_job.__file__).read_text())
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names]
    assert {str(name).partition(".")[0] for name in imported} <= sys.stdlib_module_names
