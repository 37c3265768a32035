"""`scalelab launch` writes scripts that fit the run, and refuses in one line what a cluster would refuse later."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from moe.checkpoint.size import checkpoint_bytes
from moe.model.families import Qwen3
from moe.model.size import parameters
from scalelab.cli import main
from scalelab.commands import launch
from scalelab.commands.launch import _limit_seconds
from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.launcher import scripts
from scalelab.plan.check import usual
from scalelab.plan.disk import disk_needed
from scalelab.plan.placement import placement
from scalelab.plan.planner import plan_of, step_hours
from scalelab.plan.speed import Assumptions
from scalelab.session.only_sft import fine_tune
from scalelab.start import base_model
from scalelab.watch.progress import Progress

ROOT = Path(__file__).parents[2]
FOLDER = ("--set", "SFT.pretrained=/shared/model")
ON_VOLUME = ("--set", "SFT.pretrained=/runs/model")
K8S = ("--image", "a", "--claim", "b")
BIG = ("h100/scalerl_8b", "h100/scalerl_8b_node", "h100/scalerl_17bx16", "h200/scalerl_17bx16_least", "scalerl_8b")


def launched(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["launch", *arguments, *(ON_VOLUME if arguments[0] == "k8s" else FOLDER)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", BIG)
def test_a_job_has_the_runs_devices_and_the_time_for_a_step_and_a_checkpoint(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = launched(capsys, "slurm", name, "--out", "/shared/runs/a", "--time", "1-0")
    script = tmp_path / "job.sh"
    script.write_text(text)
    subprocess.run(["bash", "-n", script], check=True)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, re.MULTILINE))
    run = resolve(name, ["SFT.pretrained='/shared/model'"]).run
    assert int(options["nodes"]) * int(options["gpus-per-node"]) >= run.devices
    assert (int(options["nodes"]) - 1) * int(options["gpus-per-node"]) < run.devices
    assert {"no-kill", "requeue", "exclusive"} <= options.keys()
    run_seconds = float(options["signal"].removeprefix("B:INT@"))
    step = plan_of(run, placement(run), device(usual(run)), Assumptions()).seconds["step"]
    assert run_seconds > step + checkpoint_bytes(run.model.to_hf(), run.trainer.dtype) / 2e9
    assert (options["mem"], options["time"]) == ("0", "1-0")
    assert int(options["cpus-per-task"]) >= run.cluster.devices_per_node
    assert f"--out=/shared/runs/a -- run {name} --supervise --out /shared/runs/a --set SFT.pretrained=" in text


EXAMPLES = re.findall(r"^  scalelab (launch .*)$", (launch.__doc__ or "").replace("\\\n", " "), re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_help_writes_its_script(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(example.partition(" > ")[0])
    assert main([word for word in words if word != "--submit"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 10


def test_the_help_has_an_example_of_every_kind() -> None:
    assert {example.split()[1] for example in EXAMPLES} == {"slurm", "ray", "k8s"}


def test_the_time_to_end_in_order_is_a_step_a_checkpoint_and_a_margin() -> None:
    assert scripts.grace_seconds(100.0, 14 * 10**9) == 100 + 7 + scripts.MARGIN_SECONDS


def job_of(experiment: str, grace: int = 60) -> scripts.LaunchJob:
    return scripts.LaunchJob(experiment, (), Path("/a"), 16, 8, 2, grace)


@pytest.mark.parametrize(
    ("experiment", "name"),
    [
        ("/home/me/mein_müll.py", "home-me-mein-m-ll-py"),
        ("h100/scalerl_8b", "h100-scalerl-8b"),
        ("8b.py", "run-8b-py"),
        ("日本", "run"),
        ("a" * 46 + "/b", "a" * 46),
    ],
)
def test_a_jobs_name_is_one_that_kubernetes_takes(experiment: str, name: str) -> None:
    assert job_of(experiment).name == name


def test_slurm_is_asked_for_no_longer_warning_than_it_gives() -> None:
    """Source: sbatch(1), --signal: "an integer value between 0 and 65535"."""
    assert "#SBATCH --signal=B:INT@65535\n" in scripts.slurm(job_of("a", 70_000), Path("/lab"))


def test_a_machine_with_a_low_limit_of_files_starts_its_ray_and_one_without_a_checkout_does_not(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    (lab / ".venv/bin").mkdir(parents=True)
    (lab / ".venv/bin/ray").write_text('#!/bin/sh\necho "$@"\n')
    (lab / ".venv/bin/ray").chmod(0o755)
    made = yaml.safe_load(scripts.ray_yaml(job_of("a"), lab, "me", ["10.0.0.1", "n1"]))
    for who, joins in (("head", "--head --port=6379"), ("worker", "--address=10.0.0.1:6379")):
        command = ["bash", "-c", f"ulimit -Hn 1024; {made[f'{who}_start_ray_commands'][1]}"]
        said = subprocess.run(command, capture_output=True, text=True).stdout
        assert said.startswith(f"start --disable-usage-stats {joins}"), who
    shutil.rmtree(lab)
    assert subprocess.run(command, capture_output=True).returncode


@pytest.mark.parametrize(
    ("head", "routed", "own"),
    [
        ("10.0.0.9", False, ["--node-ip-address=10.0.0.9"]),
        ("n0", False, ["--node-ip-address=192.168.0.7"]),  # the name is the machine's own, 127.0.1.1
        ("n0", True, []),
    ],
)
def test_a_head_from_which_no_route_leads_outside_is_known_by_an_address_of_its_network(
    head: str, routed: bool, own: list[str], tmp_path: Path
) -> None:
    """Ray 2.60 calls it what its name stands for, and the others join, and do not find it."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name, body in (
        (".venv/bin/ray", 'echo "$@"'),
        ("ip", f"exit {0 if routed else 2}"),
        ("hostname", "echo 192.168.0.7 10.0.0.9 fd00::1"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    made = yaml.safe_load(scripts.ray_yaml(job_of("a"), tmp_path, "me", [head, "n1"]))
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", made["head_start_ray_commands"][1]], capture_output=True, text=True, env=env, timeout=60
    )
    assert [word for word in done.stdout.split() if word.startswith("--node-ip")] == own


