"""Compute parameters, memory per rank, placement, step time and GPU-hours, without a GPU.

The exit code is 1 if the experiment does not fit; then a placement that fits is proposed. The step time is what the
hardware allows at the stated efficiencies. docs/plan.md has every formula and assumption.

Examples:
  scalelab plan scalerl_8b
  scalelab plan scalerl_17bx16 --gpus 160 --hardware h100    # does not fit as it is: what does is proposed
  scalelab plan scalerl_8b --set GeneratorConfig.max_model_len=32768 --set Recipe.max_tokens=30720
  scalelab plan h100/scalerl_8b --like runs/scalerl_8b_node    # with the speeds and lengths of a run's first steps
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.commands.arguments import add_experiment, add_json
from scalelab.errors import LabError
from scalelab.hardware import DEVICES
from scalelab.numbers import counted, quantity
from scalelab.terminal import plain_line

if TYPE_CHECKING:
    from scalelab.hardware import Device
    from scalelab.plan.measured import MeasuredSpeeds
    from scalelab.plan.placement import Placement
    from scalelab.plan.planner import RunPlan
    from scalelab.plan.speed import Assumptions
    from scalelab.run.config import Run

# Assumptions that the command line can change, and their options.
_OPTIONS = {
    "mfu": "share of the peak that training reaches, of a dense model",
    "expert_mfu": "the same of a mixture of experts",
    "imbalance": "tokens of the busiest expert rank by its even share",
    "exchange": "share of NVLink or network that an exchange among trainer ranks reaches",
    "bandwidth": "share of the memory bandwidth that decoding reaches",
    "iteration": "seconds an engine needs between two tokens beside the kernels",
    "median": "median length of a completion, as a share of Recipe.max_tokens",
    "dropped": "share of completions that zero-variance filtering leaves out of the step",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_experiment(parser)
    parser.add_argument("--gpus", type=int, metavar="N", help="devices in all; default: those of the experiment")
    parser.add_argument("--hardware", metavar="NAME", help=f"{', '.join(DEVICES)} (Cluster.hardware)")
    for name, what in _OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="X", help=f"assumption: {what}")
    parser.add_argument("--like", type=Path, metavar="RUN", help="take speeds and lengths from the steps of this run")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Make the plan and print it."""
    from scalelab.commands.output import print_json
    from scalelab.experiment import resolve
    from scalelab.hardware import Hardware, device
    from scalelab.plan.check import evaluation_problem, fine_tuning_problem, nearest, usual
    from scalelab.plan.lengths import fitting_prompt
    from scalelab.plan.placement import placement, resize
    from scalelab.plan.planner import plan_of
    from scalelab.plan.prompts import held_out_problems

    resolved = resolve(args.experiment, args.sets)
    name, experiment = resolved.name, resolved.run
    speeds = None if args.like is None else measured_of(args.like)
    assumed = _assumptions(args, None if speeds is None else speeds.assumed)
    assumed = replace(assumed, prompt=fitting_prompt(experiment, assumed.prompt))
    hardware = device(args.hardware or usual(experiment))
    place = placement(experiment) if args.gpus is None else resize(experiment, args.gpus)
    plan = plan_of(experiment, place, hardware, assumed)
    gpus = args.gpus or place.devices
    if hardware.gpu and (experiment.sft.traces is not None or experiment.sft.pretrained is None):
        tuned = fine_tuning_problem(experiment, Hardware(hardware, gpus))
        plan = replace(plan, problems=(*plan.problems, *filter(None, [tuned])))
    proposal, unplaced = None, bool(plan.problems)
    beyond = [*held_out_problems(experiment), evaluation_problem(experiment, plan) if hardware.gpu else None]
    plan = replace(plan, problems=(*plan.problems, *filter(None, beyond)))  # which no placement mends
    if unplaced:
        proposal = nearest(experiment, Hardware(hardware, gpus), assumed, place.trainers)
    if args.json:
        print_json(_json(name, experiment, plan, proposal, hardware, assumed))
    else:
        if speeds is not None:
            print(plain_line(speeds.line(str(args.like))))
        _print(name, experiment, plan, hardware, assumed)
        if unplaced:
            print(_proposal(proposal, hardware))
    return 1 if plan.problems else 0


