"""The run's own metrics (`metrics.jsonl`) as small charts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.curves.reading import read_json_lines
from scalelab.report.svg import PALETTE, Chart, Line, draw


@dataclass(frozen=True)
class Panel:
    """One small chart.

    Attributes:
        title: what it shows.
        lines: (regular expression of flattened metric names, label); an empty label is made of the expression's groups.
        log_y: logarithmic y-axis, where all values are positive.
    """

    title: str
    lines: tuple[tuple[str, str], ...]
    log_y: bool = False


PANELS = (
    Panel("Loss", ((r"loss", ""),)),
    Panel("Gradient norm", ((r"grad_norm", ""),)),
    Panel("Entropy (nats)", ((r"entropy", ""),)),
    Panel("Importance ratio", ((r"ratio_min", "min"), (r"ratio_mean", "mean"), (r"ratio_max", "max")), log_y=True),
    Panel("Clipped share of tokens", ((r"ratio_clipped", ""),)),
    Panel(
        "Generator–trainer log-prob gap (nats)",
        ((r"gap_mean", "mean"), (r"gap_max", "max"), (r"same_version_gap_mean", "same version"), (r"kl", "KL")),
        log_y=True,
    ),
    Panel("Staleness (steps)", ((r"staleness\.mean", "mean"), (r"staleness\.max", "max"))),
    Panel("Pass rate while training", ((r"tasks\.(.+)\.pass_rate", ""),)),
    Panel("Truncated share", ((r"tasks\.(.+)\.truncated", ""), (r"truncated", "all"))),
    Panel("Interrupted share", ((r"tasks\.(.+)\.interrupted", ""), (r"interrupted", "all"))),
    Panel("Completion length (tokens)", ((r"tasks\.(.+)\.mean_length", ""), (r"mean_length", "all"))),
    Panel("Unusual outcomes", ((r"tasks\.(.+)\.outcomes\.(timeout|memory|error)", ""),)),
    Panel("Prompts per step", ((r"prompts", "drawn"), (r"prompts_in_loss", "in the loss"))),
    Panel("Prompts filtered, by reason", ((r"filtered\.(.+)", ""),)),
    Panel("Tokens per step", ((r"tokens", "all"), (r"tokens_in_loss", "in the loss"))),
    Panel("Work outstanding", ((r"outstanding\.(.+)", ""),)),
    Panel("Generator lag (steps)", ((r"generator_lag", ""),)),
    Panel("Prompts drawn, by task", ((r"sampler\.drawn/(.+)", ""),)),
    Panel("Prompts retired, by task", ((r"sampler\.retired/(.+)", ""),)),
    Panel("Prompts skipped, by task", ((r"sampler\.skipped/(.+)", ""),)),
    Panel("Seconds by phase", ((r"seconds\.(.+)", ""), (r"trainer_seconds", "trainer"))),
    Panel("Generators idle, in all (seconds)", ((r"generator_idle_seconds", ""),)),
    Panel("Compute by role (hours)", ((r"compute_by_role\.(.+)", ""),)),
    Panel("Router balance", ((r"router[._]?(.*)", ""),)),
)
"""Charts in order of appearance; a metric that no panel names gets one of its own at the end."""

HELD_OUT = (
    ("Truncated share", "truncated"),
    ("Interrupted share", "interrupted"),
    ("Mean completion length (tokens)", "mean_length"),
    ("Timeouts", "outcomes.timeout"),
    ("Out of memory", "outcomes.memory"),
    ("Verifier errors", "outcomes.error"),
)
"""What an evaluation tells beside the pass rate."""

NOISY = 60
"""Longer series than this are drawn faintly, with a moving mean over them."""

SKIP = re.compile(r"step|version|time|wall.*|compute|.*\.completions|.*outcomes\.(passed|failed)|staleness\.\d+")


Columns = dict[str, list[tuple[float, float]]]
"""Metric name → (x, value)."""


def metric_charts(path: Path, palette: Mapping[str, str]) -> tuple[list[tuple[str, str]], list[str]]:
    """(title, svg) of every metric in a run's `metrics.jsonl` against its step, and titles of what stayed at zero."""
    rows, _ = read_json_lines(path)
    columns: Columns = {}
    for number, row in enumerate(rows, 1):
        for name, value in flatten(row.values).items():
            columns.setdefault(name, []).append((float(row.values.get("step", number)), value))
    charts, used, still = [], set(), []
    for panel in PANELS:
        lines = _match(panel, columns)
        used |= {name for name, _ in lines}
        if any(value for name, _ in lines for _, value in columns[name]):
            charts.append((panel.title, _chart(panel, [(label, columns[name]) for name, label in lines], palette)))
        elif lines:
            still.append(panel.title)
    for name in columns:
        if name not in used and not SKIP.fullmatch(name) and any(value for _, value in columns[name]):
            charts.append((name, _chart(Panel(name, ()), [(name, columns[name])], palette)))
    return charts, still


