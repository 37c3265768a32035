"""Run the experiment's own schedule on a simulated clock, and search the best split of the devices.

Rates come from the performance model of `scalelab plan`, from what a run measured (--like), or from --rate.
Lengths are log-normal, or those that a run recorded. Evaluations begin with the first after training has begun; faults
are left out.

Examples:
  scalelab simulate scalerl_8b
  scalelab simulate scalerl_8b --gpus 10000 --set Recipe.prompts_per_step=6000 --hours 1 --no-search
  scalelab simulate scalerl_8b --set Run.schedule=@PPOOffPolicy()
  scalelab simulate quickstart --lengths runs/quickstart --rate host_seconds=0.002
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scalelab.commands.arguments import add_experiment, add_json
from scalelab.commands.output import paid, print_json, print_table
from scalelab.commands.plan import measured_of
from scalelab.defaults import SIGMA
from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.experiment.resolved import Resolved
from scalelab.hardware import DEVICES, device
from scalelab.numbers import counted, quantity
from scalelab.plan.check import evaluation_problem, usual
from scalelab.plan.driver import driver_warning
from scalelab.plan.lengths import Recorded, fitting_prompt, lengths_of
from scalelab.plan.placement import placement, resize, verifiers_on
from scalelab.plan.planner import plan_of
from scalelab.plan.prompts import draws, running_out
from scalelab.plan.speed import Assumptions
from scalelab.run.config import Run
from scalelab.terminal import plain_line
from scalelab.virtual.simulation_figures import Figures, SimulationSettings, best_split, simulate
from scalelab.virtual.simulation_settings import build, override

# Periods of the schedule that a run of the search lasts.
SEARCH_PERIODS = 6

# Length of the simulated run where it is not asked: a miniature's steps take less than a second, and are soon enough.
HOURS, STEPS = 24.0, 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_experiment(parser)
    parser.add_argument("--gpus", type=int, metavar="N", help="devices in all (default: the experiment's)")
    parser.add_argument("--trainers", type=int, metavar="N", help="devices of the trainer (default: its share)")
    length = f"length of the simulated run (default: {HOURS:g}, or {STEPS:,} steps if that is less)"
    parser.add_argument("--hours", type=float, help=length)
    where = "default: Cluster.hardware, or cpu where Cluster.device is"
    parser.add_argument("--hardware", choices=DEVICES, help=where)
    parser.add_argument(
        "--like", type=Path, metavar="RUN", help="speeds and lengths that this run measured, as scalelab plan --like"
    )
    parser.add_argument("--lengths", type=Path, metavar="RUN", help="draw from the lengths that this run recorded")
    parser.add_argument("--median", type=float, help="median of log-normal lengths (default: half of max_tokens)")
    parser.add_argument("--sigma", type=float, help=f"sigma of log-normal lengths (default: {SIGMA})")
    parser.add_argument("--prompt-tokens", type=float, help="mean prompt (default: 256, or what fits)")
    parser.add_argument("--kept", type=float, default=1.0, help="share of groups left in the loss (default: 1)")
    spread = "tokens of the busiest expert rank by its even share (default: 1)"
    parser.add_argument("--imbalance", type=float, default=1.0, metavar="X", help=spread)
    over = "a field of Rates, in seconds, over its estimate; may be repeated"
    parser.add_argument("--rate", action="append", default=[], metavar="NAME=SECONDS", help=over)
    parser.add_argument("--no-evaluations", action="store_true", help="leave evaluations out")
    parser.add_argument("--no-search", action="store_true", help="do not search the best split")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate the split asked for and the best split; 1 if the one asked for does not run."""
    _check(args)
    resolved = _on_devices(resolve(args.experiment, args.sets), args.gpus)
    speeds = None if args.like is None else measured_of(args.like)
    setting = _setting(args, resolved.run, None if speeds is None else speeds.assumed)
    shape = _split(args, resolved.run, setting)
    length: dict[str, Any] = {"hours": args.hours} if args.hours else {"hours": HOURS, "steps": STEPS}
    found = {"split": simulate(setting, shape.generators, shape.trainers, **length)}
    budget, each = resolved.run.budget, found["split"].device_hours_per_step
    steps = budget.steps_within(each)
    if not args.no_search:
        search = SEARCH_PERIODS * setting.period + 4
        found["best"] = best_split(setting, found["split"], search, **length)
    unfit = {name: _problems(args, resolved.run, setting, one) for name, one in found.items()}
    if args.json:
        figures = {
            name: asdict(one) | {"driver_cores": one.driver, "problems": unfit[name]} for name, one in found.items()
        }
        hours = steps * each
        setup = {**_json(setting), "verifiers": resolved.run.cluster.verifiers}
        cost = {"budget_steps": steps, "budget_hours": hours, "cost": budget.cost(hours)}
        print_json({"experiment": resolved.name, **setup, **cost, **figures})
        return 1 if unfit["split"] else 0
    if speeds is not None:
        print(plain_line(speeds.line(str(args.like))))
    lasts = f"{length['hours']:g} h" + (f", at most {STEPS:,} steps" if "steps" in length else "")
    print(f"{resolved.name}: {setting.schedule}, {lasts}; lengths {setting.lengths.describe()}\n")
    verifiers = ("verifiers", *(f"{resolved.run.cluster.verifiers}" for _ in found))
    print_table([*_rows(setting, found), verifiers], ("", *found))
    print(f"\nrates: {', '.join(f'{name}={value:.3g}' for name, value in _json(setting)['rates'].items())}")
    spent = f"{quantity(steps * each, resolved.run.compute_unit)}{paid(budget.cost(steps * each))}"
    print(f"\nbudget: {counted(steps, 'step')}, {spent}")
    warning = driver_warning(max(one.driver for one in found.values()))
    short = _too_short(resolved.run, setting, found["split"])
    for line in (*running_out(resolved.run, draws(resolved.run, steps)), *filter(None, [warning, short])):
        print(f"\n{line}")
    for name, problems in unfit.items():
        if problems:
            print(f"\n{name} does not run: {'; '.join(problems)}")
    return 1 if unfit["split"] else 0


