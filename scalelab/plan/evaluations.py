"""What an evaluation costs, and whether a run's budget has room for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scalelab.errors import LabError
from scalelab.hardware import Device
from scalelab.plan.lengths import Moments
from scalelab.plan.placement import Placement, placement
from scalelab.plan.speed import Assumptions, decoding
from scalelab.run.config import Run

if TYPE_CHECKING:
    from scalelab.plan.planner import RunPlan


@dataclass(frozen=True)
class EvaluationCost:
    """Cost of one evaluation of all sets, with all samples.

    Attributes:
        completions: that it makes.
        engines: that make them: those that are set aside for it, or all.
        seconds: that they take.
        device_hours: of those engines; of all devices where none are set aside, as the trainer waits then.
    """

    completions: int
    engines: int
    seconds: float
    device_hours: float


def evaluation_cost(
    run: Run, place: Placement, length: Moments, device: Device, assumed: Assumptions
) -> EvaluationCost:
    """Cost of one evaluation by the model of an engine's speed; its last completions leave places empty.

    Args:
        run: whose sets are evaluated.
        place: who runs where.
        length: moments of the lengths of completions.
        device: that engines run on.
        assumed: shares of the device's peak.
    """
    completions = sum(one.planned for one in run.sets)
    aside = run.evaluation.engines_of(place.engines)
    engines = aside or place.engines
    each = completions / engines
    engine = decoding(run.model.to_hf(), place.generator, each, length, device, assumed)
    turns = each * length.mean / engine.sequences + length.most - length.mean
    seconds = turns * engine.seconds
    devices = aside * place.generator.tensor_parallel or place.devices
    return EvaluationCost(completions, engines, seconds, seconds * devices / 3600)


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
    from scalelab.plan.planner import plan_of

    if problem := evaluation_problem(run, plan_of(run, placement(run), device, Assumptions())):
        raise LabError(problem)


def evaluation_notes(run: Run, plan: RunPlan) -> list[str]:
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
