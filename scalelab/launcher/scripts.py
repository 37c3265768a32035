"""Job scripts for Slurm, `ray up` and KubeRay, written from a run's own size."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalelab.launcher import kuberay_job
from scalelab.numbers import counted

NODE_SETUP = """\
# Print NCCL's warnings, such as why a connection failed, and not its other messages.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
# Where a node has several networks, name the one that all nodes share; NCCL finds InfiniBand by itself:
#   export NCCL_SOCKET_IFNAME=… GLOO_SOCKET_IFNAME=… NCCL_IB_HCA=…
[ -z "${NCCL_SOCKET_IFNAME:-}" ] || export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$NCCL_SOCKET_IFNAME}
# RDMA pins memory, which a low limit forbids: NCCL would fall back to TCP.
ulimit -l unlimited 2>/dev/null || echo "locked memory is limited to $(ulimit -l) KiB: NCCL may fall back to TCP" >&2
ulimit -n 65536 2>/dev/null || true
"""
"""Environment of a whole node; what only trainer or engines need is in `scalelab.environment`."""

CHECKPOINT_BANDWIDTH = 2e9
"""Bytes a second that all ranks together are assumed to write."""
MARGIN_SECONDS = 120
CPUS_PER_DEVICE = 8
CACHES = {"SCALELAB_CACHE": "/runs/.cache/scalelab", "HF_HOME": "/runs/.cache/hf"}
"""Environment of every pod: models that a run makes or downloads must be where all pods see them."""
LONGEST_WARNING = 65_535
"""Seconds before its end that Slurm warns a job at most (sbatch(1), --signal)."""


@dataclass(frozen=True)
class LaunchJob:
    """One run on a cluster.

    Attributes:
        experiment: what `scalelab run` takes.
        sets: the user's bindings.
        out: the run's folder, which all nodes see.
        devices: that the run holds.
        per_node: devices of a node.
        nodes: nodes, for trainer and engines.
        grace: seconds from the warning to the end of the job: a step and a checkpoint.
        command: "run", or "sft" for the fine-tuning alone.
    """

    experiment: str
    sets: tuple[str, ...]
    out: Path
    devices: int
    per_node: int
    nodes: int
    grace: int
    command: str = "run"

    def size(self, node: str) -> str:
        """Devices and nodes, by the word for one of these: `80 devices on 10 machines`."""
        return f"{counted(self.devices, 'device')} on {counted(self.nodes, node)}"

    @property
    def name(self) -> str:
        """Name of the job, which Slurm and Kubernetes take: a letter first, 47 letters at most."""
        kept = "".join(one if one.isascii() and one.isalnum() else "-" for one in self.experiment.lower()).strip("-")
        return (kept if kept[:1].isalpha() else f"run-{kept}")[:47].strip("-")

    @property
    def name_of_folder(self) -> str:
        """The name with a sign of the run's folder, so that two runs of an experiment do not share it."""
        return f"{self.name[:38].strip('-')}-{hashlib.sha256(str(self.out).encode()).hexdigest()[:8]}"

    @property
    def words(self) -> list[str]:
        """Arguments of `scalelab`."""
        sets = [word for one in (*self.sets, "Cluster.address='auto'") for word in ("--set", one)]
        supervise = ["--supervise"] if self.command == "run" else []
        return [self.command, self.experiment, *supervise, "--out", str(self.out), *sets]


def grace_seconds(step_seconds: float, checkpoint_bytes: int) -> int:
    """Seconds that a run may need to end in order: the rest of a step, a checkpoint, and a margin."""
    return math.ceil(step_seconds + checkpoint_bytes / CHECKPOINT_BANDWIDTH) + MARGIN_SECONDS