def _problems(args: argparse.Namespace, run: Run, setting: SimulationSettings, figures: Figures) -> list[str]:
    """Reasons why a split does not run on GPUs, as `scalelab plan` gives them."""
    hardware = device(args.hardware or usual(run))
    if not hardware.gpu:
        return []
    roles = figures.trainers * setting.devices_per_trainer, figures.generators
    place = replace(placement(run), trainers=roles[0], engines=roles[1])
    plan = plan_of(run, place, hardware, Assumptions())
    beyond = None if args.no_evaluations else evaluation_problem(run, plan)
    return [*plan.problems, *filter(None, [beyond])]


def _on_devices(resolved: Resolved, devices: int | None) -> Resolved:
    """The experiment with verifiers in proportion to the devices asked for, which `_split` gives to the other roles."""
    if devices is None:
        return resolved
    cluster = replace(resolved.run.cluster, verifiers=verifiers_on(resolved.run, devices))
    return replace(resolved, run=replace(resolved.run, cluster=cluster))


def _too_short(run: Run, setting: SimulationSettings, figures: Figures) -> str | None:
    """Say that the simulated hours are a beginning, or have no whole period of evaluations; None where neither is."""
    if not figures.settled:
        hours = math.ceil(10 * 4 * setting.period * figures.seconds_per_step / 3600) / 10
        return (
            f"only the beginning was simulated, {counted(figures.steps, 'step')} in which the pipeline fills: --hours "
            f"{hours:g} has enough"
        )
    if setting.evaluations is None or figures.periods:
        return None
    period = run.evaluation.period(figures.device_hours_per_step)
    if period > run.budget.steps:
        return None
    hours = math.ceil(10 * 4 * period * figures.seconds_per_step / 3600) / 10
    return (
        "the steps looked at do not begin and end with evaluations that were due, so the figures have too many of them "
        f"or too few: --hours {hours:g} has several"
    )


