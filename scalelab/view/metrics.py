"""The step metrics of a run as small charts: which metrics belong together, thinned without losing their spikes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalelab.view.files import number

Points = list[tuple[float, float]]

MOST_POINTS = 600
"""Points of a line; longer ones keep the lowest and the highest value of each stretch."""

MOST_PANELS = 80
"""Charts of a run; metrics beyond it are named and not drawn."""


@dataclass(frozen=True)
class Panel:
    """One small chart.

    Attributes:
        title: what it shows.
        lines: (regular expression of flattened metric names, label); an empty label is made of the expression's groups.
        log: logarithmic y-axis, where all values are positive.
    """

    title: str
    lines: tuple[tuple[str, str], ...]
    log: bool = False


PANELS = (
    Panel("Pass rate while training", ((r"tasks\.(.+)\.pass_rate", ""),)),
    Panel("Staleness (steps)", ((r"staleness\.mean", "mean"), (r"staleness\.max", "max"))),
    Panel("Entropy (nats)", ((r"entropy", ""),)),
    Panel(
        "Generator–trainer log-prob gap (nats)",
        ((r"gap_mean", "mean"), (r"gap_max", "max"), (r"same_version_gap_mean", "same version"), (r"kl", "KL")),
        log=True,
    ),
    Panel("Importance ratio", ((r"ratio_min", "min"), (r"ratio_mean", "mean"), (r"ratio_max", "max")), log=True),
    Panel("Clipped share of tokens", ((r"ratio_clipped", ""),)),
    Panel("Effective sample, share of tokens", ((r"effective_sample", ""),)),
    Panel("Gradient norm", ((r"grad_norm", ""),)),
    Panel("Loss", ((r"loss", ""),)),
    Panel("Completion length (tokens)", ((r"tasks\.(.+)\.mean_length", ""), (r"mean_length", "all"))),
    Panel("Truncated share", ((r"tasks\.(.+)\.truncated", ""), (r"truncated", "all"))),
    Panel("Interrupted share", ((r"tasks\.(.+)\.interrupted", ""), (r"interrupted", "all"))),
    Panel("Unusual outcomes", ((r"tasks\.(.+)\.outcomes\.(timeout|memory|error)", ""),)),
    Panel("Prompts per step", ((r"prompts", "drawn"), (r"prompts_in_loss", "in the loss"))),
    Panel("Prompts filtered, by reason", ((r"filtered\.(.+)", ""),)),
    Panel("Tokens per step", ((r"tokens", "all"), (r"tokens_in_loss", "in the loss"))),
    Panel("Seconds by phase", ((r"seconds\.(.+)", ""), (r"trainer_seconds", "trainer"))),
    Panel("Generators idle, in all (seconds)", ((r"generator_idle_seconds", ""),)),
    Panel("Generators paused by new weights, in all (seconds)", ((r"update_seconds", ""),)),
    Panel("Weights sent, in all (bytes)", ((r"update_bytes", "to engines"), (r"fetched_bytes", "between machines"))),
    Panel("Tokens computed again for lack of KV cache, in all", ((r"recomputed_tokens", ""),)),
    Panel("Trainer, TFLOP/s a rank", ((r"trainer_tflops", ""),)),
    Panel("Trainer, share of the peak (MFU)", ((r"mfu", ""),)),
    Panel("Trainer, most memory of a rank (GiB)", ((r"trainer_peak_gib", ""),)),
    Panel("Generator lag (steps)", ((r"generator_lag", ""),)),
    Panel("Work outstanding", ((r"outstanding\.(.+)", ""),)),
    Panel("Compute by role (hours)", ((r"compute_by_role\.(.+)", ""),)),
    Panel("Router balance", ((r"router[._]?(.*)", ""),)),
    Panel("Prompts drawn, by task", ((r"sampler\.drawn/(.+)", ""),)),
    Panel("Prompts retired, by task", ((r"sampler\.retired/(.+)", ""),)),
    Panel("Prompts skipped, by task", ((r"sampler\.skipped/(.+)", ""),)),
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
"""Charts of an evaluation's figures beside the pass rate."""

SKIP = re.compile(
    r"step|version|time|wall.*|compute|flops|completions|.*\.completions|.*outcomes\.(passed|failed)|staleness\.\d+"
)