def slurm(
    job: LaunchJob,
    checkout: Path,
    *,
    time: str = "",
    partition: str = "",
    cpus: int | None = None,
    setup: Path | None = None,
    container: str = "",
    mounts: str = "",
    network: str = "",
) -> str:
    """A script for `sbatch`.

    Args:
        job: the run.
        checkout: folder of the lab with its `.venv`, which all nodes see.
        time: limit, in Slurm's words; empty leaves it to the partition.
        partition: empty for the default one.
        cpus: of a node; None takes some for each device.
        setup: file that is sourced first (modules, NCCL's variables).
        container: image for Pyxis.
        mounts: further mounts of the container.
        network: beginning of the address that nodes reach each other by.
    """
    cores, here = cpus or CPUS_PER_DEVICE * job.per_node, shlex.quote(str(checkout))
    inside, folder = [], f"{checkout}/.venv/bin"
    if container:
        places = ",".join(filter(None, [f"{checkout}:{checkout}", f"{job.out.parent}:{job.out.parent}", mounts]))
        inside = [f"--container-image={container}", "--container-name=scalelab", "--container-mount-home"]
        inside += [f"--container-mounts={places}", f"--container-workdir={checkout}"]
        folder = "/scalelab/.venv/bin"
    python = "python3" if container else f"{here}/.venv/bin/python"  # outside of an image there need not be the lab's
    options_of_job = [f"--bin={folder}", f"--out={job.out}", *(f"--inside={one}" for one in inside)]
    options_of_job += [f"--network={network}"] if network else []
    command = shlex.join([*options_of_job, "--", *job.words])
    # A module system's scripts read variables that are not set, and end with any status.
    file = shlex.quote(str(setup))
    source = f"test -r {file}\nset +eu\nsource {file}\nset -eu\n" if setup else ""
    return f"""\
#!/usr/bin/env bash
# {job.size("node")}; written by `scalelab launch slurm`. Submitted again, it resumes the run.
{_slurm_options(job, time, partition, cores)}
set -euo pipefail
cd {here}
{source}{NODE_SETUP}
# Steps do not inherit it from the job.
export SRUN_CPUS_PER_TASK=${{SLURM_CPUS_PER_TASK:-{cores}}}
# In place of this shell, so that Slurm's INT before the time limit reaches it: the run writes a checkpoint and ends.
exec {python} {here}/scalelab/launcher/slurm_job.py {command}
"""


def _slurm_options(job: LaunchJob, time: str, partition: str, cores: int) -> str:
    """The lines of a script that `sbatch` reads."""
    options = {
        "job-name": job.name,
        "nodes": job.nodes,
        "gpus-per-node": job.per_node,
        "ntasks-per-node": 1,
        "cpus-per-task": cores,
        "mem": 0,  # all of a node's
        "exclusive": None,
        "no-kill": None,  # the run goes on without a lost node
        "requeue": None,
        "open-mode": "append",
        "signal": f"B:INT@{min(job.grace, LONGEST_WARNING)}",
        "output": "%x-%j.log",
        **({"time": time} if time else {}),
        **({"partition": partition} if partition else {}),
    }
    return "\n".join(f"#SBATCH --{name}" + ("" if value is None else f"={value}") for name, value in options.items())


def on_head(job: LaunchJob, checkout: Path, by: str = "") -> str:
    """The command of a run on the head of `ray_yaml`'s cluster, started by the words `by`."""
    words = shlex.join(["scalelab", *job.words])
    return f"cd {shlex.quote(str(checkout))} && RAY_AUTH_MODE=token {by}.venv/bin/{words}"


def left_on_head(job: LaunchJob, checkout: Path) -> str:
    """Command of a run that is left to the head, and goes on when nobody is connected; its lines go to `OUT.log`."""
    log, command = shlex.quote(f"{job.out}.log"), on_head(job, checkout, "setsid nohup ")
    return f"mkdir -p {shlex.quote(str(job.out.parent))} && {command} >> {log} 2>&1 < /dev/null &"