def measured_of(folder: Path) -> MeasuredSpeeds:
    """Read the speeds of a run on the devices that its configuration names.

    Raises:
        LabError: the run has too few steps, or its files cannot be read.
    """
    from scalelab.experiment import resolve
    from scalelab.hardware import device
    from scalelab.plan.check import usual
    from scalelab.plan.measured import measured_speeds
    from scalelab.plan.speed import Assumptions
    from scalelab.store.lines import read_lines
    from scalelab.store.manifest import METRICS

    run = resolve(str(folder / "config.gin")).run
    if not (folder / METRICS).exists():
        raise LabError(f"{folder} has no {METRICS}: --like takes the folder of a run that has taken steps")
    name = usual(run) if run.virtual is None else run.virtual.hardware or usual(run)
    return measured_speeds(run, read_lines(folder / METRICS), device(name), Assumptions())


def _assumptions(args: argparse.Namespace, measured: Assumptions | None) -> Assumptions:
    from scalelab.plan.speed import Assumptions

    given = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    if not given.get("imbalance", 1.0) >= 1:
        raise LabError(f"--imbalance {given['imbalance']} is less than an even share: give 1 or more")
    for name, value in given.items():
        if name == "imbalance":
            continue
        if not 0 <= value <= 1 or (value == 0 and name not in ("iteration", "dropped")):
            raise LabError(f"--{name.replace('_', '-')} {value} is no share: give a number between 0 and 1")
    return replace(measured or Assumptions(), **given)


def _json(
    name: str, run: Run, plan: RunPlan, proposal: RunPlan | None, hardware: Device, assumed: Assumptions
) -> dict[str, Any]:
    from moe.model.size import parameters
    from scalelab.plan.notes import notes
    from scalelab.plan.planner import hours
    from scalelab.plan.prompts import draws, reward_seconds

    place, sizes = plan.placement, parameters(run.model.to_hf())
    steps, gpu_hours = hours(run, plan)
    return {
        "experiment": name,
        "hardware": asdict(hardware),
        "parameters": {"total": sizes.total, "active": sizes.active},
        "gpus": place.devices,
        "roles": {"generator": place.generators, "trainer": place.trainers},
        "engines": place.engines,
        "verifiers": place.verifiers,
        "layout": {**asdict(place.trainer.layout), "data": _data(place)},
        "recompute": place.trainer.recompute,
        "memory_per_rank_gib": {"trainer": _gib(plan.trainer), "generator": _gib(plan.generator)},
        "seconds_per_step": plan.seconds["step"],
        "seconds": plan.seconds,
        "evaluation": asdict(plan.evaluation),
        "driver_cores": plan.driver,
        "decoding": asdict(plan.decoding),
        "flops_per_step": plan.flops,
        "steps": steps,
        "gpu_hours": gpu_hours,
        "cost": run.budget.cost(gpu_hours),
        "fine_tuning": _fine_tuning(run, hardware, assumed),
        "prompts": {name: asdict(one) | {"epochs": one.epochs} for name, one in draws(run, steps).items()},
        "reward_seconds_per_step": reward_seconds(run),
        "fits": not plan.problems,
        "problems": list(plan.problems),
        "notes": notes(run, plan, hardware, assumed),
        "proposal": None if proposal is None else proposal.placement.settings(hardware.name),
        "assumptions": asdict(assumed),
    }


def _fine_tuning(run: Run, hardware: Device, assumed: Assumptions) -> dict[str, float] | None:
    """Steps of the fine-tuning on public traces, and the most that they cost; None if there is none."""
    from scalelab.plan.planner import fine_tuning_seconds

    if run.sft.public is None:
        return None
    seconds = fine_tuning_seconds(run, hardware, assumed)
    return {
        "steps": run.sft.steps,
        "ranks": run.sft.trainers,
        "most_seconds_per_step": seconds,
        "most_gpu_hours": run.sft.steps * seconds * run.sft.trainers / 3600,
    }


def _gib(memory: Any) -> dict[str, float]:
    return {**asdict(memory), "total": memory.total}


