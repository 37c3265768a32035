"""Figures of a simulated run's steady state, and the best split of the devices between the two roles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Any

from scalelab.errors import LabError
from scalelab.plan.driver import driver_cores
from scalelab.plan.lengths import Lengths
from scalelab.plan.rates import Rates
from scalelab.run.books import Ledger
from scalelab.virtual.drawn_evaluations import EvaluationLoad
from scalelab.virtual.simulation import Shape, Simulation, Totals, drawn

# A search ends when it knows the number of trainer units to one part in this many.
RESOLUTION = 64
# A large cluster is searched in small, with as many times fewer devices and groups, down to these.
LEAST_GROUPS, LEAST_UNITS = 48, 64


@dataclass(frozen=True)
class SimulationSettings:
    """All settings of a simulation but the split."""

    schedule: Any
    """`PipelineRL`, `PPOOffPolicy` or `Synchronous`."""
    rates: Rates
    lengths: Lengths
    shape: Shape
    """With any numbers of generators and trainers."""
    devices_per_generator: int = 1
    devices_per_trainer: int = 1
    seed: int = 0
    evaluations: EvaluationLoad | None = None
    """None leaves them out."""
    driver_seconds: float = 0.0
    """Seconds of the driver for a completion, one after the other."""

    @property
    def period(self) -> int:
        """Steps after which a schedule's pattern repeats."""
        return max(1, getattr(self.schedule, "k", 1))

    def devices(self, shape: Shape) -> int:
        """Devices that a split occupies."""
        return round(self.ledger(shape).generators + self.ledger(shape).trainers)

    def ledger(self, shape: Shape) -> Ledger:
        """Empty books of device-hours for a split."""
        return Ledger(shape.generators * self.devices_per_generator, shape.trainers * self.devices_per_trainer)


