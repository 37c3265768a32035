"""Kubernetes' pods without Kubernetes: sets of namespaces on one machine, in which containers live and end as there.

A pod has a network, a host name, processes, shared memory, /tmp and a home of its own; its image is this checkout at
/scalelab with this environment. By Kubernetes' documentation, and not compared with a cluster: a container that ends
is started again at once; a pod that is deleted runs its preStop hook, gets TERM, and is killed when its grace is over;
`$(NAME)` in a command is a variable. Not here: limits of memory, liveness, scheduling.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NETWORK = """\
ip link set lo up; ip link add pods type bridge; ip address add 10.78.0.1/24 dev pods; ip link set pods up
echo up; exec sleep 5000
"""
POD = """\
set -e
read me rest < /proc/self/stat
nsenter --net=/proc/$NET/ns/net sh -c "ip link delete pod$N 2>/dev/null  # of the container before, which may linger
ip link add pod$N type veth peer name eth0 netns /proc/$me/ns/net
ip link set pod$N master pods up"
ip link set lo up; ip address add 10.78.0.$N/24 dev eth0; ip link set eth0 up; ip route add default via 10.78.0.1
hostname "$POD"; mount -t tmpfs tmpfs "$STUB/root"
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
    **{"PYTHONPATH": "/scalelab:/dashboard", "HOME": "/tmp/home", "OMP_NUM_THREADS": "1"},
}


class Network:
    """A network that pods share.

    Args:
        folder: takes everything; `runs` is the volume, and `hosts` the names.
        dashboard: packages of requirements/kuberay.txt, which are in the image.
    """

    def __init__(self, folder: Path, dashboard: Path) -> None:
        self.folder = folder
        for one in ("root", "logs", "pids", "runs"):
            (folder / one).mkdir()
        (folder / "dashboard").symlink_to(dashboard)
        self.names("")
        self.process = subprocess.Popen(["unshare", "--net", "sh", "-c", NETWORK], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"
        self.numbers: Iterator[int] = iter(range(2, 250))

    def names(self, lines: str) -> None:
        """Set the names that pods know beside their own."""
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{lines}")


def expanded(text: str, env: Mapping[str, str]) -> str:
    """A word of a container's command as Kubernetes takes it: `$(NAME)` is a variable, where there is one."""
    return re.sub(r"\$\$|\$\((.*?)\)", lambda one: "$" if one[0] == "$$" else env.get(one[1], one[0]), text)


class Pod:
    """A pod with one container."""

    def __init__(self, network: Network, kind: str, spec: Any, env: dict[str, str], command: Sequence[str]) -> None:
        self.network, self.kind, self.spec, self.number = network, kind, spec, next(network.numbers)
        self.name, self.container = f"{kind}-{self.number}", spec["containers"][0]
        self.env = IMAGE | env | {one["name"]: one["value"] for one in self.container.get("env", ())}
        self.command = [expanded(word, self.env) for word in command]
        self.hook: subprocess.Popen[bytes] | None = None
        self.ends, self.warned = 0.0, False
        self.start()

    def start(self) -> None:
        """Start its container, as the kubelet does again where it ends."""
        given = {"NET": self.network.process.pid, "N": self.number, "POD": self.name, "STUB": self.network.folder}
        given |= {"LAB": ROOT, "PREFIX": sys.prefix}
        env = self.env | {name: str(value) for name, value in given.items()}
        spaces = [f"--{one}" for one in ("net", "mount", "uts", "ipc", "pid", "fork", "kill-child")]
        with (self.network.folder / "logs" / self.name).open("ab") as log:
            words = ["unshare", *spaces, "sh", "-c", POD, "sh", *self.command]
            self.process = subprocess.Popen(words, env=env, stdout=log, stderr=log)
        told, ends = self.network.folder / "pids" / self.name, time.monotonic() + 60
        while not (told.exists() and told.read_text()):
            assert self.process.poll() is None
            assert time.monotonic() < ends
            time.sleep(0.05)
        self.pid = int(told.read_text())
        told.unlink()

    def begin(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a command in the container, as `kubectl exec`, a probe and a hook do."""
        words = ["nsenter", "--target", str(self.pid), "--all", "--root", "--wd", *command]
        return subprocess.Popen(words, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

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
        """Go on with its life or its end; true once that is over."""
        over = self.process.poll() is not None
        if not self.ends and over and self.kind != "submitter":
            self.start()
        elif self.ends and not over and time.monotonic() > self.ends:
            self.kill()
        elif self.ends and not over and not self.warned and (self.hook is None or self.hook.poll() is not None):
            self.warned = True
            os.kill(self.pid, signal.SIGTERM)
        return over and self.ends > 0
