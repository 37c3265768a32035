"""Placement of a role's actors on a cluster: all devices are reserved together, close ranks share a node.

Half a trainer is no trainer, so a role gets all of its devices or none; a wait for them has a deadline and says what
the cluster has. Trainer ranks are packed by node in the order of their ranks, so that the experts' all-to-all, which
neighbouring ranks share, stays inside a node. Generators never talk to each other and go wherever there is room.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from scalelab.cluster.actors import LOOK_SECONDS
from scalelab.errors import BrokenOffError, LabError
from scalelab.hardware import packed
from scalelab.run.settings import Cluster

JOIN_SECONDS = 120.0
"""Seconds without another device after which a cluster that others build counts as whole."""


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


def for_trainer(cluster: Cluster, ranks: int) -> Reservation:
    """Devices for so many ranks of the trainer alone."""
    return Reservation(cluster, packed(ranks, cluster.devices_per_node), "the trainer")


def await_devices(cluster: Cluster, wanted: int, resumed: bool, say: Callable[[str], None]) -> None:
    """Wait for devices of a cluster that others build, as `ray up` returns when its head is up.

    Args:
        cluster: says what a device is.
        wanted: devices of the run.
        resumed: whether the run had them before; a new one may want too many, which its check says.
        say: takes a line for people.

    Raises:
        BrokenOffError: a resumed run lacks some.
    """
    kind, since = cluster.device.upper(), time.monotonic()
    there = sum(_devices(kind))
    while there < wanted and time.monotonic() - since < JOIN_SECONDS:
        say(f"waiting for {kind}s: {there} of {wanted} have joined Ray")
        before = there
        while there == before and time.monotonic() - since < JOIN_SECONDS:
            time.sleep(LOOK_SECONDS)
            there = sum(_devices(kind))
        since = time.monotonic() if there > before else since
    if resumed:
        refuse_missing(cluster, wanted, f"waited {JOIN_SECONDS:.0f} s for another device")


def refuse_missing(cluster: Cluster, wanted: int, failed: str) -> None:
    """Break a run off if its devices are not all there: no other attempt brings them back.

    Args:
        cluster: says what a device is.
        wanted: devices of the run.
        failed: what was tried.

    Raises:
        BrokenOffError: some are missing.
    """
    kind = cluster.device.upper()
    there = sum(_devices(kind))
    if there < wanted:
        raise BrokenOffError(
            f"{failed}; of the run's {wanted} {kind}s {there} are left: go on with --resume once all are back"
        )


def _devices(kind: str) -> list[int]:
    return [int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]]


def _listed(counts: list[int]) -> str:
    """Numbers joined for readers: `8 + 8 + 4`."""
    return " + ".join(map(str, sorted(counts, reverse=True))) or "none"
