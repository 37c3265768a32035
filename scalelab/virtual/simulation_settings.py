"""Turn an experiment into the settings of a simulation."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from scalelab.errors import LabError
from scalelab.hardware import device as plan_device
from scalelab.plan.driver import driver_seconds
from scalelab.plan.lengths import Lengths
from scalelab.plan.rates import Rates, rates, slots, trainer_unit
from scalelab.plan.speed import Assumptions
from scalelab.run.config import Run
from scalelab.virtual.drawn_evaluations import EvaluationLoad
from scalelab.virtual.simulation import Shape
from scalelab.virtual.simulation_figures import SimulationSettings


def build(
    run: Run,
    lengths: Lengths,
    *,
    device: str,
    overrides: dict[str, Any],
    prompt_tokens: float,
    kept: float,
    imbalance: float = 1.0,
    evaluations: bool = False,
    driver: bool = False,
    measured: Assumptions | None = None,
) -> SimulationSettings:
    """Build the simulation's settings, with the experiment's own split of the devices.

    Args:
        run: the experiment.
        lengths: of its completions.
        device: a name in `scalelab.hardware.DEVICES`.
        overrides: fields of `Rates` that were measured elsewhere.
        prompt_tokens: mean length of a prompt.
        kept: share of the groups that is left in the loss.
        imbalance: tokens of the busiest expert rank by its even share.
        evaluations: simulate them, too; those of a virtual run take no time.
        driver: wait for the driver, too; a virtual run has none.
        measured: the assumptions that a run's steps bore out; None for the usual ones.
    """
    hardware, trainer_devices = plan_device(device), trainer_unit(run)
    shape = Shape(
        generators=run.cluster.generators,
        trainers=run.cluster.trainers // trainer_devices,
        groups_per_step=run.recipe.prompts_per_step,
        generations=run.recipe.generations_per_prompt,
        slots=slots(run, hardware, lengths, prompt_tokens=prompt_tokens),
        prompt_tokens=prompt_tokens,
        kept=kept,
    )
    asked: dict[str, Any] = {"prompt_tokens": prompt_tokens, "kept": kept, "imbalance": imbalance}
    estimated = rates(run, hardware, lengths, **asked, measured=measured)
    speeds = replace(estimated, **overrides)
    return SimulationSettings(
        run.schedule,
        speeds,
        lengths,
        shape,
        run.generator.tensor_parallel,
        trainer_devices,
        seed=run.seed,
        evaluations=EvaluationLoad.of(run, lengths) if evaluations and run.virtual is None else None,
        driver_seconds=driver_seconds(1) if driver and hardware.gpu and run.virtual is None else 0.0,
    )


def override(text: str) -> tuple[str, float]:
    """Read NAME=SECONDS, a field of `Rates`.

    Raises:
        LabError: an unknown name, or no number.
    """
    name, _, value = text.partition("=")
    names = [field.name for field in fields(Rates)]
    if name not in names:
        raise LabError(f"there is no rate {name!r}; there are {', '.join(names)}")
    try:
        return name, int(value) if name == "cores" else float(value)
    except ValueError:
        raise LabError(f"--rate {text}: give a number, as in {name}=0.01") from None