def metric_panels(records: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The charts of a run's `metrics.jsonl`, and the titles of what stayed at zero or was left out.

    Returns:
        `{"title", "log", "lines": [{"label", "x", "y"}], "names": of the metrics}` against the step.
    """
    columns: dict[str, Points] = {}
    for index, record in enumerate(records, 1):
        step = number(record.get("step"))
        for name, value in flatten(record).items():
            columns.setdefault(name, []).append((float(index) if step is None else step, value))
    panels, still, used = [], [], set[str]()
    for panel in PANELS:
        lines = _match(panel, columns)
        used |= {name for name, _ in lines}
        if any(value for name, _ in lines for _, value in columns[name]):
            chart = _chart(panel.title, panel.log, [(label, columns[name]) for name, label in lines])
            panels.append(chart | {"names": [name for name, _ in lines]})
        elif lines:
            still.append(panel.title)
    for name, points in columns.items():
        if name not in used and not SKIP.fullmatch(name) and any(value for _, value in points):
            if len(panels) >= MOST_PANELS:
                still.append(f"{name} (not drawn)")
            else:
                panels.append(_chart(name, False, [(name, points)]) | {"names": [name]})
    return panels, still[:MOST_PANELS]


def held_out_panels(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The charts of what `evals.jsonl` holds beside the pass rate, against the step."""
    panels = []
    for title, key in (*HELD_OUT, *_metrics(records)):
        lines: dict[str, Points] = {}
        for record in records:
            value, step = flatten(record).get(key), number(record.get("step"))
            if value is not None and step is not None:
                lines.setdefault(str(record.get("task", "")), []).append((step, value))
        if any(value for points in lines.values() for _, value in points):
            panels.append(_chart(title, False, list(lines.items())))
    return panels


def _metrics(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Title and dotted name of the metrics of an evaluation that no other chart shows."""
    found: dict[str, None] = {}
    for record in records:
        metrics = record.get("metrics")
        found |= dict.fromkeys(map(str, metrics) if isinstance(metrics, Mapping) else ())
    shown = [name for name in found if name not in ("truncated", "length")][:MOST_PANELS]
    return [("Share passed" if name == "passed" else name, f"metrics.{name}.value") for name in shown]


def flatten(record: Mapping[str, Any], prefix: str = "", depth: int = 4) -> dict[str, float]:
    """Finite numbers of a nested record under dotted names; a staleness histogram also gives its mean and maximum."""
    flat: dict[str, float] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, bool):
            flat[name] = float(value)
        elif (found := number(value)) is not None:
            flat[name] = found
        elif isinstance(value, Mapping) and depth:
            flat |= flatten(value, name + ".", depth - 1)
            if key == "staleness" and (counts := staleness(value)):
                total = sum(counts.values())
                flat[f"{name}.mean"] = sum(steps * count for steps, count in counts.items()) / max(total, 1.0)
                flat[f"{name}.max"] = float(max(counts))
    return flat


def staleness(histogram: Mapping[str, Any]) -> dict[int, float]:
    """Completions by staleness, of a line's histogram; keys that are no whole numbers are left out."""
    return {
        int(steps): count
        for steps, value in histogram.items()
        if steps.isdecimal() and len(steps) < 7 and (count := number(value)) is not None
    }


def thin(points: Sequence[tuple[float, float]]) -> Points:
    """At most about `MOST_POINTS` points: of each stretch the lowest and the highest value, so that spikes stay."""
    if len(points) <= MOST_POINTS:
        return list(points)
    stretch = -(-2 * len(points) // MOST_POINTS)
    kept: Points = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def _match(panel: Panel, columns: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(metric name, label) of the metrics that belong in a panel."""
    lines = []
    for pattern, label in panel.lines:
        for name in columns:
            found = re.fullmatch(pattern, name)
            if found:
                lines.append((name, label or " ".join(found.groups()) or name))
    return lines


def _chart(title: str, log: bool, lines: Sequence[tuple[str, Points]]) -> dict[str, Any]:
    positive = all(value > 0 for _, points in lines for _, value in points)
    drawn = []
    for label, points in lines:
        kept = thin(points)
        drawn.append(
            {
                "label": label.replace("_", " "),
                "x": [step for step, _ in kept],
                "y": [float(f"{value:.6g}") for _, value in kept],
            }
        )
    return {"title": title, "log": log and positive, "lines": drawn}