def _check(args: argparse.Namespace) -> None:
    for name in ("gpus", "trainers", "hours", "median", "sigma", "prompt_tokens"):
        value = getattr(args, name)
        if value is not None and not 0 < value < math.inf:
            raise LabError(f"--{name.replace('_', '-')} {value:g}: give a number above 0")
    if not 0 < args.kept <= 1:
        raise LabError(f"--kept {args.kept:g}: give a share above 0 and up to 1")
    if not args.imbalance >= 1:
        raise LabError(f"--imbalance {args.imbalance:g} is less than an even share: give 1 or more")


def _setting(args: argparse.Namespace, run: Any, measured: Assumptions | None) -> SimulationSettings:
    if args.lengths:
        lengths: Any = Recorded.read(args.lengths)
    else:
        known = measured or Assumptions()
        lengths = lengths_of(run, known.sigma if args.sigma is None else args.sigma, known.median, median=args.median)
    prompt = fitting_prompt(run) if measured is None else fitting_prompt(run, measured.prompt)
    return build(
        run,
        lengths,
        device=args.hardware or usual(run),
        overrides=dict(override(text) for text in args.rate),
        prompt_tokens=prompt if args.prompt_tokens is None else args.prompt_tokens,
        kept=args.kept,
        imbalance=args.imbalance,
        evaluations=not args.no_evaluations,
        driver=True,
        measured=measured,
    )


def _split(args: argparse.Namespace, run: Run, setting: SimulationSettings) -> Any:
    """Generators and trainer units of the split asked for: the experiment's share of the devices, unless it is given.

    Raises:
        LabError: one of the two sides gets nothing.
    """
    shape = setting.shape
    devices = args.gpus or setting.devices(shape)
    for_trainer = args.trainers or resize(run, devices).trainers
    trainers = for_trainer // setting.devices_per_trainer
    generators = (devices - trainers * setting.devices_per_trainer) // setting.devices_per_generator
    if trainers < 1 or generators < 1:
        raise LabError(
            f"{devices} devices with {for_trainer} for the trainer: an engine takes {setting.devices_per_generator} "
            f"and a copy of the trainer {setting.devices_per_trainer}, give both at least that"
        )
    return replace(shape, generators=generators, trainers=trainers)


def _json(setting: SimulationSettings) -> dict[str, Any]:
    rates = {name: value for name, value in asdict(setting.rates).items() if value is not None}
    return {
        "schedule": str(setting.schedule),
        "lengths": setting.lengths.describe(),
        "devices_per_generator": setting.devices_per_generator,
        "devices_per_trainer": setting.devices_per_trainer,
        "rates": rates,
    }


def _rows(setting: SimulationSettings, found: dict[str, Figures]) -> list[tuple[str, ...]]:
    def row(name: str, text: Any) -> tuple[str, ...]:
        return (name, *(text(figures) for figures in found.values()))

    def split(f: Figures) -> str:
        generating, training = f.generators * setting.devices_per_generator, f.trainers * setting.devices_per_trainer
        return f"{generating} + {training}"

    def staleness(f: Figures) -> str:
        late = list(f.staleness)
        return f"{f.mean_staleness:.1f} ({late[0]} to {late[-1]})"

    def evaluated(f: Figures) -> str:
        return "0" if f.evaluation_seconds is None else f"{f.evaluations} ({f.evaluation_seconds:,.0f})"

    return [
        row("devices generating + training", split),
        row("engines, trainer copies", lambda f: f"{f.generators}, {f.trainers}"),
        row("steps looked at", lambda f: f"{f.steps}"),
        row("seconds a step", lambda f: f"{f.seconds_per_step:.4g}"),
        row("device-hours a step", lambda f: f"{f.device_hours_per_step:.4g}"),
        row("tokens/s", lambda f: f"{f.tokens_per_second:.4g}"),
        row("completions/h", lambda f: f"{f.completions_per_hour:.4g}"),
        row("generators idle", lambda f: f"{f.generators_idle:.1%}"),
        row("places filled", lambda f: f"{f.occupancy:.1%}"),
        row("trainer idle", lambda f: f"{f.trainer_idle:.1%}"),
        row("staleness, mean (range)", staleness),
        row("driver, of one core", lambda f: f"{f.driver:.2g}"),
        row("evaluations (seconds each)", evaluated),
    ]