@dataclass(frozen=True)
class Figures:
    """The steady state of one simulated run."""

    generators: int
    trainers: int
    devices: int
    steps: int
    """Steps looked at."""
    seconds_per_step: float
    device_hours_per_step: float
    tokens_per_second: float
    """Completion tokens trained on."""
    completions_per_hour: float
    generators_idle: float
    """Share of the engines' time without a sequence."""
    occupancy: float
    """Mean share of the engines' places that hold a sequence."""
    trainer_idle: float
    """Share of the trainer's time without a step or an export."""
    staleness: dict[int, float]
    """Share of the completions trained on, by trainer version − version of their first token."""
    handled_per_second: float = 0.0
    """Completions that the driver handles, held-out ones too."""
    evaluations: int = 0
    """Evaluations that ended."""
    periods: int = 0
    """Whole periods from one evaluation that was due to another in the steps looked at."""
    settled: bool = True
    """False if the steps looked at are the run's first, as too few were simulated to leave these out."""
    evaluation_seconds: float | None = None
    """Mean time that one took; None if none ended."""

    @property
    def driver(self) -> float:
        """Cores that the driver is busy with."""
        return driver_cores(self.handled_per_second)

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of the completions trained on, in versions."""
        return sum(late * share for late, share in self.staleness.items())


def simulate(
    setting: SimulationSettings, generators: int, trainers: int, *, steps: int = 10**9, hours: float | None = None
) -> Figures:
    """Run one split to a number of steps or hours, and look at what comes after the pipeline has filled.

    Raises:
        LabError: no step ends in that time.
    """
    shape = replace(setting.shape, generators=generators, trainers=trainers)
    schedule = setting.schedule.start(shape.groups_per_step, steps)
    draws = drawn(setting.lengths, shape, setting.seed)
    parts = setting.ledger(shape), setting.evaluations, setting.driver_seconds
    simulation = Simulation(schedule, shape, setting.rates, draws, *parts)
    if not simulation.run(hours):
        raise LabError(f"no optimiser step ends within {hours:g} hours: simulate more of them")
    return _figures(setting, shape, simulation)


def _window(setting: SimulationSettings, history: list[Totals], due: list[int]) -> tuple[Totals, Totals, int]:
    """Totals at two steps at the same place of a round, the beginning left out, and the periods of evaluations.

    Where it can be, evaluations were due after both steps; else there is no whole period between them.
    """
    late = [step for step in due if 4 * step >= len(history)]
    alike = [step for step in late if not (step - late[0]) % setting.period]
    if len(alike) > 1:
        return history[alike[0] - 1], history[alike[-1] - 1], late.index(alike[-1])
    rounds = len(history) // setting.period
    if rounds > 1:
        return history[max(1, rounds // 4) * setting.period - 1], history[rounds * setting.period - 1], 0
    return Totals(), history[-1], 0


def _figures(setting: SimulationSettings, shape: Shape, simulation: Simulation) -> Figures:
    begin, end, periods = _window(setting, simulation.history, simulation.due)
    did = end.since(begin)
    completions = did.staleness.total()
    devices = setting.devices(shape)
    return Figures(
        generators=shape.generators,
        trainers=shape.trainers,
        devices=devices,
        steps=did.steps,
        seconds_per_step=did.wall / did.steps,
        device_hours_per_step=devices * did.wall / did.steps / 3600,
        tokens_per_second=did.tokens / did.wall,
        completions_per_hour=3600 * did.completions / did.wall,
        generators_idle=did.generators_idle / (shape.generators * did.wall),
        occupancy=did.running / (shape.generators * shape.slots * did.wall),
        trainer_idle=did.trainer_idle / did.wall,
        staleness={late: count / completions for late, count in sorted(did.staleness.items()) if count},
        handled_per_second=did.finished / did.wall,
        evaluations=len(simulation.evaluated),
        periods=periods,
        settled=begin.steps > 0,
        evaluation_seconds=fmean(simulation.evaluated) if simulation.evaluated else None,
    )


def best_split(
    setting: SimulationSettings, plain: Figures, search_steps: int, *, steps: int = 10**9, hours: float | None = None
) -> Figures:
    """The split of a cluster with the most steps an hour, by climbing from the split that it has.

    Args:
        setting: what is simulated.
        plain: figures of the split that it has, over `steps` or `hours`; what no whole generator fits into stays empty.
        search_steps: length of each simulated run of the search.
        steps: length of the run at the split that was found.
        hours: the same in hours of wall time.

    Returns:
        Figures of the split that was found, or `plain` if that is no faster over the same time.
    """
    devices, unit = plain.devices, max(setting.devices_per_generator, setting.devices_per_trainer)
    groups = setting.shape.groups_per_step
    thin = max(1, min(groups // LEAST_GROUPS, devices // (LEAST_UNITS * unit)))
    rates = replace(setting.rates, host_seconds=setting.rates.host_seconds * thin)  # verifiers are not divided
    load = setting.evaluations
    if load is not None:  # several in a short run, at the same place of a round
        every = max(1, search_steps // 4 // setting.period) * setting.period
        load = load.thinned(thin, plain.device_hours_per_step, every)
    small = replace(
        setting,
        rates=rates,
        shape=replace(setting.shape, groups_per_step=groups // thin),
        evaluations=load,
        driver_seconds=setting.driver_seconds * thin,
    )
    most = (devices // thin - setting.devices_per_generator) // setting.devices_per_trainer

    @cache
    def speed(trainers: int) -> float:
        rest = devices // thin - trainers * setting.devices_per_trainer
        return -simulate(small, rest // setting.devices_per_generator, trainers, steps=search_steps).seconds_per_step

    trainers = thin * climb(speed, min(max(1, plain.trainers // thin), most), 1, most)
    generators = (devices - trainers * setting.devices_per_trainer) // setting.devices_per_generator
    if (generators, trainers) == (plain.generators, plain.trainers):
        return plain
    found = simulate(setting, generators, trainers, steps=steps, hours=hours)
    return min(plain, found, key=lambda figures: figures.seconds_per_step)


def climb(speed: Callable[[int], float], start: int, low: int, high: int) -> int:
    """The integer at which a function with one maximum is largest, to one part in `RESOLUTION` of itself."""
    best, stride = start, max(1, start // 2)
    while True:
        near = [x for x in (best - stride, best + stride) if low <= x <= high]
        better = max(near, key=speed, default=best)
        if speed(better) > speed(best):
            best = better
        elif stride <= max(1, best // RESOLUTION):
            return best
        else:
            stride = max(1, stride // 2)
