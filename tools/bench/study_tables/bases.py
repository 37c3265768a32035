"""Base models as a random effect: do differences between recipes hold for base models of other seeds?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import ttest_1samp

from scalelab.defaults import LEVEL
from study_tables.ends import ends
from study_tables.questions import NAMES
from study_tables.runs import BASELINE, CENTRES, MANY, OTHER_BASES, StudyRuns, table

CHANGES = (*NAMES, "without_length_control")
"""Changes to ScaleRL that ran from every base model."""


def over_bases(value_B: Sequence[float]) -> str:
    """The mean over base models with its interval, by Student's t: mean ± t₀.₉(B − 1) s / √B.

    Args:
        value_B: one value of each base model.
    """
    low, high = ttest_1samp(value_B, 0.0).confidence_interval(LEVEL)
    return f"{np.mean(value_B):+.3f} [{low:+.3f}, {high:+.3f}]"


def bases_table(runs: StudyRuns) -> str:
    """Ends of ScaleRL from each base model, what each change ends above it, and the mean over base models."""
    beginnings, rows = (MANY, *OTHER_BASES), []
    for task in runs.tasks():
        own = {one: runs.curve(CENTRES[one], task) for one in beginnings}
        end = {one: float(np.mean(ends(item))) for one, item in own.items() if item is not None}
        starts = [f"{value:.3f} ({runs.seeds(CENTRES[one])})" for one, value in end.items()]
        rows.append([task, BASELINE, *starts, f"{np.mean(list(end.values())):.3f}"])
        for change in CHANGES:
            found = {one: runs.curve(one + change, task) for one in beginnings}
            less = {one: float(np.mean(ends(item))) - end[one] for one, item in found.items() if item is not None}
            cells = [f"{less[one]:+.3f} ({runs.seeds(one + change)})" if one in less else "–" for one in beginnings]
            rows.append([task, f"`{change}`", *cells, over_bases(list(less.values())) if len(less) > 2 else "–"])
    return table(["task", "recipe", "base 0", "base 1", "base 2", "for other bases"], rows)
