"""KubeRay without Kubernetes: what the operator does with a RayJob, as far as Ray's processes notice.

Source: github.com/ray-project/kuberay, v1.5.1, ray-operator/controllers/ray: common/pod.go (BuildPod,
setContainerEnvVars, generateRayStartCommand, the readiness probes), common/job.go (BuildJobSubmitCommand; the same in
v1.6.2), rayjob_controller.go (Reconcile), raycluster_controller.go (no new head for a cluster that once was whole).
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.pods import Network, Pod

HEALTHY = "wget --tries 1 -T {} -q -O- http://localhost:{}/api/{} | grep success"
ASK = "import sys, urllib.request as u; url, how, token = sys.argv[1:]; print(u.urlopen(u.Request(url, method=how, "
ASK += "headers={'Authorization': f'Bearer {token}'}), timeout=20).read().decode())"
RECONCILE_SECONDS, LATE_SECONDS, SUBMITTERS = 3.0, 30.0, 3


def ray_start(params: Mapping[str, str], limits: Mapping[str, str], address: str) -> str:
    """The command that KubeRay makes for a container; with an address, a worker's."""
    made = {"metrics-export-port": "8080", "dashboard-agent-listen-port": "52365", "num-cpus": limits["cpu"]}
    made |= {"address": address} if address else {"dashboard-host": "0.0.0.0"}
    made |= {"memory": str(int(limits["memory"].removesuffix("Gi")) * 2**30)}
    made |= {"num-gpus": limits["nvidia.com/gpu"]} if "nvidia.com/gpu" in limits else {}
    flags = "".join(f" --{name}={value} " for name, value in sorted({**made, **params}.items()))
    return f"ray start {'' if address else '--head '} --block {flags}"


def ready(pod: Pod) -> bool:
    """True by KubeRay's probe."""
    commands = [HEALTHY.format(2, 52365, "local_raylet_healthz")]
    commands += [HEALTHY.format(10, 8265, "gcs_healthz")] if pod.kind == "head" else []
    return pod.begin("bash", "-c", " && ".join(commands)).wait(timeout=60) == 0


