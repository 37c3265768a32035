"""`Reading`: what the columns of a log mean, in which unit, and how they become rates; saved for later logs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from scalelab.errors import LabError, nearest
from scalelab.guarded import LONGEST_TEXT, read_whole
from scalelab.reading.curve import MOST_COMPUTE

COLUMNS = (
    "compute", "pass_rate", "task", "run", "seed", "n", "n_prompts", "k", "stderr", "epoch", "step", "compute_unit",
)  # fmt: skip
"""Columns with a meaning; any other is ignored. `gpu_hours` and `core_hours` are `compute` with its unit."""

Repeats = Literal["refuse", "later", "mean"]

FORMAT = 1
"""Number that a saved mapping begins with."""


@dataclass(frozen=True)
class Reading:
    """Settings for reading logs as curves.

    Attributes:
        columns: our name of a column → the log's name for it; a star in that of the pass rate stands for the task.
        compute_scale: factor from the log's compute to the unit, such as hours per step.
        unit: unit of compute after scaling; None takes the log's word for it.
        rate_range: what the log calls a pass rate of 0 and one of 1, such as 0 and 100, or −1 and 1 for a reward.
        tasks: the tasks to keep; empty for all.
        metrics: metrics of a run folder to read as tasks beside those that the run shows so, such as "math pass@4".
        mean: weights of tasks whose weighted mean is a curve of its own; empty for none.
        hours_of: device in whose hours all compute is counted, such as `h100`; None leaves hours as they are.
        device_rates: speed of devices relative to `hours_of`, where measured; others go by the data sheets.
        repeats: which of several values at one compute counts where the log does not tell: none, which is an error,
            the later, or their mean.
        start: compute spent before RL began, which is taken off; None leaves compute as it is.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    compute_scale: float = 1.0
    unit: str | None = None
    rate_range: tuple[float, float] = (0.0, 1.0)
    tasks: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    mean: Mapping[str, float] = field(default_factory=dict)
    hours_of: str | None = None
    device_rates: Mapping[str, float] = field(default_factory=dict)
    repeats: Repeats = "refuse"
    start: float | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.columns) - set(COLUMNS))
        if unknown:
            raise LabError(f"--column {unknown[0]}=…: no such column; the columns are {', '.join(COLUMNS)}")
        if not 1 / MOST_COMPUTE <= self.compute_scale <= MOST_COMPUTE:
            raise LabError(f"a compute scale of {self.compute_scale:g} makes no sense: give a positive factor")
        low, high = self.rate_range
        if not (low < high and math.isfinite(low) and math.isfinite(high)):
            raise LabError(f"a rate range from {low:g} to {high:g} makes no sense: give the lower first")
        for what, weights in (("weight", self.mean), ("speed", self.device_rates)):
            for name, value in weights.items():
                if not (value > 0 and math.isfinite(value)):
                    raise LabError(f"a {what} of {value:g} for {name} makes no sense: give a positive number")
        if self.start is not None and not math.isfinite(self.start):
            raise LabError(f"compute that begins at {self.start:g} makes no sense: give a number")

    def save(self, path: Path) -> None:
        """Write the settings as JSON, for `--mapping`."""
        path.write_text(json.dumps({"scalelab_mapping": FORMAT, **asdict(self)}, indent=2) + "\n", encoding="utf-8")


_KINDS: Mapping[str, Any] = {
    "columns": (dict, str),
    "compute_scale": float,
    "unit": str,
    "rate_range": (tuple, float),
    "tasks": (tuple, str),
    "metrics": (tuple, str),
    "mean": (dict, float),
    "hours_of": str,
    "device_rates": (dict, float),
    "repeats": str,
    "start": float,
}
"""Field → the kind of its value, or of each value in it."""


def refuse_unknown_tasks(asked: Sequence[str], present: Iterable[str]) -> None:
    """Refuse a task that no source has.

    Raises:
        LabError: with the tasks that there are.
    """
    names = list(dict.fromkeys(present))
    missing = [task for task in asked if task not in names]
    if missing:
        raise LabError(f"no task {missing[0]!r} in the sources; there are: {', '.join(filter(None, names)) or 'none'}")


def load_reading(path: Path) -> Reading:
    """The settings that `Reading.save` wrote.

    Raises:
        LabError: no such file, not a mapping, a name or a value that it cannot have.
    """
    try:
        found = json.loads(read_whole(path, LONGEST_TEXT))
    except (ValueError, RecursionError):
        raise LabError(f"{path}: not JSON; `scalelab read LOG --save {path.name}` writes one") from None
    if not isinstance(found, dict) or found.pop("scalelab_mapping", None) != FORMAT:
        raise LabError(f"{path}: not a mapping; `scalelab read LOG --save {path.name}` writes one")
    names = [one.name for one in fields(Reading)]
    values: dict[str, Any] = {}
    for name, value in found.items():
        if name not in names:
            raise LabError(f"{path}: a mapping has no {name!r}: {nearest(name, names)}")
        if value is not None:
            values[name] = _of_kind(path, name, value)
    if values.get("repeats", "later") not in get_args(Repeats):
        raise LabError(f"{path}: repeats is one of {', '.join(get_args(Repeats))}")
    if len(values.get("rate_range", (0, 1))) != 2:
        raise LabError(f"{path}: rate_range has two numbers, what the log calls 0 and what it calls 1")
    return Reading(**values)


def _of_kind(path: Path, name: str, value: Any) -> Any:
    """A value of the kind that a field has."""
    kind = _KINDS[name]
    try:
        if not isinstance(kind, tuple):
            return _scalar(kind, value)
        outer, inner = kind
        if outer is dict and isinstance(value, dict):
            return {str(key): _scalar(inner, item) for key, item in value.items()}
        if outer is tuple and isinstance(value, list):
            return tuple(_scalar(inner, item) for item in value)
    except (TypeError, OverflowError):
        pass
    raise LabError(f"{path}: {name} cannot be {value!r:.60}")


def _scalar(kind: type, value: Any) -> Any:
    """A text or a number; anything else is a TypeError."""
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind is str and isinstance(value, str):
        return value
    raise TypeError(value)


def parse_mean(text: str) -> dict[str, float]:
    """Weights from `aime24=2,math500`; a task without a number weighs 1."""
    return _pairs(text, "--mean", 1.0)


def parse_hours(text: str) -> tuple[str, dict[str, float]]:
    """The device and the speeds of others from `h100,a100=0.4`."""
    first, _, rest = text.partition(",")
    return first.strip().lower(), {key.lower(): rate for key, rate in _pairs(rest, "--hours-of", None).items()}


def _pairs(text: str, option: str, otherwise: float | None) -> dict[str, float]:
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, number = part.rpartition("=") if "=" in part else (part, "", "")
        if equals and re.fullmatch(r"(\d+\.?\d*|\.\d+)(e-?\d+)?", number):
            found[name.strip()] = float(number)
        elif otherwise is not None and not equals:
            found[part] = otherwise
        else:
            raise LabError(f"{option} {text}: write NAME=NUMBER with commas between them")
    return found
