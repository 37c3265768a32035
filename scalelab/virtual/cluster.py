"""The simulated cluster of a run: how long things take there, and how much its engines hold.

Imports no torch, so that a run is refused before anything is loaded or written.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from moe.cpu.portable import portable, start_anew
from moe.model.size import kv_bytes_per_token
from scalelab.defaults import SIGMA
from scalelab.errors import LabError
from scalelab.hardware import device
from scalelab.plan.check import usual
from scalelab.plan.lengths import fitting_prompt, lengths_of
from scalelab.plan.memory import GIB
from scalelab.plan.placement import placement
from scalelab.plan.planner import plan_of
from scalelab.plan.rates import rates as estimated_rates
from scalelab.plan.rates import slots
from scalelab.plan.speed import Assumptions
from scalelab.rollout.config import GeneratorSetup
from scalelab.run.config import Run
from scalelab.run.ports import too_few_places
from scalelab.run.settings import Rates


def simulated_rates(run: Run) -> tuple[Rates, int]:
    """Durations in a run's simulated cluster, and the number of sequences side by side in each of its engines.

    Raises:
        LabError: a rate is missing or not positive.
    """
    assert run.virtual is not None
    if run.virtual.rates is not None:
        return run.virtual.rates, run.generator.max_sequences
    hardware, lengths = device(run.virtual.hardware or usual(run)), lengths_of(run, SIGMA)
    prompt_tokens = fitting_prompt(run)
    rates = estimated_rates(run, hardware, lengths, prompt_tokens=prompt_tokens)
    return rates, slots(run, hardware, lengths, prompt_tokens=prompt_tokens)


DERIVED = ("max_sequences", "kv_cache_gib", "max_batched_tokens", "tensor_parallel")
"""Settings of the one real engine that are not those of a simulated engine, which `config.gin` holds."""


def engine_config(run: Run, places: int) -> GeneratorSetup:
    """Configuration of the one engine that holds the sequences of all simulated engines.

    Raises:
        LabError: their KV cache does not fit into `Virtual.memory_gib`, or they have too few places for a group.
    """
    assert run.virtual is not None
    config = run.generator_setup
    if problem := too_few_places(run.cluster.generators * places, run.recipe.generations_per_prompt):
        raise LabError(problem)
    # No more than the schedule can have in flight, whatever the engines could hold.
    most = min(run.cluster.generators * places, _in_flight(run))
    blocks = -(-config.max_model_len // config.block_size) + 1
    gib = kv_bytes_per_token(run.model.to_hf(), config.dtype, latent=False) * blocks * config.block_size * most / GIB
    if gib > run.virtual.memory_gib:
        raise LabError(
            f"the simulated engines hold {most} sequences side by side, whose KV cache takes {gib:.3g} GiB of "
            f"Virtual.memory_gib = {run.virtual.memory_gib:g}: lower Cluster.generators or "
            "GeneratorConfig.max_sequences, or raise it"
        )
    return replace(
        config,
        max_sequences=most,
        kv_cache_gib=max(0.05, 1.02 * gib),
        max_batched_tokens=most * config.max_model_len,  # all may begin, or begin anew, in one step
        tensor_parallel=1,
    )


def _in_flight(run: Run) -> int:
    """Most completions that the schedule can have in flight."""
    schedule = run.schedule.start(run.recipe.prompts_per_step, run.budget.steps)
    return run.recipe.generations_per_prompt * max(1, schedule.may_start(0))


def clock_facts(run: Run) -> dict[str, Any]:
    """The manifest's facts about the clock."""
    virtual = run.virtual
    assert virtual is not None
    rates, places = simulated_rates(run)
    engine = engine_config(run, places)
    return {
        "clock": "virtual",
        "rates": asdict(rates),
        "places": places,
        "engine": {name: getattr(engine, name) for name in DERIVED},
        "simulated_hardware": None if virtual.rates else virtual.hardware or usual(run),
        **({"arithmetic": "portable"} if virtual.portable else {}),
    }


def take_arithmetic(run: Run) -> None:
    """Start this process anew, if the run's arithmetic is to be portable and the process was not started for it.

    Nothing is done in a process of somebody else's, which is not to be replaced.
    """
    program = Path(sys.argv[0])
    ours = "scalelab" in (program.name, program.parent.name if program.name == "__main__.py" else "")
    if run.virtual is not None and run.virtual.portable and ours:
        start_anew()


def _check_hardware(run: Run) -> None:
    """Check that the run would fit on the hardware that is simulated; given rates name none.

    Raises:
        LabError: the plan says why it would not.
    """
    assert run.virtual is not None
    if run.virtual.rates is None:
        hardware = device(run.virtual.hardware or usual(run))
        if problems := plan_of(run, placement(run), hardware, Assumptions()).problems:
            raise LabError("the simulated cluster could not be: " + "; ".join(problems))


def check_simulated(run: Run, path: Path, manifest: Mapping[str, Any]) -> None:
    """Check that the simulated engines fit, and that a run that goes on simulates the cluster that it began with.

    Args:
        run: the run; nothing is checked if its cluster is a real one.
        path: its folder.
        manifest: what the folder says of the run so far.

    Raises:
        LabError: they do not fit, or are others.
    """
    if run.virtual is None:
        return
    if run.virtual.portable and not portable():
        raise LabError("Virtual.portable: arithmetic is chosen when a process starts; use `scalelab run`")
    now = clock_facts(run)
    engine_config(run, now["places"])
    _check_hardware(run)
    begun = {name: manifest[name] for name in ("rates", "places") if name in manifest}
    changed = [name for name, value in _flat(begun).items() if _flat(now).get(name) != value]
    if changed:
        told = ", ".join(f"{name} was {_flat(begun)[name]} and is {_flat(now).get(name)}" for name in changed)
        raise LabError(f"{path} was begun with others: {told}; go on with the version of scalelab that began it")


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Each rate by its name beside the other facts."""
    rates = facts.get("rates")
    return {**facts, "rates": None, **(rates if isinstance(rates, Mapping) else {"rates": rates})}
