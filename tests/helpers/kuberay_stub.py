"""A RayJob without Kubernetes: what KubeRay and a node's kubelet do with it, as far as the real Ray notices.

Source: github.com/ray-project/kuberay at v1.5.1, ray-operator/controllers/ray: common/pod.go (BuildPod,
setContainerEnvVars, generateRayStartCommand), common/job.go (BuildJobSubmitCommand, the same in v1.6.2),
rayjob_controller.go (Reconcile). A pod is a set of namespaces: network, host name, processes, shared memory, /tmp and
home of its own. Its image is this checkout at /scalelab with this environment. Kubernetes' part is by its
documentation, and was not compared with a cluster: a container that ends is started again in its pod; a pod that is
deleted runs its preStop hooks, gets TERM, and is killed once its grace is over; a deleted RayJob's names are gone at
once. Not here: memory limits, liveness probes, the scheduler, and the wait between two starts of a container.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
NETWORK = """\
ip link set lo up; ip link add pods type bridge; ip address add 10.78.0.1/24 dev pods; ip link set pods up
echo up; exec sleep 5000
"""
POD = """\
set -e
read me rest < /proc/self/stat
nsenter --net=/proc/$NET/ns/net sh -c "ip link add pod$N type veth peer name eth0 netns /proc/$me/ns/net
ip link set pod$N master pods up"
ip link set lo up; ip address add 10.78.0.$N/24 dev eth0; ip link set eth0 up; ip route add default via 10.78.0.1
hostname "$POD"
mount -t tmpfs tmpfs "$STUB/root"
for one in /*; do case "$one" in /proc | /tmp | /runs | /scalelab) continue ;; esac
    if [ -L "$one" ]; then cp -d "$one" "$STUB/root"
    elif [ -d "$one" ]; then mkdir "$STUB/root$one"; mount --rbind "$one" "$STUB/root$one"; fi
done
cd "$STUB/root"; mkdir -p proc tmp/home runs scalelab environment dashboard
mount --bind "$LAB" scalelab; mount --bind "$PREFIX" environment; mount --bind "$STUB/dashboard" dashboard
mount --bind "$STUB/runs" runs; mount --bind "$STUB/hosts" etc/hosts; mount --bind /dev/null etc/resolv.conf
mount -t tmpfs -o size=2g tmpfs dev/shm; mount -t proc proc proc
echo $me > "$STUB/pids/$POD"
exec chroot . sh -c 'cd /scalelab; unset NET N STUB LAB PREFIX POD; exec "$@"' sh "$@"
"""
IMAGE = {
    "PATH": "/environment/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "PYTHONPATH": "/scalelab:/dashboard",
    "HOME": "/tmp/home",
    "OMP_NUM_THREADS": "1",
}
HEALTHY = "wget --tries 1 -T {} -q -O- http://localhost:{}/api/{} | grep success"
ASK = "import sys, urllib.request as u; print(u.urlopen(u.Request(sys.argv[1], None, dict([sys.argv[3:]]), method=sys.argv[2]), timeout=20).read().decode())"  # noqa: E501
BASH = ["/bin/bash", "-c", "--"]
RECONCILE_SECONDS, LATE_SECONDS, SUBMITTERS = 3.0, 30.0, 3


def expanded(text: str, env: Mapping[str, str]) -> str:
    """A word of a container's command as Kubernetes takes it: `$(NAME)` is a variable, where there is one."""
    return re.sub(
        r"\$\$|\$\(([^)]*)\)", lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]), text
    )


def quantity(text: str) -> int:
    """A number of Kubernetes', rounded up as far as RayJobs of the lab need it."""
    number, unit = re.fullmatch(r"(\d+)(Gi)?", text).groups()  # type: ignore[union-attr]
    return int(number) * (2**30 if unit else 1)


def ray_start(params: dict[str, str], limits: Mapping[str, str], address: str) -> str:
    """The command that KubeRay makes for a container; an address for a worker's."""
    made = {"metrics-export-port": "8080", "dashboard-agent-listen-port": "52365"}
    made |= {"address": address} if address else {"dashboard-host": "0.0.0.0"}
    made |= {"num-cpus": str(quantity(limits["cpu"])), "memory": str(quantity(limits["memory"]))}
    made |= {"num-gpus": limits["nvidia.com/gpu"]} if "nvidia.com/gpu" in limits else {}
    words = sorted({**made, **params, "block": "true"}.items())
    flags = "".join(f" --{name} " if value == "true" else f" --{name}={value} " for name, value in words)
    return f"ray start {'' if address else '--head '}{flags}"


class Pod:
    """A pod with one container."""

    def __init__(
        self, job: KubeRayStub, kind: str, number: int, spec: dict[str, Any], env: dict[str, str], command: list[str]
    ) -> None:
        self.job, self.kind, self.number, self.spec, self.command = job, kind, number, spec, command
        self.name, self.container = f"{kind}-{number}", spec["containers"][0]
        given = {one["name"]: one["value"] for one in self.container.get("env", ())}
        self.env = IMAGE | env | given
        self.hook: subprocess.Popen[bytes] | None = None
        self.ends, self.warned = 0.0, False
        self.start()

    def start(self) -> None:
        """Start its container, as the kubelet does again where it ends."""
        own = {"NET": str(self.job.network.pid), "N": str(self.number), "POD": self.name, "STUB": str(self.job.folder)}
        own |= {"LAB": str(ROOT), "PREFIX": sys.prefix}
        spaces = [f"--{one}" for one in ("net", "mount", "uts", "ipc", "pid", "fork", "kill-child")]
        with (self.job.folder / "logs" / self.name).open("ab") as log:
            words = ["unshare", *spaces, "sh", "-c", POD, "sh", *self.command]
            self.process = subprocess.Popen(words, env=self.env | own, stdout=log, stderr=log)
        told, ends = self.job.folder / "pids" / self.name, time.monotonic() + 60
        while not (told.exists() and told.read_text()):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < ends
            time.sleep(0.05)
        self.pid = int(told.read_text())
        told.unlink()

    def said(self) -> str:
        """What its container printed."""
        return (self.job.folder / "logs" / self.name).read_text(errors="replace")

    def begin(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a command in the container, as `kubectl exec`, a probe and a hook do."""
        inside = ["nsenter", "--target", str(self.pid), "--all", "--root", "--wd"]
        with (self.job.folder / "logs" / f"{self.name}.exec").open("ab") as log:
            return subprocess.Popen([*inside, *command], env=self.env, stdout=log, stderr=log)

    def has(self, actor: str) -> bool:
        """True if a process of Ray's is here, by a part of its actor's name."""
        return self.begin("sh", "-c", f"grep -qa ^ray::.*{actor} /proc/[0-9]*/cmdline").wait(timeout=60) == 0

    def ready(self) -> bool:
        """True by KubeRay's probe."""
        commands = [HEALTHY.format(2, 52365, "local_raylet_healthz")]
        commands += [HEALTHY.format(10, 8265, "gcs_healthz")] if self.kind == "head" else []
        return self.begin("bash", "-c", " && ".join(commands)).wait(timeout=60) == 0

    def delete(self) -> None:
        """Begin its end, as after `kubectl delete pod`."""
        if not self.ends:
            self.ends = time.monotonic() + self.spec.get("terminationGracePeriodSeconds", 30)
            hook = self.container.get("lifecycle", {}).get("preStop")
            self.hook = self.begin(*hook["exec"]["command"]) if hook else None

    def kill(self) -> None:
        """Kill all of it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait(timeout=60)

    def gone(self) -> bool:
        """Go on with its end; true once it is over."""
        over = self.process.poll() is not None
        if not self.ends:
            if over and self.kind != "submitter":
                self.start()
            return False
        if not over and time.monotonic() > self.ends:
            self.kill()
        elif not over and not self.warned and (self.hook is None or self.hook.poll() is not None):
            self.warned = True
            os.kill(self.pid, signal.SIGTERM)
        return over


class KubeRayStub:
    """A RayJob, and the operator that brings it to its end.

    Args:
        text: what `scalelab launch k8s` prints.
        folder: takes everything; `runs` is the volume.
        dashboard: packages of requirements/kuberay.txt.
    """

    def __init__(self, text: str, folder: Path, dashboard: Path) -> None:
        self.folder, made = folder, yaml.safe_load(text)
        self.name, self.spec = made["metadata"]["name"], made["spec"]
        for one in ("root", "logs", "pids", "runs"):
            (folder / one).mkdir()
        (folder / "dashboard").symlink_to(dashboard)
        (folder / "hosts").touch()
        self.network = subprocess.Popen(["unshare", "--net", "sh", "-c", NETWORK], stdout=subprocess.PIPE, text=True)
        assert self.network.stdout is not None
        assert self.network.stdout.readline() == "up\n"
        self.pods, self.status, self.state, self.names = list[Pod](), "", "new", 0
        self.retries, self.reconciled = 0, 0.0

    def pod(self, kind: str) -> Pod:
        """The pod of a kind ("head", "gpu" or "submitter") that is not being deleted; the first of several."""
        return next(pod for pod in self.pods if pod.kind == kind and not pod.ends)

    def wait(self, condition: Callable[[], object], seconds: float = 600) -> None:
        """Do what the operator and the kubelets do until something is so."""
        ends = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < ends, f"{self.state}, {self.status}"
            self.pods = [pod for pod in self.pods if not pod.gone()]
            if time.monotonic() - self.reconciled > RECONCILE_SECONDS:
                self.reconciled = time.monotonic()
                self.reconcile()
            time.sleep(0.1)

    def reconcile(self) -> None:
        """One turn of the operator: RayJob and RayCluster."""
        if self.state in ("new", "initializing"):
            if self.state == "new":
                self.begin()
            self.fill()
            if all(pod.ready() for pod in self.pods):
                self.submit()
        elif self.state == "running":
            self.fill()
            self.follow()
        elif self.state == "retrying" and not self.pods:
            self.state = "new"

    def begin(self) -> None:
        """Name a new cluster, with its token and its job."""
        made = secrets.token_hex(3)
        self.service = f"{self.name}-{made}-head-svc.default.svc.cluster.local"
        self.url, self.id = f"http://{self.service}:8265", f"{self.name}-{made}"
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.state, self.status, self.tries, self.finished, self.provisioned = "initializing", "", 0, False, False

    def fill(self) -> None:
        """Make the pods that are missing; no head once all pods were there."""
        cluster = self.spec["rayClusterSpec"]
        here = [pod.kind for pod in self.pods if not pod.ends]
        if "head" not in here and not self.provisioned:
            head = self.make("head", cluster["headGroupSpec"], "")
            (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n10.78.0.{head.number} {self.service}\n")
        for group in cluster["workerGroupSpecs"]:
            for _ in range(group["replicas"] - here.count(group["groupName"])):
                self.make(group["groupName"], group, f"{self.service}:6379")

    def make(self, kind: str, group: dict[str, Any], address: str) -> Pod:
        """A pod of the cluster."""
        container = group["template"]["spec"]["containers"][0]
        command = ray_start(group["rayStartParams"], container["resources"]["limits"], address)
        env = self.token | {"RAY_PORT": "6379", "RAY_ADDRESS": address or "127.0.0.1:6379"}
        env |= {"KUBERAY_GEN_RAY_START_CMD": command, "RAY_CLUSTER_NAME": self.id, "RAY_NODE_TYPE_NAME": kind}
        env |= {"RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE": "1", "RAY_USAGE_STATS_KUBERAY_IN_USE": "1"}
        env |= {"FQ_RAY_IP": self.service, "RAY_IP": self.service.partition(".")[0]} if address else {}
        waits = f"until ray health-check --address {address} >/dev/null 2>&1; do sleep 5; done; " if address else ""
        first = ["sh", "-c", f'{waits}exec "$@"', "sh"]  # the worker's init container
        return self.run(kind, group["template"]["spec"], env, [*first, *BASH, f"ulimit -n 65536; {command}"])

    def run(self, kind: str, spec: dict[str, Any], env: dict[str, str], command: list[str]) -> Pod:
        """A pod of a name that no pod had."""
        self.names += 1
        self.pods.append(Pod(self, kind, self.names + 1, spec, env, [expanded(word, env) for word in command]))
        return self.pods[-1]

    def submit(self) -> None:
        """The Job's pod: it follows the job that is there, or submits it."""
        self.state, self.provisioned, self.tries = "running", True, self.tries + 1
        ray, at = "ray job", f"--address {self.url}"
        submit = f"{ray} submit {at} --no-wait --submission-id {self.id} -- {self.spec['entrypoint'].strip()} ;"
        follow = f"fi ; {ray} logs {at} --follow {self.id}"
        command = f"if ! {ray} status {at} {self.id} >/dev/null 2>&1 ; then {submit} {follow}"
        env = self.token | {"PYTHONUNBUFFERED": "1", "RAY_DASHBOARD_ADDRESS": self.url[7:]}
        env |= {"RAY_JOB_SUBMISSION_ID": self.id}
        spec = {"containers": [{"image": "the head's"}]}
        self.submitter = self.run("submitter", spec, env, ["/bin/bash", "-ce", "--", command])
        self.ended = 0.0

    def follow(self) -> None:
        """Look at the Job and at Ray's job, and go on by what they say."""
        code, now = self.submitter.process.poll(), time.monotonic()
        self.ended = self.ended or (now if code is not None else 0.0)
        failed = code not in (None, 0)
        if failed and self.tries < SUBMITTERS:
            if now - self.ended > 10 * 2 ** (self.tries - 1):
                self.submit()
            return
        with suppress(subprocess.SubprocessError, StopIteration):  # no head, or none that answers
            self.status = json.loads(self.ask("GET"))["status"]
        over = self.status in ("SUCCEEDED", "FAILED", "STOPPED") and code == 0
        late = code is not None and now - self.ended > LATE_SECONDS
        if not (failed or over or late):
            return
        lost = failed or self.status == "FAILED" or not over
        self.state = "complete" if not lost else "retrying" if self.retries < self.spec["backoffLimit"] else "failed"
        self.retries += self.state == "retrying"
        self.delete_cluster()  # shutdownAfterJobFinishes; a retry has a cluster of its own

    def ask(self, method: str, what: str = "") -> str:
        """Ask Ray's dashboard about the job, as the operator does."""
        url = f"http://10.78.0.{self.pod('head').number}:8265/api/jobs/{self.id}{what}"
        header = ["Authorization", f"Bearer {self.token['RAY_AUTH_TOKEN']}"]
        words = ["nsenter", "--target", str(self.network.pid), "--net", sys.executable, "-c", ASK, url, method, *header]
        return subprocess.run(words, capture_output=True, check=True, timeout=60, text=True).stdout

    def lose(self, pod: Pod) -> None:
        """Lose a pod with its machine."""
        pod.kill()
        self.pods.remove(pod)

    def delete(self) -> None:
        """Do as after `kubectl delete rayjob`: the operator stops the job without waiting, then all of it goes."""
        self.ask("POST", "/stop")
        self.state = "deleted"
        self.delete_cluster()

    def delete_cluster(self) -> None:
        """Begin the end of all pods; the name of the head's service is gone with it."""
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n")
        for pod in self.pods:
            pod.delete()

    def close(self) -> None:
        """End everything at once."""
        for pod in self.pods:
            pod.kill()
        self.network.kill()
        self.network.wait()
