"""Placement of a role's actors on a cluster: all devices are reserved together, close ranks share a node.

Half a trainer is no trainer, so a role gets all of its devices or none; a wait for them has a deadline and says what
the cluster has. Trainer ranks are packed by node in the order of their ranks, so that the experts' all-to-all, which
neighbouring ranks share, stays inside a node. Generators never talk to each other and go wherever there is room.
"""

from __future__ import annotations

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from scalelab.errors import LabError
from scalelab.run.settings import Cluster


class Reservation:
    """Devices that are held for one role, or for two that share them.

    Args:
        cluster: says what a device is, and how long to wait for all of them.
        bundles: devices of each bundle; a bundle lies on one node.
        role: whom they are for, for messages: "the trainer".
        share: part of a device that each process on it holds.

    Raises:
        LabError: the cluster did not have them in time.
    """

    def __init__(self, cluster: Cluster, bundles: list[int], role: str, share: float = 1.0) -> None:
        self._bundles, self.share = bundles, share
        kinds = ("CPU", "GPU") if cluster.device == "gpu" else ("CPU",)
        self._group = placement_group([{kind: float(n) for kind in kinds} for n in bundles], strategy="PACK")
        try:
            ray.get(self._group.ready(), timeout=cluster.startup_seconds)
        except GetTimeoutError:
            self.release()
            raise LabError(
                f"waited {cluster.startup_seconds:.0f} s for {_listed(bundles)} {kinds[-1]}s on one node each, for "
                f"{role}; the nodes have {_listed(_devices(kinds[-1]))}: free or add some, or lower "
                "Cluster.devices_per_node, .generators or .trainers"
            ) from None

    def strategy(self, device: int) -> PlacementGroupSchedulingStrategy:
        """Scheduling strategy of the actor that holds the devices from this one on, counted through the bundles."""
        bundle = 0
        while device >= self._bundles[bundle]:
            device -= self._bundles[bundle]
            bundle += 1
        return PlacementGroupSchedulingStrategy(self._group, bundle)

    def release(self) -> None:
        """Give the devices back; actors still on them are ended by Ray."""
        remove_placement_group(self._group)


def shared(cluster: Cluster) -> Reservation | None:
    """Devices that generators and trainer ranks share, one of each on a device; None if they share none."""
    if not cluster.share_devices:
        return None
    return Reservation(cluster, [1] * cluster.trainers, "the trainer and the generators", cluster.share)


def _devices(kind: str) -> list[int]:
    return [int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]]


def _listed(counts: list[int]) -> str:
    """Numbers joined for readers: `8 + 8 + 4`."""
    return " + ".join(map(str, sorted(counts, reverse=True))) or "none"
