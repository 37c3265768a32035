"""Time line of a run: phases of the trainer, idle generators, evaluations, faults and alarms on one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.view.files import number

MOST_BLOCKS = 400
"""Stretches of the time line; in longer runs neighbouring steps are added up."""

Record = Mapping[str, Any]


def timeline(
    metrics: Sequence[Record],
    evals: Sequence[Record],
    faults: Sequence[Record],
    alarms: Sequence[Record],
    generators: int = 1,
) -> dict[str, Any] | None:
    """The time line of a run; None where its steps say no times.

    A line of `metrics.jsonl` is written when its step ends, and says how many seconds each phase took: the phases are
    laid out backwards from there.

    Args:
        metrics: lines of `metrics.jsonl`.
        evals: lines of `evals.jsonl`.
        faults: lines of `faults.jsonl`.
        alarms: lines of `alarms.jsonl`; they name a step, not a time.
        generators: how many generators share the idle seconds.

    Returns:
        `{"phases": [names], "blocks": [{"end", "steps", "seconds": [per phase], "idle"}], "evaluations": [[time,
        step]], "faults": [{"time", "until", "text"}], "alarms": [{"time", "text"}]}`, times in seconds. `idle` is the
        share of the block that generators stood idle.
        Zero is when the first step began.
    """
    lines = [line for line in metrics if number(line.get("time")) is not None]
    if not lines:
        return None
    zero = float(lines[0]["time"]) - sum(_seconds(lines[0]).values())
    phases = list(dict.fromkeys(name for line in lines for name in _seconds(line)))[:8]
    stretch = -(-len(lines) // MOST_BLOCKS)
    blocks, before = [], lines[0]
    for start in range(0, len(lines), stretch):
        part = lines[start : start + stretch]
        blocks.append(_block(part, before, phases, zero, generators))
        before = part[-1]
    step_time = {number(line.get("step")): float(line["time"]) - zero for line in lines}
    seen = dict.fromkeys(
        (float(line["time"]) - zero, number(line.get("step"))) for line in evals if number(line.get("time")) is not None
    )
    return {
        "phases": phases,
        "blocks": blocks,
        "evaluations": [list(pair) for pair in seen],
        "faults": _faults(faults, zero),
        "alarms": [
            {"time": at, "text": str(line.get("message", "alarm"))[:300]}
            for line in alarms
            if (at := step_time.get(number(line.get("step")))) is not None
        ],
    }


def _seconds(line: Record) -> dict[str, float]:
    """Seconds of each phase that a line names."""
    seconds = line.get("seconds")
    if not isinstance(seconds, Mapping):
        return {}
    return {str(name): value for name, found in seconds.items() if (value := number(found)) is not None and value >= 0}


def _block(
    part: Sequence[Record], before: Record, phases: Sequence[str], zero: float, generators: int
) -> dict[str, Any]:
    """Some neighbouring steps as one stretch of the time line."""
    times = [_seconds(line) for line in part]
    last, earlier = part[-1], before
    spent = float(last["time"]) - float(earlier["time"])
    idle = (number(last.get("generator_idle_seconds")) or 0.0) - (number(earlier.get("generator_idle_seconds")) or 0.0)
    # A generator that was replaced counts from zero again: nothing is known of that stretch.
    share = min(idle / spent / generators, 1.0) if spent > 0 and idle >= 0 else None
    return {
        "end": round(float(last["time"]) - zero, 3),
        "steps": [number(part[0].get("step")), number(last.get("step"))],
        "seconds": [round(sum(of.get(name, 0.0) for of in times), 4) for name in phases],
        "idle": None if share is None else round(share, 4),
    }


def _faults(records: Sequence[Record], zero: float) -> list[dict[str, Any]]:
    """Faults, each with its beginning and the time of its replacement."""
    faults: list[dict[str, Any]] = []
    for record in records:
        at = number(record.get("time"))
        if at is None:
            continue
        name = str(record.get("name") or record.get("role") or "something")[:80]
        if record.get("event") in ("unsent", "unreplayed"):  # nobody is replaced
            text = str(record.get("error", ""))[:300]
            faults.append({"name": name, "time": at - zero, "until": at - zero, "text": text})
            continue
        if record.get("event") == "recovered":
            for fault in reversed(faults):
                if fault["name"] == name and fault["until"] is None:
                    fault["until"] = at - zero
                    break
        elif not any(fault["name"] == name and fault["until"] is None for fault in faults):  # else it is the same fault
            text = f"{name} was lost: {str(record.get('error', ''))[:300]}"
            faults.append({"name": name, "time": at - zero, "until": None, "text": text})
    return faults