def test_a_large_checkpoint_may_take_the_time_of_its_bytes() -> None:
    """108B parameters of bf16 weights, fp32 weights and two moments are 1.5 TB: two hours at 0.2 GB/s."""
    small, large = (resolve(name).run for name in ("quickstart", "h100/scalerl_17bx16_least"))
    assert small.save_seconds == pytest.approx(small.trainer.save_deadline, abs=1)
    assert large.save_seconds == pytest.approx(large.trainer.save_deadline + 107.77e9 * 14 / 2e8, rel=0.01)


def test_a_fine_tuning_alone_has_devices_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    text = launched(capsys, "slurm", "sft/scalerl_8b", "--sft", "--out", "/shared/models/8b")
    assert "#SBATCH --nodes=2\n" in text
    assert " -- sft sft/scalerl_8b --out /shared/models/8b --set " in text


def test_machines_of_ones_own_get_the_token_that_their_head_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = ",".join(f"10.0.0.{number}" for number in range(10))
    text = launched(capsys, "ray", "h100/scalerl_8b", "--out", "/shared/a", "--hosts", hosts, "--user", "me")
    made = yaml.safe_load(text)
    assert made["provider"]["head_ip"] == "10.0.0.0"
    assert len(made["provider"]["worker_ips"]) == made["max_workers"] == 9
    assert made["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    for who in ("head", "worker"):
        assert "RAY_AUTH_MODE=token" in made[f"{who}_start_ray_commands"][1], who


def test_ray_up_brings_a_head_the_settings_of_another_file() -> None:
    """A file of the cluster's name holds what `ray up` remembers of a head."""
    made = [yaml.safe_load(scripts.ray_yaml(job_of(name), Path("/lab"), "me", ["10", "n1"])) for name in ("a", "b")]
    assert [one["cluster_name"] for one in made] == ["10", "10"]


def test_all_workers_are_started() -> None:
    """The autoscaler that Ray 2.60's `ray up` takes by itself starts one worker too few of machines of one's own."""
    made = yaml.safe_load(scripts.ray_yaml(job_of("a"), Path("/lab"), "me", ["n0", "n1", "n2"]))
    assert " RAY_enable_autoscaler_v2=0 .venv/bin/ray start " in made["head_start_ray_commands"][1]
    assert made["min_workers"] == 2


def test_a_rayjob_has_the_runs_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("h100/scalerl_8b", "--out", "/runs/a", "--image", "an/image", "--claim", "a-claim")
    made = yaml.safe_load(launched(capsys, "k8s", *asked))
    cluster = made["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    pins = (ROOT / "requirements" / "gpu.txt").read_text()
    assert f"\nray=={cluster['rayVersion']} " in pins
    [workers] = cluster["workerGroupSpecs"]
    slurm = launched(capsys, "slurm", "h100/scalerl_8b", "--out", "/shared/a")
    for pod in (cluster["headGroupSpec"], workers):
        assert f"INT@{pod['template']['spec']['terminationGracePeriodSeconds']}\n" in slurm
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 10
    [container] = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in {one["name"] for one in container["env"]}
    head = cluster["headGroupSpec"]["template"]["spec"]
    waits = {one["name"]: one["value"] for one in head["containers"][0]["env"]}["RAY_JOB_STOP_WAIT_TIME_S"]
    assert int(waits) == head["terminationGracePeriodSeconds"], "Ray would kill a job that is stopped sooner"


@pytest.mark.parametrize(
    ("name", "on_a_node"),
    [
        # 107.77e9 parameters: in /dev/shm (2 B each), and by 8 of 32 ranks a quarter of a checkpoint (14 B).
        ("h100/scalerl_17bx16", 107.77e9 * (2 + 14 / 4)),
        # 30.53e9, all ranks on the node: the whole checkpoint, and 16 B of an optimiser in host memory.
        ("qwen/qwen3_30b_a3b_node", 30.53e9 * (2 + 14 + 16)),
    ],
)
def test_a_node_of_a_rayjob_has_memory_for_what_its_trainer_ranks_keep_there(
    name: str, on_a_node: float, capsys: pytest.CaptureFixture[str]
) -> None:
    made = yaml.safe_load(launched(capsys, "k8s", name, "--out", "/runs/a", *K8S))
    [workers] = made["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    memory = workers["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    least = on_a_node / 2**30 + 128
    assert least < int(memory.removesuffix("Gi")) < 1.6 * least
    assert int(memory.removesuffix("Gi")) % 64 == 0


def test_a_runs_name_in_kubernetes_is_that_of_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    def named(out: str, *sets: str) -> str:
        return yaml.safe_load(launched(capsys, "k8s", "h100/scalerl_8b", "--out", out, *K8S, *sets))["metadata"]["name"]

    one = named("/runs/a")
    assert one != named("/runs/b", "--set", "OptimizerConfig.lr=1e-6")
    assert one == named("/runs/a")
    assert re.fullmatch(r"[a-z][-a-z0-9]{0,46}", one)


PACKED = ("Cluster.trainers=6", "SFT.trainers=6", "Layout.tensor=2", "Cluster.generators=3")


def test_what_is_asked_for_is_what_the_run_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """No more devices of a node than it has use for, and all devices of the nodes that it fills."""
    assert "--gpus-per-node=1\n" in launched(capsys, "slurm", "smollm2_one_gpu", "--out", "/shared/a")
    pod = launched(capsys, "k8s", "smollm2_gpu", "--out", "/runs/a", *K8S)
    assert 'nvidia.com/gpu: "2"' in pod
    sets = [word for one in (*PACKED, "GeneratorConfig.tensor_parallel=4") for word in ("--set", one)]
    text = launched(capsys, "slurm", "h100/scalerl_8b_node", "--out", "/shared/a", *sets)
    assert "--nodes=3\n#SBATCH --gpus-per-node=8\n" in text  # 6 and none, 4 and 4, 4


def test_a_placement_that_is_proposed_for_other_devices_can_be_launched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "scalerl_8b", "--hardware", "h100"]) == 1
    proposed = shlex.split(capsys.readouterr().out.strip().splitlines()[-1])
    assert "--nodes=10\n" in launched(capsys, "slurm", "scalerl_8b", "--out", "/shared/a", *proposed)


def test_a_setup_may_read_variables_that_are_not_set_and_a_container_sees_what_the_run_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = tmp_path / "setup.sh"
    setup.write_text("export LD_LIBRARY_PATH=/opt/nccl/lib:$LD_LIBRARY_PATH\nfalse\n")
    text = launched(
        *(capsys, "slurm", "h100/scalerl_8b", "--out", "/shared/runs/a", "--setup", str(setup)),
        *("--container", "an/image", "--mounts", "/data:/data"),
    )
    head = text.partition("# Print NCCL")[0].replace(str(ROOT), str(tmp_path))
    environment = {"PATH": os.environ["PATH"]}
    command = ["bash", "-c", f"{head}echo $LD_LIBRARY_PATH"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("/opt/nccl/lib:\n", 0)
    setup.unlink()
    assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 1
    comma = ["--set", "SFT.pretrained='/shared/a,b'", "--container", "an/image"]
    assert main(["launch", "slurm", "h100/scalerl_8b", "--out", "/shared/runs/a", *comma]) == 1
    assert "/shared/a,b has a comma or a colon in it" in capsys.readouterr().err
    mounts = re.search(r"--container-mounts=([^ ']*)", text)
    assert mounts is not None
    places = [one.partition(":")[0] for one in mounts[1].split(",")]
    assert places == [str(ROOT), "/shared/runs", "/shared/model", "/data"]


def test_a_rayjobs_folder_is_named_without_detours(capsys: pytest.CaptureFixture[str]) -> None:
    text = launched(capsys, "k8s", "h100/scalerl_8b", "--out", "/runs/b/../a", *K8S)
    assert "--out /runs/a --set" in text
    assert ".." not in text


def as_ray_runs_it(entry: str, environment: dict[str, str]) -> list[str]:
    """Words that `scalelab` has in a RayJob: KubeRay's shell splits the entrypoint, Ray joins it for another one."""
    split = f'set -- {entry}\nexec {shlex.quote(sys.executable)} -c {shlex.quote(JOINS)} "$@"'
    joined = subprocess.run(["bash", "-c", split], env=environment, capture_output=True, text=True, check=True).stdout
    done = subprocess.run(joined, shell=True, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


JOINS = "import subprocess, sys; print(subprocess.list2cmdline(sys.argv[1:]))"
"""The joining that `ray job submit` does (ray/dashboard/modules/job/cli.py)."""
SETS = (
    "Recipe.loss=@CISPO()",
    "Monitors.stop_on=('skipped', 'gap')",
    'Recipe.name="a;b & c|d>e"',
    "PublicTraces.folder='/runs/two words'",
)


def test_a_rayjob_gives_its_run_every_binding_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "scalelab").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "scalelab").chmod(0o755)
    job = replace(job_of("a"), sets=SETS, out=tmp_path / "out")
    made = yaml.safe_load(scripts.kuberay(job, "image", "claim", 64))
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    assert as_ray_runs_it(made["spec"]["entrypoint"], {"PATH": path, "PYTHONPATH": str(ROOT)}) == job.words


@pytest.mark.parametrize("strange", ["$", "`", "\\"])
def test_what_a_shell_reads_within_quotes_is_refused_for_pods(strange: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["h100/scalerl_8b", "--out", "/runs/a", "--set", f"SFT.pretrained='/runs/a{strange}{strange}b'"]
    assert main(["launch", "k8s", *asked, *K8S]) == 1
    assert f"--set has {strange!r} in it, which a shell of Ray's jobs would read" in capsys.readouterr().err


def test_a_rayjob_that_is_made_anew_resumes_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("h100/scalerl_8b", "--out", "/runs/a", "--image", "an/image", "--claim", "a-claim")
    made = yaml.safe_load(launched(capsys, "k8s", *asked))
    assert made["spec"]["backoffLimit"] > 0
    (tmp_path / "scalelab").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "scalelab").chmod(0o755)
    begun = []
    for folder in (tmp_path / "none", tmp_path / "begun"):
        folder.mkdir()
        entry = made["spec"]["entrypoint"].replace("/runs/a", str(folder))
        if folder.name == "begun":  # stopped after its base model was evaluated, before the first step
            (folder / "manifest.json").write_text('{"status": "interrupted"}')
            (folder / "evals.jsonl").write_text("{}\n")
        path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {"PATH": path, "PYTHONPATH": str(ROOT)}
        begun += as_ray_runs_it(entry, environment)
    assert begun[0].startswith(f"run h100/scalerl_8b --supervise --out {tmp_path / 'none'} --set ")
    assert [words.split()[-1] == "--resume" for words in begun] == [False, True]


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        *(("90", 5400), ("90:30", 5430), ("1:30:05", 5405), ("2-00", 172_800), ("1-2:3", 93_780), ("1-2:3:4", 93_784)),
        *(("UNLIMITED", None), ("0", None)),
    ],
)
def test_a_time_limit_is_read_as_slurm_reads_it(words: str, seconds: float | None) -> None:
    """Source: sbatch(1), --time."""
    assert _limit_seconds(words) == seconds