def _data(place: Placement) -> int:
    layout = place.trainer.layout
    return max(1, place.trainers // (layout.tensor * layout.pipeline * layout.context))


def _print(name: str, run: Run, plan: RunPlan, hardware: Device, assumed: Assumptions) -> None:
    from moe.model.size import parameters
    from scalelab.commands.output import paid, print_table
    from scalelab.plan.notes import notes
    from scalelab.plan.planner import hours
    from scalelab.plan.prompts import draws, reward_seconds, running_out

    place, sizes = plan.placement, parameters(run.model.to_hf())
    steps, gpu_hours = hours(run, plan)
    nodes = -(-place.trainers // hardware.per_node)
    rest = -(-place.generators // hardware.per_node)
    engines, shared = counted(place.engines, "engine"), ", which the trainer shares" if place.shared else ""
    print(f"{name} on {place.devices} × {hardware.name}")
    rows = [
        ("parameters", f"{_count(sizes.total)} in all, {_count(sizes.active)} active"),
        ("trainer", f"{counted(place.trainers, 'rank')} on {counted(nodes, 'node')}: {_layout(place)}"),
        ("generators", f"{engines} on {counted(place.generators, 'device')}, {counted(rest, 'node')}" + shared),
        ("decoding", f"{plan.decoding.sequences:.0f} sequences an engine, {_speed(plan)}"),
        ("step", _seconds(run, plan)),
        ("budget", _budget(run, steps, gpu_hours)),
    ]
    if tuned := _fine_tuning(run, hardware, assumed):
        spent = quantity(tuned["most_gpu_hours"], run.compute_unit)
        cost = f"at most {tuned['most_seconds_per_step']:.1f} s a step, {spent}"
        price = paid(run.budget.cost(tuned["most_gpu_hours"]))
        on = f"{counted(run.sft.steps, 'step')} on {counted(run.sft.trainers, 'rank')}"
        rows.append(("fine-tuning", f"{on}; {cost}{price}"))
    graded = reward_seconds(run)
    rewards = f"; {graded:.3g} s of processor time a step for rewards" if graded else ""
    rows.append(("verifiers", f"{place.verifiers}{rewards}"))
    one = plan.evaluation
    rows.append(
        (
            "evaluation",
            f"{one.completions:,} completions, {one.seconds:,.0f} s of {one.engines} of {engines}, "
            f"{quantity(one.device_hours, run.compute_unit)}",
        )
    )
    rows.append(("driver", f"busy with {plan.driver:.2g} of one core"))
    print_table(rows)
    print(f"\nGiB on a device, of {hardware.memory_gib:.0f}")
    kinds = list(dict.fromkeys(f.name for m in (plan.trainer, plan.generator) for f in fields(m)))
    header = ["", *(kind.replace("_", " ") for kind in kinds), "total"]
    table = []
    for role, memory in (("trainer", plan.trainer), ("generator", plan.generator)):
        found = asdict(memory)
        table.append([role, *(f"{found[k]:.2f}" if k in found else "" for k in kinds), f"{memory.total:.2f}"])
    print_table(table, header)
    shown = ", ".join(f"{k.replace('_', '-')} {v:g}" for k, v in asdict(assumed).items())
    print(f"\nassumed: {shown}")
    for line in (
        *running_out(run, draws(run, steps)),
        *notes(run, plan, hardware, assumed),
        *(f"does not run: {problem}" for problem in plan.problems),
    ):
        print(f"\n{line}")


def _count(number: int) -> str:
    return f"{number / 1e9:.2f}B" if number >= 1e9 else f"{number / 1e6:.2f}M"


def _layout(place: Placement) -> str:
    sizes = {**asdict(place.trainer.layout), "data": _data(place)}
    cut = ", ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1)
    return f"{cut or 'whole'}; recompute {place.trainer.recompute}"


def _speed(plan: RunPlan) -> str:
    engine = plan.decoding
    prefill = (
        f"{engine.prefill / engine.seconds:.1%} of it for prompts{' and preempted sequences' * (engine.again > 0)}"
    )
    speed = f"{engine.tokens_per_second:,.0f} tokens/s"
    return f"{engine.seconds * 1e3:.1f} ms a token ({engine.bound}-bound, {prefill}), {speed}"


def _seconds(run: Run, plan: RunPlan) -> str:
    s = plan.seconds
    parts = (
        f"train {s['train']:.1f}, generate {s['generate']:.1f}, verify {s['verify']:.2g}, publish {s['publish']:.2f}, "
        f"checkpoints {s['checkpoint']:.2g}, at least {s['hold']:.1f}; {s['evaluations']:.1f} for evaluations"
    )
    work = run.recipe.completions_per_step
    return f"{s['step']:.1f} s of {work} completions ({parts}); {plan.flops:.2e} FLOP to train"


def _budget(run: Run, steps: int, gpu_hours: float) -> str:
    """Steps and device-hours to the end, and which limit that is where the run has two."""
    from scalelab.commands.output import paid

    limit = (
        "" if run.budget.hours is None else f", as Budget.{'steps' if steps == run.budget.steps else 'hours'} ends it"
    )
    return f"{counted(steps, 'step')}, {quantity(gpu_hours, run.compute_unit)}{paid(run.budget.cost(gpu_hours))}{limit}"


def _proposal(proposal: RunPlan | None, hardware: Device) -> str:
    if proposal is None:
        return "\nnothing fits on these devices: take more of them, or larger ones"
    seconds, total = proposal.seconds["step"], proposal.trainer.total
    said = f"fits, with {total:.0f} GiB on a trainer rank and {seconds:.1f} s a step"
    return f"\n{said}:\n  {proposal.placement.options(hardware.name)}"