def held_out_charts(path: Path, palette: Mapping[str, str]) -> tuple[list[tuple[str, str]], list[str]]:
    """(title, svg) of what `evals.jsonl` holds beside the pass rate, and titles of what stayed at zero."""
    rows, _ = read_json_lines(path)
    charts, still = [], []
    for title, key in HELD_OUT:
        lines: Columns = {}
        for row in rows:
            value = flatten(row.values).get(key)
            if value is not None and "step" in row.values:
                lines.setdefault(str(row.values.get("task", "")), []).append((float(row.values["step"]), value))
        if any(value for points in lines.values() for _, value in points):
            charts.append((title, _chart(Panel(title, ()), list(lines.items()), palette)))
        elif lines:
            still.append(title)
    return charts, still


def flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of a nested record under dotted names; a staleness histogram also gives its mean and maximum."""
    flat: dict[str, float] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, int | float):
            flat[name] = float(value)
        elif isinstance(value, Mapping):
            flat |= flatten(value, name + ".")
            if key == "staleness" and value:
                weights = {int(steps): float(count) for steps, count in value.items()}
                flat[f"{name}.mean"] = sum(s * c for s, c in weights.items()) / max(sum(weights.values()), 1.0)
                flat[f"{name}.max"] = float(max(weights))
    return flat


def smooth(values: Sequence[float], reach: int) -> list[float]:
    """Centred moving mean over `reach` neighbours on either side, fewer at the ends."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(at - reach, 0), np.minimum(at + reach + 1, len(values))
    return ((total[high] - total[low]) / (high - low)).tolist()


def _match(panel: Panel, columns: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(metric name, label) of the metrics that belong in a panel."""
    lines = []
    for pattern, label in panel.lines:
        for name in columns:
            found = re.fullmatch(pattern, name)
            if found:
                lines.append((name, label or " ".join(found.groups()) or name))
    return lines


def _chart(panel: Panel, lines: Sequence[tuple[str, Sequence[tuple[float, float]]]], palette: Mapping[str, str]) -> str:
    free = [color for color in PALETTE if color not in palette.values()]
    others = PALETTE if not any(label in palette for label, _ in lines) else free
    series: list[Line] = []
    for index, (label, points) in enumerate(lines):
        color = palette.get(label, others[index % len(others)])
        x, y = [step for step, _ in points], [value for _, value in points]
        name = label.replace("_", " ") if len(lines) > 1 else ""
        if len(points) > NOISY:
            series.append(Line(x, y, color, width=1.0, opacity=0.28))
            y = smooth(y, len(points) // 25)
        series.append(Line(x, y, color, name, width=1.7))
    positive = all(value > 0 for _, points in lines for _, value in points)
    return draw(Chart(series, x_label="step", log_y=panel.log_y and positive, width=320, height=190))