def test_a_full_file_system_is_told_before_any_device_is_allocated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    needed = disk_needed(run := resolve("h100/scalerl_8b").run, step_hours(run)).total
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed - 1))
    assert main(["launch", "slurm", "h100/scalerl_8b", "--out", str(tmp_path / "run"), *FOLDER]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"GiB free, and this run writes up to {needed / 2**30:.1f} GiB" in err
    parts = re.findall(r"([\d.]+) of (?:checkpoints|rollouts|completions|lines)", err)
    assert sum(map(float, parts)) == pytest.approx(needed / 2**30, abs=0.2), "the parts are all of it"
    assert needed > 700 * 2**30, "checkpoints of 314 GiB, and completions of 101 evaluations in 10,035 steps"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed))
    assert main(["launch", "slurm", "h100/scalerl_8b", "--out", str(tmp_path / "run"), *FOLDER]) == 0


def test_a_fine_tuning_is_refused_where_its_checkpoints_have_no_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage, run = shutil.disk_usage(tmp_path), resolve("sft/scalerl_8b").run
    size = checkpoint_bytes(run.model.to_hf(), run.tuner_setup.dtype)
    command = ["launch", "slurm", "sft/scalerl_8b", "--sft", "--out", str(tmp_path / "model"), *FOLDER]
    needed = 2 * size + 2 * parameters(run.model.to_hf()).total  # and the model in bfloat16
    gib = [f"{one / 2**30:.1f}" for one in (needed - 1, needed, size)]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed - 1))
    assert main(command) == 1
    assert capsys.readouterr().err == (
        f"scalelab: {tmp_path} has {gib[0]} GiB free, and the fine-tuning writes up to {gib[1]} GiB and needs 1 GiB in "
        f"any case: two checkpoints of {gib[2]} and the model; free some, or give another --out\n"
    )
    with pytest.raises(LabError, match="two checkpoints of"):
        fine_tune(run, tmp_path / "model", Progress(io.StringIO()))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed))
    assert main(command) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["slurm", "quickstart", "--out", "/a"], "runs on cores (Cluster.device)"),
        (["slurm", "recipes", "--out", "/a"], "is a family; name one of its members: recipes/"),
        (["slurm", "h100/scalerl_8b", "--out", "runs/a", *FOLDER], "--out runs/a is relative"),
        (["slurm", "h100/scalerl_8b", "--out", "/a"], "SFT.pretrained is 'models/llama_8b_sft', which every node has"),
        (["slurm", "h100/scalerl_8b", "--out", "/a", "--cpus", "0", *FOLDER], "--cpus 0"),
        (["slurm", "scalerl_8b", "--out", "/a", "--set", "Cluster.hardware='h100'", *FOLDER], "does not fit"),
        (["slurm", "h100/scalerl_8b", "--out", "/a", "--submit", *FOLDER], "there is no sbatch here"),
        (["k8s", "h100/scalerl_8b", "--out", "/a", *FOLDER], "launch k8s needs --image"),
        (["k8s", "h100/scalerl_8b", "--out", "/a", "--image", "a", "--claim", "b", *FOLDER], "mounted at /runs"),
        *(
            (
                ["ray", "h100/scalerl_8b", "--out", "/a", "--user", "me", "--hosts", "10.0.0.1", f"--{name}", "4"],
                f"--{name} is for launch {kinds}, and ray has no use for it",
            )
            for name, kinds in (("cpus", "slurm and k8s"), ("partition", "slurm"), ("time", "slurm"), ("image", "k8s"))
        ),
        (["slurm", "h100/scalerl_8b", "--out", "/a", "--hosts", "a,b", *FOLDER], "--hosts is for launch ray, and"),
        (["slurm", "h100/scalerl_8b", "--out", "/a", "--mounts", "/a:/a", *FOLDER], "--mounts is for a --container"),
        (
            ["slurm", "h100/scalerl_8b", "--out", "/a", *FOLDER, "--set", "Cluster.address='10.0.0.1:6379'"],
            "Cluster.address is '10.0.0.1:6379', and launch starts a Ray of its own",
        ),
        *(
            (["k8s", "h100/scalerl_8b", "--out", out, *K8S, *ON_VOLUME], f"--out {out} is not on the volume")
            for out in ("/runs/../etc", "/runs", "/runs/a/../..")
        ),
        (
            ["k8s", "h100/scalerl_8b", "--out", "/runs/a", *K8S, "--set", "SFT.pretrained=/s"],
            "SFT.pretrained is /s, which pods do not see: put the model on the volume, and give a folder below /runs",
        ),
        (
            ["k8s", f"{ROOT}/experiments/h100.py/scalerl_8b", "--out", "/runs/a", *K8S, *ON_VOLUME],
            f"EXPERIMENT {ROOT}/experiments/h100.py is a file that pods do not see: put it below /runs of the volume",
        ),
        (["ray", "h100/scalerl_8b", "--out", "/a", "--user", "me", *FOLDER], "launch ray needs --hosts"),
        (
            ["ray", "h100/scalerl_8b", "--out", "/a", "--user", "me", "--hosts", "127.0.0.1,10.0.0.1", *FOLDER],
            "--hosts 127.0.0.1 is an address that no other machine reaches",
        ),
        *(
            (
                ["ray", "h100/scalerl_8b", "--out", "/a", "--user", "me", "--hosts", f"10.0.0.1,{host}", *FOLDER],
                f"--hosts {host} is an address that no other machine reaches",
            )
            for host in ("LOCALHOST", "[::1]", "0.0.0.0", "127.1.2.3", "::ffff:127.0.0.1", "169.254.1.1")
        ),
        (
            ["ray", "h100/scalerl_8b", "--out", "/a", "--user", "me", "--hosts", "10.0.0.1, 10.0.0.2", *FOLDER],
            "--hosts names ' 10.0.0.2' among others",
        ),
        (
            ["ray", "h100/scalerl_8b", "--out", "/a", "--user", "me", "--hosts", "a.b.invalid,a.b.invalid", *FOLDER],
            "--hosts names a.b.invalid twice",
        ),
        *(
            (["slurm", "h100/scalerl_8b", "--out", "/a", "--network", start, *FOLDER], f"{start} is the loopback or of")
            for start in ("127.", "127", "127.0", "169.254.", "::1")
        ),
        (["ray", "h100/scalerl_8b", "--out", "/a\nb: c", "--user", "me", "--hosts", "10.0.0.1"], "'/a\\nb: c' has a"),
        (["ray", "h100/scalerl_8b", "--out", "/a", "--user", "me", "--hosts", "{x"], "--hosts has '{' in it"),
        (
            ["slurm", "h100/scalerl_17bx16", "--out", "/a", *FOLDER, "--set", "Cluster.devices_per_node=4"],
            "an engine's 8 devices must share a node of 4",
        ),
        (["slurm", "h100/scalerl_8b", "--out", "/a", "--network", "ib0", *FOLDER], "'ib0' begins no address"),
        (
            ["slurm", "h100/scalerl_8b", "--out", "/a", "--setup", "/no/such", *FOLDER],
            "--setup /no/such is no file here",
        ),
        (["slurm", "h100/scalerl_8b", "--out", "/a", "--partition", "a b", *FOLDER], "--partition has ' ' in it"),
        (
            ["k8s", "h100/scalerl_8b", "--out", "/runs/a", "--image", 'an"image', "--claim", "b", *ON_VOLUME],
            "--image has '\"' in it, which the script cannot carry",
        ),
        (["slurm", "h100/scalerl_8b", "--out", "/a", "--time", "banana", *FOLDER], "--time banana: give minutes"),
        (["slurm", "h100/scalerl_8b", "--out", "/a", "--time", "2", *FOLDER], "--time 2 is 120 s, and a step and a"),
        (
            ["ray", "h100/scalerl_8b", "--out", "/a", "--user", "me", "--hosts", "10.0.0.1,10.0.0.2", *FOLDER],
            "the run takes 80 devices, 10 machines of 8; --hosts names 2",
        ),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["launch", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("asked", "commands"),
    [
        (["slurm"], ["sbatch"]),
        (["k8s", *K8S], ["kubectl run", "kubectl create -f -"]),
        (["ray", "--hosts", "10.0.0.1", "--user", "me"], ["ray get-auth-token --generate", "ray up --yes", "ray exec"]),
    ],
)
def test_what_is_submitted_is_what_would_be_printed(
    asked: list[str],
    commands: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("sbatch", "kubectl", "ray"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".ray").mkdir()
    monkeypatch.setattr(launch, "RAY", tmp_path / "ray")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    one, *others = asked
    command = [
        "launch",
        one,
        "h100/scalerl_8b_node",
        "--out",
        "/runs/a",
        *(ON_VOLUME if one == "k8s" else FOLDER),
        *others,
    ]
    assert main(command) == 0
    printed = capfd.readouterr().out
    assert main([*command, "--submit"]) == 0
    told = (tmp_path / "told").read_text().splitlines()
    assert [line[: len(words)] for line, words in zip(told, commands, strict=True)] == commands
    assert (tmp_path / "given").read_text() == printed
    (tmp_path / "fails").touch()
    if one == "ray":
        assert main([*command, "--submit"]) == 1, "it would end the run that was started"
        [file] = tmp_path.glob("*.yaml")
        assert f"{file} is there: a run may go on that was started with it" in capfd.readouterr().err
        file.unlink()
    assert main([*command, "--submit"]) == 3
    assert not [*tmp_path.glob("*.yaml")], "it can be tried again"
    assert len((tmp_path / "told").read_text().splitlines()) == len(told) + 1, "nothing follows what failed"


STAND_IN = """\
#!/bin/sh
here=$(dirname "$0")
echo "$(basename "$0") $*" >> "$here/told"
case "$*" in
    get-auth-token*) touch "$here/.ray/auth_token" ;;
    up*) cp "$3" "$here/given" ;;
    exec* | run*) ;;
    *) cat > "$here/given" ;;
esac
! [ -e "$here/fails" ] || exit 3
"""
"""Program that notes its words and what it is given."""


def test_a_pod_without_devices_looks_at_the_volume_before_a_rayjob_is_submitted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod is this machine: the stand-in notes its command, which is said here with the volume in `tmp_path`."""
    (tmp_path / "kubectl").write_text(f"""#!{sys.executable}
import json, sys
with open({str(tmp_path / "told")!r}, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
sys.exit({{"run": 7, "create": 0}}[sys.argv[1]])
""")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    usage = shutil.disk_usage(tmp_path)
    asked = ["launch", "k8s", "h100/scalerl_8b", "--out", "/runs/a", *K8S, *ON_VOLUME, "--set", "Recipe.loss=@CISPO()"]
    assert main([*asked, "--submit"]) == 7, "the pod's exit code"
    assert capfd.readouterr().err.splitlines()[-1] == "no RayJob was submitted: see above"
    [words] = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert {"--restart=Never", "--attach", "--rm"} <= set(words)
    [made] = [json.loads(word.partition("=")[2]) for word in words if word.startswith("--overrides=")]
    [pod] = made["spec"]["containers"]
    assert (pod["image"], pod["resources"].get("limits")) == ("a", None)
    assert made["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "b"}
    assert pod["volumeMounts"] == [{"name": "runs", "mountPath": "/runs"}]
    lab, *command = pod["command"]
    assert (lab, command) == ("scalelab", [*asked[:7], "--claim", "b", "--check", *asked[9:]])

    volume = tmp_path / "runs"
    volume.mkdir()
    monkeypatch.setattr(launch, "VOLUME", volume)
    seen = [word.replace("/runs/", f"{volume}/") for word in command]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**40))
    assert main(seen) == 1
    assert f"SFT.pretrained: there is no folder {volume}/model here" in capfd.readouterr().err
    (volume / "model").mkdir()
    (volume / "model/model.safetensors").touch()
    (volume / "model/config.json").write_text(json.dumps(Qwen3().to_hf()))
    assert main(seen) == 1
    assert "is not the run's model" in capfd.readouterr().err
    assert main([word.replace(f"SFT.pretrained={volume}/model", "SFT.pretrained=hub:a/b") for word in seen]) == 0
    assert capfd.readouterr().out == f"{volume}/a has room\n"
    with monkeypatch.context() as whole:
        whole.setattr(base_model, "checked_model", lambda run, folder: None)
        assert main(seen) == 0
    assert capfd.readouterr().out == f"{volume}/a has room, and {volume}/model is the run's model\n"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**31))
    assert main(seen) == 1
    assert f"{volume} has 2.0 GiB free, and this run writes" in capfd.readouterr().err


def test_room_that_nobody_can_see_from_here_is_not_said_to_be_there(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["launch", "slurm", "h100/scalerl_8b", "--out", "/no/such/a", "--set", "SFT.pretrained=hub:a/b"]
    assert main([*asked, "--check"]) == 1
    assert "no folder of --out /no/such/a is here, so that nobody knows its room" in capsys.readouterr().err
    assert main(asked) == 0


def test_without_torch_a_script_is_written_and_its_model_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["launch", "slurm", "h100/scalerl_8b", "--out", "/no/such/a", "--set", f"SFT.pretrained={tmp_path}"]
    assert main(asked) == 1, "an empty folder is no model"
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    assert main(asked) == 0
    assert main([*asked, "--check"]) == 1


def test_a_run_that_is_left_to_a_head_outlives_who_started_it(tmp_path: Path) -> None:
    lab = tmp_path / "a lab/.venv/bin"
    lab.mkdir(parents=True)
    (lab / "scalelab").write_text('#!/bin/sh\nprintf "%s\\n" "$RAY_AUTH_MODE" $(ps -o sid= -p $$) "$@" over\n')
    (lab / "scalelab").chmod(0o755)
    job = replace(job_of("a"), sets=SETS, out=tmp_path / "runs/a run")
    subprocess.run(["bash", "--login", "-c", scripts.left_on_head(job, tmp_path / "a lab")], check=True, timeout=60)
    log, ends = tmp_path / "runs/a run.log", time.monotonic() + 60
    while not (log.exists() and log.read_text().endswith("over\n")):
        assert time.monotonic() < ends
        time.sleep(0.02)
    mode, session, *words, _ = log.read_text().splitlines()
    assert (mode, words) == ("token", job.words)
    assert session != str(os.getsid(0))
