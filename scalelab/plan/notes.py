"""Remarks about a plan that fits: what stands idle, what holds a step up, what is assumed."""

from __future__ import annotations

import math
from dataclasses import replace

from scalelab.hardware import Device
from scalelab.plan.driver import driver_warning
from scalelab.plan.idle import idle_notes
from scalelab.plan.planner import RunPlan, moments_of
from scalelab.plan.prompts import uncounted
from scalelab.plan.speed import Assumptions, decoding
from scalelab.run.config import Run

FEWER = (0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
"""Sequences to start that are tried in place of too many, by those of the usual length that the cache holds."""

LONG_HOURS = 3.0
"""Time before the first step that an evaluation of the base model may take unmentioned."""

WORTH_SAYING = 0.01
"""Share of its tokens that an engine must compute again, and gain, for a remark."""


def notes(run: Run, plan: RunPlan, device: Device, assumed: Assumptions) -> list[str]:
    """Remarks about a placement on devices of a kind, each with what to do."""
    driver = driver_warning(plan.driver)
    idle = idle_notes(run, plan, device, assumed)
    own = [*idle, *_preempted(run, plan, device, assumed), *_verified(plan), *_evaluated(run, plan), *_first(plan)]
    return [*own, *filter(None, [driver]), *uncounted(run)]


def _preempted(run: Run, plan: RunPlan, device: Device, assumed: Assumptions) -> list[str]:
    """Say that vLLM would stop sequences for want of cache and compute them again, and how many to start instead."""
    if plan.decoding.again < WORTH_SAYING:
        return []
    engine, hf, length = plan.placement.generator, run.model.to_hf(), moments_of(run, assumed)
    room, started = int(plan.cache_sequences), int(min(engine.max_sequences, plan.started))

    def speed(places: int) -> float:
        fewer = replace(engine, max_sequences=places)
        return decoding(hf, fewer, places, length, device, assumed).tokens_per_second

    fewer = {places for share in FEWER if 0 < (places := round(share * room)) < started}
    best = max(fewer, key=speed, default=started)
    gained = speed(best) / plan.decoding.tokens_per_second - 1
    if gained < WORTH_SAYING:
        return []
    return [
        f"an engine's KV cache holds {room} sequences of the usual length, and {started} are started: vLLM preempts "
        f"some, and computes up to {plan.decoding.again:.0%} as many tokens again as it makes; bind "
        f"GeneratorConfig.max_sequences={best}, for {gained:.0%} more tokens"
    ]


def _verified(plan: RunPlan) -> list[str]:
    """Say that the verifiers hold a step up, and how many would not."""
    s, verifiers = plan.seconds, plan.placement.verifiers
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
    period = min((one.cadence.period(plan.step_hours) for one in run.sets), default=float("inf"))
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


def _first(plan: RunPlan) -> list[str]:
    """Say that the first step comes late, for an evaluation of the base model by all engines goes before it."""
    cost = plan.evaluation
    if cost.engines < plan.placement.engines or cost.seconds < LONG_HOURS * 3600:
        return []
    return [
        f"the base model's evaluation takes all engines for {cost.seconds / 3600:.1f} hours before the first step, "
        f"{cost.device_hours:,.0f} device-hours: bind fewer HeldOut.samples, or Evaluation.samples"
    ]
