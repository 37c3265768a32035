"""The law across the study's axes, tested on a place that was run last and not used."""

from __future__ import annotations

import numpy as np

from scalelab.curves import Analysis
from scalelab.curves.law import law_of, leave_one_out
from scalelab.numbers import with_interval
from study_tables.runs import BASELINE, StudyRuns, table

AXES = ("batch", "length", "generations", "share_math")
LINEAR = ("share_math",)
MEMBERS = ("batch_", "length_", "generations_", "tasks_")
HELD_BACK = "corner"


def law_section(runs: StudyRuns) -> str:
    """The effect of each axis, every place left out once, and the place that was held back."""
    text = []
    for task in runs.tasks():
        names = [BASELINE, *(name for name in runs.members() if name.startswith(MEMBERS))]
        items = [item for item in runs.of(names) if item.fit.curve.task == task]
        held = [item for item in runs.of([HELD_BACK]) if item.fit.curve.task == task]
        axes = [axis for axis in AXES if len({item.fit.curve.places.get(axis) for item in items}) > 1]
        if len(items) < 3 or not axes:
            text += [f"**{task}**: too few places yet.", ""]
            continue
        text += [f"**{task}**", "", *_task(items, held, axes), ""]
    return "\n".join(text)


def _task(items: list[Analysis], held: list[Analysis], axes: list[str]) -> list[str]:
    linear = [axis for axis in LINEAR if axis in axes]
    law = law_of(items, axes, linear=linear)
    end = min(item.fit.window[1] for item in [*items, *held])
    effects = [
        [axis, *(with_interval(*found[name]) for name in ("A", "B", "C_mid"))] for axis, found in law.slopes().items()
    ]
    left = leave_one_out(law, end)
    rows = [
        [
            one.name,
            with_interval(one.forecast.value, one.forecast.interval),
            f"{one.value:.3f}",
            "yes" if one.inside["value"] else "no",
        ]
        for one in left
    ]
    for item in held:
        forecast = law.forecast({axis: item.fit.curve.places[axis] for axis in axes}, end)
        came = float(np.median(item.draws().value([end])))
        inside = forecast.interval[0] <= came <= forecast.interval[1]
        shown = with_interval(forecast.value, forecast.interval)
        rows.append([f"**{item.fit.curve.run}, never used**", shown, f"{came:.3f}", "yes" if inside else "no"])
    return [
        table(("axis, doubled (a share: from 0 to 1)", "A, added", "B, factor", "C_mid, factor"), effects),
        "",
        table(("place left out", f"forecast at {end:.3g}, 80 %", "its own curve", "inside"), rows),
    ]
