"""Plan a run: memory, time per step, and the nearest placement that fits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from moe.errors import MoeError
from moe.model.size import kv_bytes_per_token
from moe.settings import RECOMPUTE, Layout, TrainerSetup
from moe.train.layout import check_layout
from scalelab.hardware import Device, Hardware, device
from scalelab.plan.driver import driver_cores
from scalelab.plan.evaluations import EvaluationCost, evaluation_cost
from scalelab.plan.lengths import Moments, fitting_prompt, lengths_of
from scalelab.plan.memory import (
    GeneratorMemory,
    SendMemory,
    TrainerMemory,
    generator_memory,
    message_memory,
    trainer_memory,
)
from scalelab.plan.placement import Placement, placement, room_for_engines, verifiers_on
from scalelab.plan.shape import parameter_counts, remembered
from scalelab.plan.speed import (
    Assumptions,
    Decoding,
    cache_sequences,
    copy_seconds,
    host_step_seconds,
    step_flops,
    training_seconds,
)
from scalelab.plan.step_time import StepTime
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.split import split_problem
from scalelab.run.config import Run

POWERS = (1, 2, 4, 8, 16, 32)
"""Sizes of an axis of a layout that are tried."""
TRIED = 256
"""Numbers of trainer ranks that a search tries at most: more take minutes."""


@dataclass(frozen=True)
class RunPlan:
    """The costs of a run's placement, by part.

    Attributes:
        placement: who runs where.
        trainer: GiB on the fullest trainer rank.
        generator: GiB on a generator's device.
        seconds: of a step: "train", "checkpoint" (copies of the trainer's state to host memory, while it waits),
            "standstill" (of the trainer, while it sends weights), "generate" and "verify" (both with evaluations),
            "publish" (from the trainer's first copy to the last engine's new weights), "hold" (what a step takes at
            least, whatever the devices: the longest completion over the steps that it may last, and a publication),
            "step", which they make, and "evaluations", what evaluations add to it.
        evaluation: one of them.
        driver: cores that the driver is busy with.
        decoding: an engine in steady state.
        cache_sequences: running sequences of the usual length for which an engine's KV cache has room.
        started: completions that the schedule has for an engine.
        flops: of one optimiser step.
        problems: why it cannot run; none if it can.
    """

    placement: Placement
    trainer: TrainerMemory
    generator: GeneratorMemory
    seconds: dict[str, float]
    evaluation: EvaluationCost
    driver: float
    decoding: Decoding
    cache_sequences: float
    started: float
    flops: float
    problems: tuple[str, ...]

    @property
    def step_hours(self) -> float:
        """Device-hours of a step."""
        return self.seconds["step"] * self.placement.devices / 3600


def plan_of(run: Run, place: Placement, device: Device, assumed: Assumptions) -> RunPlan:
    """The plan of a placement: its memory, time, compute, and the reasons why it cannot run."""
    assumed = replace(assumed, prompt=fitting_prompt(run, assumed.prompt))
    hf, length = run.model.to_hf(), moments_of(run, assumed)
    longest = run.generator.max_model_len
    sending = _sending(run)
    trainer = trainer_memory(hf, place.trainer, place.trainers, longest, device.gpu, sending)
    messages = sending.engine if sending else None
    generator = generator_memory(parameter_counts(hf).total, place.generator, device.gpu, messages)
    time = StepTime(run, place, hf, length, device, assumed)
    without = time.seconds()["step"] / 3600
    copy = copy_seconds(hf, place.trainer, place.trainers, assumed)
    checkpoint = copy / run.checkpoint_cadence.period(run.devices * without)  # its rule has the run's own devices in it
    evaluated = sum(one.planned_mean / one.cadence.period(place.devices * without) for one in run.sets)
    one_evaluation = evaluation_cost(run, place, length, device, assumed)
    evaluated = time.evaluated(evaluated, checkpoint, one_evaluation)
    seconds = time.with_evaluations(evaluated, checkpoint, one_evaluation)
    driver = driver_cores((time.completions + evaluated) / seconds["step"])
    flops = step_flops(hf, place.trainer, time.completions, length, assumed)
    problems = tuple(_problems(run, hf, place, trainer, generator, device))
    room = cache_sequences(hf, place.generator, length, assumed)
    own = one_evaluation, driver, time.engine, room, time.started, flops, problems
    return RunPlan(place, trainer, generator, seconds, *own)


def fine_tuning_seconds(run: Run, device: Device, assumed: Assumptions) -> float:
    """The most that a step of the fine-tuning takes: every trace has `SFT.longest` tokens, prompt and completion."""
    sft, hf = run.sft, run.model.to_hf()
    completion = max(0, sft.longest - assumed.prompt)  # the prompt is counted beside it
    longest = Moments(completion, completion**2, completion)
    config, ranks = run.tuner_setup, sft.trainers
    step = training_seconds(hf, config, ranks, sft.traces_per_step, longest, device, replace(assumed, dropped=0.0))
    return step + host_step_seconds(hf, config, ranks, assumed)


def moments_of(run: Run, assumed: Assumptions) -> Moments:
    """Moments of the lengths of a run's completions, as a simulation draws them."""
    return lengths_of(run, assumed.sigma, assumed.median).moments()


def _problems(
    run: Run,
    hf: dict[str, Any],
    place: Placement,
    trainer: TrainerMemory,
    generator: GeneratorMemory,
    device: Device,
) -> Iterator[str]:
    try:
        check_layout(hf, place.trainer.layout, place.trainers)
    except MoeError as error:
        yield str(error)
    for role, memory in (("trainer rank", trainer), ("generator device", generator)):
        if memory.total > device.memory_gib:
            kinds = ", ".join(f"{kind} {gib:.1f}" for kind, gib in asdict(memory).items() if gib >= 0.05)
            yield (
                f"a {role} does not fit: {memory.total:.0f} GiB of {device.memory_gib:.0f} on {device.name} ({kinds})"
            )
    if place.shared and max(trainer.total, generator.total) <= device.memory_gib < trainer.total + generator.total:
        yield (
            f"a trainer rank and an engine do not fit on one {device.name} of {device.memory_gib:.0f} GiB: "
            f"{trainer.total:.0f} and {generator.total:.0f} GiB"
        )
    if place.shared and device.gpu and place.trainers > device.per_node:
        yield f"{place.trainers} devices that are shared must be on a node of {device.per_node}: lower Cluster.trainers"
    elif device.gpu and min(place.per_node, place.trainers) > device.per_node:
        yield (
            f"{min(place.per_node, place.trainers)} trainer ranks are to share a node, and one has {device.per_node} "
            f"devices: lower Cluster.devices_per_node to {device.per_node}"
        )
    if not holds_a_sequence(run, place.generator):
        needed = kv_bytes(run, place.generator)
        yield (
            f"the KV cache of {place.generator.kv_cache_gib} GiB holds no sequence of {run.generator.max_model_len} "
            f"tokens: give GeneratorConfig.kv_cache_gib at least {needed / 2**30:.2f}"
        )
    if device.gpu and place.generator.tensor_parallel > device.per_node:
        yield (
            f"an engine's {place.generator.tensor_parallel} devices must share a node of {device.per_node}: lower "
            f"GeneratorConfig.tensor_parallel to {device.per_node} or less"
        )


def kv_bytes(run: Run, engine: GeneratorSetup) -> float:
    """Bytes of KV cache of the longest sequence, on each of an engine's devices."""
    per_token = kv_bytes_per_token(run.model.to_hf(), engine.dtype, engine.tensor_parallel, engine.device != "cpu")
    return per_token * run.generator.max_model_len


def holds_a_sequence(run: Run, engine: GeneratorSetup) -> bool:
    """True if an engine's KV cache has room for one sequence of full length."""
    return engine.kv_cache_gib * 2**30 >= kv_bytes(run, engine)


def propose(run: Run, hardware: Hardware, assumed: Assumptions, trainers: int | None = None) -> RunPlan | None:
    """The placement with the shortest step among those that fit, or None; on a single device both roles share it.

    Layouts are all that `check_layout` allows with tensor parallelism within a node; trainer counts all multiples of
    what a layout needs, unless given. Where nodes differ in size, so many ranks share a node as one of the sizes; of
    sizes with the same step the largest.
    """
    gpus, device = hardware.count, hardware.device
    if gpus == 1:
        return _on_one(run, hardware, assumed)
    best: RunPlan | None = None
    bundles = _bundles(run, hardware)
    choices, shared = list(engines(run, device)), False if run.cluster.share_devices else None
    for count in [trainers] if trainers else _counts(gpus, device):
        config = fastest(run, count, device, assumed)
        if config is None:
            continue
        for engine, per_node in itertools.product(choices, bundles):
            rest = (gpus - count) // engine.tensor_parallel
            place = Placement(count, rest, config, engine, per_node, verifiers_on(run, gpus), shared)
            if device.gpu:
                place = replace(place, engines=room_for_engines(place, hardware.nodes))
            if place.engines < 1:
                continue
            found = _plan_if_it_fits(run, place, device, assumed)
            if found and (best is None or found.seconds["step"] < best.seconds["step"]):
                best = found
    return best


def narrowed(run: Run, hardware: Hardware, assumed: Assumptions) -> RunPlan | None:
    """The run's own placement with as many engines, each as wide as a node allows; None if it does not fit."""
    widest = max(engines(run, hardware.device), key=lambda engine: engine.tensor_parallel, default=None)
    if widest is None:
        return None
    place = replace(placement(run), generator=widest)
    if room_for_engines(place, hardware.nodes) < place.engines:
        return None
    return _plan_if_it_fits(run, place, hardware.device, assumed)


def _plan_if_it_fits(run: Run, place: Placement, device: Device, assumed: Assumptions) -> RunPlan | None:
    """Plan the run with this placement; None if its settings contradict each other, or memory is too small."""
    made = place.given_to(run)
    if made is None:
        return None
    found = plan_of(made, place, device, assumed)
    return None if found.problems else found


def _bundles(run: Run, hardware: Hardware) -> list[int]:
    """Numbers of trainer ranks to put on a node: as many as one has devices; cores have no nodes. Largest first."""
    if not hardware.device.gpu:
        return [run.cluster.devices_per_node]
    return sorted({hardware.device.per_node, *hardware.unequal}, reverse=True)


def _on_one(run: Run, hardware: Hardware, assumed: Assumptions) -> RunPlan | None:
    """An engine beside the trainer on one device, with the KV cache that there is room for."""
    device = hardware.device
    config = fastest(run, 1, device, assumed)
    if config is None:
        return None
    engine = replace(run.generator_setup, tensor_parallel=1, kv_cache_gib=1e-9)
    place = Placement(1, 1, config, engine, _bundles(run, hardware)[0], verifiers_on(run, 1), shared=True)
    single = plan_of(run, place, device, assumed)
    room = device.memory_gib - single.trainer.total - single.generator.total
    cache = min(run.generator.kv_cache_gib, int(room * 4) / 4)
    if cache <= 0:
        return None
    place = replace(place, generator=replace(place.generator, kv_cache_gib=cache))
    return _plan_if_it_fits(run, place, device, assumed)


def fastest(run: Run, ranks: int, device: Device, assumed: Assumptions) -> TrainerSetup | None:
    """The trainer that fits and steps fastest; every further cut of the model is taken to cost 3 % of its time."""
    hf, length = run.model.to_hf(), moments_of(run, assumed)
    completions = run.recipe.completions_per_step

    def cost(config: TrainerSetup) -> float:
        layout = config.layout
        cuts = layout.tensor * layout.pipeline * layout.context
        return training_seconds(hf, config, ranks, completions, length, device, assumed) * (1 + 0.03 * cuts)

    longest, sending = run.generator.max_model_len, _sending(run)
    cheapest_first = sorted(_trainer_configs(run, ranks, device), key=cost)

    def fits(config: TrainerSetup) -> bool:
        if trainer_memory(hf, config, ranks, longest, device.gpu, sending).total > device.memory_gib:
            return False
        cluster = run.cluster
        beside = Placement(
            ranks, cluster.generators, config, run.generator_setup, ranks, cluster.verifiers, shared=False
        )
        return beside.given_to(run) is not None

    return next((config for config in cheapest_first if fits(config)), None)


def _sending(run: Run) -> SendMemory | None:
    """Memory that weights take on their way to engines; None if they come as files."""
    if run.cluster.publication == "files":
        return None
    return message_memory(run.model.to_hf(), run.generator.dtype)


def engines(run: Run, device: Device) -> Iterator[GeneratorSetup]:
    """Engines over 1, 2, 4, … devices of a node, whose KV cache takes what the weights leave."""
    config, total = run.generator_setup, parameter_counts(run.model.to_hf()).total
    within = [n for n in (1, 2, 4, 8) if n <= device.per_node]
    for ranks in (n for n in within if split_problem(run.model.to_hf(), n) is None):
        engine = replace(config, tensor_parallel=ranks)
        sending = _sending(run)
        messages = sending.engine if sending else None
        without_cache = generator_memory(total, replace(engine, kv_cache_gib=1e-9), device.gpu, messages)
        room = device.memory_gib - without_cache.total
        if room > 0:
            yield replace(engine, kv_cache_gib=min(config.kv_cache_gib, float(int(room * 4)) / 4 or room))


def _counts(gpus: int, device: Device) -> list[int]:
    """Trainer ranks to try: whole nodes, or single devices where there are few; of many nodes `TRIED` at most."""
    step = device.per_node if gpus > 2 * device.per_node else 1
    while gpus > TRIED * step:
        step *= 2  # which layouts divide more often than they do another number
    return list(range(step, gpus, step))


def _trainer_configs(run: Run, ranks: int, device: Device) -> Iterator[TrainerSetup]:
    setup = run.trainer_setup
    for layout in _layouts(run.model.to_hf(), device.per_node):
        shared = layout.tensor * layout.pipeline * layout.context, layout.pipeline * layout.expert
        if all(ranks % n == 0 for n in (*shared, layout.expert)):
            for recompute in RECOMPUTE:
                yield replace(setup, layout=layout, recompute=recompute)


@remembered
def _layouts(hf_config: dict[str, Any], per_node: int) -> list[Layout]:
    """Layouts that cut a model, with tensor ranks on one node; what divides the ranks is not asked here."""
    tensors = [n for n in POWERS if n <= min(8, per_node) and _cut(hf_config, Layout(tensor=n), n)]
    pipelines = [n for n in POWERS if _cut(hf_config, Layout(pipeline=n), n)]
    experts = [n for n in POWERS if _cut(hf_config, Layout(expert=n), n)]
    return [
        Layout(tensor=tensor, pipeline=pipeline, context=context, expert=expert)
        for tensor, pipeline, context, expert in itertools.product(tensors, pipelines, POWERS, experts)
    ]


def _cut(hf: dict[str, Any], layout: Layout, ranks: int) -> bool:
    try:
        check_layout(hf, layout, ranks)
    except MoeError:
        return False
    return True


def step_hours(run: Run) -> float | None:
    """Device-hours of a step, at least, where the run names its GPUs; None where it does not."""
    name = run.cluster.hardware if run.virtual is None else run.virtual.hardware
    if name is None or not device(name).gpu:  # the table's "cpu" is a rule of thumb, and no bound
        return None
    return plan_of(run, placement(run), device(name), Assumptions()).step_hours


def hours(run: Run, plan: RunPlan) -> tuple[int, float]:
    """(optimiser steps, GPU-hours) to the end of the budget."""
    steps = run.budget.steps_within(plan.step_hours)
    return steps, steps * plan.step_hours
