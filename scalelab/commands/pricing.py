"""Price finished runs under another cluster: their steps, at what a step costs there on the simulated clock."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from scalelab.curves import Curve
from scalelab.defaults import SIGMA
from scalelab.errors import LabError, nearest
from scalelab.guarded import LONGEST_TEXT, read_whole
from scalelab.hardware import DEVICES
from scalelab.numbers import compact

STEPS = 24
"""Steps that are simulated: enough for the pipeline to fill and for a few rounds after that."""


@dataclass(frozen=True)
class StepPrice:
    """Cost of a step of one run on another cluster.

    Attributes:
        unit: the unit of `hours`.
        hours: device-hours of a step.
        seconds: time of a step.
    """

    unit: str
    hours: float
    seconds: float

    @property
    def steps_per_hour(self) -> float:
        """Steps in an hour of the clock."""
        return 3600 / self.seconds


def parse_price(text: str) -> tuple[str, dict[str, float]]:
    """The device, and rates that were measured, from `h100` or from a JSON file of them.

    The file has "device" and fields of `Rates` in seconds, such as `{"device": "h100", "train_token_seconds": 2e-5}`.

    Raises:
        LabError: neither a device nor such a file.
    """
    from scalelab.run.settings import Rates

    if text.lower() in DEVICES:
        return text.lower(), {}
    path = Path(text)
    if not path.is_file():
        raise LabError(f"--price {text}: no file, and no device; {nearest(text.lower(), DEVICES)}")
    try:
        found = json.loads(read_whole(path, LONGEST_TEXT))
        device, names = found.pop("device"), [field.name for field in fields(Rates)]
        rates = {name: float(value) for name, value in found.items() if name in names}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise LabError(f'{path}: write it as {{"device": "h100", "train_token_seconds": 2e-5}}') from None
    if device not in DEVICES or len(rates) < len(found):
        odd = [name for name in found if name not in rates] or [str(device)]
        raise LabError(f"{path}: no rate and no device {odd[0]!r}; there are {', '.join((*names, *DEVICES))}")
    return device, rates


def step_price(curves: Sequence[Curve], device: str, rates: dict[str, float]) -> StepPrice:
    """Cost of a step of a run on another cluster, by the real schedule on a simulated clock.

    Model, schedule, batch and split of the devices are those of its `config.gin`. Lengths are log-normal with the mean
    of the run's held-out completions; prompts have what is left of the tokens that it counted.

    Args:
        curves: the run's curves, one for each task, with their counts of completions and tokens.
        device: a name in `DEVICES`.
        rates: fields of `Rates` that were measured, in seconds.

    Raises:
        LabError: it is no run folder with a configuration, or counts nothing.
    """
    from scalelab.experiment import resolve
    from scalelab.plan.lengths import LogNormal
    from scalelab.virtual.simulation_figures import simulate
    from scalelab.virtual.simulation_settings import build

    curve = curves[0]
    config = Path(curve.source) / "config.gin"
    if not config.is_file():
        raise LabError(f"{curve.source}: --price needs the configuration of a run folder, and there is no config.gin")
    counts = {name: curve.other_N.get(name) for name in ("completions", "tokens", "mean_length")}
    if any(values_N is None or not np.isfinite(values_N).any() for values_N in counts.values()):
        raise LabError(
            f"{curve.source}: --price needs completions, tokens and lengths, which its evaluations do not count"
        )
    run = resolve(str(config)).run
    mean = float(np.mean([np.nanmean(item.other_N["mean_length"]) for item in curves if "mean_length" in item.other_N]))
    whole = float(np.nanmax(curve.other_N["tokens"]) / max(np.nanmax(curve.other_N["completions"]), 1))
    most = run.recipe.max_tokens
    lengths = LogNormal(min(mean * math.exp(-(SIGMA**2) / 2), most - 1), SIGMA, most)
    setting = build(run, lengths, device=device, overrides=rates, prompt_tokens=max(whole - mean, 1.0), kept=1.0)
    found = simulate(setting, setting.shape.generators, setting.shape.trainers, steps=STEPS)
    return StepPrice(f"{device.upper()}-hours", found.device_hours_per_step, found.seconds_per_step)


def priced(curve: Curve, price: StepPrice) -> Curve:
    """The curve over what its steps cost elsewhere.

    Raises:
        LabError: its evaluations do not say their step.
    """
    step_N = curve.other_N.get("step")
    if step_N is None or not np.isfinite(step_N).all():
        raise LabError(f"{curve.source}: --price needs the step of every evaluation")
    note = f"priced: {price.hours:.4g} {price.unit} a step, {_pace(price.steps_per_hour)} steps an hour, simulated"
    return replace(
        curve,
        compute_N=step_N * price.hours,
        unit=price.unit,
        clock="virtual",
        fit_window=(None, None),
        epoch_end=None,
        notes=(*curve.notes, note),
    )


def _pace(steps: float) -> str:
    return f"{steps:,.0f}" if steps >= 100 else f"{steps:.3g}"


def _as_run(item: Curve) -> str:
    """Steps of a run for each hour that it spent, or what a step spent where that is no time."""
    spent, steps = float(item.compute_N.max()), float(np.nanmax(item.other_N["step"]))
    if not (spent > 0 and steps > 0):
        return "–"
    if item.unit.endswith("-hours"):
        return f"{_pace(steps / spent)} a {item.unit.removesuffix('s')}"
    return f"{compact(spent / steps)} {item.unit} each"


class Pricing:
    """Prices of runs under one cluster, each simulated once.

    Args:
        text: what `--price` says.
    """

    def __init__(self, text: str) -> None:
        self._device, self._rates = parse_price(text)
        self._prices: dict[str, StepPrice] = {}
        self._own: list[Curve] = []

    def __call__(self, curves: list[Curve]) -> list[Curve]:
        """The curves of one run folder over what its steps cost there."""
        price = self._prices[curves[0].source] = step_price(curves, self._device, self._rates)
        self._own += curves
        return [priced(item, price) for item in curves]

    def rows(self) -> list[list[str]]:
        """Learning for each step beside steps for each hour, the two things that a curve over compute mixes.

        Returns:
            Run, task, pass rate at the largest step that all have; steps for a unit of the compute that was spent;
            steps of an hour, and device-hours of a step, on the other cluster.
        """
        common = min(float(np.nanmax(item.other_N["step"])) for item in self._own)
        rows = []
        for item in self._own:
            price, step_N = self._prices[item.source], item.other_N["step"]
            rate, pace = f"{float(np.interp(common, step_N, item.pass_rate_N)):.3f}", _as_run(item)
            rows.append([item.run, item.task or "–", rate, pace, _pace(price.steps_per_hour), f"{price.hours:.4g}"])
        return rows

    def header(self) -> list[str]:
        """Names of the columns of `rows`."""
        common = min(float(np.nanmax(item.other_N["step"])) for item in self._own)
        unit = next(iter(self._prices.values())).unit
        return ["run", "task", f"after {common:,.0f} steps", "steps, as run", "steps an hour there", f"{unit} a step"]
