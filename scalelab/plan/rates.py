"""Speeds of a run's parts on given hardware: what a simulated clock needs to know of hardware and model.

A decoding step of an engine takes `step_seconds + sequence_seconds · c` for c sequences side by side: reading the
weights and the fixed costs once, the KV cache and the arithmetic once per sequence. Two points at different concurrency
determine that line (`decoding_line`): measured ones, or those of the performance model at full and at a quarter of that
(`rates`), where the sequences of a mixture touch nearly all experts already, as they do in a run.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moe.train.layout import ranks_per_copy
from scalelab.errors import LabError
from scalelab.hardware import Device
from scalelab.plan.lengths import Lengths, Moments
from scalelab.plan.placement import placement
from scalelab.plan.planner import plan_of
from scalelab.plan.prompts import verify_seconds
from scalelab.plan.speed import Assumptions, decoding, host_step_seconds, publication, training_seconds
from scalelab.run.config import Run
from scalelab.run.settings import Rates


def rates(
    run: Run,
    device: Device,
    lengths: Lengths,
    *,
    prompt_tokens: float,
    kept: float = 1.0,
    imbalance: float = 1.0,
    measured: Assumptions | None = None,
) -> Rates:
    """Estimate the rates of a run on a device, from the performance model of `scalelab plan`.

    They say what the hardware allows at the efficiencies of `Assumptions`, not what a given software reaches; replace
    what you measured.

    Args:
        run: the experiment.
        device: what every engine and trainer rank has; see `scalelab.hardware.device`.
        lengths: of the completions.
        prompt_tokens: mean length of a prompt.
        kept: share of the groups that is left in the loss.
        imbalance: tokens of the busiest expert rank by its even share.
        measured: the assumptions that a run's steps bore out; None for the usual ones.

    Returns:
        Of one engine, and of one trainer unit: one copy of the model, on `trainer_unit(run)` ranks.

    Raises:
        LabError: engines and trainer share devices, where each slows the other down.
    """
    if run.cluster.share_devices:
        raise LabError(
            "how much engines and trainer slow each other down on one device is not estimated: bind "
            "Cluster.share_devices = False"
        )
    hf_config, base = run.model.to_hf(), measured or Assumptions()
    assumed = replace(base, prompt=round(prompt_tokens), dropped=1 - kept, imbalance=imbalance)
    moments = lengths.moments()
    full = decoding(hf_config, run.generator_setup, float("inf"), moments, device, assumed)
    part = decoding(hf_config, run.generator_setup, full.sequences / 4, moments, device, assumed)
    step, sequence = full.seconds, 0.0
    if full.sequences > part.sequences:
        step, sequence = decoding_line([(part.sequences, part.seconds), (full.sequences, full.seconds)])
    engines, way = (run.cluster.generators, run.generator.tensor_parallel), run.cluster.publication
    update = publication(hf_config, run.generator.dtype, run.cluster.trainers, engines, device, assumed, way)
    tokens = run.recipe.completions_per_step * kept * (moments.mean + assumed.prompt)
    return Rates(
        step_seconds=step,
        sequence_seconds=sequence,
        train_token_seconds=_unit_seconds(run, device, moments, assumed) / tokens,
        export_seconds=update.standstill,
        transfer_seconds=update.transfer,
        pause_seconds=update.pause,
        host_seconds=verify_seconds(run, run.cluster.verifiers),
    )


def _unit_seconds(run: Run, device: Device, moments: Moments, assumed: Assumptions) -> float:
    """Seconds of a step on one trainer unit: all is shared out over them, so that another number takes its part."""
    hf_config, config, ranks = run.model.to_hf(), run.trainer_setup, run.cluster.trainers
    completions = run.recipe.completions_per_step
    seconds = training_seconds(hf_config, config, ranks, completions, moments, device, assumed)
    seconds += plan_of(run, placement(run), device, assumed).seconds["checkpoint"]
    seconds += host_step_seconds(hf_config, config, ranks, assumed)
    return seconds * (ranks / trainer_unit(run))


def trainer_unit(run: Run) -> int:
    """Trainer ranks that hold one copy of the model together."""
    return ranks_per_copy(run.trainer.layout)


def slots(run: Run, device: Device, lengths: Lengths, *, prompt_tokens: float) -> int:
    """Sequences side by side in an engine: what it is configured for, or what its KV cache has room for."""
    assumed, most = Assumptions(prompt=round(prompt_tokens)), float("inf")
    engine = decoding(run.model.to_hf(), run.generator_setup, most, lengths.moments(), device, assumed)
    return max(1, int(engine.sequences))


def decoding_line(measured: list[tuple[float, float]]) -> tuple[float, float]:
    """Fit `step_seconds` and `sequence_seconds` to a generator measured at two or more loads.

    Args:
        measured: (mean sequences side by side, seconds per decoding step) at each load.

    Raises:
        LabError: all at one load.
    """
    loads = np.array([load for load, _ in measured])
    if np.ptp(loads) == 0:
        raise LabError("a line through measurements at one load is not determined: measure at two")
    slope, intercept = np.polyfit(loads, np.array([seconds for _, seconds in measured]), 1)
    return max(0.0, float(intercept)), max(0.0, float(slope))
