"""The ranks of a run that differ from one another, so that a few rehearsals cover all; importable without torch.

Megatron numbers its ranks stage by stage. Within a stage, the first rank is the first and the last rank is the last of
every way to cut a model: tensor, context, expert, data. What lies between them is like one of the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from moe.settings import Layout
from scalelab.hardware import Device
from scalelab.run.config import Run


@dataclass(frozen=True)
class Role:
    """One rank to rehearse.

    Attributes:
        name: for a reader, such as "trainer rank 15: last of tensor 4, expert 16".
        kind: "tuner", "trainer", "engine", "verifier" or "cluster", each with a module of this folder.
        rank: among the ranks of its trainer, or among the devices that share an engine; 0 for others.
        stands_for: ranks that it stands for, itself included; nodes, for "cluster".
        stage: its pipeline stage; 0 for others than trainers and tuners.
    """

    name: str
    kind: str
    rank: int
    stands_for: int
    stage: int = 0


def trainer_roles(layout: Layout, world: int, kind: str = "trainer") -> list[Role]:
    """First and last rank of the first, the second and the last pipeline stage, as far as they differ.

    Args:
        layout: how the model is cut; `moe.train.layout.check_layout` has accepted it.
        world: trainer ranks.
        kind: "tuner" for those of a fine-tuning.
    """
    ranks, stages = world // layout.pipeline, layout.pipeline
    cuts = {axis: getattr(layout, axis) for axis in ("tensor", "context", "expert", "expert_tensor")}
    cut = ", ".join(f"{axis.replace('_', '-')} {size}" for axis, size in cuts.items() if size > 1)
    found = []
    for stage in sorted({0, min(1, stages - 1), stages - 1}):
        alike = stages - 2 if 0 < stage < stages - 1 else 1  # stages between the first and the last
        of_stage = f"stage {stage + 1} of {stages}" if stages > 1 else ""
        halves = [(0, "first of ", (ranks + 1) // 2), (ranks - 1, "last of ", ranks // 2)]
        for place, end, share in halves if cut else [(0, "", ranks)]:
            rank = stage * ranks + place
            words = ", ".join(word for word in (of_stage, end + cut) if word)
            name = f"{kind} rank {rank}" + (f": {words}" if words else "")
            found.append(Role(name, kind, rank, alike * share, stage))
    return found


def engine_roles(devices: int, engines: int) -> list[Role]:
    """First and last of the devices that share an engine.

    Args:
        devices: that share one.
        engines: in the run.
    """
    if devices == 1:
        return [Role("engine", "engine", 0, engines)]
    shares = {0: (devices + 1) // 2, devices - 1: devices // 2}
    return [
        Role(f"engine: tensor rank {rank} of {devices}", "engine", rank, engines * share)
        for rank, share in shares.items()
    ]


def all_roles(run: Run, hardware: Device, fine_tuned: bool) -> list[Role]:
    """All roles of a run; those of a kind stand together.

    Args:
        run: the run.
        hardware: says how many devices a node has.
        fine_tuned: whether the run begins with a fine-tuning (`scalelab.start.base_model.is_fine_tuned`).
    """
    cluster, nodes = run.cluster, 1
    if cluster.device == "gpu":
        nodes = -(-run.devices // hardware.per_node)
    return [
        *(trainer_roles(run.tuner_setup.layout, run.sft.trainers, "tuner") if fine_tuned else []),
        *trainer_roles(run.trainer_setup.layout, cluster.trainers),
        *engine_roles(run.generator_setup.tensor_parallel, cluster.generators),
        Role("verifier", "verifier", 0, cluster.verifiers),
        Role("cluster: a node of Ray", "cluster", 0, nodes),
    ]
