"""Remarks about a plan that fits: what stands idle, what holds a step up, what is assumed."""

from __future__ import annotations

import math

from scalelab.plan.driver import driver_warning
from scalelab.plan.planner import RunPlan
from scalelab.plan.prompts import uncounted
from scalelab.run.config import Run

IDLE = 0.5
"""Share of a step for which a trainer may stand idle unmentioned."""


def notes(run: Run, plan: RunPlan) -> list[str]:
    """Remarks about a placement, each with what to do."""
    driver = driver_warning(plan.driver)
    return [*_idle(run, plan), *_preempted(run, plan), *_verified(run, plan), *filter(None, [driver]), *uncounted(run)]


def _idle(run: Run, plan: RunPlan) -> list[str]:
    s, prompts = plan.seconds, run.recipe.prompts_per_step
    idle = 1 - s["train"] / s["step"]
    if plan.placement.shared or idle < IDLE:
        return []
    works = max(s["train"], s["generate"])
    if s["hold"] > works:  # of the longest completion, whatever the batch
        more = int(prompts * s["hold"] / works)
        do = f"a step waits for its longest completion, so Recipe.prompts_per_step={more} takes about the same time"
    else:
        do = "give the generators more of the devices, or more devices (Cluster.generators, Cluster.trainers)"
    return [f"the trainer stands idle for {idle:.0%} of a step: {do}"]


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