def ray_yaml(job: LaunchJob, checkout: Path, user: str, hosts: Sequence[str]) -> str:
    """A cluster for `ray up` on machines of one's own; the first host has Ray's head and the command.

    The token of the machine that says `ray up` goes to all of them: a head whose user has one asks for it. The cluster
    has its head's name, as `ray up` leaves a head the settings of another name if it brought this file's before.
    """
    head, *workers = hosts
    here = shlex.quote(str(checkout))
    setup = " && ".join(
        [
            f"cd {here}",
            "export RAY_AUTH_MODE=token RAY_worker_niceness=0 NCCL_DEBUG=${NCCL_DEBUG:-WARN}",
            "{ ulimit -n 65536 2>/dev/null || true; }",
        ]
    )
    start = ".venv/bin/ray start --disable-usage-stats"
    own = f"hostname -I | tr ' ' '\\n' | grep -xF -- {shlex.quote(head)} || hostname -I | cut -d ' ' -f 1"
    routed = "ip -4 route get 8.8.8.8 > /dev/null 2>&1"
    return f"""\
# {job.size("machine")}; written by `scalelab launch ray`. All need rsync, and {head}
# starts Ray on the others: {user} must reach it from here, and them from there, by ssh without a password. First, here:
#     .venv/bin/ray get-auth-token --generate && chmod 600 ~/.ray/auth_token && .venv/bin/ray up THIS_FILE
# then, on {head}, where /tmp/ray/session_latest/logs/monitor.* tell why a machine does not join:
#     {on_head(job, checkout)}
# and after a stop the same with --resume. To end Ray, which `ray down` leaves running, on {head}; on the others it ends
# within two minutes:
#     cd {here} && .venv/bin/ray stop
cluster_name: "{head}"
provider:
  type: local
  head_ip: {head}
  worker_ips: [{", ".join(workers)}]
auth:
  ssh_user: {user}
min_workers: {len(workers)}
max_workers: {len(workers)}
file_mounts: {{"~/.ray/auth_token": "~/.ray/auth_token"}}
initialization_commands: []
setup_commands: []
head_start_ray_commands:
  - cd {here} && .venv/bin/ray stop
  # Ray 2.60's second autoscaler takes the head for a worker that is lost, and starts one worker too few.
  # Where no route leads outside, Ray would call the head what it calls itself, such as 127.0.1.1.
  - {setup} && RAY_enable_autoscaler_v2=0 {start} --head --port=6379
    --autoscaling-config=~/ray_bootstrap_config.yaml $({routed} || echo --node-ip-address=$({own}))
worker_start_ray_commands:
  - cd {here} && .venv/bin/ray stop
  # By the worker's own look-up: a Debian or Ubuntu calls itself 127.0.1.1, which $RAY_HEAD_IP then holds.
  - {setup} && {start} --address=$(getent ahostsv4 {head} | head -n 1 | cut -d ' ' -f 1):6379
"""


def kuberay(job: LaunchJob, image: str, claim: str, memory_gib: int, cpus: int | None = None) -> str:
    """A RayJob for the KubeRay operator.

    Args:
        job: the run; its folder lies in the volume that is mounted at /runs.
        image: made by tools/cluster/Dockerfile.
        claim: name of the volume claim.
        memory_gib: of a node's container; half of it at most in /dev/shm.
        cpus: of a node; None takes some for each device.
    """
    # In place of Ray's shell: a stop would end that, and Ray would lose the run. In quotes once more: KubeRay's shell
    # takes one level of them, and `ray job submit` leaves parentheses bare for Ray's shell.
    words = shlex.join(["python", "-m", kuberay_job.MODULE, "run", str(job.out), *job.words])
    entry = shlex.join(["exec", "sh", "-c", f"exec {words}"])
    return f"""\
# {job.size("node")}; written by `scalelab launch k8s`. Keep other pods off its ports. With --submit
# a pod without devices looks first whether the volume has room and the model.
# To go on with a run whose job has ended: kubectl delete rayjob {job.name_of_folder}, then submit this again.
apiVersion: ray.io/v1
kind: RayJob
metadata:
  name: {job.name_of_folder}
spec:
  entrypoint: >-
    {entry}
  shutdownAfterJobFinishes: true
  submissionMode: K8sJobMode
  backoffLimit: 3  # KubeRay tries again whatever the cause was, also what no other attempt mends
  rayClusterSpec:
    rayVersion: "2.60.0"
    authOptions: {{mode: token}}  # KubeRay 1.5.1 or newer makes the token, and gives it to every container
    headGroupSpec:
      rayStartParams: {{num-cpus: "8", num-gpus: "0"}}
      template:
        spec:
          terminationGracePeriodSeconds: {job.grace}
          containers:
            - name: ray-head
              image: {image}
              workingDir: /scalelab
              env:
                - {{name: RAY_JOB_STOP_WAIT_TIME_S, value: "{job.grace}"}}  # a job that is stopped ends in order
{_env(16)}
              lifecycle: {_stop(job)}
              resources:
                requests: {{cpu: "8", memory: 64Gi}}
                limits: {{cpu: "8", memory: 64Gi}}
              volumeMounts: [{{name: runs, mountPath: /runs}}]
          volumes: [{{name: runs, persistentVolumeClaim: {{claimName: {claim}}}}}]
{_ray_workers(job, image, claim, memory_gib, cpus or CPUS_PER_DEVICE * job.per_node)}"""


