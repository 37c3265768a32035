"""Ways to keep a trainer busy that a plan leaves idle: another split of the devices, a larger batch, more engines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from scalelab.hardware import Device, Hardware
from scalelab.numbers import counted
from scalelab.plan.planner import RunPlan, plan_of, propose
from scalelab.plan.speed import Assumptions
from scalelab.run.config import Run

IDLE = 0.3
"""Share of a step for which a trainer may stand idle unmentioned."""

SHORTER = 0.9
"""Share of a step's time from which another split of the devices is not worth a change."""

CHEAPER = 0.7
"""Share of a batch's growth from which the step's growth makes a larger batch no better use of the devices."""

BUSY = 0.1
"""Share of a step for which a trainer stands idle with a batch, or engines, that are proposed; else the least."""

LESS, LONGER = 0.75, 4.0
"""A larger batch is proposed if it leaves at most this share of the trainer's idle time, in steps at most so many times
as long."""

FACTORS = tuple(1.25**power for power in range(1, 25))
"""Multiples of the batch, and of the engines, that are tried."""


def idle_notes(run: Run, plan: RunPlan, device: Device, assumed: Assumptions) -> list[str]:
    """Say which placement would be faster, and for which share of a step the trainer stands idle, if that is large.

    What would change it is planned, each of it.
    """
    if plan.placement.shared:
        return []
    faster = list(_faster(run, plan, device, assumed))
    if idle(plan) < IDLE:
        return faster
    said = f"the trainer stands idle for {idle(plan):.0%} of a step"
    ways = [f"  {way}" for way in (*faster, *_ways(run, plan, device, assumed))]
    return ["\n".join([f"{said}; by the plan:", *ways])] if ways else [said]


def idle(plan: RunPlan) -> float:
    """Share of a step in which the trainer neither trains, sends weights, nor copies its state for a checkpoint."""
    busy = sum(plan.seconds[part] for part in ("train", "standstill", "checkpoint"))
    return max(0.0, 1 - busy / plan.seconds["step"])


def _faster(run: Run, plan: RunPlan, device: Device, assumed: Assumptions) -> Iterator[str]:
    place = plan.placement
    other = propose(run, Hardware(device, place.devices), assumed)
    if other is not None and other.seconds["step"] < SHORTER * plan.seconds["step"]:
        yield (
            f"the same devices take {other.seconds['step']:.1f} s a step in place of {plan.seconds['step']:.1f} "
            f"with {other.placement.options(device.name)}"
        )


def _ways(run: Run, plan: RunPlan, device: Device, assumed: Assumptions) -> Iterator[str]:
    place = plan.placement

    def with_batch(factor: float) -> tuple[int, RunPlan]:
        prompts = math.ceil(run.recipe.prompts_per_step * factor)
        larger = replace(run, recipe=replace(run.recipe, prompts_per_step=prompts))
        return prompts, plan_of(larger, place, device, assumed)

    def with_engines(factor: float) -> tuple[int, RunPlan]:
        engines = math.ceil(place.engines * factor)
        return engines, plan_of(run, replace(place, engines=engines), device, assumed)

    found, batch = _busiest(with_batch, LESS * idle(plan), LONGER * plan.seconds["step"]), run.recipe.prompts_per_step
    if found and found[1].seconds["step"] / plan.seconds["step"] < CHEAPER * found[0] / batch:
        yield f"Recipe.prompts_per_step={found[0]} leaves it idle for {_said(found[1])}"
    if (found := _busiest(with_engines)) and found[1].step_hours < plan.step_hours:
        more = (found[0] - place.engines) * place.generator.tensor_parallel
        yield f"Cluster.generators={found[0]}, {counted(more, 'device')} more, leaves it idle for {_said(found[1])}"


def _said(plan: RunPlan) -> str:
    return f"{idle(plan):.0%} of a step of {plan.seconds['step']:.1f} s"


def _busiest(
    planned: Callable[[float], tuple[int, RunPlan]], most: float = IDLE, longest: float = math.inf
) -> tuple[int, RunPlan] | None:
    """The smallest multiple with which the trainer is busy, or that with which it idles least; None if all idle more.

    Args:
        planned: plans with a multiple.
        most: share of a step for which it may stand idle with one that is returned.
        longest: seconds that a step may take with that.
    """
    least: tuple[int, RunPlan] | None = None
    for factor in FACTORS:
        found = planned(factor)
        if found[1].seconds["step"] > longest:
            break
        if idle(found[1]) <= BUSY:
            return found
        if idle(found[1]) < (most if least is None else idle(least[1])):
            least = found
    return least
