"""The devices a plan can be made for: makers' data sheets, dense bf16 without sparsity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scalelab.errors import LabError
from scalelab.numbers import counted


@dataclass(frozen=True)
class Device:
    """One device and the node it sits in.

    Attributes:
        name: what `--hardware` calls it.
        memory_gib: its memory as CUDA reports it to a process, GiB.
        tflops: dense bf16 matrix products, 10¹² FLOP/s (fp32 on a CPU core).
        bandwidth: of its memory, 10⁹ bytes/s.
        per_node: devices in a node.
        joined: devices that NVLink joins: those of a node, of an NVL72 those of the rack.
        link: from a device to another that NVLink joins to it, 10⁹ bytes/s in one direction.
        network: from a device to any other, 10⁹ bytes/s in one direction.
        capability: CUDA's compute capability; (0, 0) for what is no GPU.
    """

    name: str
    memory_gib: float
    tflops: float
    bandwidth: float
    per_node: int
    joined: int
    link: float
    network: float
    capability: tuple[int, int]

    @property
    def gpu(self) -> bool:
        """True if the device is a GPU."""
        return self.name != "cpu"


DEVICES = {
    device.name: device
    for device in (
        Device("a100", 79.1, 312, 2039, 8, 8, 300, 25, (8, 0)),
        Device("h100", 79.1, 989, 3350, 8, 8, 450, 50, (9, 0)),
        Device("h200", 139.7, 989, 4800, 8, 8, 450, 50, (9, 0)),
        Device("b200", 178.3, 2250, 8000, 8, 8, 900, 50, (10, 0)),
        Device("gb200", 184.3, 2500, 8000, 4, 72, 900, 50, (10, 0)),
        Device("cpu", 4.0, 0.03, 10, 1, 1, 1, 1, (0, 0)),
    )
}
"""NVIDIA's data sheets of A100, H100, H200, B200 (SXM) and GB200 NVL72; "cpu" is a rule of thumb for one core.

Network is that of the adapters that come with them, one a device: ConnectX-6 of 200 Gbit/s, then ConnectX-7 of 400.

Memory is the "total capacity" in public out-of-memory messages of PyTorch on these devices (79.1 to 79.3, 139.7 to
139.8, 178.35 and 184.31 GiB): what the sheets call 80, 141, 180 and 186 GB.
"""


def packed(devices: int, per_node: int) -> list[int]:
    """Devices of each bundle when `devices` ranks are packed by node: full nodes, and what is left over."""
    full, rest = divmod(devices, per_node)
    return [per_node] * full + [rest] * (rest > 0)


@dataclass(frozen=True)
class Hardware:
    """The devices that a run would find.

    Attributes:
        device: what each of them is; its `per_node` is that of the fullest node.
        count: all of them.
        known: its speeds are those of the table, not those of the closest device in it.
        unequal: devices of each node; none if all nodes are full but the last.
    """

    device: Device
    count: int
    known: bool = True
    unequal: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.count} × {self.device.name}"

    @property
    def nodes(self) -> tuple[int, ...]:
        """Devices of each node."""
        return self.unequal or tuple(packed(self.count, self.device.per_node))

    @property
    def doubt(self) -> str | None:
        """Assumption of a plan about devices that are not in its table; None for those that are."""
        if self.known:
            return None
        device = self.device
        return f"{device.name} is not in the plan's table: it counts on {device.memory_gib:.0f} GiB and an A100's speed"


def of_ray(nodes: Iterable[Mapping[str, Any]], memory_gib: float | None = None) -> Hardware:
    """Read the GPUs of a cluster off what `ray.nodes()` says.

    Args:
        nodes: of the cluster.
        memory_gib: of the smallest of its GPUs, if it was measured.

    Raises:
        LabError: there are no GPUs, or GPUs of several kinds.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    counts = [int(resources["GPU"]) for resources in alive if resources.get("GPU", 0) >= 1]
    if not counts:
        raise LabError(
            f"the Ray cluster of {counted(len(alive), 'node')} has no GPU: start its nodes where GPUs are visible, or "
            "bind Cluster.device = 'cpu'"
        )
    kinds = {key.partition(":")[2] for node in alive for key in node if key.startswith(_KIND)}
    if len(kinds) > 1:
        raise LabError(f"the Ray cluster mixes {', '.join(sorted(kinds))}: a run needs GPUs of one kind")
    hardware = found(kinds.pop() if kinds else "unknown", sum(counts), max(counts), memory_gib)
    return replace(hardware, unequal=tuple(counts))


def found(name: str, count: int, per_node: int, memory_gib: float | None = None) -> Hardware:
    """Describe GPUs by the name that Ray or CUDA has for them, such as "H100" or "NVIDIA H100 80GB HBM3".

    Args:
        name: of the device.
        count: how many there are.
        per_node: most of them in one node.
        memory_gib: of each, if it was measured. Of a device in the table the smaller of both counts: an A100 may have
            40 GB, and the table has the least of many. Without it, the table's; of a device that is not in it, an
            A100's.
    """
    words = name.lower().replace("-", " ").split()
    entry = next((entry for entry in DEVICES.values() if entry.gpu and entry.name in words), None)
    known = entry is not None
    entry = entry or replace(DEVICES["a100"], name=name)
    memory = memory_gib or entry.memory_gib
    return Hardware(
        replace(entry, per_node=per_node, memory_gib=min(memory, entry.memory_gib) if known else memory), count, known
    )


_KIND = "accelerator_type:"


def device(name: str) -> Device:
    """Look a device up.

    Raises:
        LabError: if it is not in the table.
    """
    if name not in DEVICES:
        raise LabError(f"no hardware {name!r} in the table: there are {', '.join(DEVICES)}")
    return DEVICES[name]
