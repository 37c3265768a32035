"""Check before a run starts that it fits on the GPUs that are there, and find the nearest placement that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from scalelab.errors import LabError
from scalelab.hardware import Device, Hardware
from scalelab.plan.memory import trainer_memory
from scalelab.plan.placement import placement, room_for_engines
from scalelab.plan.planner import RunPlan, engines, fastest, holds_a_sequence, narrowed, plan_of, propose
from scalelab.plan.speed import Assumptions
from scalelab.run.config import Run

LARGEST = 512
"""Devices up to which the smallest number that fits is searched."""


@dataclass(frozen=True)
class PlacementCheck:
    """The result of `check`.

    Attributes:
        hardware: what there is.
        problems: why the run cannot start on it; none if it can.
        nearest: the fastest placement that fits on it; None if nothing does, or nothing need be changed.
        enough: the smallest number of such devices on which the model fits at all; None as above.
    """

    hardware: Hardware
    problems: tuple[str, ...]
    nearest: RunPlan | None = None
    enough: int | None = None

    @property
    def line(self) -> str:
        """The problem and the nearest placement that fits, in one line."""
        said = "; ".join(self.problems)
        if self.nearest is not None:
            options = self.nearest.placement.options(self.hardware.device.name if self.hardware.known else None)
            return f"{said}; what fits on {self.hardware}: {options}"
        if self.enough is not None:
            return f"{said}; it takes at least {self.enough} × {self.hardware.device.name}"
        return f"{said}; nothing fits on up to {LARGEST} × {self.hardware.device.name}: take devices with more memory"

    def demand(self) -> None:
        """Refuse the run if it does not fit.

        Raises:
            LabError: `line`.
        """
        if self.problems:
            raise LabError(self.line)


def usual(run: Run) -> str:
    """Name the devices that a run is planned for unless others are asked for: its cluster's, else the paper's."""
    return run.cluster.hardware or ("gb200" if run.cluster.device == "gpu" else "cpu")


def with_hardware(run: Run, hardware: Hardware) -> Run:
    """The run with `Cluster.hardware` from what was found, if it names none; MFU needs the peak of a known device."""
    if run.cluster.hardware is not None or not hardware.known:
        return run
    return replace(run, cluster=replace(run.cluster, hardware=hardware.device.name))


def check(run: Run, hardware: Hardware, assumed: Assumptions | None = None) -> PlacementCheck:
    """Compare a run's placement with the devices that are there."""
    assumed = assumed or Assumptions()
    problems = plan_of(run, placement(run), hardware.device, assumed).problems
    if run.devices > hardware.count:
        short = f"the run wants {run.devices} devices ({run.cluster.trainers} to train), there are {hardware.count}"
        problems = (short, *problems)
    elif not problems and (packing := _packing_problem(run, hardware)):
        problems = (packing,)
    if not problems:
        return PlacementCheck(hardware, ())
    fits = nearest(run, hardware, assumed, run.cluster.trainers)
    return PlacementCheck(hardware, problems, fits, None if fits else smallest(run, hardware.device, assumed))


def _packing_problem(run: Run, hardware: Hardware) -> str | None:
    """Say that the devices are enough, but not on the same nodes: neither a rank's bundle nor an engine spans two."""
    place = placement(run)
    if not hardware.device.gpu or place.shared:
        return None
    room = room_for_engines(place, hardware.nodes)
    if room >= place.engines:
        return None
    sizes = " and ".join(map(str, sorted(set(hardware.nodes), reverse=True)))
    return (
        f"nodes of {sizes} have room for {room} of {place.engines} engines of {place.generator.tensor_parallel} "
        f"devices beside {place.trainers} trainer ranks, {place.per_node} on a node"
    )


def fine_tuning_problem(run: Run, hardware: Hardware) -> str | None:
    """Say why the fine-tuning that a run begins with does not fit on the devices that are there; None if it does."""
    ranks, longest = run.sft.trainers, run.longest_trace
    if ranks > hardware.count:
        return f"fine-tuning wants SFT.trainers = {ranks} devices, there are {hardware.count}: lower it"
    together, per_node = min(run.cluster.devices_per_node, ranks), hardware.device.per_node
    if hardware.device.gpu and together > per_node:
        return (
            f"{together} ranks of the fine-tuning are to share a node, and one has {per_node} devices: lower "
            f"Cluster.devices_per_node to {per_node}"
        )
    memory = trainer_memory(run.model.to_hf(), run.tuner_setup, ranks, longest, hardware.device.gpu)
    if memory.total <= hardware.device.memory_gib:
        return None
    fits = fastest(run, ranks, hardware.device, Assumptions())
    layout = "" if fits is None else f", such as {fits.layout} with TrainerConfig.recompute = {fits.recompute!r}"
    return (
        f"a rank of the fine-tuning does not fit: {memory.total:.0f} GiB of {hardware.device.memory_gib:.0f} on "
        f"{hardware.device.name}: raise SFT.trainers, or cut the model further{layout}"
    )


def check_fine_tuning(run: Run, hardware: Hardware) -> None:
    """Refuse a fine-tuning that does not fit on the devices that are there.

    Raises:
        LabError: naming the trainer rank's memory, the number of ranks, or that of a node.
    """
    if problem := fine_tuning_problem(run, hardware):
        raise LabError(problem)


def evaluation_problem(run: Run, plan: RunPlan) -> str | None:
    """Say that one evaluation takes more device-hours than the run has for training; None if it does not."""
    cost, budget = plan.evaluation, run.budget.hours
    if budget is None or cost.device_hours <= budget:
        return None
    return (
        f"an evaluation of {cost.completions:,} completions takes {cost.device_hours:,.0f} device-hours, and the "
        f"budget is {budget:,.0f}: take fewer (Evaluation.prompts, Evaluation.samples), or raise Budget.hours"
    )


def check_evaluation(run: Run, device: Device) -> None:
    """Refuse a run whose first evaluation alone would take more than its budget.

    Raises:
        LabError: it would.
    """
    if problem := evaluation_problem(run, plan_of(run, placement(run), device, Assumptions())):
        raise LabError(problem)


def nearest(run: Run, hardware: Hardware, assumed: Assumptions, trainers: int) -> RunPlan | None:
    """Find the fastest placement on these devices, with so many trainers if one such fits.

    Of a run whose engines are wider than a node, the nearest is itself with engines of a node, if that fits.
    """
    found = None
    if hardware.device.gpu and run.generator.tensor_parallel > hardware.device.per_node:
        found = narrowed(run, hardware, assumed)
    return found or propose(run, hardware, assumed, trainers) or propose(run, hardware, assumed)


def smallest(run: Run, device: Device, assumed: Assumptions) -> int | None:
    """Find the smallest number of devices on which a run fits at all: of single devices in a node, else whole nodes.

    That is the fewest trainer ranks that hold the model, and the fewest devices that hold an engine beside them.
    """
    ranks = next((n for n in _counts(device) if fastest(run, n, device, assumed)), None)
    engine = next((e.tensor_parallel for e in engines(run, device) if holds_a_sequence(run, e)), None)
    if ranks is None or engine is None:
        return None
    total = ranks + engine
    return total if total <= device.per_node else -(-total // device.per_node) * device.per_node


def _counts(device: Device) -> Iterator[int]:
    """Trainer ranks to try: single devices in a node, then nodes, ever more of them at a time."""
    yield from range(1, device.per_node)
    nodes = 1
    while (count := nodes * device.per_node) <= LARGEST:
        yield count
        nodes += max(1, nodes // 2)