class KubeRayStub:
    """A RayJob, and the operator that brings it to its end: `state` is the operator's word, `status` is Ray's.

    Args:
        text: what `scalelab launch k8s` prints.
        folder: of its network.
        dashboard: of its image.
    """

    def __init__(self, text: str, folder: Path, dashboard: Path) -> None:
        made, self.network = yaml.safe_load(text), Network(folder, dashboard)
        self.name, self.spec = made["metadata"]["name"], made["spec"]
        self.pods, self.state, self.retries, self.looked = list[Pod](), "new", 0, 0.0

    def pod(self, kind: str) -> Pod:
        """A pod of a kind ("head", "gpu" or "submitter") that is not being deleted."""
        return next(pod for pod in self.pods if pod.kind == kind and not pod.ends)

    def wait(self, condition: Callable[[], object], seconds: float = 600) -> None:
        """Do what the operator and the kubelets do until something is so."""
        ends = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < ends, f"{self.state}, {self.status}"
            self.pods = [pod for pod in self.pods if not pod.gone()]
            if time.monotonic() - self.looked > RECONCILE_SECONDS:
                self.looked = time.monotonic()
                self._reconcile()
            time.sleep(0.1)

    def lose(self, pod: Pod) -> None:
        """Lose a pod with its machine."""
        pod.kill()
        self.pods.remove(pod)

    def delete(self) -> None:
        """Do as after `kubectl delete rayjob`: the operator stops the job without waiting, then all of it goes."""
        self._ask("POST", "/stop")
        self.state = "deleted"
        self._delete_cluster()

    def close(self) -> None:
        """End everything at once."""
        for pod in self.pods:
            pod.kill()
        self.network.process.kill()
        self.network.process.wait()

    def _reconcile(self) -> None:
        if self.state == "new":
            self.id = f"{self.name}-{secrets.token_hex(3)}"  # of job and cluster, which KubeRay names apart
            self.service = f"{self.id}-head-svc.default.svc.cluster.local"
            self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
            self.state, self.status, self.submitted, self.ended = "initializing", "", 0, 0.0
        if self.state in ("initializing", "running"):
            self._fill()
        if self.state == "initializing" and all(ready(pod) for pod in self.pods):
            self._submit()
        elif self.state == "running":
            self._follow()
        elif self.state == "retrying" and not self.pods:
            self.state = "new"

    def _fill(self) -> None:
        """Make the pods that are missing."""
        cluster, here = self.spec["rayClusterSpec"], [pod.kind for pod in self.pods if not pod.ends]
        if "head" not in here and self.state == "initializing":
            number = self._make("head", cluster["headGroupSpec"], "").number
            self.network.names(f"10.78.0.{number} {self.service}\n")
        for group in cluster["workerGroupSpecs"]:
            for _ in range(group["replicas"] - here.count(group["groupName"])):
                self._make(group["groupName"], group, f"{self.service}:6379")

    def _make(self, kind: str, group: dict[str, Any], address: str) -> Pod:
        """A pod of the cluster."""
        spec = group["template"]["spec"]
        command = ray_start(group["rayStartParams"], spec["containers"][0]["resources"]["limits"], address)
        env = self.token | {"RAY_PORT": "6379", "RAY_ADDRESS": address or "127.0.0.1:6379"}
        env |= {"KUBERAY_GEN_RAY_START_CMD": command, "RAY_CLUSTER_NAME": self.id, "RAY_NODE_TYPE_NAME": kind}
        env |= {"RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE": "1", "RAY_USAGE_STATS_KUBERAY_IN_USE": "1"}
        env |= {"FQ_RAY_IP": self.service, "RAY_IP": self.service.partition(".")[0]} if address else {}
        waits = f"until ray health-check --address {address} >/dev/null 2>&1; do sleep 5; done; " if address else ""
        first = ["sh", "-c", f'{waits}exec "$@"', "sh"]  # a container of its own, before the worker's
        return self._run(kind, spec, env, [*first, "/bin/bash", "-c", "--", f"ulimit -n 65536; {command}"])

    def _run(self, kind: str, spec: Any, env: dict[str, str], command: Sequence[str]) -> Pod:
        self.pods.append(Pod(self.network, kind, spec, env, command))
        return self.pods[-1]

    def _submit(self) -> None:
        """A pod of the Job: it submits Ray's job if that is not there, and follows it."""
        at = f"--address http://{self.service}:8265"
        submit = f"ray job submit {at} --no-wait --submission-id {self.id} -- {self.spec['entrypoint'].strip()} ;"
        command = f"if ! ray job status {at} {self.id} >/dev/null 2>&1 ; then {submit} fi ; "
        env = self.token | {"RAY_DASHBOARD_ADDRESS": f"{self.service}:8265", "RAY_JOB_SUBMISSION_ID": self.id}
        words = ["/bin/bash", "-ce", "--", f"{command}ray job logs {at} --follow {self.id}"]
        self.submitter = self._run("submitter", {"containers": [{}]}, env | {"PYTHONUNBUFFERED": "1"}, words)
        self.state, self.submitted, self.ended = "running", self.submitted + 1, 0.0

    def _follow(self) -> None:
        """Go on by what the Job and Ray say of the job."""
        code, now = self.submitter.process.poll(), time.monotonic()
        self.ended = self.ended or (0.0 if code is None else now)
        failed = code not in (None, 0)
        if failed and self.submitted < SUBMITTERS:
            if now - self.ended > 10 * 2 ** (self.submitted - 1):
                self._submit()
            return
        with suppress(subprocess.SubprocessError, StopIteration):  # no head, or none that answers
            self.status = json.loads(self._ask("GET"))["status"]
        known = self.status in ("SUCCEEDED", "FAILED", "STOPPED") and code == 0
        if failed or known or (code == 0 and now - self.ended > LATE_SECONDS):
            again = self.retries < self.spec["backoffLimit"]
            lost = not known or self.status == "FAILED"
            self.state = "complete" if not lost else "retrying" if again else "failed"
            self.retries += self.state == "retrying"
            self._delete_cluster()  # shutdownAfterJobFinishes; a retry has a cluster of its own

    def _ask(self, method: str, what: str = "") -> str:
        """Ask Ray's dashboard about the job."""
        url = f"http://10.78.0.{self.pod('head').number}:8265/api/jobs/{self.id}{what}"
        words = ["nsenter", "--target", str(self.network.process.pid), "--net", sys.executable, "-c", ASK, url, method]
        words += [self.token["RAY_AUTH_TOKEN"]]
        return subprocess.run(words, capture_output=True, check=True, timeout=60, text=True).stdout

    def _delete_cluster(self) -> None:
        """Begin the end of all pods; the name of the head's service is gone with it."""
        self.network.names("")
        for pod in self.pods:
            pod.delete()
