"""Three Ray nodes on this machine with one device each: one is announced to go, goes, and another takes its place."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from ray.cluster_utils import Cluster

from fault_tables.lab import FaultLab

NOTICE_SECONDS = 60
"""Seconds between the announcement and the end of the node, as `ray drain-node` is told."""


class ThreeNodes:
    """A Ray cluster of three nodes with one core each."""

    def __init__(self) -> None:
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        self.address: str = self._cluster.address
        for _ in range(2):
            self._cluster.add_node(num_cpus=1)

    def with_generator(self, lab: FaultLab) -> Any:
        """Find a node beside the head that a generator of the run is on."""
        parents = {process.ppid() for process in lab.processes("generator")}
        return next(node for node in self._cluster.worker_nodes if _raylet(node).pid in parents)

    def announce(self, node: Any) -> None:
        """Say that a node will be taken away soon."""
        ray = Path(sys.executable).with_name("ray")
        why = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "preempted"]
        until = ["--deadline-remaining-seconds", str(NOTICE_SECONDS)]
        command = [ray, "drain-node", "--address", self.address, "--node-id", node.node_id, *why, *until]
        subprocess.run(command, check=True, timeout=300, capture_output=True)

    def replace(self, node: Any) -> None:
        """Take a node away without a word to it, as a cloud does, and add another."""
        with_children = [_raylet(node), *_raylet(node).children(recursive=True)]
        for process in with_children:
            process.send_signal(signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)
        self._cluster.add_node(num_cpus=1)

    def shutdown(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()


def preempt(lab: FaultLab, nodes: ThreeNodes) -> float:
    """Announce the end of a generator's node, end it, and replace it.

    Returns:
        Seconds from the announcement until the generator has left and the run has taken a step without it.
    """
    node, seen = nodes.with_generator(lab), len(lab.lines("faults.jsonl"))

    def events() -> list[str]:
        return [line["event"] for line in lab.lines("faults.jsonl")[seen:] if line["role"] == "generator"]

    began = time.time()
    nodes.announce(node)
    lab.until(lambda: "missing" in events(), "the generator to leave its node")
    seconds = lab.step_after(time.time()) - began
    assert psutil.pid_exists(_raylet(node).pid), "the node had gone before the generator left it"
    nodes.replace(node)
    lab.until(lambda: "recovered" in events(), "a generator on the new node")
    lab.warm(2)
    assert events() == ["missing", "recovered"], "no loss that a limit counts"
    return seconds


def _raylet(node: Any) -> psutil.Process:
    return psutil.Process(node.all_processes["raylet"][0].process.pid)
