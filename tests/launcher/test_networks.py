"""Nodes that are networks of their own: Ray's processes meet over a link between them, which can be cut."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from smallest_run import SMALLEST

from scalelab.launcher import slurm_job
from scalelab.store.audit import audit
from scalelab.store.lines import read_lines
from tests.helpers.slurm_stub import SlurmStub

ROOT = Path(__file__).parents[2]

MAKE = """\
set -e
ip link set lo up
unshare --net --mount --uts sh -c 'hostname other; mount -t tmpfs -o size=2g tmpfs /dev/shm; exec sleep 3000' &
other=$!
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link add name here type veth peer name there netns $other
ip address add 10.77.0.1/24 dev here
nsenter --target $other --net ip address add 10.77.0.2/24 dev there
nsenter --target $other --net ip link set lo up
nsenter --target $other --net ip link set there up
ip link set here up
echo $other > "$STUB/other"
trap 'kill $other' EXIT
"""
"""A network for this shell, another one for the node n1, with shared memory of its own, and a link between them."""

SRUN = """\
for word in "$@"; do case "$word" in --nodelist=*) node=${word#--nodelist=};; esac; done
while [ "${1#--}" != "$1" ]; do shift; done
export HOME="$STUB/home_$node"
mkdir -p "$HOME"
[ "$node" = n0 ] || exec nsenter --target $(cat "$STUB/other") --net --mount --uts "$@"
exec "$@"
"""

TELLS = """\
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

ray.init(address="auto", logging_level="ERROR")
@ray.remote(num_cpus=0)
def where():
    return ray.util.get_node_ip_address()
alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
print(sorted(ray.get([where.options(scheduling_strategy=On(one, soft=False)).remote() for one in alive], timeout=120)))
"""


def can_make_networks() -> bool:
    if os.getuid() != 0 or not all(shutil.which(one) for one in ("ip", "nsenter", "unshare")):
        return False
    made = ["unshare", "--net", "ip", "link", "add", "name", "here", "type", "veth", "peer", "name", "there"]
    return subprocess.run(made, capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_make_networks(), reason="only root can make networks, with `ip` of iproute2"),
]


class Networks(SlurmStub):
    """A job of two nodes, each a network of its own, with the real Ray.

    Args:
        folder: takes everything.
        lab: body of the script that takes the place of `scalelab`.
        first: what the shell does between making the networks and starting the job.
    """

    def __init__(self, folder: Path, lab: str, first: str = "") -> None:
        super().__init__(folder, ("n0", "n1"))
        there = folder / "environment"  # Ray starts nothing by a path with a space in it
        there.symlink_to(sys.prefix)
        (folder / "tells.py").write_text(TELLS)
        self.write("srun", SRUN)
        self.write("hostname", 'exec /usr/bin/hostname "$@"\n')
        cores = 'case "$1" in start) set -- "$@" --num-cpus=1;; esac\n'
        self.write("ray", f'{cores}exec {there}/bin/python -m ray.scripts.scripts "$@"\n')
        self.write("python", f'exec {there}/bin/python "$@"\n')
        tell = f'PATH={there}/bin:$PATH; tell() {{ python "$STUB/tells.py"; }}\n'
        self.write("scalelab", tell + lab)
        self.first = first

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start the job in its network."""
        command = [
            sys.executable,
            slurm_job.__file__,
            f"--bin={self.bin}",
            f"--out={self.out}",
            *options,
            "--",
            "run",
            "one",
        ]
        return subprocess.Popen(
            ["unshare", "--net", "bash", "-c", f'{MAKE}{self.first}\n"$@"', "bash", *command],
            env=self.environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


CUT, MEND = (f'nsenter --target $(cat "$STUB/other") --net ip link set there {state}\n' for state in ("down", "up"))


def test_nodes_of_two_networks_are_one_cluster(tmp_path: Path) -> None:
    job = Networks(tmp_path, 'tell > "$STUB/told"\n')
    code, said, _ = job.run()
    assert code == 0, said
    assert "2 nodes joined Ray at 10.77.0.1:6379" in said
    assert (tmp_path / "told").read_text() == "['10.77.0.1', '10.77.0.2']\n"


@pytest.mark.nightly
def test_a_node_whose_network_is_cut_is_not_waited_for_without_end(tmp_path: Path) -> None:
    code, said, seconds = Networks(tmp_path, 'touch "$STUB/began"\n', first=CUT).run("--join-seconds=60")
    assert code == 1
    assert "Ray on n1 ended" in said or "1 of 2 nodes joined Ray at 10.77.0.1:6379 within 60 s (" in said
    assert not (tmp_path / "began").exists()
    assert seconds < 300


@pytest.mark.nightly
def test_a_node_whose_link_was_cut_is_taken_back(tmp_path: Path) -> None:
    lost = f"""\
{CUT}
while tell | grep -q 10.77.0.2; do sleep 2; done
{MEND}
until tell | grep -q 10.77.0.2; do sleep 2; done
tell > "$STUB/told"
"""
    code, said, _ = Networks(tmp_path, lost).run()
    assert code == 0, said
    assert "Ray on n1 ended" in said
    assert "trying to take it back" in said
    assert (tmp_path / "told").read_text() == "['10.77.0.1', '10.77.0.2']\n"


@pytest.mark.nightly
def test_a_run_over_two_networks_takes_its_weights_from_one_to_the_other(tmp_path: Path) -> None:
    settings = {
        **SMALLEST,
        "Budget.steps": 3,
        "Evaluation.every": 3,
        "Evaluation.prompts": 4,
        "Cluster.address": '"auto"',
    }
    sets = " ".join(shlex.quote(part) for name, value in settings.items() for part in ("--set", f"{name}={value}"))
    run = f'cd {ROOT} && SCALELAB_CACHE="$STUB/cache" python -m scalelab run quickstart --out "$STUB/out" {sets}\n'
    code, said, _ = Networks(tmp_path, run).run()
    assert code == 0, said
    assert "2 nodes joined Ray" in said
    steps = read_lines(tmp_path / "out" / "metrics.jsonl")
    assert len(steps) == 3
    assert steps[-1]["fetched_bytes"] > 0, "the engine is on the machine of the trainer"
    assert audit(tmp_path / "out").problems == []
