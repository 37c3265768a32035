"""Placement: ranks that talk most share a node, and devices that are not there are named."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scalelab.cluster.actors import actor_class, draining_nodes, join_cluster, this_node
from scalelab.cluster.placement import Reservation, shared
from scalelab.commands.arguments import add_experiment
from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.hardware import device, packed
from scalelab.plan.check import usual
from scalelab.plan.placement import placement
from scalelab.plan.planner import plan_of
from scalelab.plan.speed import Assumptions
from scalelab.run.disk import disk_needed
from scalelab.run.settings import Cluster

FILES = Path(__file__).parents[2] / "tools" / "cluster"


@given(st.integers(1, 200), st.integers(1, 16))
def test_packing_keeps_every_device_and_fills_nodes_first(devices: int, per_node: int) -> None:
    bundles = packed(devices, per_node)
    assert sum(bundles) == devices
    assert all(count == per_node for count in bundles[:-1])
    assert 1 <= bundles[-1] <= per_node


def test_an_address_where_nobody_listens_is_named_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening: nobody else can take it meanwhile
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LabError, match=f"no Ray cluster at {address}: .*; start one, or mend Cluster.address"):
            join_cluster(address)


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[str]:
    import ray
    from ray.cluster_utils import Cluster as RayCluster

    nodes = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for gpus in (0, 2):
            nodes.add_node(num_cpus=2, num_gpus=gpus)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        yield nodes.address
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.mark.slow
def test_ranks_of_a_bundle_share_a_node(three_nodes: str) -> None:
    import ray

    @ray.remote(num_cpus=1)
    class Rank:
        def node(self) -> str:
            return ray.get_runtime_context().get_node_id()

    reservation = Reservation(Cluster(startup_seconds=60), packed(4, per_node=2), "the trainer")
    ranks = [Rank.options(scheduling_strategy=reservation.strategy(rank)).remote() for rank in range(4)]
    nodes = ray.get([rank.node.remote() for rank in ranks], timeout=900)
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    reservation.release()


class Seeing:
    """An actor that says which GPUs it may use."""

    def gpus(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.slow
def test_each_engine_shares_its_gpu_with_one_rank_and_so_does_the_one_that_replaces_it(three_nodes: str) -> None:
    import ray

    cluster = Cluster(device="gpu", share_devices=True, generators=2, trainers=2, startup_seconds=60)
    reservation = shared(cluster)
    assert reservation is not None

    def on(device: int) -> Any:
        return actor_class(
            Seeing, "engine", cluster, devices=reservation.share, strategy=reservation.strategy(device)
        ).remote()

    engines, ranks = [on(0), on(1)], [on(0), on(1)]
    seen = ray.get([one.gpus.remote() for one in (*engines, *ranks)], timeout=900)
    assert seen[:2] == seen[2:]
    assert {*seen} == {"0", "1"}
    ray.kill(engines[0])
    assert ray.get(on(0).gpus.remote(), timeout=900) == seen[0]
    reservation.release()
    reservation.release()


@pytest.mark.slow
def test_devices_that_the_cluster_lacks_are_named(three_nodes: str) -> None:
    with pytest.raises(LabError, match=r"waited 1 s for 4 CPUs on one node each, for the trainer; .* 2 \+ 2 \+ 0"):
        Reservation(Cluster(startup_seconds=1), [4], "the trainer")


@pytest.mark.slow
def test_a_node_that_somebody_says_is_about_to_go_is_seen_while_it_still_works(three_nodes: str) -> None:
    import ray

    reservation = Reservation(Cluster(startup_seconds=60), [1], "a generator")
    up = ray.remote(num_cpus=1)(this_node).options(scheduling_strategy=reservation.strategy(0))
    node = ray.get(up.remote(), timeout=900)
    assert draining_nodes() == {}
    command = [Path(sys.executable).with_name("ray"), "drain-node", "--address", three_nodes, "--node-id", node]
    why = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test", "--deadline-remaining-seconds"]
    before = time.time()
    subprocess.run([*command, *why, "600"], check=True, timeout=900, capture_output=True)
    draining = draining_nodes()
    assert list(draining) == [node]
    assert before + 599 < draining[node] < time.time() + 601, "when it is to be gone"
    assert any(one["NodeID"] == node and one["Alive"] for one in ray.nodes())
    reservation.release()


RECORD = 'echo "$(basename "$0") $*" >> "$CALLS"\n'
"""A stand-in's first act: it notes how it was called."""
STAND_INS = {
    "srun": RECORD
    + """
case "$*" in *--container-image=*) exit 0;; esac
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
""",
    "scontrol": "printf 'node1\\nnode2\\n'",
    "hostname": "echo 10.0.0.1",
}


