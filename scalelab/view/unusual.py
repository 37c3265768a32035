"""Unusual events of a run: falls of a pass rate, alarms, faults and restarts, lines that cannot be read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.curves.stability import episodes
from scalelab.numbers import counted, quantity
from scalelab.view.files import number
from scalelab.view.metrics import flatten

MOST_OF_A_KIND = 8
"""Falls of one run that are listed; the largest first."""


def falls(points: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Falls of a pass rate that make its recipe unstable (`scalelab.curves.stability`), and whether it recovered.

    Args:
        points: one entry of `run_points`.

    Returns:
        `{"task", "begins", "step", "from", "to", "z", "at", "back", "back_at", "unit"}`, in order of size. `begins` is
        the step of the first evaluation beyond chance, `step` that of the lowest one, None where no steps are known;
        `at` and `back_at` are places on the axis of `unit`: steps, or else compute.
    """
    y = np.asarray(points["y"], float)
    stderr = np.array([value or 0.0 for value in points["stderr"]])
    steps, compute = points["x"].get("step"), points["x"].get("compute")
    axis = steps or compute or list(range(len(y)))
    unit = "step" if steps else str(points.get("unit") or "compute") if compute else "evaluation"
    found = [
        {
            "task": points["task"],
            "begins": steps[one.first] if steps else None,
            "step": steps[one.lowest] if steps else None,
            "from": float(y[one.best]),
            "to": float(y[one.lowest]),
            "z": one.depth / one.stderr if one.stderr else None,
            "at": axis[one.lowest],
            "back": one.back is not None,
            "back_at": None if one.back is None else axis[one.back],
            "unit": unit,
        }
        for one in episodes(y, stderr if stderr.any() else None)
    ]
    return sorted(found, key=lambda fall: fall["to"] - fall["from"])[:MOST_OF_A_KIND]


FORETOLD_Z = 4.0
"""Spreads by which a step metric was off before a fall, to be named with it."""

LOOK_BACK, USUAL = 10, 50
"""Steps before a fall that are looked at, and steps before those that say what is usual."""

SIGNS = ("entropy", "grad_norm", "loss", "gap_mean", "gap_max", "kl", "ratio_max", "ratio_clipped", "staleness.mean")
"""Step metrics that tend to move before a pass rate falls, beside the truncated share of every task.

Staleness is taken alone, not times the learning rate: over so few steps that hardly changes.
"""


TRUNCATED = re.compile(r"tasks\..+\.truncated")


def foretold(metrics: Sequence[Mapping[str, Any]], step: float | None) -> list[dict[str, Any]]:
    """Step metrics that were off before a fall, the most unusual first.

    A metric is off if its mean over the last `LOOK_BACK` steps up to the fall differs from the median of the `USUAL`
    steps before those by `FORETOLD_Z` spreads: 1.4826 times the median absolute deviation, which is a normal's
    standard deviation.

    Args:
        metrics: lines of `metrics.jsonl`.
        step: of the fall.

    Returns:
        `{"name", "value", "usual", "z"}`, three at most.
    """
    if step is None:
        return []
    before = [line for line in metrics if (at := number(line.get("step"))) is not None and at <= step]
    lines = [flatten(line) for line in before[-LOOK_BACK - USUAL :]]
    near, usual = lines[-LOOK_BACK:], lines[:-LOOK_BACK]
    truncated = dict.fromkeys(name for line in lines for name in line if TRUNCATED.fullmatch(name))
    found: list[dict[str, Any]] = []
    for name in (*SIGNS, *truncated):
        late, early = ([line[name] for line in part if name in line] for part in (near, usual))
        if len(late) < 3 or len(early) < LOOK_BACK:
            continue
        middle = float(np.median(early))
        spread = max(1.4826 * float(np.median(np.abs(np.array(early) - middle))), 0.01 * abs(middle), 1e-9)
        z = (float(np.mean(late)) - middle) / spread
        if abs(z) >= FORETOLD_Z:
            found.append({"name": name, "value": float(np.mean(late)), "usual": middle, "z": z})
    return sorted(found, key=lambda one: -abs(one["z"]))[:3]