def _stop(job: LaunchJob) -> str:
    """Hook of every pod, which Kubernetes runs before it ends one."""
    return f'{{preStop: {{exec: {{command: [python, -m, {kuberay_job.MODULE}, end, "{job.grace}"]}}}}}}'


def check_pod(job: LaunchJob, image: str, claim: str, pod: str, wait: str) -> list[str]:
    """Command of kubectl that runs `launch --check` in a pod without devices, passes on what it says, and deletes it.

    Args:
        job: the run.
        image: as of `kuberay`.
        claim: as of `kuberay`.
        pod: its name.
        wait: time for it to start, in kubectl's words.
    """
    given = {"--out": str(job.out), "--image": image, "--claim": claim}
    words = ["launch", "k8s", job.experiment, *(word for pair in given.items() for word in pair), "--check"]
    words += [word for one in job.sets for word in ("--set", one)] + (["--sft"] if job.command == "sft" else [])
    container = {
        "name": pod,
        "image": image,
        "workingDir": "/scalelab",
        "command": ["scalelab", *words],
        "env": [{"name": name, "value": value} for name, value in CACHES.items()],
        "resources": {"requests": {"cpu": "1", "memory": "4Gi"}},
        "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
    }
    volume = {"name": "runs", "persistentVolumeClaim": {"claimName": claim}}
    spec = {"containers": [container], "volumes": [volume], "restartPolicy": "Never", "activeDeadlineSeconds": 3600}
    options = ["--restart=Never", "--attach", "--rm", "--quiet", f"--pod-running-timeout={wait}"]
    made = json.dumps({"apiVersion": "v1", "spec": spec})
    return ["kubectl", "run", pod, f"--image={image}", *options, f"--overrides={made}"]


def _env(indent: int) -> str:
    """Environment of a pod of Ray."""
    common = {"RAY_worker_niceness": '"0"', **CACHES}
    return "\n".join(f"{'':{indent}}- {{name: {name}, value: {value}}}" for name, value in common.items())


def _ray_workers(job: LaunchJob, image: str, claim: str, memory_gib: int, cores: int) -> str:
    """The nodes with devices, as a RayJob has them; arguments as of `kuberay`."""
    limits = f'{{cpu: "{cores}", memory: {memory_gib}Gi, nvidia.com/gpu: "{job.per_node}"}}'
    return f"""\
    workerGroupSpecs:
      - groupName: gpu
        replicas: {job.nodes}
        minReplicas: {job.nodes}
        maxReplicas: {job.nodes}
        rayStartParams: {{}}
        template:
          spec:
            terminationGracePeriodSeconds: {job.grace}
            containers:
              - name: ray-worker
                image: {image}
                workingDir: /scalelab
                env:
                  - {{name: NCCL_DEBUG, value: WARN}}
{_env(18)}
                lifecycle: {_stop(job)}
                securityContext: {{capabilities: {{add: [IPC_LOCK]}}}}  # RDMA pins memory
                resources:
                  # with RDMA add what your cluster's device plugin calls its adapters, such as rdma/hca: "8"
                  requests: {limits}
                  limits: {limits}
                volumeMounts:
                  - {{name: runs, mountPath: /runs}}
                  - {{name: shm, mountPath: /dev/shm}}
            volumes:
              - {{name: runs, persistentVolumeClaim: {{claimName: {claim}}}}}
              - {{name: shm, emptyDir: {{medium: Memory, sizeLimit: {memory_gib // 2}Gi}}}}
"""