@pytest.mark.parametrize("container", ["", "/images/scalelab.sqsh"])
def test_a_slurm_jobs_commands_are_all_the_checkouts_or_all_the_images(container: str, tmp_path: Path) -> None:
    """With an image every command goes through srun into it: the checkout has no environment that could run."""
    environments = [] if container else [f".venv/bin/{name}" for name in ("ray", "scalelab")]
    scripts = {f"bin/{name}": code for name, code in STAND_INS.items()} | dict.fromkeys(environments, RECORD)
    for name, code in scripts.items():
        script = tmp_path / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f"#!/bin/sh\n{code}")
        script.chmod(0o755)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/cluster").symlink_to(FILES)
    slurm = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "7"}
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls"), **slurm}
    command = ["bash", str(FILES / "slurm.sh"), "run", "quickstart"]
    # captured, so that it ends when all that it has left behind has noted itself, too
    subprocess.run(command, env={**environment, "CONTAINER": container}, check=True, timeout=900, capture_output=True)

    calls = (tmp_path / "calls").read_text().splitlines()
    assert sum("hostname" in call for call in calls) == 1
    steps = [call for call in calls if call.startswith("srun") and "hostname" not in call]
    ours = steps if container else [call for call in calls if not call.startswith("srun")]
    for wanted in (
        "ray get-auth-token --generate",
        "ray start --head --node-ip-address=10.0.0.1 --port=6379",
        "ray health-check --address 10.0.0.1:6379",
        "ray start --address=10.0.0.1:6379",
        "scalelab run quickstart --set Cluster.address='auto'",
    ):
        place = f" /scalelab/.venv/bin/{wanted}" if container else wanted
        assert sum(place in call for call in ours) == 1, wanted
    assert len(ours) == 5
    assert all((f"--container-image={container}" in step) == bool(container) for step in steps)


def test_cluster_files_are_well_formed() -> None:
    job = yaml.safe_load((FILES / "kuberay.yaml").read_text())
    workers = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    container = workers["template"]["spec"]["containers"][0]
    assert workers["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"]) == 80
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    add_experiment(parser)
    given, _ = parser.parse_known_args(shlex.split(job["spec"]["entrypoint"])[2:])
    pretrained = Path(resolve(given.experiment, given.sets).run.sft.pretrained)
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    for pod in (head, container):
        [runs] = [mount["mountPath"] for mount in pod["volumeMounts"] if mount["name"] == "runs"]
        assert pretrained.is_relative_to(runs)
        assert given.out.is_relative_to(runs)
    assert "ray start --head" in " ".join(yaml.safe_load((FILES / "ray.yaml").read_text())["head_start_ray_commands"])


@pytest.mark.parametrize("name", ["h100/scalerl_8b", "h100/scalerl_8b_node", "h100/scalerl_17bx16"])
def test_a_slurm_jobs_grace_is_enough_for_a_step_and_a_checkpoint(name: str) -> None:
    """A signal lets a run finish its step; then it writes a checkpoint, for which 2 GB/s are assumed."""
    run = resolve(name).run
    step = plan_of(run, placement(run), device(usual(run)), Assumptions()).seconds["step"]
    one = replace(run.checkpoints, keep_last=1, keep_every=None)
    bytes_of_two = disk_needed(replace(run, checkpoints=one)).checkpoints  # the one that is kept, and the next
    [grace] = re.findall(r"^#SBATCH --signal=B:INT@(\d+)$", (FILES / "slurm.sh").read_text(), re.MULTILINE)
    assert step + bytes_of_two / 2 / 2e9 < int(grace)


def test_every_node_gets_the_same_environment() -> None:
    """`kuberay.yaml` has no shell that could source the file."""
    exports = re.findall(r"^export (\w+)=\$\{\1:-(.+)\}$", (FILES / "environment.sh").read_text(), re.MULTILINE)
    job = yaml.safe_load((FILES / "kuberay.yaml").read_text())
    pod = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    given = {one["name"]: one["value"] for one in pod["env"]}
    assert given.pop("RAY_worker_niceness") == "0"
    assert given == dict(exports)
    assert (FILES / "slurm.sh").read_text().count("source tools/cluster/environment.sh") == 1
    ray_files = yaml.safe_load((FILES / "ray.yaml").read_text())
    for kind in ("head", "worker"):
        assert ". tools/cluster/environment.sh && " in ray_files[f"{kind}_start_ray_commands"][-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "package", "file"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "torch", "include/c10/cuda/CUDAAllocatorConfig.h"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "torch", "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "megatron.core", "parallel_state.py"),
        ("worker_niceness", "ray", "core/src/ray/raylet/raylet"),
        ("RAY_AUTH_MODE", "ray", "core/src/ray/raylet/raylet"),
    ],
)
def test_the_pinned_packages_know_the_variables_that_nodes_get(variable: str, package: str, file: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert variable.encode() in (Path(spec.origin).parent / file).read_bytes()
