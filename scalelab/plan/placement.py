"""Placements: the devices of each role, the settings that give a run one, and what nodes have room for."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from moe.settings import TrainerSetup
from moe.train.layout import ranks_per_copy
from scalelab.errors import LabError
from scalelab.hardware import packed
from scalelab.rollout.config import GeneratorSetup
from scalelab.run.config import Run


@dataclass(frozen=True)
class Placement:
    """The devices of each role.

    Attributes:
        trainers: trainer ranks, one device each.
        engines: generators.
        trainer: layout, micro-batch and recompute of the trainer.
        generator: the engines, with the devices that share one.
        per_node: trainer ranks that share a node where there are as many (`Cluster.devices_per_node`).
        verifiers: actors that grade.
        shared: whether a trainer rank and an engine are on each device (`Cluster.share_devices`); None leaves what the
            run says.
    """

    trainers: int
    engines: int
    trainer: TrainerSetup
    generator: GeneratorSetup
    per_node: int
    verifiers: int
    shared: bool | None = None

    @property
    def generators(self) -> int:
        """Devices that the generators hold."""
        return self.engines * self.generator.tensor_parallel

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.trainers if self.shared else self.trainers + self.generators

    def settings(self, hardware: str | None = None) -> dict[str, Any]:
        """The bindings that give a run this placement, and name the kind of device if one is given."""
        layout = {f"Layout.{axis}": size for axis, size in asdict(self.trainer.layout).items()}
        sharing: dict[str, Any] = {}
        if self.shared is not None:  # and a way of new weights that is right for both
            sharing = {"Cluster.share_devices": self.shared, "Cluster.publication": "files"}
        return {
            **({"Cluster.hardware": hardware} if hardware else {}),
            "Cluster.trainers": self.trainers,
            "Cluster.generators": self.engines,
            "Cluster.devices_per_node": self.per_node,
            "Cluster.verifiers": self.verifiers,
            "SFT.trainers": self.trainers,  # a layout that cuts RL's ranks need not cut another number of them
            **sharing,
            **layout,
            "TrainerConfig.recompute": self.trainer.recompute,
            "GeneratorConfig.tensor_parallel": self.generator.tensor_parallel,
            "GeneratorConfig.kv_cache_gib": self.generator.kv_cache_gib,
        }

    def given_to(self, run: Run) -> Run | None:
        """The run that `settings` make of another; None if it cannot have this placement."""
        bound: dict[str, dict[str, Any]] = {}
        for name, value in self.settings().items():
            kind, _, field = name.partition(".")
            bound.setdefault(kind, {})[field] = value
        try:
            return replace(
                run,
                cluster=replace(run.cluster, **bound["Cluster"]),
                sft=replace(run.sft, **bound["SFT"]),
                trainer=replace(run.trainer, layout=self.trainer.layout, **bound["TrainerConfig"]),
                generator=replace(run.generator, **bound["GeneratorConfig"]),
            )
        except ValueError:
            return None

    def options(self, hardware: str | None = None) -> str:
        """Options of the command line for `settings`."""
        return " ".join(f"--set {name}={value!r}" for name, value in self.settings(hardware).items())


def placement(run: Run) -> Placement:
    """The placement in a run's configuration."""
    cluster, shared = run.cluster, run.cluster.share_devices or None
    roles = cluster.trainers, cluster.generators, run.trainer_setup, run.generator_setup
    return Placement(*roles, cluster.devices_per_node, cluster.verifiers, shared)


def verifiers_on(run: Run, devices: int) -> int:
    """Verifiers of a run on another number of devices, in the same proportion and rounded up."""
    return max(1, -(-run.cluster.verifiers * devices // run.devices))


def room_for_engines(place: Placement, nodes: Sequence[int]) -> int:
    """Engines for which nodes have room, each on one node, beside the bundles of trainer ranks.

    Args:
        place: the ranks, and the devices of an engine.
        nodes: devices of each node.
    """
    free = Counter(nodes)  # nodes with so many free devices
    for bundle in packed(place.trainers, place.per_node):
        tightest = min((left for left, count in free.items() if count and left >= bundle), default=None)
        if tightest is None:
            return 0
        free[tightest] -= 1
        free[tightest - bundle] += 1
    return sum(left // place.generator.tensor_parallel * count for left, count in free.items())


def resize(run: Run, gpus: int) -> Placement:
    """A run's placement with its roles and verifiers in the same proportion on other devices; one device is shared.

    Raises:
        LabError: if there are too few for one of each.
    """
    place, multiple = replace(placement(run), verifiers=verifiers_on(run, gpus)), ranks_per_copy(run.trainer.layout)
    if (place.shared or gpus == 1) and gpus % multiple == 0:
        return replace(place, trainers=gpus, engines=gpus, shared=True)
    share, tensor = place.trainers / (place.trainers + place.generators), place.generator.tensor_parallel

    def split(devices: int) -> tuple[int, int]:
        trainers = max(1, round(devices * share / multiple)) * multiple
        return trainers, (devices - trainers) // tensor

    trainers, engines = split(gpus)
    if engines < 1:
        least = next(more for more in itertools.count(gpus + 1) if split(more)[1] >= 1)
        raise LabError(
            f"{gpus} devices are too few for {trainers} trainer ranks and one engine on {tensor}: give {least} or "
            "more, or another Layout and GeneratorConfig.tensor_parallel"
        )
    return replace(place, trainers=trainers, engines=engines)
