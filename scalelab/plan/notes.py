"""Remarks about a plan that fits: what stands idle, what holds a step up, what is assumed."""

from __future__ import annotations

import math

from scalelab.hardware import Device
from scalelab.plan.driver import driver_warning
from scalelab.plan.idle import idle_notes
from scalelab.plan.planner import RunPlan
from scalelab.plan.prompts import uncounted
from scalelab.plan.speed import Assumptions
from scalelab.run.config import Run


def notes(run: Run, plan: RunPlan, device: Device, assumed: Assumptions) -> list[str]:
    """Remarks about a placement on devices of a kind, each with what to do."""
    driver = driver_warning(plan.driver)
    idle = idle_notes(run, plan, device, assumed)
    own = [*idle, *_preempted(run, plan), *_verified(run, plan), *_evaluated(run, plan)]
    return [*own, *filter(None, [driver]), *uncounted(run)]


def _preempted(run: Run, plan: RunPlan) -> list[str]:
    """Say that vLLM would start more sequences than its cache holds: it stops some, and computes them again later."""
    room, most = int(plan.cache_sequences), plan.placement.generator.max_sequences
    if room >= most or plan.decoding.sequences < room:  # the schedule has no more for an engine
        return []
    return [
        f"an engine's KV cache holds {room} sequences of the usual length and may start {most}: vLLM preempts some and "
        f"computes them again; bind GeneratorConfig.max_sequences={room}"
    ]


def _verified(run: Run, plan: RunPlan) -> list[str]:
    """Say that the verifiers hold a step up, and how many would not."""
    s, verifiers = plan.seconds, run.cluster.verifiers
    others = max(s["train"], s["generate"], s["hold"])
    if s["verify"] <= others:
        return []
    enough = math.ceil(verifiers * s["verify"] / others)
    return [
        f"{verifiers} verifiers take {s['verify']:.3g} s for the rewards of a step that would take {others:.3g} s "
        f"without: bind Cluster.verifiers={enough}"
    ]


def _evaluated(run: Run, plan: RunPlan) -> list[str]:
    """Say that an evaluation takes longer than the steps until the next, with what makes it shorter."""
    cost, step = plan.evaluation, plan.seconds["step"]
    hours = plan.placement.devices * step / 3600
    period = min((one.cadence.period(hours) for one in run.sets), default=float("inf"))
    steps = cost.seconds / step
    if steps <= period:
        return []
    of = f"{cost.engines} of {plan.placement.engines} engines"
    do = "Evaluation.every or fewer samples"
    if cost.engines < plan.placement.engines - 1:
        do = "Evaluation.every, fewer samples, or more Evaluation.engines"
    return [
        f"an evaluation of {cost.completions:,} completions takes {cost.seconds:,.0f} s of {of}, as long as "
        f"{steps:,.0f} steps, and the next is due after {period:,.0f}, which is then made later: bind {do}"
    ]