def describe_fall(fall: Mapping[str, Any]) -> str:
    """A fall in words."""
    ending = f"; back{_place(fall['back_at'], fall['unit'])}" if fall["back"] else "; not back since"
    task = f"{fall['task']}: " if fall["task"] else ""
    size = "" if fall["z"] is None else f" ({fall['z']:.0f} standard errors)"
    where = _place(fall["at"], fall["unit"])
    return f"{task}pass rate fell from {fall['from']:.2f} to {fall['to']:.2f}{where}{size}{ending}"


def _place(at: float | None, unit: str) -> str:
    """Place of something on its axis, in words; empty where that is unknown."""
    if at is None:
        return ""
    return f" at {unit} {at:,.6g}" if unit in ("step", "evaluation", "compute") else f" at {quantity(at, unit)}"


def _owners(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Prefix of every entry of the points: its run and its seed, where there are several of them."""
    runs = {str(one.get("run") or "") for one in points}
    seeds = {run: {one.get("seed") for one in points if str(one.get("run") or "") == run} for run in runs}
    found = []
    for one in points:
        run, seed = str(one.get("run") or ""), one.get("seed")
        parts = [run] * (len(runs) > 1) + [f"seed {seed}"] * (len(seeds[run]) > 1)
        found.append(f"{', '.join(parts)}: " if parts else "")
    return found


def unusual(
    points: Sequence[Mapping[str, Any]],
    alarms: Sequence[Mapping[str, Any]],
    faults: Sequence[Mapping[str, Any]],
    problems: Sequence[str],
    status: str,
    metrics: Sequence[Mapping[str, Any]] = (),
    reason: str = "",
) -> list[dict[str, Any]]:
    """Unusual events of one run, the worst first.

    Args:
        points: its tasks' points.
        alarms: lines of `alarms.jsonl`.
        faults: lines of `faults.jsonl`.
        problems: what could not be read.
        status: of the run.
        metrics: lines of `metrics.jsonl`.
        reason: why the run failed, if it said so.

    Returns:
        `{"kind", "level": "bad" | "warn", "step", "task", "text"}`; falls have `foretold`, too.
    """
    found = [_entry("problem", "bad", None, "", text) for text in problems]
    if status == "failed":
        found.append(_entry("status", "bad", None, "", f"the run failed{reason and f': {reason}'}"))
    if status == "gone":
        text = "the run's process is not there any more: scalelab run with --resume goes on with it"
        found.append(_entry("status", "bad", None, "", text))
    if status == "silent":
        found.append(_entry("status", "bad", None, "", "the run says it is running, and wrote nothing for ten minutes"))
    for one, owner in zip(points, _owners(points)):
        for fall in falls(one):
            level = "warn" if fall["back"] else "bad"
            entry = _entry("fall", level, fall["step"], one["task"], owner + describe_fall(fall))
            found.append(entry | {"foretold": foretold(metrics, fall["begins"])})
        errors = [index for index, count in enumerate(one.get("errors", [])) if count]
        if errors:
            total = sum(one["errors"][index] for index in errors)
            text = f"{owner}{one['task']}: the verifier failed on {total:,.0f} completions of {len(errors)} evaluations"
            found.append(_entry("verifier", "warn", None, one["task"], text))
    found += _alarms(alarms)
    lost = Counter(str(fault.get("role") or "something") for fault in faults if fault.get("event") == "lost")
    for role, count in lost.items():
        found.append(_entry("restart", "warn", None, "", f"a {role} was lost {counted(count, 'time')}"))
    return found


def _alarms(alarms: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """List alarms by name: the newest line of each, and the number of its lines."""
    said: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for alarm in alarms:
        said.setdefault((str(alarm.get("name", "")), str(alarm.get("subject", ""))), []).append(alarm)
    found = []
    for lines in said.values():
        raised = [line for line in lines if line.get("level") != "over"]
        if not raised:
            continue
        last, over = raised[-1], lines[-1].get("level") == "over"
        times = f" ({len(raised)} times)" if len(raised) > 1 else ""
        text = str(last.get("message", "alarm")) + times + ("; over since" if over else "")
        level = "bad" if last.get("level") == "alarm" and not over else "warn"
        found.append(_entry("alarm", level, number(last.get("step")), str(last.get("subject") or ""), text))
    return found


def _entry(kind: str, level: str, step: float | None, task: str, text: str) -> dict[str, Any]:
    return {"kind": kind, "level": level, "step": step, "task": task, "text": text}
