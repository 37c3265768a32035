"""Cost of an evaluation, by the model of an engine's speed."""

from __future__ import annotations

from dataclasses import dataclass

from scalelab.hardware import Device
from scalelab.plan.lengths import Moments
from scalelab.plan.placement import Placement
from scalelab.plan.speed import Assumptions, decoding
from scalelab.run.config import Run


@dataclass(frozen=True)
class EvaluationCost:
    """Cost of one evaluation of all sets, with all samples.

    Attributes:
        completions: that it makes.
        engines: that make them: those that are set aside for it, or all.
        seconds: that they take.
        device_hours: of those engines; of all devices where none are set aside, as the trainer waits then.
        token_seconds: of a decoding step of those engines.
    """

    completions: int
    engines: int
    seconds: float
    device_hours: float
    token_seconds: float


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
    aside = min(run.evaluation.engines_of(place.engines), place.engines - 1)  # of fewer engines one goes on, too
    engines = aside or place.engines
    each = completions / engines
    engine = decoding(run.model.to_hf(), place.generator, each, length, device, assumed)
    turns = each * length.mean / engine.sequences + length.most - length.mean
    seconds = turns * engine.seconds
    devices = aside * place.generator.tensor_parallel or place.devices
    return EvaluationCost(completions, engines, seconds, seconds * devices / 3600, engine.seconds)
