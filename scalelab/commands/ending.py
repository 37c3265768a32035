"""Closing sentences about a run, one per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalelab.curves import Analysis, Curve


def closing_lines(
    curves: Sequence[Curve], analyses: Sequence[Analysis], refused: Sequence[Mapping[str, str]]
) -> list[str]:
    """Sum up the curves of a run.

    Args:
        curves: the run's curves, one per task.
        analyses: their fits, as far as there are any.
        refused: reasons of the others, as `analyse_all` gives them.

    Returns:
        A sentence per task: where it stands, where its curve leads, and what twice the compute would add.
    """
    reasons = {item["task"]: item["reason"].partition(": ")[2] for item in refused}
    by_task = {item.fit.curve.task: item for item in analyses}
    lines = []
    for curve in curves:
        task, last = curve.task or "pass rate", float(curve.pass_rate_N[-1])
        task += " (mean reward)" if curve.measure == "mean reward" else ""
        if curve.task in by_task:
            lines.append(f"{task}: {_outlook(by_task[curve.task])}")
        else:
            begun = float(curve.pass_rate_N[0])
            why = f": {reasons[curve.task]}" if reasons.get(curve.task) else ""
            lines.append(f"{task}: {begun:.3f} at the start, {last:.3f} at the end; no curve{why}.")
    return lines


def _outlook(analysis: Analysis) -> str:
    from scalelab.curves import extend_or_stop

    gain = extend_or_stop(analysis)
    now = f"{analysis.rates()[0].value:.3f}"  # what is added is added to the curve: an evaluation scatters about it
    if analysis.falls:
        return f"{now} at the end by its curve; it {analysis.fall_text()}; twice the compute would {gain.text}."
    low, high = analysis.intervals["A"]
    way = f"on the way to {analysis.params['A']:.3f} ({low:.3f} to {high:.3f})"
    if not analysis.stands:  # other shapes than the sigmoid go beyond its A
        far = analysis.rates()[-1]
        low, high = far.interval
        way = f"{far.times:g} times the compute would bring {far.value:.3f} ({low:.3f} to {high:.3f})"
    if gain.reading.startswith("stop") and abs(gain.gain_if_doubled) < gain.worthwhile:
        return f"has levelled off at {now}; twice the compute would {gain.text}."
    return f"{now} at the end by its curve, {way}; twice the compute would {gain.text}."
